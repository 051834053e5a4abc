"""Plain-numpy twins of every kernel, written for reading, not for speed: the kernels are tested against them.

They work on coordinates and values alone, know nothing of the layout, and may form arrays of (nonzeros, R).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["hals", "inner", "model", "mttkrp", "sgd_epoch", "shrink_columns", "squared_error_full", "unit_statistics"]

Matrix = NDArray[np.float64]
Coords = NDArray[np.int64]


def _product(coords: Coords, factors: Sequence[Matrix], skip: int | None = None) -> Matrix:
    out = np.ones((len(coords), factors[0 if skip != 0 else 1].shape[1]))
    for n, f in enumerate(factors):
        if n != skip:
            out = out * f[coords[:, n]]
    return out


def mttkrp(coords: Coords, values: Matrix, shape: Sequence[int], factors: Sequence[Matrix], mode: int) -> Matrix:
    """Sum over entries of value * product of the other modes' rows, at the entry's index in ``mode``."""
    product = _product(coords, factors, mode)
    out = np.zeros((shape[mode], product.shape[1]))
    np.add.at(out, coords[:, mode], values[:, None] * product)
    return out


def model(coords: Coords, factors: Sequence[Matrix]) -> Matrix:
    """Model values at the given cells."""
    return np.asarray(_product(coords, factors).sum(1))


def inner(coords: Coords, values: Matrix, factors: Sequence[Matrix]) -> float:
    """<O, X>."""
    return float(values @ model(coords, factors))


def squared_error_full(coords: Coords, values: Matrix, shape: Sequence[int], factors: Sequence[Matrix]) -> float:
    """||O - X||^2 over all cells, from the dense arrays (small shapes only)."""
    dense = np.zeros(tuple(shape))
    np.add.at(dense, tuple(coords.T), values)
    letters = "abcdefgh"[: len(shape)]
    full = np.einsum(",".join(f"{c}z" for c in letters) + "->" + letters, *factors)
    return float(np.square(dense - full).sum())


def hals(
    factor: Matrix, gram: Matrix, mttkrp: Matrix, sweeps: int = 1, nonnegative: bool = True, l21: float = 0.0
) -> Matrix:
    """Column by column: least squares with the others held, projected, shrunk."""
    a = np.array(factor)
    for _ in range(sweeps):
        for r in range(a.shape[1]):
            if gram[r, r] == 0:
                continue
            u = a[:, r] + (mttkrp[:, r] - a @ gram[:, r]) / gram[r, r]
            u = np.maximum(u, 0.0) if nonnegative else u
            if l21:
                length = np.linalg.norm(u)
                u = u * max(0.0, 1 - l21 / (gram[r, r] * length)) if length else u
            a[:, r] = u
    return a


def shrink_columns(matrix: Matrix, threshold: float) -> Matrix:
    """Prox of threshold * sum of column lengths."""
    out = np.zeros_like(matrix)
    for r in range(matrix.shape[1]):
        length = np.linalg.norm(matrix[:, r])
        if length > threshold:
            out[:, r] = matrix[:, r] * (length - threshold) / length
    return out


def sgd_epoch(
    where: Sequence[NDArray[np.int64]],
    values: Matrix,
    factors: Sequence[Matrix],
    learning_rate: float,
    nonnegative: bool = True,
    clip: float | None = None,
    anchors: Sequence[Matrix] | None = None,
    pulls: Sequence[Matrix] | None = None,
) -> tuple[list[Matrix], float]:
    """Entry after entry in the order given: DPFact eq. 13 and 17, all gradients at the old rows."""
    fs = [np.array(f) for f in factors]
    total = 0.0
    for e, value in enumerate(values):
        at = [int(w[e]) for w in where]
        rows = [f[i].copy() for f, i in zip(fs, at)]
        residual = float(np.prod(rows, axis=0).sum() - value)
        total += residual**2
        for n, row in enumerate(rows):
            slope = residual * np.prod([x for m, x in enumerate(rows) if m != n], axis=0)
            if clip is not None and np.linalg.norm(slope) > clip:
                slope = slope * (clip / np.linalg.norm(slope))
            if n and anchors is not None and pulls is not None:
                slope = slope + pulls[n - 1][at[n]] * (row - anchors[n - 1][at[n]])
            new = row - learning_rate * slope
            fs[n][at[n]] = np.maximum(new, 0.0) if nonnegative else new
    return fs, total


def _lanes(values: Sequence[float]) -> float:
    """Eight lanes, each in order; then lanes 4, 2 and 1 apart."""
    lane = [0.0] * 8
    for r, v in enumerate(values):
        lane[r % 8] += v
    four = [lane[i] + lane[i + 4] for i in range(4)]
    two = [four[i] + four[i + 2] for i in range(2)]
    return two[0] + two[1]


def unit_statistics(
    indptr: Coords, rows: Coords, values: Matrix, w: Matrix, prior: Matrix, steps: int
) -> tuple[NDArray[np.int64], Matrix]:
    """The E-step's sums in grid steps and the memberships, one number after another: each operation is rounded once.

    ``rows`` (nonzeros, modes) are those of :func:`.kernels.em.stacked_rows`.
    """
    rank, homes, table, base = w.shape[1], rows.tolist(), w.tolist(), prior.tolist()
    out = np.zeros(w.shape, np.int64)
    placed = np.zeros((len(indptr) - 1, rank))
    for i, (lo, hi) in enumerate(itertools.pairwise(indptr)):
        counts = values[lo:hi].tolist()
        phi = []
        for entry in homes[lo:hi]:
            product = list(table[entry[0]])
            for row in entry[1:]:
                product = [x * y for x, y in zip(product, table[row])]
            phi.append(product)
        share = 1.0 / _lanes(base)
        a = [x * share for x in base]
        for _ in range(steps):
            following = [0.0] * rank
            for c, f in zip(counts, phi):
                mix = _lanes([x * y for x, y in zip(a, f)])
                if mix > 0:
                    scale = c / mix
                    following = [x + scale * y for x, y in zip(following, f)]
            following = [x * y + z for x, y, z in zip(following, a, base)]
            share = 1.0 / _lanes(following)
            a = [x * share for x in following]
        placed[i] = a
        sums: dict[int, list[float]] = {}
        events = 0.0
        for c, f, entry in zip(counts, phi, homes[lo:hi]):
            mix = _lanes([x * y for x, y in zip(a, f)])
            p, mix = ([x * y for x, y in zip(a, f)], mix) if mix > 0 else (a, 1.0)
            events += c
            scale = c / mix
            for row in entry:
                sums[row] = [x + scale * y for x, y in zip(sums.get(row, [0.0] * rank), p)]
        share = 1.0 / events
        steps_of = {row: [int(x * share * 2.0**30) for x in s] for row, s in sums.items()}
        square = sum((q + 1) ** 2 for s in steps_of.values() for q in s)
        unit = 65536.0 / float(np.sqrt(np.float64(square)))
        whole = {row: [int(q * unit) for q in s] for row, s in steps_of.items()}
        if sum(k * k for s in whole.values() for k in s) > 2**32:
            whole = {row: [max(k - 1, 0) for k in s] for row, s in whole.items()}
        for row, s in whole.items():
            out[row] += s
    return out, placed
