"""Start latent classes from how often two answers occur together: a small table that all sites add up once.

Every column is cut into a few public bins (levels of categories). The sum over patients of the outer product of their bins
holds all pairwise tables. A latent class model says ``n_ab ~ n sum_j w_j p_ja p_jb`` for bins of different columns. It is
fitted to the tables by EM from many random starts, at no further cost: nobody is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.latent_classes.state import ClassPrivate, ClassPublic
from polyclinic.models.mixtures.columns import Array, Column, Layout
from polyclinic.protocol.interfaces import Answer, Contribution, Step, Total, seeds
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.methods.latent_classes.latent_class import LatentClass

STARTS, SHORT, LONG = 24, 60, 400  # random starts, EM steps of each, further steps of the best
CELL_NOISE: Final = 2.5  # standard deviations of the noise above which a cell of a noisy table is read
PUBLIC_BINS: Final = 10  # limit: bins of a column between public limits


class PairTable(Phase[ClassPublic, ClassPrivate]):
    """The sum of the pairwise tables."""

    fit: LatentClass

    def due(self, public: ClassPublic) -> bool:
        return self.fit.params.profiles_init is None

    def step(self, public: ClassPublic) -> Step:
        bins = _bins(public.layout)
        shapes = {"pairs": (bins * (bins + 1) // 2,)}
        return Step(0, "pairs", shapes, bound=float(self.fit.params.max_patients), grid=1.0, counts=False)

    def records(self, site: Site, public: ClassPublic) -> Array:
        """Return the records that are counted."""
        return site.matrix()

    def contribute(self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic) -> Answer[ClassPrivate]:
        """x_k = n_ab = sum_i of the products of a patient's bins a and b."""
        return private, Contribution({"pairs": pair_table(public.layout, self.records(site, public))})

    def fit_tables(self, public: ClassPublic, total: Total) -> tuple[Array, Array]:
        """Fit shares (k,) and probabilities of the bins (k, bins) to the summed tables."""
        rng, k = seeds(self.fit.params.seed, "start"), self.fit.params.n_components
        return fit_pairs(public.layout, total.arrays["pairs"], k, rng, total.noise_sd)


def _bins(layout: Layout) -> int:
    return sum(bins_of(c) for c in layout.columns)


def bins_of(column: Column) -> int:
    """Count the bins of a column."""
    if column.kind == "categorical":
        return len(column.levels)
    return PUBLIC_BINS if column.low is not None else 4


def binned(layout: Layout, X: Array) -> Array:
    """(n, bins) 1 in each column's bin of a known value."""
    out, offset = np.zeros((len(X), _bins(layout))), 0
    for j, c in enumerate(layout.columns):
        rows = np.flatnonzero(~np.isnan(X[:, j]))
        out[rows, offset + _places(c, X[rows, j])] = 1.0
        offset += bins_of(c)
    return out


def _places(c: Column, x: Array) -> NDArray[np.int64]:
    """Return the bin of every value."""
    n = bins_of(c)
    if c.kind == "categorical":
        return x.astype(np.int64)
    if c.low is not None and c.high is not None:
        return np.clip((x - c.low) / (c.high - c.low) * n, 0, n - 1).astype(np.int64)
    if c.kind == "count":
        return np.searchsorted([0.5, max(c.centre, 1.0), max(2 * c.centre, 2.0)], x)
    return np.searchsorted(c.centre + c.unit * np.array([-1.0, 0.0, 1.0]), x)


def pair_table(layout: Layout, X: Array) -> Array:
    """(bins (bins + 1) / 2,) how often two bins occur in one patient; the length of one patient's part is known."""
    total = np.zeros((_bins(layout),) * 2)
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
    margins = np.diagonal(M).copy()
    same_column = owner[:, None] == owner[None, :]
    if noise_sd > 0:
        margins = np.where(margins > CELL_NOISE * noise_sd, margins, 0.0)
        patients = max(float(margins.sum()) / len(sizes), 1.0)
        M = np.where(CELL_NOISE * noise_sd < M, M, np.outer(margins, margins) / patients)
    T = np.where(same_column, 0.0, M)  # a column says nothing about itself
    if len(sizes) == 1:
        T = np.diag(margins)
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
        total = max(float(model[~same_column].sum()) if len(sizes) > 1 else 1.0, 1e-300)
        return w, p, float((T * np.log(model / total)).sum())

    common = normal(margins[:, None] + 1e-3)
    starts = (normal(common * rng.gamma(1.0, 1.0, (n, k)) + 1e-6) for _ in range(STARTS))
    best = max((climb(np.full(k, 1.0 / k), p, SHORT) for p in starts), key=lambda trial: trial[2])
    w, p, _ = climb(best[0], best[1], LONG)
    return w, p.T


def from_bins(layout: Layout, probabilities: Array) -> Array:
    """(k, profile) of classes whose bins between public limits have these probabilities (k, bins)."""
    profiles, offset = [], 0
    for c in layout.columns:
        profiles.append(_profile(c, probabilities[:, offset : offset + bins_of(c)]))
        offset += bins_of(c)
    return np.hstack(profiles)


def _profile(c: Column, p: Array) -> Array:
    """(k, parameters) of one column: probabilities; a rate; mean and variance, with that within a bin."""
    if c.kind == "categorical" or c.low is None or c.high is None:
        return p
    width = (c.high - c.low) / bins_of(c)
    middle = c.low + width * (np.arange(bins_of(c)) + 0.5)
    mean = p @ middle
    if c.kind == "count":
        return np.asarray(np.maximum(mean, 1e-3)[:, None])
    return np.column_stack([mean, p @ middle**2 - mean**2 + width**2 / 12])
