"""One pass over one hospital's patients: the work that CPSGD, LocalTF, DPFact and distributed SGD share.

Because it is ONE function, a federated method with one site is the central one, bit for bit. The order of patients
or entries in a pass follows the study's seed and the number of the pass, not the site's name, for the same reason.

``zeros="observed"``: patients in batches; their memberships by a few HALS sweeps, then one step on every feature
factor, all cells counted through R x R Grams (PERFORMANCE, RECIPES). ``zeros="missing"``: the papers' element-wise
stochastic gradient over nonzeros (DPFact eq. 13, 17), then the l2,1 prox (eq. 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.kernels import sgd
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
WARM: Final = 10  # passes in patient batches; later passes take the whole site: docs/benchmarks/constants.md
BATCHES: Final = 4  # docs/benchmarks/constants.md
LEAST: Final = 10  # patients in a batch: the step of fewer follows single patients (six at a site are one batch)
SWEEPS: Final = 3  # HALS sweeps on a batch's memberships: docs/benchmarks/constants.md
FLOOR: Final = 1e-4  # least Gram of a gradient step, in units of the batch's squared counts


@dataclass(frozen=True)
class Elastic:
    """The force that pulls local feature factors to the global ones (DPFact eq. 5).

    Parameters
    ----------
    anchors
        Global feature factors.
    strength
        gamma; in units of tr(Gram)/R where zeros are observed (RECIPES), as printed where they are missing.
    """

    anchors: tuple[Matrix, ...]
    strength: float


@dataclass(frozen=True)
class Passed:
    """After a pass: (I, R) patients, the feature factors, and the squared error met on the way (each batch or entry
    just before its step on the feature factors)."""

    patients: Matrix
    factors: list[Matrix]
    squared_error: float


def open_patients(patients: int, rank: int, *, zeros: Literal["observed", "missing"], modes: int, seed: int) -> Matrix:
    """The private start of the memberships: nothing yet (observed), or small random numbers (missing)."""
    if zeros == "observed":
        return np.zeros((patients, rank))
    small: Matrix = seeds(seed, "patients").random((patients, rank)) * (2.0 * rank ** (-1.0 / modes))
    return small


def open_factors(factors: Sequence[Matrix], *, zeros: Literal["observed", "missing"]) -> list[Matrix]:
    """The public start of the feature factors: unit columns as they are (observed), or entries of the size
    R^(-1/modes), so that the model starts near 1 at every entry (missing)."""
    if zeros == "observed":
        return [np.array(f) for f in factors]
    size = factors[0].shape[1] ** (-1.0 / (len(factors) + 1))
    return [f * (size * np.sqrt(len(f))) for f in factors]


def local_pass(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    *,
    number: int,
    seed: int,
    zeros: Literal["observed", "missing"] = "observed",
    nonnegative: bool = True,
    learning_rate: float = 1.0,
    sparsity: float = 0.0,
    elastic: Elastic | None = None,
    clip: float | None = None,
    variant: Literal["corrected", "paper"] = "corrected",
) -> Passed:
    """One pass over a site's data.

    Parameters
    ----------
    tensor
        The site's patients.
    patients
        (I, R) memberships so far.
    factors
        Feature factors so far (columns of length 1 where zeros are observed).
    number
        Number of this pass over this site, from 1; with ``seed`` it decides the random order.
    learning_rate
        Observed: step of the projected gradient in units of 1 / ||Gram||_2, used in the first ten passes without an
        elastic force. Missing: eta of eq. 13 and 17.
    sparsity
        l2,1 on the patients. Observed: kappa, mu = kappa sqrt(SSE / product of feature sizes), shrunk inside the
        solve. Missing: mu, prox after the pass with threshold eta mu (ERRATA E0.3), or mu for ``variant="paper"``.
    elastic
        Pull to global factors. Observed: one HALS sweep on (Gram + gamma I, MTTKRP + gamma B^).
    clip
        Missing only: bound on the data part of each row's gradient (E0.8b).

    Returns
    -------
    Passed
    """
    rng = seeds(seed, "pass", number)
    if zeros == "missing":
        return _missing(tensor, patients, factors, rng, nonnegative, learning_rate, sparsity, elastic, clip, variant)
    stored = len(tensor.rows)
    batches = max(1, min(BATCHES if number <= WARM else 1, stored // LEAST))
    order = rng.permutation(stored) if batches > 1 else np.arange(stored)
    a = np.zeros_like(patients)  # a patient without entries has no phenotype
    a[tensor.rows] = patients[tensor.rows]
    local = [np.array(f) for f in factors]
    gradient = number <= WARM and not (elastic is not None and elastic.strength)
    # A column must have learned something before it can be found absent: the penalty rises from pass 10 to 30.
    ramp = min(max(number - WARM, 0) / (2 * WARM), 1.0)
    error = 0.0
    for rows in np.array_split(order, batches):
        batch = np.sort(rows)
        ids = tensor.rows[batch]
        own, scale, sse = _batch(
            tensor,
            batch if batches > 1 else None,
            a[ids],
            local,
            nonnegative,
            learning_rate,
            sparsity * ramp,
            elastic,
            gradient,
        )
        a[ids] = own
        a *= scale
        error += sse
    return Passed(a, local, error)


def _batch(
    tensor: SparseTensor,
    rows: NDArray[np.int64] | None,
    own: Matrix,
    local: list[Matrix],
    nonnegative: bool,
    learning_rate: float,
    sparsity: float,
    elastic: Elastic | None,
    gradient: bool,
) -> tuple[Matrix, NDArray[np.float64], float]:
    """Memberships of a batch, then one step on every feature factor (``local`` is changed); how columns were scaled."""
    positions = np.arange(len(tensor.rows)) if rows is None else rows
    g, m = cp.gram([own, *local], 0), kernels.mttkrp(tensor, [own, *local], 0, rows=positions)
    norm = tensor.norm_squared() if rows is None else float(np.square(_values(tensor, rows)).sum())
    own = cp.hals(own, g, m, sweeps=SWEEPS - bool(sparsity), nonnegative=nonnegative)
    if sparsity:
        sse = cp.squared_error(norm, own, g, m)
        cells = float(np.prod([float(d) for d in tensor.shape[1:]]))
        own = cp.hals(own, g, m, nonnegative=nonnegative, l21=sparsity * float(np.sqrt(sse / cells)))
    sse = cp.squared_error(norm, own, g, m)
    scale = np.ones(own.shape[1])
    for n in range(1, tensor.ndim):
        current = [own * scale, *local]
        g, m = cp.gram(current, n), kernels.mttkrp(tensor, current, n, rows=positions)
        b = local[n - 1]
        if gradient:
            # A batch that the model hardly explains has a tiny Gram: without a floor its step would blow up all columns.
            step = learning_rate / max(float(np.linalg.norm(g, 2)), FLOOR * norm, 1e-300)
            b = b - step * (b @ g - m)
            b = np.maximum(b, 0.0) if nonnegative else b
        elif elastic is not None and elastic.strength:
            gamma = elastic.strength * float(np.trace(g)) / len(g)
            b = cp.hals(b, g + gamma * np.eye(len(g)), m + gamma * elastic.anchors[n - 1], nonnegative=nonnegative)
        else:
            b = cp.hals(b, g, m, nonnegative=nonnegative)
        length = np.linalg.norm(b, axis=0)
        alive = length > 0
        # A column that would vanish (nobody here has the phenotype) keeps its last direction; nobody's membership moves.
        local[n - 1] = np.where(alive, b / np.where(alive, length, 1.0), local[n - 1])
        scale = scale * np.where(alive, length, 0.0)
    return own, scale, sse


def _values(tensor: SparseTensor, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    lengths = tensor.indptr[rows + 1] - tensor.indptr[rows]
    ends = np.cumsum(lengths)
    at = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(tensor.indptr[rows] - (ends - lengths), lengths)
    return np.asarray(tensor.values[at])


def _missing(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    rng: np.random.Generator,
    nonnegative: bool,
    learning_rate: float,
    sparsity: float,
    elastic: Elastic | None,
    clip: float | None,
    variant: Literal["corrected", "paper"],
) -> Passed:
    (a, *local), error = sgd.sgd_epoch(
        tensor,
        [patients, *factors],
        learning_rate=learning_rate,
        rng=rng,
        nonnegative=nonnegative,
        clip=clip,
        anchors=None if elastic is None else elastic.anchors,
        elastic=0.0 if elastic is None else elastic.strength,
        variant=variant,
    )
    if sparsity:
        a = cp.shrink_columns(a, sparsity if variant == "paper" else learning_rate * sparsity)  # ERRATA E0.3
    return Passed(a, local, error)


def close_patients(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    *,
    zeros: Literal["observed", "missing"],
    nonnegative: bool = True,
    sparsity: float = 0.0,
) -> Matrix:
    """The final memberships: solved anew for the final factors, shrunk once more (observed); as trained (missing)."""
    if zeros == "missing":
        return patients
    a = cp.solve_memberships(tensor, factors, nonnegative=nonnegative)
    if not sparsity:
        return a
    g, m = cp.gram([a, *factors], 0), kernels.mttkrp(tensor, [a, *factors], 0)
    sse = cp.squared_error(tensor.norm_squared(), a, g, m)
    cells = float(np.prod([float(d) for d in tensor.shape[1:]]))
    return cp.hals(a, g, m, sweeps=10, nonnegative=nonnegative, l21=sparsity * float(np.sqrt(sse / cells)))
