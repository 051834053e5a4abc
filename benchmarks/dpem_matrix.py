"""DPEM's rounds beside one private matrix of pairs of codes that has the whole budget (docs/benchmarks/private-em.md).

    python benchmarks/dpem_matrix.py repeat [--seeds 410 411 ...] [--epsilon .5 1 2 8]    records that repeat, benchmarks/topics.py
    python benchmarks/dpem_matrix.py planted [--seeds ...] [--epsilon ...]                5,000 patients, 15 phenotypes
    python benchmarks/dpem_matrix.py claims | diabetes [--seeds ...] [--epsilon ...]      open data, 80 % of at most 8,000 patients train

Patient level (one patient added or removed), delta 1e-6, masked sum: of n sites n - 1 add the noise. DPEM releases through the gate. The
matrix is a prototype: pooled sums and Gaussian noise of the same size. Recall and precision: likeness of matched
columns over the true number and over the columns shown. *Gain*: nats an event over the exact marginals when held-out patients
are placed by their own events; *codes*: the same for hidden codes; AUC of the outcome on held-out patients.

The model of the matrix: S = sum_r b_r c_r' + w m1 m2' + noise, b and c not negative, m the marginals. S_jk adds 1 / sqrt(cells of the
patient) for every patient with codes j and k in one cell, so a patient's entries have length 1 at most.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from dpem_real import loaded, some
from numpy.typing import NDArray
from topics import records, recovery

import polyclinic as pc
from polyclinic.methods.dpem.shrinkage import posterior_mean
from polyclinic.privacy.accounting import accountant
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors.kernels.em import GRID, UNIT
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.heldout import CountModel, code_completion, log_likelihood, marginal_model
from polyclinic_papers.prediction import predict, split

Array = NDArray[np.float64]
DELTA = 1e-6
LARGEST = 8_000  # patients of open data
# chosen on seeds 300 to 311 of records that repeat
MORE = 6  # columns beyond the singular values above the noise's edge: weak phenotypes are below it
CODE = 1.5  # a code that changes a column by less than so many standard deviations is none of it
NULLS = 3  # fits to noise alone: a phenotype is shown if its column is longer than every column of these
FLOOR, FLAT = 0.1, 0.02  # share of the marginals in a column that places patients, and of the flat law in the marginals
STARTS, FIRST, SWEEPS = 4, 60, 100


class Shown(NamedTuple):
    """Phenotypes above the noise, how much each explains (the background last), and the marginals."""

    factors: tuple[Array, ...]
    mixture: Array
    marginals: tuple[Array, ...]

    def placing(self) -> CountModel:
        """The model that places patients."""
        fine = [(1 - FLOOR) * f + FLOOR * m[:, None] for f, m in zip(self.factors, self.marginals)]
        return CountModel([np.column_stack([f, m]) for f, m in zip(fine, self.marginals)], self.mixture)


def pair_sums(tensor: SparseTensor) -> Array:
    """(J, K) sum over patients of vectors of integer length at most ``UNIT``: every cell of a patient counts the same.

    Examples
    --------
    >>> t = SparseTensor([[0, 0, 1], [0, 1, 1], [1, 0, 1]], [3.0, 1.0, 9.0], (2, 2, 2))
    >>> pair_sums(t).astype(int).tolist()
    [[0, 111876], [0, 46340]]
    """
    cells = np.diff(tensor.indptr).astype(np.int64)
    # Exact: squares of whole numbers below 2^32 keep their order in float64.
    entry = np.floor(np.sqrt(UNIT**2 // np.maximum(cells, 1)))
    first, second = tensor.codes
    shape = tensor.shape[1:]
    flat = np.asarray(first, np.int64) * shape[1] + second
    return np.bincount(flat, np.repeat(entry, cells), shape[0] * shape[1]).reshape(shape)


def _sweep(target: Array, left: Array, right: Array, free: int, threshold: float) -> None:
    """Every column of ``left`` by least squares, not negative, shrunk by ``threshold`` (in place); the last ones are fixed."""
    gram, cross = right.T @ right, target @ right
    for r in range(free):
        scale = max(gram[r, r], 1e-12)
        step = (cross[:, r] - left @ gram[:, r] - threshold * np.sqrt(gram[r, r])) / scale
        left[:, r] = np.maximum(left[:, r] + step, 0.0)


def _improved(
    target: Array, left: Array, right: Array, margins: tuple[Array, Array], sweeps: int, noise: float
) -> None:
    """Sweeps over both sides (in place), both sides of a column equally long; the last column is w m1 m2'."""
    free, (m1, m2) = left.shape[1] - 1, margins
    for _ in range(sweeps):
        _sweep(target, left, right, free, CODE * noise)
        _sweep(target.T, right, left, free, CODE * noise)
        lengths = (
            np.maximum(np.linalg.norm(left[:, :free], axis=0), 1e-12),
            np.maximum(np.linalg.norm(right[:, :free], axis=0), 1e-12),
        )
        even = np.sqrt(lengths[1] / lengths[0])
        left[:, :free] *= even
        right[:, :free] /= even
        rest = m1 @ target @ m2 - (m1 @ left[:, :free]) @ (right[:, :free].T @ m2)
        right[:, free] = max(float(rest / ((m1 @ m1) * (m2 @ m2))), 0.0) * m2


