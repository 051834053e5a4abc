"""Candidates for an audition: models of R phenotypes within a lifted model of Q > R, from public values alone.

With Omega the Hadamard product of B_m'B_m and A'A of the lifted model, a subset J of its columns explains
``e(J) = tr(Omega_JJ^-1 Omega_J. A'A Omega_.J)`` of it; other candidates are CP models of rank R of the lifted model itself, whose
least squares need only Q x R. The order by e is not to be trusted (its patients are free, and it speaks of the model, not of the
data): the hospitals' summed errors decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.deterministic import (
    add_product,
    add_transposed,
    cholesky,
    dot,
    make_unit,
    substitute,
    sweep_rows,
)
from polyclinic.tensors.simd.jit import kernel

Array = NDArray[np.float64]
SUBSETS: Final = 8  # limit: kept of a beam
CANDIDATES: Final = 12  # limit: in all, a number each; models take their places first
MODELS: Final = 6  # limit: of these
RANDOM: Final = 24  # limit: of time: starts of a model at random; they cost no byte
ENUMERATE: Final = 5_000  # limit: subsets that are all tried
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


@lru_cache(maxsize=16)  # a study may fit several ranks on all patients and on halves at once
def _candidates(key: tuple[tuple[tuple[int, ...], bytes], ...], rank: int, seed: int) -> list[tuple[Array, ...]]:
    """Remembered by content: sites of one process, and the steps of one site, ask for the same."""
    *factors, patients = (np.frombuffer(b).reshape(shape) for shape, b in key)
    columns = len(patients)
    subsets: list[tuple[Array, ...]] = [
        tuple(f[:, list(j)] for f in factors) for j in _subsets(*_overlaps(factors, patients), rank)
    ]
    starts = [*subsets[:4]]
    for k in range(RANDOM):
        rng = seeds(seed, "reduce", k)
        starts.append(tuple(ordered.unit(ordered.product(f, rng.random((columns, rank))))[0] for f in factors))
    models = _distinct(sorted((_reduce(factors, patients, s) for s in starts), key=lambda x: x[0]))
    return [*subsets[: CANDIDATES - len(models)], *models]


def _distinct(reduced: Sequence[tuple[float, tuple[Array, ...]]]) -> list[tuple[Array, ...]]:
    """The best few models, one for each error."""
    errors: list[float] = []
    models: list[tuple[Array, ...]] = []
    for error, model in reduced:
        if len(errors) < MODELS and all(abs(error - e) > 1e-4 * abs(e) for e in errors):
            errors.append(error)
            models.append(model)
    return models


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
    block = np.ix_(list(columns), list(columns))
    solved = ordered.solve(omega[block], explained[block])
    return float(sum(solved[i, i] for i in range(len(columns))))


def _subsets(omega: Array, explained: Array, rank: int) -> list[tuple[int, ...]]:
    """The best subsets by what they explain: all of them tried, or the weakest column left out again and again."""
    columns = len(omega)
    if comb(columns, rank) <= ENUMERATE:
        return _best(omega, explained, combinations(range(columns), rank))
    beam: list[tuple[int, ...]] = [tuple(range(columns))]
    while len(beam[0]) > rank:  # one column fewer each time
        beam = _best(omega, explained, {tuple(x for x in j if x != leave) for j in beam for leave in j})
    return beam


def _best(omega: Array, explained: Array, subsets: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    ranked = sorted((-_share(omega, explained, j), j) for j in sorted(subsets))
    return [j for _, j in ranked[:SUBSETS]]


def _reduce(lifted: Sequence[Array], patients: Array, start: Sequence[Array]) -> tuple[float, tuple[Array, ...]]:
    """A CP model of the lifted model [[A, B_1, ..]], A known by A'A: alternating least squares in Q x R, no data."""
    offsets = np.cumsum([0, *(len(b) for b in lifted)]).astype(np.int64)
    b, c = (np.concatenate([np.asarray(f, np.float64) for f in parts]) for parts in (lifted, start))
    error = float(_alternate(b, np.ascontiguousarray(patients, np.float64), offsets, c, ITERATIONS))
    return error, tuple(c[i:j].copy() for i, j in pairwise(offsets))


@kernel
def _alternate(b, patients, offsets, c, iterations):  # type: ignore[no-untyped-def]
    """The loop of :func:`_reduce`: modes one below the other in ``b`` (codes, Q) and ``c`` (codes, R), which is changed."""
    modes, wide, rank = len(offsets) - 1, b.shape[1], c.shape[1]
    inner, grams = np.empty((modes, wide, rank)), np.empty((modes, rank, rank))
    turn, left, scaled = np.empty((wide, rank)), np.empty((wide, rank)), np.empty((wide, rank))
    g, low, aa, full = np.empty((rank, rank)), np.empty((rank, rank)), np.empty((rank, rank)), np.empty((rank, rank))
    half, length = np.empty((rank, wide)), np.empty(rank)
    before, error = np.inf, np.inf
    for _ in range(iterations):
        g[:] = 1.0
        turn[:] = 1.0
        for m in range(modes):
            at, to = offsets[m], offsets[m + 1]
            inner[m], grams[m] = 0.0, 0.0
            add_transposed(b[at:to], c[at:to], inner[m])
            add_transposed(c[at:to], c[at:to], grams[m])
            for r in range(rank):
                for q in range(rank):
                    g[r, q] *= grams[m, r, q]
                for i in range(wide):
                    turn[i, r] *= inner[m, i, r]
        trace = 0.0
        for r in range(rank):
            trace += g[r, r]
        for r in range(rank):
            g[r, r] += 1e-9 * trace / rank
        low[:] = 0.0
        cholesky(g, low)
        substitute(low, turn)  # loadings of the reduced model: A turn
        half[:], aa[:], left[:] = 0.0, 0.0, 0.0
        add_transposed(turn, patients, half)
        add_product(half, turn, aa)
        add_product(patients, turn, left)
        for m in range(modes):
            at, to = offsets[m], offsets[m + 1]
            for r in range(rank):
                for q in range(rank):
                    x = 1.0
                    for n in range(modes):
                        if n != m:
                            x *= grams[n, r, q]
                    g[r, q] = 0.5 * (aa[r, q] + aa[q, r]) * x
                for i in range(wide):
                    x = 1.0
                    for n in range(modes):
                        if n != m:
                            x *= inner[n, i, r]
                    scaled[i, r] = left[i, r] * x
            right, new = np.zeros((to - at, rank)), c[at:to].copy()
            add_product(b[at:to], scaled, right)
            sweep_rows(new, g, right, 3)
            make_unit(new, length)
            if m == modes - 1:
                whole = new * length
                full[:] = 0.0
                add_transposed(whole, whole, full)
                error = dot(full.ravel(), g.ravel()) - 2.0 * dot(whole.ravel(), right.ravel())
            for r in range(rank):
                if length[r] > 0.0:
                    for i in range(to - at):
                        c[at + i, r] = new[i, r]
                else:
                    length[r] = 1.0
            for r in range(rank):
                for q in range(rank):
                    aa[r, q] = aa[r, q] * length[r] * length[q]
                for i in range(wide):
                    left[i, r] *= length[r]
            inner[m], grams[m] = 0.0, 0.0
            add_transposed(b[at:to], c[at:to], inner[m])
            add_transposed(c[at:to], c[at:to], grams[m])
        if abs(before - error) <= 1e-7 * abs(error):
            break
        before = error
    return error
