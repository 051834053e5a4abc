"""Least squares from rounded sums: roots of a Gram, what is above the rounding, and what a model explains; in one fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.starts.state import Far
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]


def positive(symmetric: Array) -> Array:
    """The nearest positive semidefinite matrix: negative eigenvalues become 0.

    >>> positive(np.array([[1.0, 2.0], [2.0, 1.0]])).round(6).tolist()
    [[1.5, 1.5], [1.5, 1.5]]
    """
    values, vectors = ordered.eigen(symmetric)
    return ordered.product(vectors * np.maximum(values, 0.0), np.ascontiguousarray(vectors.T))


def within(gram: Array, most: float) -> Array:
    """A'A with no column above ``most``: a non-negative phenotype has no more energy than all records together, whatever an
    estimate over cells says, whose loadings are free to cancel each other.

    >>> within(np.array([[4.0, 2.0], [2.0, 9.0]]), 4.0).round(6).tolist()
    [[4.0, 1.333333], [1.333333, 4.0]]
    """
    d = np.sqrt(np.minimum(most / np.maximum(np.diagonal(gram), 1e-300), 1.0))
    return gram * d[:, None] * d


def roots(gram: Array) -> tuple[Array, Array]:
    """G^(-1/2) and G^(1/2) of a positive matrix, eigenvalues raised to a fiftieth of their mean at least: where phenotypes
    hardly differ, or one is nearly nobody's, an estimate of G says little, and its inverse root would blow up the sums.

    >>> [x.round(6).tolist() for x in roots(np.diag([4.0, 9.0]))]
    [[[0.5, 0.0], [0.0, 0.333333]], [[2.0, 0.0], [0.0, 3.0]]]
    """
    values, vectors = ordered.eigen(0.5 * (gram + gram.T))
    mean = ordered.inner(values, np.ones(len(values))) / len(values)
    size = np.sqrt(np.maximum(values, max(mean / 50.0, 1e-300)))
    transposed = np.ascontiguousarray(vectors.T)
    return ordered.product(vectors / size, transposed), ordered.product(vectors * size, transposed)


def solve_rounded(gram: Array, right: Array, noise: float | Array, sweeps: int, first: Array | None = None) -> Array:
    """Non-negative least squares from rounded sums: what is no more than the rounding (1.5 standard deviations) is 0.

    ``noise`` is the standard deviation of an entry of ``right`` times G^(-1/2), the same for all or (rows, 1).
    """
    diagonal = np.diagonal(gram)
    if first is None:
        first = np.maximum(right / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    out = ordered.hals(first, gram, right, sweeps)
    floor = 1.5 * noise / np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    return np.where(out > floor, out, 0.0)


def reduced(lifted: Sequence[Array], patients: Array, chosen: Sequence[Array]) -> Array:
    """(R, R) A'A of the loadings on ``chosen`` that explain the lifted model best."""
    inner, gram = np.ones((len(patients), chosen[0].shape[1])), np.ones((chosen[0].shape[1],) * 2)
    for b, c in zip(lifted, chosen):
        inner, gram = inner * ordered.transposed_product(b, c), gram * ordered.transposed_product(c, c)
    turn = ordered.solve(gram, inner)
    return ordered.product(ordered.transposed_product(turn, patients), turn)


def energy(factors: Sequence[Array], patients: Array) -> float:
    out = patients
    for f in factors:
        out = out * ordered.transposed_product(f, f)
    return max(ordered.inner(out, np.ones_like(out)), 1e-300)


def full(upper: Array, diagonal: Array, d: Array) -> Array:
    """The symmetric Gram from scaled entries above the diagonal and the diagonal itself."""
    out = np.zeros((len(d), len(d)))
    out[np.triu_indices(len(d), 1)] = upper
    out = (out + out.T) * d[:, None] * d[None, :]
    out[np.diag_indices_from(out)] = np.maximum(diagonal, 0.0)
    return out


def reach(away: Array, times: float) -> Far:
    """How far the coming sum may lie from what is expected, by how far this one lay: by code, and by phenotype."""
    square, rows, columns = np.square(away), np.ones((away.shape[1], 1)), np.ones((1, len(away)))
    row, column = np.sqrt(ordered.product(square, rows)), np.sqrt(ordered.product(columns, square))
    return Far(times * row, column / max(float(np.sqrt(ordered.inner(away, away))), 1e-300))
