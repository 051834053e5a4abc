"""How much of what can be learned did a count model learn? Judged on patients it never saw.

*Structure kept* = (L_model - L_marginals) / (L_reference - L_marginals), L = log-likelihood per event of held-out patients,
who are placed by their own events. *Completion* = nats per event gained over the marginals when half of a held-out
patient's events predict the other half: the sharper figure, since the first rises with the rank (PRIVACY 5).
Both are for the analyst's own simulation: they read data and are not covered by any budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.models.phenotypes.projection import Events
from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.sparse import SparseTensor

__all__ = [
    "CountModel",
    "code_completion",
    "completion",
    "halves",
    "log_likelihood",
    "marginal_model",
    "structure_kept",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CountModel:
    """Events of a patient are draws from a mixture of R products of codes.

    Parameters
    ----------
    factors
        (I_n, R) per feature mode; columns are scaled to sum 1.
    mixture
        (R,) how much of all events each explains; None: equal.
    smoothing
        Prior counts per phenotype when a patient is placed.

    Examples
    --------
    >>> m = CountModel([np.eye(2), np.eye(2)])
    >>> m.place(SparseTensor([[0, 1, 1]], [3.0], (1, 2, 2))).round(2).tolist()
    [[0.02, 0.98]]
    """

    factors: Sequence[Array]
    mixture: Array | None = None
    smoothing: float = 0.05

    @classmethod
    def of(cls, model: Any) -> CountModel:
        """A fitted :class:`~polyclinic.methods.dpem.method.DPEM` with its background, or any model's factors and weights."""
        found = model.result_
        match found.placing:
            case Events(stacked, prior):
                ends = np.cumsum([len(f) for f in found.factors])[:-1]
                return cls(np.split(stacked, ends), prior / prior.sum(), float(prior.sum()) / len(prior))
            case _:
                return cls([np.maximum(f, 0.0) for f in found.factors], np.maximum(found.weights, 1e-12))

    def stacked(self) -> Array:
        """(codes of all modes, R), every mode's columns on the simplex."""
        return np.concatenate([f / np.maximum(f.sum(0), 1e-300) for f in self.factors])

    def place(self, tensor: SparseTensor, *, steps: int = 50) -> Array:
        """(patients, R) shares of every phenotype in a patient's events."""
        rank = self.factors[0].shape[1]
        pi = np.full(rank, 1.0 / rank) if self.mixture is None else self.mixture / self.mixture.sum()
        prior = np.maximum(self.smoothing * rank * pi, 1e-9)
        return em_kernels.memberships(tensor, self.stacked(), prior, steps=steps)

    def log_probability(self, tensor: SparseTensor, shares: Array, *, chunk: int = 65_536) -> Array:
        """(nonzeros,) log probability of one event at every entry, given the patients' shares."""
        w, rows = self.stacked(), em_kernels.stacked_rows(tensor)
        who = np.repeat(tensor.rows, np.diff(tensor.indptr))
        out = np.empty(tensor.nnz)
        for lo in range(0, tensor.nnz, chunk):
            part = slice(lo, lo + chunk)
            p = shares[who[part]]
            for mode in rows[part].T:
                p = p * w[mode]
            out[part] = p.sum(1)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(out))


def marginal_model(train: SparseTensor, *, floor: float = 1e-3) -> CountModel:
    """What one knows without phenotypes: how often every code occurs among the training patients (exact, no noise)."""
    factors = []
    for codes, size in zip(train.codes, train.shape[1:]):
        m = np.bincount(codes, train.values, size)
        factors.append(((1 - floor) * m / max(m.sum(), 1e-300) + floor / size)[:, None])
    return CountModel(factors)


def log_likelihood(model: CountModel, tensor: SparseTensor) -> float:
    """Mean log-likelihood of an event, patients placed by the same events."""
    return float(tensor.values @ model.log_probability(tensor, model.place(tensor)) / tensor.values.sum())


def structure_kept(model: CountModel, reference: CountModel, marginals: CountModel, test: SparseTensor) -> float:
    """Share of the reference's gain over the marginals that the model keeps on held-out patients; 1 = all of it.

    NaN where the reference itself gains nothing (too few patients): then there is no structure to keep.
    """
    none, full = log_likelihood(marginals, test), log_likelihood(reference, test)
    return (log_likelihood(model, test) - none) / (full - none) if full > none else float("nan")


