"""The inner loops of CP factorization over the nonzeros of a sparse tensor.

Everything that costs time in phenotyping is here, behind a small interface (``mttkrp``, ``model``,
``squared_error``), so that another device can stand beside it. Pure-numpy twins are in ``tests/reference_kernels.py``.

Design (docs: performance): one patient-major copy serves every mode; a patient's row lives in registers; code modes
scatter into private outputs that are added in a fixed order. Work is cut into chunks by the data alone, never by the
number of threads, so results are the same bits for any number of threads. Kernels release the GIL and are compiled
once per padded rank and number of modes, then cached on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.simd.prefetch import ask, distance
from polyclinic.tensors.simd.rows import (
    LARGEST,
    WIDTH,
    aligned,
    blocks,
    dot,
    gather,
    gather_add,
    lanes,
    load,
    load_part,
    padded,
    scale,
    spread,
    store,
    store_part,
    zero,
)
from polyclinic.util.threads import on_threads

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
Fixed = tuple[tuple[int, ...], tuple[Matrix, ...], int]  # of one slab: lanes, factors, first column
CHUNK: Final = 1 << 20  # nonzeros worth a private output of their own
CHUNKS: Final = 16  # private outputs at most


@kernel
def _patients(shape, batch, target, indptr, codes, values, factors, out, column, columns, far):  # type: ignore[no-untyped-def]
    """out[i] = sum over the entries of patient i of value * product of the codes' rows."""
    last = np.uint64(len(values))
    for q in range(np.uint64(len(batch))):
        p = np.uint64(batch[q])
        total = zero(shape)
        for e in range(np.uint64(indptr[p]), np.uint64(indptr[p + np.uint64(1)])):
            if far and e + far < last:
                ask(shape, codes, factors, e + far)
            total = gather_add(total, spread(shape, values[e]), codes, factors, e)
        store_part(total, out, np.uint64(target[q]), column, columns)


@kernel
def _codes(shape, batch, target, indptr, code, codes, values, a, factors, out, column, columns, far):  # type: ignore[no-untyped-def]
    """out[j] += value * (patient's row) * product of the other codes' rows, entry by entry."""
    last = np.uint64(len(values))
    for q in range(np.uint64(len(batch))):
        p = np.uint64(batch[q])
        row = load_part(shape, a, np.uint64(target[q]), column, columns)
        for e in range(np.uint64(indptr[p]), np.uint64(indptr[p + np.uint64(1)])):
            if far and e + far < last:
                ask(shape, codes, factors, e + far)
                ask(shape, (code,), (out,), e + far)
            j = np.uint64(code[e])
            old = load(shape, out, j)
            store(gather_add(old, scale(row, values[e]), codes, factors, e), out, j)


@kernel
def _model(shape, batch, target, indptr, codes, starts, a, factors, out, column, columns):  # type: ignore[no-untyped-def]
    """out[e] += model at entry e; ``starts`` says where each patient of the batch begins in ``out``."""
    for q in range(np.uint64(len(batch))):
        p = np.uint64(batch[q])
        row = load_part(shape, a, np.uint64(target[q]), column, columns)
        first = np.uint64(indptr[p])
        to = np.uint64(starts[q])
        for e in range(first, np.uint64(indptr[p + np.uint64(1)])):
            out[to + (e - first)] += dot(row, gather(spread(shape, 1.0), codes, factors, e))


