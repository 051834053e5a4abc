"""Candidates for an audition: models of R phenotypes within a lifted model of Q > R, from public values alone.

With Omega the Hadamard product of B_m'B_m and A'A of the lifted model, a subset J of its columns explains
``e(J) = tr(Omega_JJ^-1 Omega_J. A'A Omega_.J)`` of it; other candidates are CP models of rank R of the lifted model itself, whose
least squares need only Q x R. The order by e is not to be trusted (its patients are free, and it speaks of the model, not of the
data): the hospitals' summed errors decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.protocol import seeds
from polyclinic.tensors import ordered

__all__ = ["candidates", "explains"]

Array = NDArray[np.float64]
SUBSETS: Final = 8  # kept of a beam
CANDIDATES: Final = 12  # in all; models take their places first
MODELS: Final = 6
RANDOM: Final = 24  # starts of a model at random; they cost no byte
ENUMERATE: Final = 5_000
ITERATIONS: Final = 100


def candidates(lifted: Sequence[Array], patients: Array, rank: int, seed: int) -> list[tuple[Array, ...]]:
    """At most 12 models of ``rank`` phenotypes: the best subsets of columns, and reduced models.

    Parameters
    ----------
    lifted
        Per mode (codes, Q), columns of length 1.
    patients
        (Q, Q) A'A of the loadings on them.
    """
    key = tuple((f.shape, np.ascontiguousarray(f).tobytes()) for f in (*lifted, patients))
    return [tuple(np.array(f) for f in model) for model in _candidates(key, rank, seed)]


@lru_cache(maxsize=4)
def _candidates(key: tuple[tuple[tuple[int, ...], bytes], ...], rank: int, seed: int) -> list[tuple[Array, ...]]:
    """Remembered by content: sites of one process, and the steps of one site, ask for the same."""
    *lifted, patients = (np.frombuffer(b).reshape(shape) for shape, b in key)
    wide = len(patients)
    omega, explained = _overlaps(lifted, patients)
    chosen = _subsets(omega, explained, rank)
    out: list[tuple[Array, ...]] = [tuple(f[:, list(j)] for f in lifted) for j in chosen]
    starts = [*out[:4]]
    for k in range(RANDOM):
        rng = seeds(seed, "reduce", k)
        mixed = [ordered.unit(ordered.product(f, rng.random((wide, rank))))[0] for f in lifted]
        starts.append(tuple(mixed))
    reduced = sorted((_reduce(lifted, patients, s) for s in starts), key=lambda x: x[0])
    errors: list[float] = []
    models: list[tuple[Array, ...]] = []
    for error, model in reduced:
        if len(errors) < MODELS and all(abs(error - e) > 1e-4 * abs(e) for e in errors):
            errors.append(error)
            models.append(model)
    return [*out[: CANDIDATES - len(models)], *models]


def explains(lifted: Sequence[Array], patients: Array, columns: Sequence[int]) -> tuple[float, float]:
    """Energy that some ``columns`` explain of the lifted model, and that all do."""
    omega, explained = _overlaps(lifted, patients)
    return _share(omega, explained, columns), _share(omega, explained, range(len(patients)))


def _overlaps(lifted: Sequence[Array], patients: Array) -> tuple[Array, Array]:
    """Omega, and Omega A'A Omega."""
    omega = np.ones_like(patients)
    for f in lifted:
        omega = omega * ordered.transposed_product(f, f)
    return omega, ordered.product(ordered.product(omega, patients), omega)


def _share(omega: Array, explained: Array, columns: Sequence[int]) -> float:
    at = np.ix_(list(columns), list(columns))
    solved = ordered.solve(omega[at], explained[at])
    return float(sum(solved[i, i] for i in range(len(columns))))


def _subsets(omega: Array, explained: Array, rank: int) -> list[tuple[int, ...]]:
    """The best subsets by what they explain: all of them tried, or the weakest column left out again and again."""
    wide = len(omega)
    if comb(wide, rank) <= ENUMERATE:
        ranked = sorted((-_share(omega, explained, j), j) for j in combinations(range(wide), rank))
        return [j for _, j in ranked[:SUBSETS]]
    kept: list[tuple[int, ...]] = [tuple(range(wide))]
    while len(kept[0]) > rank:  # a beam of the best few, one column fewer each time
        smaller = {tuple(x for x in j if x != leave) for j in kept for leave in j}
        ranked = sorted((-_share(omega, explained, j), j) for j in sorted(smaller))
        kept = [j for _, j in ranked[:SUBSETS]]
    return kept


def _reduce(lifted: Sequence[Array], patients: Array, start: Sequence[Array]) -> tuple[float, tuple[Array, ...]]:
    """A CP model of the lifted model [[A, B_1, ..]], A known by A'A: alternating least squares in Q x R, no data."""
    c = [np.array(f) for f in start]
    rank = c[0].shape[1]
    before, error = np.inf, np.inf
    for _ in range(ITERATIONS):
        inner = [ordered.transposed_product(b, f) for b, f in zip(lifted, c)]  # (Q, R)
        grams = [ordered.transposed_product(f, f) for f in c]
        turn = ordered.solve(_times(grams), _times(inner))  # loadings of the reduced model: A turn
        aa = ordered.product(ordered.transposed_product(turn, patients), turn)
        left = ordered.product(patients, turn)  # (Q, R)
        for m, b in enumerate(lifted):
            others = [x for q, x in enumerate(inner) if q != m]
            g = 0.5 * (aa + aa.T) * _times([x for q, x in enumerate(grams) if q != m], rank)
            right = ordered.product(b, left * _times(others, rank, len(left)))
            new, length = ordered.unit(ordered.hals(c[m], g, right, 3))
            if m == len(lifted) - 1:
                full = new * length
                error = ordered.inner(ordered.transposed_product(full, full), g) - 2.0 * ordered.inner(full, right)
            c[m] = np.where(length > 0, new, c[m])
            length = np.where(length > 0, length, 1.0)
            aa, left = aa * length[:, None] * length[None, :], left * length
            inner[m], grams[m] = ordered.transposed_product(b, c[m]), ordered.transposed_product(c[m], c[m])
        if abs(before - error) <= 1e-7 * abs(error):
            break
        before = error
    return error, tuple(c)


def _times(parts: Sequence[Array], rank: int = 0, rows: int = 0) -> Array:
    out = np.ones((rows or rank, rank)) if rank else np.ones_like(parts[0])
    for p in parts:
        out = out * p
    return out
