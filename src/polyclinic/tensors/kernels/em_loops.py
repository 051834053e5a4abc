"""The loops of EM for one patient at a time (:mod:`.kernels.em` has the model), eight phenotypes at a time.

The arithmetic is written down there: float64, each operation rounded once, lane l of eight adds the phenotypes l, l + 8, ...
All rows are padded with zeros to a multiple of eight (``LANES``), which take part in no sum.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.simd.lanes import EIGHT, lane_sum, load_at, store_at
from polyclinic.tensors.simd.rows import add_row, multiply, scale, spread

UNIT: Final = 65_536  # a patient's vector has at most this length, in whole grid steps
LARGEST: Final = 1e15  # counts above are scaled down together: only their ratios matter, and squares must stay finite
# a record whose largest count is below is lifted: statistics may not vanish by underflow
SMALLEST, LIFT = 1e-150, 1e200
# sums over phenotypes run in this many lanes; part of the specification, not a matter of the processor
LANES: Final = 8
SHARE: Final = float(1 << 30)  # a patient's shares are measured in these steps when its length is taken

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Rows = NDArray[np.int32]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def products(rows: Rows, w: Float, phi: Float) -> None:
    """phi[e, r] = product over the modes of the factors at entry e; any number of columns."""
    n, modes = rows.shape
    rank = w.shape[1]
    for e in range(n):
        first = rows[e, 0]
        for r in range(rank):
            phi[e, r] = w[first, r]
        for m in range(1, modes):
            row = rows[e, m]
            for r in range(rank):
                phi[e, r] *= w[row, r]


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _dot(a: Float, i: int, b: Float, j: int) -> float:
    """sum_r a[i, r] b[j, r] in eight lanes."""
    total = multiply(load_at(EIGHT, a, i, 0), load_at(EIGHT, b, j, 0))
    for r in range(np.uint64(LANES), np.uint64(a.shape[1]), np.uint64(LANES)):
        total = add_row(total, multiply(load_at(EIGHT, a, i, r), load_at(EIGHT, b, j, r)))
    return lane_sum(total)  # type: ignore[no-any-return]


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _sum(a: Float, i: int) -> float:
    """sum_r a[i, r] in the same order."""
    total = load_at(EIGHT, a, i, 0)
    for r in range(np.uint64(LANES), np.uint64(a.shape[1]), np.uint64(LANES)):
        total = add_row(total, load_at(EIGHT, a, i, r))
    return lane_sum(total)  # type: ignore[no-any-return]


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _add(x: float, a: Float, i: int, to: Float, j: int) -> None:
    """to[j, r] += x * a[i, r], the product rounded before the sum."""
    for r in range(np.uint64(0), np.uint64(a.shape[1]), np.uint64(LANES)):
        store_at(add_row(load_at(EIGHT, to, j, r), scale(load_at(EIGHT, a, i, r), x)), to, j, r)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _times(a: Float, i: int, b: Float, j: int, to: Float, k: int) -> None:
    """to[k, r] = a[i, r] * b[j, r]."""
    for r in range(np.uint64(0), np.uint64(a.shape[1]), np.uint64(LANES)):
        store_at(multiply(load_at(EIGHT, a, i, r), load_at(EIGHT, b, j, r)), to, k, r)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _fill(x: float, a: Float, i: int, to: Float, j: int) -> None:
    """to[j, r] = x * a[i, r]."""
    for r in range(np.uint64(0), np.uint64(a.shape[1]), np.uint64(LANES)):
        store_at(scale(load_at(EIGHT, a, i, r), x), to, j, r)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _nothing(to: Float, j: int) -> None:
    """to[j, r] = 0."""
    for r in range(np.uint64(0), np.uint64(to.shape[1]), np.uint64(LANES)):
        store_at(spread(EIGHT, 0.0), to, j, r)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _place(
    rows: Rows,
    lo: int,
    n: int,
    counts: Float,
    w: Float,
    prior: Float,
    steps: int,
    a: Float,
    i: int,
    next_a: Float,
    phi: Float,
) -> None:
    """Fill row i of ``a`` with the patient's memberships: ``steps`` EM steps from the prior's mean, Dirichlet smoothing ``prior``.

    ``phi`` (entries, R) is left filled with the product of the factors at every entry; ``prior`` and ``next_a`` are (1, R).
    """
    for e in range(np.uint64(n)):
        first = np.uint64(rows[lo + e, 0])
        if rows.shape[1] == 1:
            _fill(1.0, w, first, phi, e)
        else:
            _times(w, first, w, np.uint64(rows[lo + e, 1]), phi, e)
        for m in range(2, rows.shape[1]):
            _times(phi, e, w, np.uint64(rows[lo + e, m]), phi, e)
    _fill(1.0 / _sum(prior, 0), prior, 0, a, i)
    for _ in range(steps):
        _nothing(next_a, 0)
        for e in range(np.uint64(n)):
            mix = _dot(a, i, phi, e)
            if mix > 0.0:
                _add(counts[e] / mix, phi, e, next_a, 0)
        for r in range(np.uint64(0), np.uint64(a.shape[1]), np.uint64(LANES)):
            new = multiply(load_at(EIGHT, next_a, 0, r), load_at(EIGHT, a, i, r))
            store_at(add_row(new, load_at(EIGHT, prior, 0, r)), next_a, 0, r)
        _fill(1.0 / _sum(next_a, 0), next_a, 0, a, i)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _tame(values: Float, lo: int, n: int, out: Float) -> None:
    """Copy the counts; where the largest is above ``LARGEST`` or below ``SMALLEST`` scale all of them together."""
    top = 0.0
    for e in range(np.uint64(n)):
        top = max(top, values[lo + e])
    scaled = LARGEST / top if top > LARGEST else 1.0
    if top < SMALLEST:
        scaled = LIFT
    for e in range(np.uint64(n)):
        out[e] = values[lo + e] * scaled


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _whole(x: float, most: float) -> np.int32:
    """The whole part of x in [0, most]: toward zero, so that a length cannot grow.

    Converting an infinity or NaN to an integer is whatever the processor does (x86: the smallest integer; others
    saturate to the largest, whose square wraps to 1), so that never happens here.
    """
    low = x if x > 0.0 else 0.0  # NaN too
    return np.int32(low if low < most else most)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _square(x: np.int32) -> np.uint64:
    """x^2 in 64 bits, of a number that is not negative."""
    long = np.uint64(np.uint32(x))
    return long * long


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _longest(indptr: Int) -> int:
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@kernel
def memberships(indptr: Int, rows: Rows, values: Float, w: Float, prior: Float, steps: int, out: Float) -> None:
    """Fill ``out`` (patients, R); all matrices padded, ``prior`` is (1, R)."""
    longest, wide = _longest(indptr), w.shape[1]
    phi, counts, spare = np.empty((longest, wide)), np.empty(longest), np.empty((1, wide))
    for i in range(np.uint64(len(indptr) - 1)):
        lo, n = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)] - indptr[i])
        _tame(values, lo, n, counts)
        _place(rows, lo, n, counts, w, prior, steps, out, i, spare, phi)


@kernel
def statistics(
    indptr: Int, rows: Rows, values: Float, w: Float, prior: Float, steps: int, out: Int, rank: int
) -> float:
    """Add every patient's unit vector, in grid steps, to ``out`` (codes, R); mean log-likelihoods, summed, come back.

    ``w``, ``prior`` (1, R) and ``out`` are padded with zeros to a multiple of ``LANES``; ``rank`` columns are phenotypes.
    """
    size, wide = w.shape
    modes = rows.shape[1]
    longest = _longest(indptr)
    phi, counts = np.empty((longest, wide)), np.empty(longest)
    a, p = np.empty((1, wide)), np.empty((1, wide))
    s = np.zeros((size, wide))  # one patient's statistics; only the touched rows are ever non-zero
    touched, seen = np.empty(longest * modes, np.uint64), np.zeros(size, np.bool_)
    whole = np.empty((longest * modes, wide), np.int32)
    likelihood = 0.0
    for i in range(np.uint64(len(indptr) - 1)):
        lo, n = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)] - indptr[i])
        _tame(values, lo, n, counts)
        _place(rows, lo, n, counts, w, prior, steps, a, 0, p, phi)
        used, events, logs = np.uint64(0), 0.0, 0.0
        for e in range(n):
            mix = _dot(a, 0, phi, e)
            if mix > 0.0:
                _times(a, 0, phi, e, p, 0)
            else:  # a code no phenotype knows: it belongs to each as the patient does
                mix = 1.0
                _fill(1.0, a, 0, p, 0)
            events += counts[e]
            logs += counts[e] * np.log(mix)
            scaled = counts[e] / mix
            for m in range(modes):
                row = np.uint64(rows[lo + e, m])
                if not seen[row]:
                    seen[row] = True
                    touched[used] = row
                    used += np.uint64(1)
                _add(scaled, p, 0, s, row)
        likelihood += logs / events
        # Shares of the patient's events, each mode's adding to 1, in steps of 2^-30 rounded up: their squared length is
        # an integer, the same in any order, and the unit vector that it gives is never too long.
        share = 1.0 / events
        square = np.uint64(0)
        for t in range(used):
            row = touched[t]
            for r in range(np.uint64(wide)):
                q = _whole(s[row, r] * share * SHARE, SHARE)
                whole[t, r] = q
                square += _square(q + np.int32(1))
        square -= used * np.uint64(wide - rank)  # the padding's share is 0, rounded up to 1 as all are
        unit = UNIT / np.sqrt(np.float64(square))
        length = np.uint64(0)
        for t in range(used):
            for r in range(np.uint64(wide)):
                k = _whole(whole[t, r] * unit, float(UNIT))
                whole[t, r] = k
                length += _square(k)
        # Float rounding could lift a coordinate onto the next grid step; integers decide, not floats. A patient whose
        # record breaks float arithmetic and is still too long adds nothing, and nobody outside can tell.
        if length > np.uint64(UNIT * UNIT):
            length = np.uint64(0)
            for t in range(used):
                for r in range(np.uint64(wide)):
                    k = max(whole[t, r] - np.int32(1), np.int32(0))
                    whole[t, r] = k
                    length += _square(k)
        fits = length <= np.uint64(UNIT * UNIT)
        for t in range(used):
            row = touched[t]
            seen[row] = False
            if fits:
                for r in range(np.uint64(wide)):
                    out[row, r] += whole[t, r]
            _nothing(s, row)
    return likelihood
