"""How a tensor lies on a graphics card: one sorted copy per mode, cut into chunks, and the tables that add their sums in order.

Array code only, of numpy or CuPy (``xp``), so that every table is tested without a card. The order of all sums follows from
the data and from the three constants here and in ``kernels.cu``; never from the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor
from numpy.typing import NDArray

CHUNK: Final = 128  # entries of one key that one group of lanes adds up
FAN: Final = 128  # partial rows added in one go
SLAB: Final = 1024  # rows of one partial Gram
TILE: Final = 65_536  # patients that 16 bits can number; their rows stay in the second-level cache
WINDOW: Final = 2_048  # chunks among which those of like length stand together

# whole numbers of 32 or 64 bits, of numpy; CuPy's arrays, which have no types, stand in for it
Array = NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """Which partial rows make which row: (first, last + 1, row of the output, or ~row of the next table's input)."""

    spans: Array
    then: Array | None  # the same for what one go could not finish
    partials: int
    more: int


@dataclass(frozen=True)
class Copy:
    """The entries sorted for one mode.

    ``entries`` is (nonzeros, 2) uint32: ``a | b << 16`` and the bits of a float32, where that is enough (three modes of
    16-bit codes, values that float32 holds); else ``codes`` (other modes, nonzeros) uint32 and float64 ``values``.
    ``chunks`` is (chunks, 4) int32: first entry, entries, row of the output (or ~partial row), first patient of the tile.
    """

    entries: Array | None
    codes: Array | None
    values: NDArray[np.float64] | None
    chunks: Array
    sums: Sums
    others: tuple[int, ...]  # the modes whose factors are read, in the order of a, b, ...


@dataclass(frozen=True)
class Turns:
    """For the E-step: patients in bins of like length, and each mode's entries of a patient sorted by row."""

    bins: tuple[tuple[int, Array], ...]  # (longest record, patients)
    turns: Array  # (modes, nonzeros) uint32: entry within the patient, bit 31 = last of its row


def _starts(key: Array, xp: ModuleType) -> Array:
    """Where runs of equal keys begin."""
    first = xp.ones(len(key), bool)
    first[1:] = key[1:] != key[:-1]
    starts: Array = xp.flatnonzero(first)
    return starts


def _cut(lengths: Array, most: int, xp: ModuleType) -> tuple[Array, Array, Array]:
    """Cut runs into pieces of at most ``most``: (run of each piece, its offset in the run, its length)."""
    pieces = (lengths + (most - 1)) // most
    ends = xp.cumsum(pieces)
    total = int(ends[-1]) if len(ends) else 0
    run = xp.searchsorted(ends, xp.arange(total), side="right")
    offset = (xp.arange(total) - (ends[run] - pieces[run])) * most
    return run, offset, xp.minimum(lengths[run] - offset, most)


def _table(*columns: Array, xp: ModuleType) -> Array:
    """Four columns of 32 bits (the first may use all of them without a sign)."""
    out = xp.zeros((len(columns[0]), 4), xp.int64)
    for n, column in enumerate(columns):
        out[:, n] = column
    table: Array = xp.ascontiguousarray(out.astype(xp.uint32).view(xp.int32))
    return table


def in_blocks(counts: Array, targets: Array, xp: ModuleType) -> Sums:
    """Add ``counts[k]`` partial rows, which lie together, into row ``targets[k]``: at most ``FAN`` in one go, then the rest."""
    begins = xp.cumsum(counts) - counts
    run, offset, length = _cut(counts, FAN, xp)
    large = counts > FAN
    target = targets[run].astype(xp.int64)
    in_large = large[run]
    count = int(in_large.sum()) if len(in_large) else 0
    target = xp.where(in_large, ~(xp.cumsum(in_large) - 1), target)
    first = begins[run] + offset
    then = None
    if count:
        pieces = (counts[large] + (FAN - 1)) // FAN
        ends = xp.cumsum(pieces)
        then = _table(ends - pieces, ends, targets[large], xp=xp)
    return Sums(_table(first, first + length, target, xp=xp), then, int(counts.sum()) if len(counts) else 0, count)


def arrange(tensor: SparseTensor, mode: int, xp: ModuleType = np) -> Copy:
    """The copy for one mode: sorted by (tile, key), then as stored; cut into chunks of one key.

    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> t = SparseTensor([[0, 1, 0], [0, 1, 2], [3, 0, 2]], [1.0, 2.0, 5.0], (4, 2, 3))
    >>> arrange(t, 1).chunks[:, :3].tolist()  # code 0 has one entry, code 1 has two
    [[1, 2, 1], [0, 1, 0]]
    """
    codes = [xp.asarray(c) for c in tensor.codes]
    patient = xp.asarray(np.repeat(tensor.rows, np.diff(tensor.indptr)))
    values = xp.asarray(tensor.values)
    small = tensor.ndim == 3 and max(tensor.shape[1:]) <= TILE and bool((values.astype(xp.float32) == values).all())
    tile = patient // TILE if small and mode else xp.zeros_like(patient)
    key = codes[mode - 1].astype(xp.int64) if mode else patient
    place = tile * tensor.shape[mode] + key
    if mode:
        order = xp.argsort(place, kind="stable")
        place, key, patient, tile, values = place[order], key[order], patient[order], tile[order], values[order]
        codes = [c[order] for c in codes]
    starts = _starts(place, xp)
    lengths = xp.diff(xp.append(starts, len(place)))
    run, offset, length = _cut(lengths, CHUNK, xp)
    begin = starts[run] + offset
    home, base = key[begin], tile[begin] * TILE
    # A key of one chunk is written at once; the chunks of the others make partial rows, numbered by key, then in order.
    per_key = xp.bincount(home, minlength=tensor.shape[mode])
    by_key = xp.argsort(home, kind="stable")
    partial = xp.zeros(len(home), xp.int64)
    split = per_key[home[by_key]] > 1
    partial[by_key] = xp.cumsum(split) - 1
    target = xp.where(per_key[home] > 1, ~partial, home)
    keys = xp.flatnonzero(per_key > 1)
    sums = in_blocks(per_key[keys], keys, xp)
    alike = xp.argsort((xp.arange(len(home)) // WINDOW) * (CHUNK + 1) + (CHUNK - length), kind="stable")
    chunks = _table(begin[alike], length[alike], target[alike], base[alike], xp=xp)
    other_modes = tuple(n for n in range(tensor.ndim) if n != mode)
    columns = [patient - tile * TILE if n == 0 else codes[n - 1] for n in other_modes]
    if not small:
        return Copy(None, xp.stack([c.astype(xp.uint32) for c in columns]), values, chunks, sums, other_modes)
    packed = xp.empty((len(values), 2), xp.uint32)
    packed[:, 0] = columns[0].astype(xp.uint32) | (columns[1].astype(xp.uint32) << xp.uint32(16))
    packed[:, 1] = values.astype(xp.float32).view(xp.uint32)
    return Copy(packed, None, None, chunks, sums, other_modes)


EDGES: Final = (8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096)


def turns(tensor: SparseTensor, rows: NDArray[np.signedinteger], xp: ModuleType = np) -> Turns:
    """The E-step's tables from the (nonzeros, modes) rows of :func:`~polyclinic.tensors.kernels.em.stacked_rows`."""
    indptr = xp.asarray(tensor.indptr, np.int64)
    lengths = xp.diff(indptr)
    bins = []
    lower = 0
    for edge in (*EDGES, 2**31 - 1):
        patients = xp.flatnonzero((lengths > lower) & (lengths <= edge))
        lower = edge
        if len(patients):
            bins.append((int(lengths[patients].max()), patients.astype(xp.int32)))
    patient = xp.searchsorted(indptr[1:], xp.arange(tensor.nnz), side="right")
    out = xp.empty((rows.shape[1], tensor.nnz), xp.uint32)
    for m in range(rows.shape[1]):
        place = patient * (int(rows.max()) + 1) + rows[:, m] if tensor.nnz else patient
        order = xp.argsort(place, kind="stable")
        last = xp.ones(len(order), bool)
        last[:-1] = place[order][1:] != place[order][:-1]
        out[m] = (order - indptr[patient[order]]).astype(xp.uint32) | (last.astype(xp.uint32) << xp.uint32(31))
    return Turns(tuple(bins), out)
