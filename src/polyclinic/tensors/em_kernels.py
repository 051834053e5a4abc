"""EM for one patient at a time: place the patient among the phenotypes, and sum unit-length statistics in integers.

Model (PRIVACY 3.2): the counts of patient i are draws from sum_r a_ir b_r (x) c_r (x) ..., all columns on the simplex.
The codes of all feature modes are stacked: row ``offset_m + code`` of one (codes, R) matrix belongs to mode m, so any
number of modes costs one more column of row numbers. Every patient's vector of statistics is divided by its length and
truncated toward zero to whole multiples of 2^-16, so that its length in exact integers never exceeds 2^16: that is the
sensitivity. Sums are int64, hence the same in any order and for any number of threads.

Every processor gives the same integers, because the arithmetic is written down (GPUs follow it too, :mod:`.cuda`): float64,
each operation rounded once, no fused multiply-add; sums over phenotypes in eight lanes (`_dot`), sums over a patient's
entries in their stored order, one division per sum; the length in integers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["GRID", "LANES", "UNIT", "memberships", "padded", "products", "stacked_rows", "unit_statistics"]

UNIT: Final = 65_536  # a patient's vector has at most this length, in whole grid steps
GRID: Final = 1.0 / UNIT
CHUNK: Final = 2_048  # patients per task; fixed, though int64 sums would not mind another number
LARGEST: Final = 1e15  # counts above are scaled down together: only their ratios matter, and squares must stay finite
SMALLEST, LIFT = (
    1e-150,
    1e200,
)  # a record whose largest count is below is lifted: statistics may not vanish by underflow

Float = NDArray[np.float64]
Int = NDArray[np.int64]

LANES: Final = (
    8  # sums over phenotypes run in this many lanes; part of the specification, not a matter of the processor
)
SHARE: Final = float(1 << 30)  # a patient's shares are measured in these steps when its length is taken


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def _dot(a: Float, b: Float, row: int) -> float:
    """sum_r a[r] b[row, r] in eight lanes: lane l adds r = l, l + 8, ...; then lanes 4, 2 and 1 apart are added."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for r in range(0, len(a), LANES):
        s0 += a[r] * b[row, r]
        s1 += a[r + 1] * b[row, r + 1]
        s2 += a[r + 2] * b[row, r + 2]
        s3 += a[r + 3] * b[row, r + 3]
        s4 += a[r + 4] * b[row, r + 4]
        s5 += a[r + 5] * b[row, r + 5]
        s6 += a[r + 6] * b[row, r + 6]
        s7 += a[r + 7] * b[row, r + 7]
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def _sum(a: Float) -> float:
    """sum_r a[r] in the same order."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for r in range(0, len(a), LANES):
        s0 += a[r]
        s1 += a[r + 1]
        s2 += a[r + 2]
        s3 += a[r + 3]
        s4 += a[r + 4]
        s5 += a[r + 5]
        s6 += a[r + 6]
        s7 += a[r + 7]
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def products(rows: NDArray[np.int32], w: Float, phi: Float) -> None:
    """phi[e, r] = product over the modes of the factors at entry e."""
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _place(
    rows: NDArray[np.int32], counts: Float, w: Float, prior: Float, steps: int, a: Float, next_a: Float, phi: Float
) -> None:
    """Fill ``a`` with the patient's memberships: ``steps`` EM steps from the prior's mean, Dirichlet smoothing ``prior``.

    ``phi`` (entries, R) is left filled with the product of the factors at every entry.
    """
    n, rank = len(rows), w.shape[1]
    products(rows, w, phi)
    share = 1.0 / _sum(prior)
    for r in range(rank):
        a[r] = prior[r] * share
    for _ in range(steps):
        for r in range(rank):
            next_a[r] = 0.0
        for e in range(n):
            mix = _dot(a, phi, e)
            if mix > 0.0:
                scale = counts[e] / mix
                for r in range(rank):
                    next_a[r] += scale * phi[e, r]
        for r in range(rank):
            next_a[r] = next_a[r] * a[r] + prior[r]
        share = 1.0 / _sum(next_a)
        for r in range(rank):
            a[r] = next_a[r] * share


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _tame(values: Float, out: Float) -> None:
    """Copy the counts; where the largest is above ``LARGEST`` or below ``SMALLEST`` scale all of them together."""
    top = 0.0
    for e in range(len(values)):
        top = max(top, values[e])
    scale = LARGEST / top if top > LARGEST else 1.0
    if top < SMALLEST:
        scale = LIFT
    for e in range(len(values)):
        out[e] = values[e] * scale


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def _whole(x: float, most: float) -> np.int64:
    """The whole part of x in [0, most]: toward zero, so that a length cannot grow.

    Converting an infinity or NaN to an integer is whatever the processor does (x86: the smallest integer; others
    saturate to the largest, whose square wraps to 1), so that never happens here.
    """
    if not x > 0.0:
        return np.int64(0)
    if x >= most:
        return np.int64(most)
    return np.int64(x)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _memberships(
    indptr: Int, rows: NDArray[np.int32], values: Float, w: Float, prior: Float, steps: int, out: Float
) -> None:
    rank = w.shape[1]
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    phi, counts, spare = np.empty((longest, rank)), np.empty(longest), np.empty(rank)
    for i in range(len(indptr) - 1):
        lo, hi = indptr[i], indptr[i + 1]
        _tame(values[lo:hi], counts[: hi - lo])
        _place(rows[lo:hi], counts[: hi - lo], w, prior, steps, out[i], spare, phi)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _statistics(
    indptr: Int, rows: NDArray[np.int32], values: Float, w: Float, prior: Float, steps: int, out: Int
) -> float:
    """Add every patient's unit vector, in grid steps, to ``out`` (codes, R); mean log-likelihoods, summed, come back.

    ``w`` and ``prior`` are padded with zeros to a multiple of ``LANES``, ``out`` is not.
    """
    size, wide = w.shape
    rank = out.shape[1]
    modes = rows.shape[1]
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    phi, counts = np.empty((longest, wide)), np.empty(longest)
    a, p = np.empty(wide), np.empty(wide)
    s = np.zeros((size, wide))  # one patient's statistics; only the touched rows are ever non-zero
    touched, seen = np.empty(longest * modes, np.int64), np.zeros(size, np.bool_)
    whole = np.empty((longest * modes, rank), np.int64)
    likelihood = 0.0
    for i in range(len(indptr) - 1):
        lo, hi = indptr[i], indptr[i + 1]
        n = hi - lo
        _tame(values[lo:hi], counts[:n])
        _place(rows[lo:hi], counts[:n], w, prior, steps, a, p, phi)
        used, events, logs = 0, 0.0, 0.0
        for e in range(n):
            mix = _dot(a, phi, e)
            if mix > 0.0:
                for r in range(wide):
                    p[r] = a[r] * phi[e, r]
            else:  # a code no phenotype knows: it belongs to each as the patient does
                mix = 1.0
                for r in range(wide):
                    p[r] = a[r]
            events += counts[e]
            logs += counts[e] * np.log(mix)
            scale = counts[e] / mix
            for m in range(modes):
                row = rows[lo + e, m]
                if not seen[row]:
                    seen[row] = True
                    touched[used] = row
                    used += 1
                for r in range(wide):
                    s[row, r] += scale * p[r]
        likelihood += logs / events
        # Shares of the patient's events, each mode's adding to 1, in steps of 2^-30 rounded up: their squared length is
        # an integer, the same in any order, and the unit vector that it gives is never too long.
        share = 1.0 / events
        square = np.uint64(0)
        for t in range(used):
            row = touched[t]
            for r in range(rank):
                q = _whole(s[row, r] * share * SHARE, SHARE)
                whole[t, r] = q
                square += np.uint64(q + 1) * np.uint64(q + 1)
        unit = UNIT / np.sqrt(np.float64(square))
        length = np.int64(0)
        for t in range(used):
            for r in range(rank):
                k = _whole(whole[t, r] * unit, UNIT)
                whole[t, r] = k
                length += k * k
        # Float rounding could lift a coordinate onto the next grid step; integers decide, not floats. A patient whose
        # record breaks float arithmetic and is still too long adds nothing, and nobody outside can tell.
        if length > UNIT * UNIT:
            length = np.int64(0)
            for t in range(used):
                for r in range(rank):
                    k = max(whole[t, r] - 1, 0)
                    whole[t, r] = k
                    length += k * k
        counted = 1 if length <= UNIT * UNIT else 0
        for t in range(used):
            row = touched[t]
            seen[row] = False
            for r in range(rank):
                out[row, r] += counted * whole[t, r]
            for r in range(wide):
                s[row, r] = 0.0
    return likelihood


def padded(w: Float) -> Float:
    """The same columns and zeros up to a multiple of ``LANES``: what is not a phenotype takes part in no sum."""
    spare = -w.shape[-1] % LANES
    return np.ascontiguousarray(np.pad(w, [(0, 0)] * (w.ndim - 1) + [(0, spare)]) if spare else w, np.float64)


def stacked_rows(tensor: SparseTensor) -> NDArray[np.int32]:
    """(nonzeros, modes) row of every entry's code in the stacked factor matrix; negative counts are refused.

    Examples
    --------
    >>> stacked_rows(SparseTensor([[0, 1, 2]], [4.0], (1, 2, 3))).tolist()
    [[1, 4]]
    """
    bad = np.flatnonzero(~(tensor.values > 0))
    if bad.size:
        raise DataError(
            f"{bad.size} counts are not positive (the first is {tensor.values[bad[0]]:g})",
            hint="this method counts events; give counts, not standardised values",
        )
    out = np.empty((tensor.nnz, tensor.ndim - 1), np.int32)
    offset = 0
    for m, (codes, size) in enumerate(zip(tensor.codes, tensor.shape[1:])):
        np.add(codes, offset, out=out[:, m], casting="unsafe")
        offset += size
    return out


def memberships(tensor: SparseTensor, w: Float, prior: Float, *, steps: int = 10) -> Float:
    """Place every patient among R phenotypes: (patients, R), rows on the simplex; patients without events get zeros.

    Parameters
    ----------
    tensor
        Counts.
    w
        (codes of all feature modes, R) factors stacked, each mode's columns on the simplex.
    prior
        (R,) Dirichlet smoothing.
    steps
        EM steps.
    """
    rows = stacked_rows(tensor)
    wide, base = padded(w), padded(prior)
    found = np.zeros((len(tensor.rows), wide.shape[1]))

    def work(lo: int, hi: int) -> None:
        _memberships(tensor.indptr[lo : hi + 1], rows, tensor.values, wide, base, steps, found[lo:hi])

    _chunked(work, len(tensor.rows))
    out = np.zeros((tensor.patients, w.shape[1]))
    out[tensor.rows] = found[:, : w.shape[1]]
    return out


def unit_statistics(tensor: SparseTensor, w: Float, prior: Float, *, steps: int = 8) -> tuple[Int, float]:
    """Sum over patients of their unit-length expected counts, in whole grid steps: int64 (codes, R).

    One patient more or less moves the result by a vector of integer length at most ``UNIT`` = 2^16 (PRIVACY 3.2). With
    R = 1 these are the marginal counts of every mode. The second value is the sum over patients of their mean
    log-likelihood per event (for runs without privacy: it has no sensitivity bound).
    """
    rows = stacked_rows(tensor)
    wide, base = padded(w), padded(prior)
    parts: dict[int, tuple[Int, float]] = {}

    def work(lo: int, hi: int) -> None:
        part = np.zeros(w.shape, np.int64)
        parts[lo] = part, _statistics(tensor.indptr[lo : hi + 1], rows, tensor.values, wide, base, steps, part)

    _chunked(work, len(tensor.rows))
    total, likelihood = np.zeros(w.shape, np.int64), 0.0
    for lo in sorted(parts):
        total += parts[lo][0]
        likelihood += parts[lo][1]
    return total, likelihood


def _chunked(work: Callable[[int, int], Any], patients: int) -> None:
    """Run ``work(first, last + 1)`` on fixed chunks of patients, on as many threads as there are cores."""
    starts = range(0, patients, CHUNK)
    if len(starts) <= 1 or (os.cpu_count() or 1) == 1:
        for lo in starts:
            work(lo, min(lo + CHUNK, patients))
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda lo: work(lo, min(lo + CHUNK, patients)), starts):
            pass
