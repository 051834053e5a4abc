"""Small dense algebra whose every addition has one written order: the same bits on every machine.

What all parties compute from a sum must be equal at all of them, on whatever processor. BLAS and LAPACK add in an order that
depends on the processor; these loops do not: no library, no fused or reassociated operations, only IEEE's +, -, *, / and root.
"""

from __future__ import annotations

from math import frexp, ldexp

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel

Matrix = NDArray[np.float64]


@kernel
def add_product(a, b, out):  # type: ignore[no-untyped-def]
    """A B is added to ``out``."""
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            x = a[i, k]
            if x != 0.0:
                for j in range(b.shape[1]):
                    out[i, j] += x * b[k, j]


@kernel
def add_transposed(a, b, out):  # type: ignore[no-untyped-def]
    """A'B is added to ``out``."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            if x != 0.0:
                for j in range(b.shape[1]):
                    out[i, j] += x * b[k, j]


def product(a: Matrix, b: Matrix) -> Matrix:
    """A B.

    >>> product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    out = np.zeros((a.shape[0], b.shape[1]))
    add_product(np.ascontiguousarray(a, np.float64), np.ascontiguousarray(b, np.float64), out)
    return out


def transposed_product(a: Matrix, b: Matrix) -> Matrix:
    """A'B.

    >>> transposed_product(np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    out = np.zeros((a.shape[1], b.shape[1]))
    add_transposed(np.ascontiguousarray(a, np.float64), np.ascontiguousarray(b, np.float64), out)
    return out


@kernel
def dot(a, b):  # type: ignore[no-untyped-def]
    """Sum of the products of two rows of numbers."""
    out = 0.0
    for i in range(a.shape[0]):
        out += a[i] * b[i]
    return out


def inner(a: Matrix, b: Matrix) -> float:
    """Sum of the products of equal places.

    >>> inner(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    return float(dot(np.ascontiguousarray(a, np.float64).ravel(), np.ascontiguousarray(b, np.float64).ravel()))


def power_of_two(size: float) -> float:
    """The next power of two, without a logarithm.

    >>> power_of_two(1000.0), power_of_two(1024.0), power_of_two(0.0)
    (1024.0, 1024.0, 1.0)
    """
    if not size > 0:
        return 1.0
    mantissa, exponent = frexp(size)
    return ldexp(1.0, exponent if mantissa > 0.5 else exponent - 1)


@kernel
def cholesky(g, out):  # type: ignore[no-untyped-def]
    """Lower triangle L of G = L L'; a pivot below 1e-300 is taken as 1e-300."""
    n = g.shape[0]
    for i in range(n):
        for j in range(i + 1):
            x = g[i, j]
            for k in range(j):
                x -= out[i, k] * out[j, k]
            if i == j:
                out[i, i] = np.sqrt(max(x, 1e-300))
            else:
                out[i, j] = x / out[j, j]


@kernel
def substitute(low, rows):  # type: ignore[no-untyped-def]
    """Every row x of ``rows`` becomes the solution y of L L' y = x."""
    n = low.shape[0]
    for c in range(rows.shape[0]):
        for i in range(n):
            x = rows[c, i]
            for k in range(i):
                x -= low[i, k] * rows[c, k]
            rows[c, i] = x / low[i, i]
        for back in range(n):
            i = n - 1 - back
            x = rows[c, i]
            for k in range(i + 1, n):
                x -= low[k, i] * rows[c, k]
            rows[c, i] = x / low[i, i]


def solve(gram: Matrix, rows: Matrix, ridge: float = 1e-9) -> Matrix:
    """Rows times (G + ridge tr(G)/R I)^-1, G symmetric and positive.

    >>> solve(np.diag([2.0, 4.0]), np.array([[2.0, 4.0]])).round(6).tolist()
    [[1.0, 1.0]]
    """
    g = np.array(gram, np.float64)
    n = len(g)
    trace = 0.0
    for r in range(n):
        trace += float(g[r, r])
    for r in range(n):
        g[r, r] += ridge * trace / n
    low, out = np.zeros_like(g), np.array(rows, np.float64, order="C")
    cholesky(g, low)
    substitute(low, out)
    return out


@kernel
def sweep_rows(factor, gram, mttkrp, sweeps):  # type: ignore[no-untyped-def]
    """Sweeps of :func:`hals`; ``factor`` is changed."""
    rank = factor.shape[1]
    largest = 0.0
    for r in range(rank):
        largest = max(largest, gram[r, r])
    for i in range(factor.shape[0]):
        for _ in range(sweeps):
            for r in range(rank):
                d = gram[r, r]
                if d <= 1e-14 * largest or d <= 0.0:
                    continue
                x = mttkrp[i, r]
                for k in range(rank):
                    x -= factor[i, k] * gram[k, r]
                factor[i, r] = max(factor[i, r] + x / d, 0.0)


def hals(factor: Matrix, gram: Matrix, mttkrp: Matrix, sweeps: int) -> Matrix:
    """Non-negative least squares of one factor, as :func:`polyclinic.tensors.kernels.hals.hals`, in a fixed order.

    >>> hals(np.zeros((1, 2)), np.eye(2), np.array([[3.0, -1.0]]), 1).tolist()
    [[3.0, 0.0]]
    """
    out = np.array(factor, np.float64, order="C")
    sweep_rows(out, np.ascontiguousarray(gram, np.float64), np.ascontiguousarray(mttkrp, np.float64), sweeps)
    return out


@kernel
def power(gram, times):  # type: ignore[no-untyped-def]
    """Largest eigenvalue of a symmetric positive matrix, by ``times`` multiplications."""
    n = gram.shape[0]
    x, y = np.ones(n), np.zeros(n)
    size = 0.0
    for _ in range(times):
        size = 0.0
        for i in range(n):
            t = 0.0
            for j in range(n):
                t += gram[i, j] * x[j]
            y[i] = t
            size += t * t
        size = np.sqrt(size)
        if size <= 0.0:
            return 0.0
        for i in range(n):
            x[i] = y[i] / size
    return size


@kernel
def _jacobi(a, v, sweeps):  # type: ignore[no-untyped-def]
    n = a.shape[0]
    for _ in range(sweeps):
        off = 0.0
        size = 0.0
        for i in range(n):
            size += a[i, i] * a[i, i]
            for j in range(i):
                off += a[i, j] * a[i, j]
        if off <= 1e-28 * size:
            return
        for p in range(n - 1):
            for q in range(p + 1, n):
                if abs(a[p, q]) < 1e-300:
                    continue
                theta = (a[q, q] - a[p, p]) / (2.0 * a[p, q])
                t = 1.0 / (abs(theta) + np.sqrt(theta * theta + 1.0))
                if theta < 0.0:
                    t = -t
                c = 1.0 / np.sqrt(t * t + 1.0)
                s = t * c
                for k in range(n):
                    x, y = a[k, p], a[k, q]
                    a[k, p], a[k, q] = c * x - s * y, s * x + c * y
                for k in range(n):
                    x, y = a[p, k], a[q, k]
                    a[p, k], a[q, k] = c * x - s * y, s * x + c * y
                for k in range(n):
                    x, y = v[k, p], v[k, q]
                    v[k, p], v[k, q] = c * x - s * y, s * x + c * y


def eigen(symmetric: Matrix) -> tuple[Matrix, Matrix]:
    """Eigenvalues (n,) and vectors (columns) of a symmetric matrix, by cyclic Jacobi rotations; in no order.

    >>> sorted(eigen(np.array([[2.0, 1.0], [1.0, 2.0]]))[0].round(9).tolist())
    [1.0, 3.0]
    """
    a, v = np.array(symmetric, np.float64, order="C"), np.eye(len(symmetric))
    _jacobi(a, v, 60)
    return np.diagonal(a).copy(), v


@kernel
def make_unit(a, lengths):  # type: ignore[no-untyped-def]
    """Columns of ``a`` get length 1, ``lengths`` what they had."""
    for r in range(a.shape[1]):
        x = 0.0
        for i in range(a.shape[0]):
            x += a[i, r] * a[i, r]
        lengths[r] = np.sqrt(x)
        if lengths[r] > 0.0:
            for i in range(a.shape[0]):
                a[i, r] /= lengths[r]


def unit(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Columns of length 1 and their lengths (R,); a column of zeros stays.

    >>> unit(np.array([[3.0, 0.0], [4.0, 0.0]]))[1].tolist()
    [5.0, 0.0]
    """
    out, lengths = np.array(matrix, np.float64, order="C"), np.zeros(matrix.shape[1])
    make_unit(out, lengths)
    return out, lengths
