"""How many directions of codes that occur together two halves of the patients confirm (cross-validated eigenvalues)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.patient_halves import halves_of
from polyclinic.records.sites.site import Site
from polyclinic.tensors.side_by_side import CodeRows, side_by_side

Array = NDArray[np.float64]
# docs/explanation/records.md
CONFIRMED: Final = 3.0  # standard errors above 0 that an eigenvector has in the other half
MOST: Final = 40  # limit: components at most

_rows: WeakKeyDictionary[Site, CodeRows] = WeakKeyDictionary()


def damped_rows(site: Site) -> CodeRows:
    """The site's patients side by side, damped. Computed once for every site."""
    cached = _rows.get(site)
    if cached is None:
        cached = _rows[site] = side_by_side(site.counts())
    return cached


def in_halves(site: Site, counts: Array, label: str, fewest: int = 0) -> dict[str, Array]:
    """Upper triangle of sum_i x_i x_i' / |x_i|_1 for each half of a site's patients.

    Parameters
    ----------
    counts
        (patients, codes) x.
    fewest
        Pairs that fewer patients of the half have are left out.
    """
    half, upper, out = halves_of(site, label), np.triu_indices(counts.shape[1], 1), {}
    for h, name in enumerate(("first", "second")):
        x = counts[half == h]
        scaled = x / np.sqrt(np.maximum(x.sum(1, keepdims=True), 1e-300))
        present = (x > 0).astype(np.float64)
        enough = (present.T @ present)[upper] >= fewest if fewest else True
        out[name] = np.where(enough, (scaled.T @ scaled)[upper], 0.0)
    return out


def squares(triangles: Mapping[str, Array], size: int) -> tuple[Array, Array]:
    """The two symmetric matrices with an empty diagonal."""
    out = np.zeros((2, size, size))
    for q, name in zip(out, ("first", "second")):
        q[np.triu_indices(size, 1)] = np.maximum(triangles[name], 0.0)
        q += q.T
    return out[0], out[1]


def replicating(first: Array, second: Array) -> int:
    """Return how many eigenvectors of one half the other half confirms, both ways together.

    An entry's variance is proportional to the entry. How large it is follows from the difference of the halves.

    Parameters
    ----------
    first, second
        Symmetric matrices with an empty diagonal.
    """
    residuals, variances = [], []
    unit = float(np.square(first - second).sum()) / max(float((first + second).sum()), 1e-300)
    for q in (first, second):
        total = max(float(q.sum()), 1e-300)
        margin = q.sum(1) + 1e-5 * total
        scale = 1.0 / np.sqrt(np.outer(margin, margin))
        residual = (q - np.outer(margin, margin) / total) * scale
        np.fill_diagonal(residual, 0.0)
        residuals.append(residual)
        variances.append(q * np.square(scale) * unit)
    scores = np.zeros(min(len(first), 2 * MOST))
    for a, b in ((0, 1), (1, 0)):
        vectors = np.linalg.eigh(residuals[a])[1][:, ::-1][:, : len(scores)]
        explained = np.einsum("ak,ab,bk->k", vectors, residuals[b], vectors, optimize=True)
        spread = np.einsum("ak,ab,bk->k", np.square(vectors), variances[b], np.square(vectors), optimize=True)
        scores += explained / np.sqrt(np.maximum(spread, 1e-300))
    return int(np.argmax(np.append(scores / np.sqrt(2.0), -np.inf) < CONFIRMED))


def columns_for(confirmed: int) -> int:
    """Columns of a fit: one more than the confirmed directions, because the marginals were taken out of the matrix."""
    return min(confirmed + 1, MOST)


def warn_of_low_rank(rank: object, confirmed: int) -> None:
    """Warn where fewer columns were asked for than two halves of the patients confirm."""
    if isinstance(rank, int) and rank < confirmed:
        warnings.warn(
            f"rank = {rank} is below the {confirmed} directions that two halves of the patients confirm; phenotypes "
            f"will be merged or missed. Use rank = {columns_for(confirmed)} or rank = 'auto'",
            stacklevel=2,
        )
