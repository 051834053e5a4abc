"""Codes hashed to a few public buckets a mode: a patient becomes K cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
CELLS: Final = 64  # limit: of a patient: the Gram has their square, and needs so many patients for each
BUCKETS: Final = 48  # limit: of the codes side by side
BLOCK: Final = 65_536  # limit: patients whose cells are held at once


def bucket_sizes(shape: Sequence[int], buckets: int | None = None) -> tuple[int, ...]:
    """Buckets per mode: the largest equal numbers whose product is at most 64, never more than codes; small modes first, so
    that what they leave goes to the others. With more than four modes the smallest ones are summed out (1 bucket).

    >>> bucket_sizes((120, 300)), bucket_sizes((60, 80, 24)), bucket_sizes((5, 300)), bucket_sizes((9,) * 6)
    ((8, 8), (4, 4, 4), (5, 12), (1, 1, 3, 3, 3, 3))
    """
    order = sorted(range(len(shape)), key=lambda m: (shape[m], m))
    sizes = [1] * len(shape)
    order = order[max(0, len(order) - 4) :]
    room = CELLS
    for done, m in enumerate(order):
        modes_left = len(order) - done
        equal = 1
        while (equal + 1) ** modes_left <= room:
            equal += 1
        sizes[m] = min(shape[m], buckets if buckets is not None else max(equal, 3))
        room = max(room // sizes[m], 1)
    return tuple(sizes)


def maps(shape: Sequence[int], sizes: Sequence[int], seed: int) -> tuple[NDArray[np.int64], ...]:
    """Public: the bucket of every code, a random balanced permutation per mode.

    >>> [np.bincount(h).tolist() for h in maps((7, 4), (3, 4), seed=0)]
    [[3, 2, 2], [1, 1, 1, 1]]
    """
    return tuple(
        (seeds(seed, "hash", m).permutation(int(n)) % int(p)).astype(np.int64)
        for m, (n, p) in enumerate(zip(shape, sizes))
    )


def code_buckets(codes: int, seed: int) -> NDArray[np.int64]:
    """Public: the bucket of every code of all modes side by side, at most 48 of them.

    >>> sorted(set(np.bincount(code_buckets(100, seed=0)).tolist()))
    [2, 3]
    """
    return (seeds(seed, "buckets").permutation(codes) % BUCKETS).astype(np.int64)


def cells_of(tensor: SparseTensor, hashed: Sequence[NDArray[np.int64]], sizes: Sequence[int]) -> Array:
    """(stored patients, K) counts per cell, patients in the order of ``tensor.rows``."""
    k = int(np.prod(sizes))
    cell = np.zeros(tensor.nnz, np.int64)
    for h, p, codes in zip(hashed, sizes, tensor.codes):
        cell = cell * int(p) + h[codes]
    row = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    counts = np.bincount(row * k + cell, tensor.values, len(tensor.rows) * k)
    return np.asarray(counts, np.float64).reshape(-1, k)


def row_energies(
    tensor: SparseTensor, hashed: Sequence[NDArray[np.int64]], sizes: Sequence[int], mode: int, codes: int
) -> Array:
    """(codes,) sum over patients and the other modes' buckets of squared counts."""
    other_cells = np.zeros(tensor.nnz, np.int64)
    for m, (h, p, c) in enumerate(zip(hashed, sizes, tensor.codes)):
        if m != mode:
            other_cells = other_cells * int(p) + h[c]
    k = int(np.prod([p for m, p in enumerate(sizes) if m != mode], dtype=np.int64))
    row = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    code = tensor.codes[mode].astype(np.int64)
    place, inverse = np.unique((row * codes + code) * k + other_cells, return_inverse=True)
    sums = np.bincount(inverse, tensor.values, len(place))
    return np.asarray(np.bincount((place // k) % codes, np.square(sums), codes), np.float64)


def blocks(tensor: SparseTensor) -> list[SparseTensor]:
    if tensor.patients <= BLOCK:
        return [tensor]
    return [tensor.take(np.arange(a, min(a + BLOCK, tensor.patients))) for a in range(0, tensor.patients, BLOCK)]