def _columns(
    target: Array,
    rank: int,
    margins: tuple[Array, Array],
    noise: float,
    rng: np.random.Generator,
    starts: int = STARTS,
) -> tuple[Array, Array]:
    """(J, R + 1), (K, R + 1): the best of random starts, the background last."""
    best: tuple[float, Array, Array] | None = None
    for _ in range(starts):
        sides = [np.column_stack([rng.gamma(0.5, 1.0, (len(m), rank)) * m[:, None], m]) for m in margins]
        for side in sides:
            side[:, :rank] *= np.sqrt(max(float(target.sum()), 1.0) / rank) / np.maximum(side[:, :rank].sum(0), 1e-12)
        _improved(target, sides[0], sides[1], margins, FIRST, noise)
        error = float(np.square(target - sides[0] @ sides[1].T).sum())
        if best is None or error < best[0]:
            best = (error, sides[0], sides[1])
    assert best is not None
    _improved(target, best[1], best[2], margins, SWEEPS, noise)
    return best[1], best[2]


def edge(variance: Array) -> float:
    """Largest singular value that noise of these variances alone has, on average at most (Bandeira and van Handel 2016).

    Examples
    --------
    >>> edge(np.full((9, 16), 4.0))
    14.0
    """
    return float(np.sqrt(variance.sum(1).max()) + np.sqrt(variance.sum(0).max()))


def found(pairs: Array, sd: float, patients: int, rng: np.random.Generator) -> Shown:
    """Phenotypes that stand above the noise of ``pairs``.

    The noise is the privacy noise and that of drawing patients, of variance w S_jk with w the mean entry of a patient. Rows
    and columns are divided so that it is the same everywhere.
    """
    total = max(float(pairs.sum()), 1.0)
    marginals = tuple(_marginal(pairs.sum(1 - n), total, sd * np.sqrt(pairs.shape[1 - n])) for n in (0, 1))
    even = sd / np.sqrt(patients)
    weights = [1.0 / np.sqrt(m + even) for m in marginals]
    variance = (sd**2 + patients * np.outer(*marginals)) * np.square(np.outer(*weights))
    target = pairs * np.outer(*weights)
    noise = float(np.sqrt(variance.mean()))
    rank = int((np.linalg.svd(target, compute_uv=False) > edge(variance)).sum()) + MORE
    margins = (marginals[0] * weights[0], marginals[1] * weights[1])
    sides = _columns(target, min(rank, *pairs.shape), margins, noise, rng)
    kept = np.flatnonzero(_lengths(sides) > _longest_of_noise(total, margins, variance, rng))
    columns = [s[:, kept] / w[:, None] for s, w in zip(sides, weights)]
    sums = [c.sum(0) for c in columns]
    mass = np.asarray(np.prod(sums, axis=0))
    mixture = np.append(mass, max(total - float(mass.sum()), 0.1 * total))
    return Shown(tuple(c / s for c, s in zip(columns, sums)), mixture / mixture.sum(), marginals)


def _lengths(sides: Sequence[Array]) -> Array:
    """(R,) of the products b_r c_r', the background left out."""
    return np.asarray(np.prod([np.linalg.norm(s[:, :-1], axis=0) for s in sides], axis=0))


def _longest_of_noise(total: float, margins: tuple[Array, Array], variance: Array, rng: np.random.Generator) -> float:
    """Length of the longest column that the same fit finds in the background and noise of these variances, drawn anew."""
    noise, background = np.sqrt(variance), total * np.outer(*margins)
    level, rank = float(np.sqrt(variance.mean())), min(MORE, *variance.shape)
    draws = [background + noise * rng.standard_normal(noise.shape) for _ in range(NULLS)]
    return max(float(_lengths(_columns(d, rank, margins, level, rng, starts=1)).max()) for d in draws)