def halves(tensor: SparseTensor, rng: np.random.Generator) -> tuple[SparseTensor, SparseTensor]:
    """Every event goes to one of two tensors with equal chance; the second keeps patients that the first knows.

    Examples
    --------
    >>> a, b = halves(SparseTensor([[0, 0], [0, 1]], [4.0, 4.0], (1, 2)), np.random.default_rng(0))
    >>> float(a.values.sum() + b.values.sum())
    8.0
    """
    counts = np.rint(tensor.values).astype(np.int64)
    if not np.array_equal(counts, tensor.values):
        raise DataError("events can only be shared out where counts are whole numbers")
    first = rng.binomial(counts, 0.5)
    coords, known = tensor.coords, np.zeros(tensor.patients, bool)
    known[coords[first > 0, 0]] = True
    rest = np.where(known[coords[:, 0]], counts - first, 0)
    return tuple(  # type: ignore[return-value]
        SparseTensor(coords[v > 0], v[v > 0].astype(np.float64), tensor.shape, tensor.axes) for v in (first, rest)
    )


def completion(model: CountModel, marginals: CountModel, test: SparseTensor, rng: np.random.Generator) -> float:
    """Nats per event gained over the marginals when half of a patient's events predict the other half."""
    seen, hidden = halves(test, rng)
    gain = model.log_probability(hidden, model.place(seen)) - marginals.log_probability(
        hidden, np.ones((hidden.patients, 1))
    )
    return float(hidden.values @ gain / hidden.values.sum())


def code_completion(
    model: CountModel, marginals: CountModel, test: SparseTensor, seed: int, *, prior: float = 3.0
) -> float:
    """Nats per event gained over the marginals when half of a patient's CODES predict events of the other half.

    Every (patient, mode, code) draws a bit; seen are the cells whose codes all drew 0, hidden those whose codes all drew 1.
    Both probabilities are conditional on none of the codes that were shown, so nothing is gained by naming them again::

        log p(cell) = log sum_r a_r prod_n f_rn(c_n) - log sum_r a_r prod_n (1 - f_rn(shown))

    A patient's mixture is the one its seen events give, with ``prior`` events of the marginals added.

    Examples
    --------
    >>> t = SparseTensor([[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]], [1.0] * 8, (2, 4))
    >>> flat = marginal_model(t)
    >>> code_completion(flat, flat, t, 0)
    0.0
    """
    from scipy.sparse import csr_array

    rng = seeds(seed, "code halves")
    who = np.repeat(test.rows, np.diff(test.indptr))
    bits = [rng.random((test.patients, size)) < 0.5 for size in test.shape[1:]]
    drawn = np.array([b[who, c] for b, c in zip(bits, test.codes)])
    seen, hidden = ~drawn.any(0), drawn.all(0)
    if not hidden.any():
        return float("nan")
    shown = SparseTensor(test.coords[seen], test.values[seen], test.shape, test.axes)
    at, weight = who[hidden], test.values[hidden]
    codes = [c[hidden] for c in test.codes]
    visible = [
        (csr_array((np.ones(int(seen.sum())), (who[seen], c[seen])), shape=(test.patients, size)) > 0).astype(float)
        for c, size in zip(test.codes, test.shape[1:])
    ]

    def log_share(factors: Sequence[Array], mixture: Array) -> Array:
        above, below = mixture[at], mixture
        for f, c, v in zip(factors, codes, visible):
            above, below = above * f[c], below * np.maximum(1.0 - v @ f, 1e-12)
        out: Array = np.log(np.maximum(above.sum(1), 1e-300)) - np.log(np.maximum(below.sum(1), 1e-300))[at]
        return out

    plain = [f / f.sum(0) for f in marginals.factors]
    events = np.bincount(who[seen], test.values[seen], test.patients)
    share = events[:, None] * model.place(shown)
    mixture = np.column_stack([share, prior + events - share.sum(1)])
    factors = [np.column_stack([f / np.maximum(f.sum(0), 1e-300), m]) for f, m in zip(model.factors, plain)]
    gain = log_share(factors, mixture / mixture.sum(1, keepdims=True)) - log_share(plain, np.ones((test.patients, 1)))
    return float(weight @ gain / weight.sum())
