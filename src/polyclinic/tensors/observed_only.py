"""Nonzeros only: factors from the observed entries, absent ones unknown (``zeros="missing"``; ERRATA E0.4).

Every row of a factor then has its own R x R system, the sum of f f' over its observed entries with f the product of
the other modes' rows. Systems are built and solved in blocks of rows, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import cp, device
from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
Zeros = Literal["observed", "missing"]
BLOCK: Final = 8_000_000  # numbers in one block of systems: 64 MB


@kernel
def _systems(rows, indptr, codes, factors, mode, first, last, systems, f):  # type: ignore[no-untyped-def]
    """systems[i - first] += f f' for every entry whose row i in ``mode`` is in first .. last-1."""
    rank = len(f)
    modes = len(codes) + 1
    for p in range(len(rows)):
        if mode == 0 and not (first <= rows[p] < last):
            continue
        for e in range(indptr[p], indptr[p + 1]):
            i = rows[p] if mode == 0 else np.int64(codes[mode - 1][e])
            if i < first or i >= last:
                continue
            for r in range(rank):
                f[r] = 1.0 if mode == 0 else factors[0][rows[p], r]
            for n in range(1, modes):
                if n != mode:
                    j = codes[n - 1][e]
                    for r in range(rank):
                        f[r] *= factors[n][j, r]
            h = systems[i - first]
            for r in range(rank):
                for s in range(rank):
                    h[r, s] += f[r] * f[s]


@kernel
def _solve(systems, mttkrp, factor, first, sweeps, nonnegative, ridge):  # type: ignore[no-untyped-def]
    """Coordinate sweeps over each row's own system."""
    rank = factor.shape[1]
    for i in range(len(systems)):
        h, a, m = systems[i], factor[first + i], mttkrp[first + i]
        largest = 0.0
        for r in range(rank):
            largest = max(largest, h[r, r])
        if largest == 0.0:
            for r in range(rank):
                a[r] = 0.0  # nothing observed
            continue
        for _ in range(sweeps):
            change, size = 0.0, 0.0
            for r in range(rank):
                d = h[r, r] + ridge
                if d <= 1e-14 * largest:
                    continue
                g = m[r] - ridge * a[r]
                for s in range(rank):
                    g -= h[r, s] * a[s]
                new = a[r] + g / d
                if nonnegative and new < 0.0:
                    new = 0.0
                change, size = max(change, abs(new - a[r])), max(size, abs(new))
                a[r] = new
            if change <= 1e-12 * size:
                break


def solve_mode(
    tensor: SparseTensor,
    factors: Sequence[Matrix],
    mode: int,
    mttkrp: Matrix,
    *,
    nonnegative: bool = True,
    sweeps: int = 5,
    ridge: float = 0.0,
) -> Matrix:
    """One factor by weighted least squares over the nonzeros, rows by coordinate sweeps from ``factors[mode]``.

    Parameters
    ----------
    tensor, factors, mode
        As in :func:`polyclinic.tensors.kernels.mttkrp.mttkrp`.
    mttkrp
        (I_mode, R).
    sweeps
        Coordinate sweeps a row at most.
    ridge
        Added to every row's diagonal. Rows with fewer entries than phenotypes are not determined by the data; they
        stay near where they start.

    Examples
    --------
    >>> t = SparseTensor([[0, 0], [1, 1]], [6.0, 4.0], (2, 2))
    >>> a, b = np.ones((2, 1)), np.array([[2.0], [1.0]])
    >>> solve_mode(t, [a, b], 0, np.array([[12.0], [4.0]])).tolist()
    [[3.0], [4.0]]
    """
    out = np.array(factors[mode], np.float64)
    rank = out.shape[1]
    codes = tensor.codes
    if len({c.dtype for c in codes}) > 1:  # a tuple of one type can be indexed by the loop
        codes = tuple(np.array(c, np.int32) for c in codes)
    plain = tuple(np.ascontiguousarray(f, np.float64) for f in factors)
    step = max(1, BLOCK // (rank * rank))
    for first in range(0, len(out), step):
        last = min(len(out), first + step)
        systems = np.zeros((last - first, rank, rank))
        _systems(tensor.rows, tensor.indptr, codes, plain, mode, first, last, systems, np.empty(rank))
        _solve(systems, np.ascontiguousarray(mttkrp), out, first, sweeps, nonnegative, ridge)
    return out


def memberships(
    tensor: SparseTensor, features: Sequence[Matrix], *, nonnegative: bool, zeros: Zeros, sweeps: int = 50
) -> Matrix:
    """Place patients in given phenotypes: every cell counts (``"observed"``), or a patient's nonzeros alone (``"missing"``)."""
    if zeros == "observed":
        return cp.solve_memberships(tensor, features, nonnegative=nonnegative, sweeps=sweeps)
    start = np.zeros((tensor.patients, features[0].shape[1]))
    m = device.mttkrp(tensor, [start[:0], *features], 0)
    return solve_mode(tensor, [start, *features], 0, m, nonnegative=nonnegative, sweeps=sweeps)