def _marginal(sums: Array, total: float, sd: float) -> Array:
    """How often every code of a mode occurs, on the simplex."""
    flat = np.full(len(sums), 1.0 / len(sums))
    x = posterior_mean(sums, total * flat, sd) + 1e-12
    out: Array = (1 - FLAT) * x / x.sum() + FLAT * flat
    return out


def matrix(sites: Sequence[Site], epsilon: float, seed: int) -> Shown:
    """One fit of the prototype."""
    whole = SparseTensor.stack([s.counts() for s in sites])
    rng = np.random.default_rng([seed, round(10 * epsilon)])
    sd = accountant.calibrate(epsilon, DELTA)[0] * np.sqrt(len(sites) / max(len(sites) - 1, 1))
    pairs = pair_sums(whole) * GRID
    return found(pairs + sd * rng.standard_normal(pairs.shape), sd, whole.patients, rng)


def rounds(sites: Sequence[Site], epsilon: float, seed: int) -> pc.DPEM:
    """One fit of DPEM."""
    people = sum(s.patients for s in sites)
    privacy = pc.Privacy(epsilon=epsilon, delta=DELTA)
    return pc.DPEM(privacy=privacy, aggregation="masked", planning_size=people, seed=seed).fit(sites)


def simulated(name: str, seed: int, epsilons: Sequence[float]) -> Iterator[tuple[float, str, dict[str, float]]]:
    """Recall, precision and the number of columns shown."""
    net = records(seed) if name == "repeat" else pc.datasets.planted_counts(5_000, seed=seed, sites=3)
    assert net.truth is not None
    for epsilon in epsilons:
        fits = {"rounds": rounds(net, epsilon, seed).factors_, "matrix": matrix(net, epsilon, seed).factors}
        for way, factors in fits.items():
            shown = factors[0].shape[1]
            recall, precision = recovery(factors, net.truth) if shown else (0.0, 0.0)
            yield epsilon, way, {"recall": recall, "precision": precision, "shown": float(shown)}


def real(name: str, seed: int, epsilons: Sequence[float]) -> Iterator[tuple[float, str, dict[str, float]]]:
    """Held-out likelihood, hidden codes, AUC and the number of columns shown."""
    learn, judge = split(loaded(name), 0.8, seed)
    train, test = some(list(learn), LARGEST, seed), pooled(judge)
    everyone, held = pooled(train), test.counts()
    marginals = marginal_model(everyone.counts())
    for epsilon in epsilons:
        one, other = rounds(train, epsilon, seed), matrix(train, epsilon, seed)
        for way, model, shown in (
            ("rounds", CountModel.of(one), len(one.weights_)),
            ("matrix", other.placing(), other.factors[0].shape[1]),
        ):
            places = [model.place(s.counts()) for s in (everyone, test)]
            gain = log_likelihood(model, held) - log_likelihood(marginals, held)
            codes = code_completion(model, marginals, held, seed)
            auc = predict(places[0], everyone.labels, places[1], test.labels).auc
            yield epsilon, way, {"gain": gain, "codes": codes, "auc": auc, "shown": float(shown)}


def main() -> None:
    """Print every fit, then means with standard errors."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("data", choices=["repeat", "planted", "claims", "diabetes"])
    ask.add_argument("--seeds", type=int, nargs="*", default=list(range(420, 430)))
    ask.add_argument("--epsilon", type=float, nargs="*", default=[0.5, 1.0, 2.0, 8.0])
    given = ask.parse_args()
    rows: dict[tuple[float, str], list[dict[str, float]]] = {}
    way_of = simulated if given.data in ("repeat", "planted") else real
    for seed in given.seeds:
        for epsilon, way, row in way_of(given.data, seed, given.epsilon):
            rows.setdefault((epsilon, way), []).append(row)
            print(seed, epsilon, way, *(f"{k} {v:.4f}" for k, v in row.items()), flush=True)
    for (epsilon, way), values in sorted(rows.items()):
        means = {k: np.array([v[k] for v in values]) for k in values[0]}
        error = {k: float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else np.nan for k, x in means.items()}
        print("mean", epsilon, way, *(f"{k} {x.mean():.4f} ± {error[k]:.4f}" for k, x in means.items()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
