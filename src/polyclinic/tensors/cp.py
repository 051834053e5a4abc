"""The algebra of CP factorization in R x R: Grams, solves, norms, canonical form, memberships. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import device
from polyclinic.tensors.kernels.hals import hals
from polyclinic.tensors.sparse import SparseTensor

__all__ = [
    "gram",
    "hals",
    "least_squares",
    "normalise",
    "residual_norm_squared",
    "shrink_columns",
    "solve_memberships",
    "squared_error",
    "unit_columns",
]

Matrix = NDArray[np.float64]


def gram(factors: Sequence[Matrix], skip: int | None = None) -> Matrix:
    """(R, R) Hadamard product of A'A over all modes but ``skip``.

    >>> gram([np.eye(2), 2 * np.eye(2), 3 * np.eye(2)], 0).tolist()
    [[36.0, 0.0], [0.0, 36.0]]
    """
    rank = factors[-1 if skip == 0 else 0].shape[1]  # the skipped one need not be there yet
    out = np.ones((rank, rank))
    for n, a in enumerate(factors):
        if n != skip:
            out *= a.T @ a
    return out


def least_squares(gram: Matrix, mttkrp: Matrix, ridge: float = 0.0, *, out: Matrix | None = None) -> Matrix:
    """A = M (G + ridge I)^-1, by pseudo-inverse where G is singular (dead columns; ERRATA E2.7).

    The inverse is formed only where G is well conditioned (one product with a tall M is then four times faster than
    substitution, and the fit of CP-ALS is the same to 1e-12).

    >>> least_squares(2 * np.eye(2), np.array([[2.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """
    g = gram + ridge * np.eye(len(gram)) if ridge else gram
    try:
        diagonal = np.diagonal(np.linalg.cholesky(g))
    except np.linalg.LinAlgError:
        diagonal = np.zeros(len(g))
    spread = float(diagonal.min(initial=np.inf) / max(float(diagonal.max(initial=0.0)), 1e-300))  # about 1/sqrt(cond)
    if spread > 1e-4:
        return np.matmul(mttkrp, np.linalg.inv(g), out=out)
    if spread > 1e-7:
        return np.ascontiguousarray(np.linalg.solve(g, mttkrp.T).T)
    return np.asarray(mttkrp @ np.linalg.pinv(g, hermitian=True))


def residual_norm_squared(norm2: float, inner: float, gram_all: Matrix) -> float:
    """||O - X||^2 = ||O||^2 - 2 <O, X> + 1'(had_n A_n'A_n) 1, over ALL cells; no zero is ever touched (E0.5).

    >>> residual_norm_squared(5.0, 3.0, np.array([[4.0]]))
    3.0
    """
    return max(0.0, norm2 - 2.0 * inner + float(gram_all.sum()))


def squared_error(norm2: float, factor: Matrix, gram: Matrix, mttkrp: Matrix) -> float:
    """||O - X||^2 over all cells, from what a factor's update has at hand: ||O||^2 - 2 <A, M> + <A'A, G>.

    >>> squared_error(5.0, np.array([[1.0]]), np.array([[4.0]]), np.array([[3.0]]))
    3.0
    """
    inner = float(np.einsum("ir,ir->", factor, mttkrp))
    return max(0.0, norm2 - 2.0 * inner + float(((factor.T @ factor) * gram).sum()))


def normalise(factors: Sequence[Matrix]) -> tuple[list[Matrix], NDArray[np.float64]]:
    """Columns of length 1 and the product of their lengths as weights (R,); zero columns stay zero, weight 0.

    >>> unit, w = normalise([np.array([[3.0], [4.0]]), np.array([[2.0]])])
    >>> w.tolist(), unit[0].ravel().tolist()
    ([10.0], [0.6, 0.8])
    """
    weights = np.ones(factors[0].shape[1])
    unit = []
    for a in factors:
        norm = np.linalg.norm(a, axis=0)
        weights = weights * norm
        unit.append(a / np.where(norm > 0, norm, 1.0))
    return unit, weights


def unit_columns(matrix: Matrix, fallback: Matrix) -> Matrix:
    """Columns of length 1; a column of zeros (nobody has it) keeps its fallback.

    >>> unit_columns(np.array([[3.0, 0.0], [4.0, 0.0]]), np.eye(2)).tolist()
    [[0.6, 0.0], [0.8, 1.0]]
    """
    length = np.linalg.norm(matrix, axis=0)
    return np.asarray(np.where(length > 0, matrix / np.where(length > 0, length, 1.0), fallback))


def shrink_columns(matrix: Matrix, threshold: float) -> Matrix:
    """Prox of the l2,1 norm over columns: a_r * max(0, 1 - threshold / ||a_r||) (DPFact eq. 12, ERRATA E0.3).

    >>> shrink_columns(np.array([[3.0, 0.1], [4.0, 0.0]]), 1.0).round(3).tolist()
    [[2.4, 0.0], [3.2, 0.0]]
    """
    norm = np.linalg.norm(matrix, axis=0)
    return np.asarray(matrix * np.maximum(0.0, 1.0 - threshold / np.where(norm > 0, norm, 1.0)))


def solve_memberships(
    tensor: SparseTensor,
    features: Sequence[Matrix],
    *,
    nonnegative: bool = True,
    sweeps: int = 50,
    tol: float = 1e-10,
    l21: float | None = None,
    ridge: float = 0.0,
    threads: int = 1,
) -> Matrix:
    """Place patients in given phenotypes: the best (I, R) loadings with the feature factors held; every cell counts.

    Parameters
    ----------
    tensor
        Patients over the codes of ``features``.
    features
        One (I_n, R) factor per feature mode.
    nonnegative
        Loadings of at least 0 (HALS until the change is below ``tol`` times the largest, at most ``sweeps``);
        else exact least squares.
    l21
        mu of the column penalty; see :func:`hals`.

    Examples
    --------
    >>> t = SparseTensor([[0, 0, 0], [2, 1, 0]], [2.0, 3.0], (3, 2, 1))
    >>> solve_memberships(t, [np.eye(2), np.ones((1, 2))]).tolist()
    [[2.0, 0.0], [0.0, 0.0], [0.0, 3.0]]
    """
    rank = features[0].shape[1]
    stub = np.empty((0, rank))
    m = device.mttkrp(tensor, [stub, *features], 0, threads=threads)
    g = gram([stub, *features], 0)
    if not nonnegative and not l21:
        return least_squares(g, m, ridge)
    d = np.diagonal(g)
    a = m / np.where(d > 0, d, 1.0)
    if nonnegative:
        a = np.maximum(a, 0.0)
    a[:, d <= 0] = 0.0
    finished, step = 0, 5
    while finished < sweeps:
        new = hals(a, g, m, sweeps=min(step, sweeps - finished), nonnegative=nonnegative, l21=l21, ridge=ridge)
        change, size = float(np.abs(new - a).max(initial=0.0)), float(np.abs(new).max(initial=0.0))
        a, finished = new, finished + step
        if change <= tol * size:
            break
    return a
