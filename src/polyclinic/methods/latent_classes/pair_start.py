"""Where latent classes start: from how often two answers occur together, the small table that all sites add up once.

Every column is cut into a few public bins (levels of categories). The sum over patients of the outer product of their bins
holds all pairwise tables. A latent class model says ``n_ab ~ n sum_j w_j p_ja p_jb`` for bins of different columns; it is
fitted to the tables by EM from many random starts, at no further cost: nobody is asked again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.models.mixtures.columns import Column, Layout

__all__ = ["binned", "bins_of", "fit_pairs", "from_bins", "pair_table"]

Array = NDArray[np.float64]
STARTS, SHORT, LONG = 24, 60, 400  # random starts, EM steps of each, further steps of the best
SURE: Final = 2.5  # noise standard deviations above which a cell of a noisy table is read
FLAT: Final = 10  # bins of a column between public limits


def bins_of(column: Column) -> int:
    """Number of bins."""
    if column.kind == "categorical":
        return len(column.levels)
    return FLAT if column.low is not None else 4


def binned(layout: Layout, X: Array) -> Array:
    """(n, bins) 1 in each column's bin of a known value."""
    out = np.zeros((len(X), sum(bins_of(c) for c in layout.columns)))
    at = 0
    for j, c in enumerate(layout.columns):
        rows = np.flatnonzero(~np.isnan(X[:, j]))
        x, n = X[rows, j], bins_of(c)
        if c.kind == "categorical":
            place = x.astype(np.int64)
        elif c.low is not None and c.high is not None:
            place = np.clip((x - c.low) / (c.high - c.low) * n, 0, n - 1).astype(np.int64)
        elif c.kind == "count":
            place = np.searchsorted([0.5, max(c.centre, 1.0), max(2 * c.centre, 2.0)], x)
        else:
            place = np.searchsorted(c.centre + c.unit * np.array([-1.0, 0.0, 1.0]), x)
        out[rows, at + place] = 1.0
        at += n
    return out


def pair_table(layout: Layout, X: Array) -> Array:
    """(bins (bins + 1) / 2,) how often two bins occur in one patient; the length of one patient's part is known."""
    total = np.zeros((sum(bins_of(c) for c in layout.columns),) * 2)
    for first in range(0, len(X), 4096):
        B = binned(layout, X[first : first + 4096])
        total += B.T @ B
    return np.asarray(total[np.triu_indices(len(total))])


def fit_pairs(
    layout: Layout, table: Array, k: int, rng: np.random.Generator, noise_sd: float = 0.0
) -> tuple[Array, Array]:
    """(k,) shares and (k, bins) probabilities within every column, from the summed pairwise tables.

    Cells that noise explains are what independent columns would have: else empty bins look like a class.
    """
    sizes = [bins_of(c) for c in layout.columns]
    n = sum(sizes)
    M = np.zeros((n, n))
    M[np.triu_indices(n)] = np.maximum(table, 0.0)
    M = M + np.triu(M, 1).T
    owner = np.repeat(np.arange(len(sizes)), sizes)
    alone = np.diagonal(M).copy()
    inside = owner[:, None] == owner[None, :]
    if noise_sd > 0:
        alone = np.where(alone > SURE * noise_sd, alone, 0.0)
        patients = max(float(alone.sum()) / len(sizes), 1.0)
        M = np.where(SURE * noise_sd < M, M, np.outer(alone, alone) / patients)
    T = np.where(inside, 0.0, M)  # a column says nothing about itself
    if len(sizes) == 1:
        T = np.diag(alone)
    block = (owner[:, None] == np.arange(len(sizes))[None, :]).astype(float)  # (bins, columns)

    def normal(p: Array) -> Array:
        return np.asarray(p / np.maximum(block @ (block.T @ p), 1e-300))

    def climb(w: Array, p: Array, steps: int) -> tuple[Array, Array, float]:
        for _ in range(steps):
            model = np.maximum((p * w) @ p.T, 1e-12)
            ratio = T / model
            grown = p * (ratio @ (p * w))  # expected pairs with one end in bin a, of class j
            w = grown.sum(0)
            w = w / max(float(w.sum()), 1e-300)
            p = normal(grown + 1e-9)
        model = np.maximum((p * w) @ p.T, 1e-12)
        total = max(float(model[~inside].sum()) if len(sizes) > 1 else 1.0, 1e-300)
        return w, p, float((T * np.log(model / total)).sum())

    common = normal(alone[:, None] + 1e-3)
    best = None
    for _ in range(STARTS):
        begun = normal(common * rng.gamma(1.0, 1.0, (n, k)) + 1e-6)
        found = climb(np.full(k, 1.0 / k), begun, SHORT)
        best = found if best is None or found[2] > best[2] else best
    assert best is not None
    w, p, _ = climb(best[0], best[1], LONG)
    return w, p.T


def from_bins(layout: Layout, probabilities: Array) -> Array:
    """(k, profile) of classes whose bins between public limits have these probabilities (k, bins)."""
    out, at = [], 0
    for c in layout.columns:
        p = probabilities[:, at : at + bins_of(c)]
        at += bins_of(c)
        if c.kind == "categorical" or c.low is None or c.high is None:
            out.append(p)
            continue
        width = (c.high - c.low) / bins_of(c)
        middle = c.low + width * (np.arange(bins_of(c)) + 0.5)
        mean = p @ middle
        if c.kind == "count":
            out.append(np.maximum(mean, 1e-3)[:, None])
        else:
            out.append(np.column_stack([mean, p @ middle**2 - mean**2 + width**2 / 12]))
    return np.hstack(out)