def _spans(lengths: NDArray[np.int64], pieces: int) -> list[slice]:
    """Cut a batch into ``pieces`` runs of patients with about the same number of nonzeros."""
    if pieces <= 1 or len(lengths) < 2:
        return [slice(0, len(lengths))]
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, pieces) / pieces) + 1
    edges = np.unique(np.concatenate([[0], np.minimum(cuts, len(lengths)), [len(lengths)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def _slabs(rank: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """First and last column, and width as ``lanes``, of each slab of columns worked off in one go."""
    block_count = blocks(rank)
    # as even as may be: a narrow last slab reads all entries for little
    most = -(-block_count // max(-(-block_count // LARGEST), 1))
    return [
        (b * WIDTH, min(rank, (b + most) * WIDTH), lanes(min(most, block_count - b)))
        for b in range(0, block_count, most)
    ]


def _selection(tensor: SparseTensor, rows: NDArray[np.int64] | None) -> tuple[Any, Any, NDArray[np.int64]]:
    """Positions of the patients in the layout, their rows in the patients' factor, and their numbers of nonzeros."""
    if rows is None:
        return np.arange(len(tensor.rows)), tensor.rows, np.diff(tensor.indptr)
    batch = np.ascontiguousarray(rows, np.int64)
    return batch, np.arange(len(batch)), tensor.indptr[batch + 1] - tensor.indptr[batch]


def _plain(factor: Matrix) -> Matrix:
    return np.ascontiguousarray(factor, np.float64)


def mttkrp(
    tensor: SparseTensor,
    factors: Sequence[Matrix],
    mode: int,
    *,
    rows: NDArray[np.int64] | None = None,
    threads: int = 1,
    out: Matrix | None = None,
) -> Matrix:
    """What the data say about one mode, given the other modes' factors (matricised tensor times Khatri-Rao product).

    Parameters
    ----------
    tensor
        Patients x codes x codes ...
    factors
        One (I_n, R) array per mode; ``factors[mode]`` is not read (it may have any content) but for its columns.
    mode
        0 for patients, else a feature mode.
    rows
        Positions into ``tensor.rows``: a batch of patients. Mode 0 then returns (len(rows), R), and ``factors[0]``
        has one row for each of them.
    threads
        Threads to use; the result does not depend on it.
    out
        Mode 0 only: where to write, an array that a call with the same tensor and rows returned before (fresh memory
        costs as much as the arithmetic at low rank).

    Returns
    -------
    ndarray, (I_mode, R)

    Examples
    --------
    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> t = SparseTensor([[0, 1, 0]], [2.0], (1, 2, 1))
    >>> mttkrp(t, [np.ones((1, 1)), np.ones((2, 1)), np.full((1, 1), 3.0)], 1).tolist()
    [[0.0], [6.0]]
    """
    rank = factors[1 if mode == 0 else 0].shape[1]
    batch, target, lengths = _selection(tensor, rows)
    other_modes = [n for n in range(1, tensor.ndim) if n != mode]
    codes = tuple(tensor.codes[n - 1] for n in other_modes)
    nonzeros = int(lengths.sum())
    if mode == 0:
        result = np.zeros((len(batch) if rows is not None else tensor.patients, rank)) if out is None else out
        pieces = _spans(lengths, min(CHUNKS, 1 + nonzeros // CHUNK))
        for first, last, shape in _slabs(rank):
            rights = tuple(padded(factors[n][:, first:last]) for n in other_modes)
            fixed, far = (shape, rights, first), distance(rights)

            def fill(s: slice, fixed: Fixed = fixed, far: np.uint64 = far) -> None:
                shape, rights, first = fixed
                layout = batch[s], target[s], tensor.indptr
                _patients(shape, *layout, codes, tensor.values, rights, result, first, rank, far)

            on_threads(fill, pieces, threads)
        return result
    size = tensor.shape[mode]
    pieces = _spans(lengths, min(CHUNKS, 1 + nonzeros // max(CHUNK, 16 * size)))
    a, code = _plain(factors[0]), tensor.codes[mode - 1]
    result = np.empty((size, rank))
    for first, last, shape in _slabs(rank):
        rights = tuple(padded(factors[n][:, first:last]) for n in other_modes)
        fixed = (shape, rights, first)

        def scatter(s: slice, fixed: Fixed = fixed) -> Matrix:
            shape, rights, first = fixed
            partial = aligned(size, len(shape) * WIDTH)
            layout = batch[s], target[s], tensor.indptr
            ahead_by = distance([*rights, partial])
            _codes(shape, *layout, code, codes, tensor.values, a, rights, partial, first, rank, ahead_by)
            return partial

        total, *partials = on_threads(scatter, pieces, threads)
        for private in partials:
            total += private
        result[:, first:last] = total[:, : last - first]
    return result


def model(
    tensor: SparseTensor, factors: Sequence[Matrix], *, rows: NDArray[np.int64] | None = None, threads: int = 1
) -> NDArray[np.float64]:
    """Model values at the nonzeros, in the order of ``tensor.values`` (or of the batch).

    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> model(SparseTensor([[0, 1]], [2.0], (1, 2)), [np.ones((1, 1)), np.full((2, 1), 3.0)]).tolist()
    [3.0]
    """
    batch, target, lengths = _selection(tensor, rows)
    rank = factors[0].shape[1]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    a, out = _plain(factors[0]), np.zeros(int(starts[-1]))
    pieces = _spans(lengths, min(CHUNKS, 1 + len(out) // CHUNK))
    for first, last, shape in _slabs(rank):
        rights = tuple(padded(f[:, first:last]) for f in factors[1:])

        def add(
            s: slice, first: int = first, shape: tuple[int, ...] = shape, rights: tuple[Matrix, ...] = rights
        ) -> None:
            _model(shape, batch[s], target[s], tensor.indptr, tensor.codes, starts[s], a, rights, out, first, rank)

        on_threads(add, pieces, threads)
    return out


def residuals_at(tensor: SparseTensor, factors: Sequence[Matrix]) -> NDArray[np.float64]:
    """Data minus model at the nonzeros.

    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> residuals_at(SparseTensor([[0, 1]], [2.0], (1, 2)), [np.ones((1, 1)), np.full((2, 1), 3.0)]).tolist()
    [-1.0]
    """
    return tensor.values - model(tensor, factors)


def squared_error(tensor: SparseTensor, factors: Sequence[Matrix], *, threads: int = 1) -> float:
    """Sum of squared residuals over the nonzeros, in pieces (never a second copy of the values)."""
    total, step = 0.0, 4096
    for s in range(0, len(tensor.rows), step):
        rows = np.arange(s, min(s + step, len(tensor.rows)))
        batch = [factors[0][tensor.rows[rows]], *factors[1:]]
        values = tensor.values[tensor.indptr[rows[0]] : tensor.indptr[rows[-1] + 1]]
        r = values - model(tensor, batch, rows=rows, threads=threads)
        total += float(r @ r)
    return total


def model_at(coords: NDArray[np.int64], factors: Sequence[Matrix]) -> NDArray[np.float64]:
    """Model values at any cells, zeros included (a sample, or held-out entries); ``coords`` is (cells, modes).

    >>> model_at(np.array([[0, 0]]), [np.full((1, 1), 2.0), np.full((2, 1), 3.0)]).tolist()
    [6.0]
    """
    out = np.empty(len(coords))
    for s in range(0, len(coords), 65_536):
        part = slice(s, s + 65_536)
        product = factors[0][coords[part, 0]]
        for n in range(1, len(factors)):
            product *= factors[n][coords[part, n]]
        out[part] = product.sum(1)
    return out
