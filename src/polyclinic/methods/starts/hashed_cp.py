"""CP from a Gram alone: phenotypes over hashed cells, with the patients free and eliminated.

With x_i the K cells of patient i, S = sum_i x_i x_i' is all that least squares with free loadings needs: for cell weights
W = F_1 (.) .. (.) F_N (K, R) the loadings are A = X P, P = W (W'W)^-1, so that X'A = S P and A'A = P'S P. No array has the size
of the patients. Everything here runs in one fixed order (:mod:`polyclinic.tensors.deterministic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.deterministic import cholesky, power
from polyclinic.tensors.simd.jit import kernel

Matrix = NDArray[np.float64]
ITERATIONS: Final = 300  # docs/benchmarks/constants.md
# docs/benchmarks/constants.md
GRADIENT: Final = 20  # first iterations by projected gradient: they find better optima than HALS at once
ENOUGH: Final = 1e-7  # definition: a gain of less is none
# docs/benchmarks/constants.md
CANCELS: Final = 1.2  # tr A'A beside the explained energy: more is of columns that cancel each other


@dataclass(frozen=True)
class Coarse:
    """Phenotypes over cells.

    Parameters
    ----------
    factors
        Per mode (buckets, R), columns of length 1.
    patients
        (R, R) A'A of the eliminated loadings.
    error
        Squared error over all patients and cells.
    """

    factors: tuple[Matrix, ...]
    patients: Matrix
    error: float


@kernel
def _solve_columns(low, columns):  # type: ignore[no-untyped-def]
    """:func:`polyclinic.tensors.deterministic.substitute` for the columns of an array instead of its rows: the same bits, many at a time."""
    n, many = columns.shape
    for i in range(n):
        for k in range(i):
            for c in range(many):
                columns[i, c] -= low[i, k] * columns[k, c]
        for c in range(many):
            columns[i, c] /= low[i, i]
    for back in range(n):
        i = n - 1 - back
        for k in range(i + 1, n):
            for c in range(many):
                columns[i, c] -= low[k, i] * columns[k, c]
        for c in range(many):
            columns[i, c] /= low[i, i]


@kernel
def _fit(s, digits, offsets, f, iterations, gradient, enough, aa):  # type: ignore[no-untyped-def]
    """Alternate between free patients and one step on every mode; ``f`` (sum of buckets, R) and ``aa`` are changed."""
    cells, modes = digits.shape
    rank = f.shape[1]
    trace = 0.0
    for c in range(cells):
        trace += s[c, c]
    grams = np.empty((modes, rank, rank))
    p, v = np.empty((rank, cells)), np.empty((cells, rank))
    g, low = np.empty((rank, rank)), np.zeros((rank, rank))
    top = 0
    for m in range(modes):
        top = max(top, offsets[m + 1] - offsets[m])
    right, own, row = np.empty((top, rank)), np.empty((rank, top)), np.empty(top)
    turned, column = np.ascontiguousarray(s.T), np.empty(cells)
    before = np.inf
    error = trace
    for it in range(iterations):
        for m in range(modes):
            for r in range(rank):
                for q in range(r + 1):
                    x = 0.0
                    for b in range(offsets[m], offsets[m + 1]):
                        x += f[b, r] * f[b, q]
                    grams[m, r, q] = x
                    grams[m, q, r] = x
        ridge = 0.0
        for r in range(rank):
            for q in range(rank):
                x = 1.0
                for m in range(modes):
                    x *= grams[m, r, q]
                g[r, q] = x
            ridge += g[r, r]
        for r in range(rank):
            g[r, r] += 1e-9 * ridge / rank
        cholesky(g, low)
        for r in range(rank):  # cells are the inner loop, here and below: every number is added up in the same order
            for c in range(cells):
                x = 1.0
                for m in range(modes):
                    x *= f[offsets[m] + digits[c, m], r]
                p[r, c] = x
        _solve_columns(low, p)
        for r in range(rank):
            for c in range(cells):
                column[c] = 0.0
            for d in range(cells):
                x = p[r, d]
                for c in range(cells):
                    column[c] += turned[d, c] * x
            for c in range(cells):
                v[c, r] = column[c]  # V = S P
        for r in range(rank):
            for q in range(rank):
                aa[r, q] = 0.0
        for c in range(cells):
            for r in range(rank):
                x = p[r, c]
                for q in range(rank):
                    aa[r, q] += x * v[c, q]
        for m in range(modes):
            size = offsets[m + 1] - offsets[m]
            for b in range(size):
                for r in range(rank):
                    right[b, r] = 0.0
            for c in range(cells):
                b = digits[c, m]
                for r in range(rank):
                    x = v[c, r]
                    for n in range(modes):
                        if n != m:
                            x *= f[offsets[n] + digits[c, n], r]
                    right[b, r] += x
            for r in range(rank):
                for q in range(rank):
                    x = 0.5 * (aa[r, q] + aa[q, r])
                    for n in range(modes):
                        if n != m:
                            x *= grams[n, r, q]
                    g[r, q] = x
            at = offsets[m]
            if it < gradient:
                step = 1.0 / max(power(g, 20), 1e-300)
                for b in range(size):
                    for r in range(rank):
                        x = right[b, r]
                        for k in range(rank):
                            x -= f[at + b, k] * g[k, r]
                        low[0, r] = f[at + b, r] + step * x
                    for r in range(rank):
                        f[at + b, r] = max(low[0, r], 0.0)
            else:
                for r in range(rank):
                    for b in range(size):
                        own[r, b] = f[at + b, r]
                for _ in range(3):
                    for r in range(rank):
                        if g[r, r] <= 0.0:
                            continue
                        for b in range(size):
                            row[b] = right[b, r]
                        for k in range(rank):
                            for b in range(size):
                                row[b] -= own[k, b] * g[k, r]
                        for b in range(size):
                            own[r, b] = max(own[r, b] + row[b] / g[r, r], 0.0)
                for r in range(rank):
                    for b in range(size):
                        f[at + b, r] = own[r, b]
            if m == modes - 1:
                error = trace
                for r in range(rank):
                    for b in range(size):
                        error -= 2.0 * f[at + b, r] * right[b, r]
                    for q in range(rank):
                        x = 0.0
                        for b in range(size):
                            x += f[at + b, r] * f[at + b, q]
                        error += x * g[r, q]
            for r in range(rank):
                x = 0.0
                for b in range(size):
                    x += f[at + b, r] * f[at + b, r]
                x = np.sqrt(x)
                if x <= 0.0:  # a column that nobody has: it starts anew, even over all buckets
                    for b in range(size):
                        f[at + b, r] = 1.0 / np.sqrt(size)
                    x = 1.0
                else:
                    for b in range(size):
                        f[at + b, r] /= x
                for c in range(cells):
                    v[c, r] *= x
                for q in range(rank):
                    aa[r, q] *= x
                for q in range(rank):
                    aa[q, r] *= x
            for r in range(rank):
                for q in range(r + 1):
                    x = 0.0
                    for b in range(offsets[m], offsets[m + 1]):
                        x += f[b, r] * f[b, q]
                    grams[m, r, q] = x
                    grams[m, q, r] = x
        if it >= gradient and abs(before - error) <= enough * max(error, 1e-12 * trace):
            break
        before = error
    return error


def coarse(
    gram: Matrix,
    buckets: Sequence[int],
    rank: int,
    *,
    starts: int = 6,
    seed: int = 0,
    cancelling: bool = True,
) -> Coarse:
    """The best of several random starts of a CP model of rank R over cells.

    Parameters
    ----------
    gram
        (K, K) S over all patients; cells in row-major order of their buckets.
    buckets
        Buckets per mode; their product is K.
    cancelling
        False: a start whose columns cancel each other is taken only if, of four times as many, none is better. Loadings are free
        here, so two columns may be nearly the same with loadings of opposite sign and explain more over cells; over codes, where
        nobody has less than nothing of a phenotype, they explain next to nothing. Loadings that are not negative have
        tr A'A <= explained energy.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])  # two patients, 2 x 2 cells
    >>> coarse(x.T @ x, (2, 2), 2).error < 1e-6
    True
    """
    sizes = tuple(int(b) for b in buckets)
    digits = np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), sizes), axis=1).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    s = np.ascontiguousarray(gram, np.float64)
    trace = ordered.inner(np.diagonal(s), np.ones(len(s)))
    best = Coarse((), np.zeros((rank, rank)), np.inf)
    least: tuple[bool, float] = (True, np.inf)
    for k in range(starts if cancelling else 4 * starts):
        if k >= starts and not least[0]:
            break
        rng = seeds(seed, "coarse", rank, k)
        f = np.concatenate([ordered.unit(rng.random((b, rank)))[0] for b in sizes])
        aa = np.zeros((rank, rank))
        error = float(_fit(s, digits, offsets, f, ITERATIONS, GRADIENT, ENOUGH, aa))
        owned = ordered.inner(np.diagonal(aa), np.ones(rank))
        figure = (not cancelling and owned > CANCELS * max(trace - error, 0.0), error)
        if figure < least:
            parts = tuple(f[offsets[m] : offsets[m + 1]].copy() for m in range(len(sizes)))
            best, least = Coarse(parts, 0.5 * (aa + aa.T), error), figure
    return best
