"""Non-negative least squares by hierarchical alternating least squares (HALS): one factor, given Gram and MTTKRP."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.simd.rows import WIDTH, aligned, axpy, lanes, load, ramp, store

Matrix = NDArray[np.float64]
ROWS: Final = 8 * WIDTH  # rows worked off side by side, one per lane: enough independent sums to hide latency


@kernel
def _sweeps(shape, factor, gram, inverse, mttkrp, sweeps, nonnegative, a, m, out):  # type: ignore[no-untyped-def]
    """Rows are independent: 32 of them are transposed into ``a`` and ``m`` and swept together, one per lane."""
    rows, rank = np.uint64(factor.shape[0]), np.uint64(factor.shape[1])
    width = np.uint64(a.shape[1])
    for s in range(np.uint64(0), rows, width):
        n = min(width, rows - s)
        for i in range(n):
            for r in range(rank):
                a[r, i] = factor[s + i, r]
                m[r, i] = mttkrp[s + i, r]
        for _ in range(sweeps):
            for r in range(rank):
                if inverse[r] == 0.0:
                    continue  # a dead column: the data say nothing about it, so it stays
                residual = load(shape, m, r)
                for k in range(rank):
                    residual = axpy(-gram[r, k], load(shape, a, k), residual)
                new = axpy(inverse[r], residual, load(shape, a, r))
                if nonnegative:
                    new = ramp(new)
                store(new, a, r)
        for i in range(n):
            for r in range(rank):
                out[s + i, r] = a[r, i]


def ridged(gram: Matrix, ridge: float) -> tuple[Matrix, Matrix]:
    """G with ``ridge`` on its diagonal, and one over that diagonal: 0 where a column is dead.

    >>> ridged(np.diag([3.0, 0.0]), 1.0)[1].tolist(), ridged(np.diag([4.0, 0.0]), 0.0)[1].tolist()
    ([0.25, 1.0], [0.25, 0.0])
    """
    g = np.array(gram, np.float64)
    g[np.diag_indices_from(g)] += ridge
    d = np.diagonal(g)
    return g, np.where(d > 1e-14 * max(float(d.max(initial=0.0)), 1e-300), 1.0 / np.where(d > 0, d, 1.0), 0.0)


def hals(
    factor: Matrix,
    gram: Matrix,
    mttkrp: Matrix,
    *,
    sweeps: int = 1,
    nonnegative: bool = True,
    l21: float | None = None,
    ridge: float = 0.0,
    out: Matrix | None = None,
) -> Matrix:
    """Improve one factor: sweep its columns, each solved exactly with the others held.

    Minimises 1/2 <A'A, G> - <A, M> over A (>= 0), which is 1/2 ||O - X||^2 in this factor up to a constant.

    Parameters
    ----------
    factor
        (I, R) where to start.
    gram
        (R, R) G: Hadamard product of the other modes' A'A.
    mttkrp
        (I, R) M.
    sweeps
        Passes over the columns.
    nonnegative
        Project every column on the non-negative numbers.
    l21
        mu of the column-wise l2,1 penalty mu * sum_r ||a_r|| (DPFact eq. 9): a column is shrunk in length,
        u_r * max(0, 1 - mu / (G_rr ||u_r||)), and turned off when it is short (prox inside the solve,
        because a prox after it is undone by the next solve).
    ridge
        Added to the diagonal of G.
    out
        Where to write (may be ``factor`` itself); a new array if not given.

    Returns
    -------
    ndarray, (I, R)
        A new factor. A column whose G_rr is zero (dead in another mode) is left as it is.

    Examples
    --------
    >>> hals(np.zeros((1, 2)), np.eye(2), np.array([[3.0, -1.0]])).tolist()
    [[3.0, 0.0]]
    """
    g, inverse = ridged(gram, ridge)
    start = np.ascontiguousarray(factor, np.float64)
    target = np.ascontiguousarray(mttkrp, np.float64)
    if l21:
        return _shrinking(start, g, inverse, target, sweeps, nonnegative, l21)
    rank = start.shape[1]
    out = np.empty_like(start) if out is None else out
    buffers = aligned(rank, ROWS), aligned(rank, ROWS)
    _sweeps(lanes(ROWS // WIDTH), start, g, inverse, target, sweeps, nonnegative, *buffers, out)
    return out


def _shrinking(
    start: Matrix, g: Matrix, inverse: Matrix, target: Matrix, sweeps: int, nonnegative: bool, mu: float
) -> Matrix:
    """With l2,1 the rows of a column are coupled through its length, so columns are swept whole."""
    a = np.array(start, order="F")
    for _ in range(sweeps):
        for r in range(a.shape[1]):
            if inverse[r] == 0.0:
                continue
            u = a[:, r] + inverse[r] * (target[:, r] - a @ g[:, r])
            if nonnegative:
                np.maximum(u, 0.0, out=u)
            norm = float(np.linalg.norm(u))
            a[:, r] = u * max(0.0, 1.0 - mu * inverse[r] / norm) if norm > 0 else 0.0
    return np.ascontiguousarray(a)
