"""Element-wise stochastic gradient descent over the nonzeros (P-SGD of DPFact, eq. 13 and 17).

A pass visits every nonzero once in random order. Random order is hostile to caches, so the entries themselves are
shuffled (not an index into them) and read in sequence, and the factor rows of an entry are asked for a few entries
ahead. The shuffle is uniform and works in cache: every entry draws a bucket, then each bucket is shuffled
(Rao and Sandelius); its random numbers are a hash of a counter, so that the two passes over the entries agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.simd.rows import blocks, lanes, padded
from polyclinic.tensors.simd.sgd_step import descend, prefetch
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
BUCKET: Final = 16_384  # entries in a bucket: fits the second-level cache
AHEAD: Final = 12  # entries between asking for a row and using it


class Entries(NamedTuple):
    """Nonzeros in some order: one index column per mode (patients first) and the values."""

    where: tuple[NDArray[np.int64], ...]
    values: NDArray[np.float64]


@kernel
def _mix(x):  # type: ignore[no-untyped-def]
    """splitmix64: counter in, 64 random bits out."""
    z = x * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _order(count, shift, seed, sizes, order):  # type: ignore[no-untyped-def]
    """order[k] = which entry comes k-th: scatter into buckets, then Fisher-Yates inside each bucket."""
    for e in range(np.uint64(count)):
        sizes[(_mix(seed + e) >> shift) + np.uint64(1)] += 1
    for b in range(np.uint64(1), np.uint64(len(sizes))):
        sizes[b] += sizes[b - np.uint64(1)]
    for e in range(np.uint64(count)):
        b = _mix(seed + e) >> shift
        order[sizes[b]] = e
        sizes[b] += 1
    start = np.uint64(0)
    for b in range(np.uint64(len(sizes) - 1)):
        end = np.uint64(sizes[b])
        for k in range(np.uint64(1), end - start):
            draw = (_mix(seed + np.uint64(count) + start + k) >> np.uint64(32)) * (k + np.uint64(1)) >> np.uint64(32)
            order[start + k], order[start + draw] = order[start + draw], order[start + k]
        start = end


@kernel
def _take(column, order, out):  # type: ignore[no-untyped-def]
    for k in range(np.uint64(len(order))):
        out[k] = column[np.uint64(order[k])]


@kernel
def _repeat(rows, indptr, out):  # type: ignore[no-untyped-def]
    for p in range(np.uint64(len(rows))):
        for e in range(np.uint64(indptr[p]), np.uint64(indptr[p + np.uint64(1)])):
            out[e] = rows[p]


@kernel
def _epoch(shape, index, values, factors, rate, floor, clip, anchors, pulls):  # type: ignore[no-untyped-def]
    total = 0.0
    count = np.uint64(len(values))
    rows = index[0]
    a = factors[0]
    for e in range(count):
        if e + np.uint64(AHEAD) < count:
            prefetch(shape, a, np.uint64(rows[e + np.uint64(AHEAD)]))
        r = descend(shape, index, factors, e, values[e], rate, floor, clip, anchors, pulls)
        total += r * r
    return total


def shuffle(tensor: SparseTensor, rng: np.random.Generator) -> Entries:
    """A copy of all nonzeros in random order, every order equally likely.

    >>> t = SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 2))
    >>> sorted(shuffle(t, np.random.default_rng(0)).values.tolist())
    [1.0, 2.0]
    """
    n = tensor.nnz
    bits = max(1, int(np.ceil(np.log2(max(2, n / BUCKET)))))
    order = np.empty(n, np.int32 if n < 2**31 else np.int64)
    seed = np.uint64(rng.integers(2**63))
    _order(n, np.uint64(64 - bits), seed, np.zeros((1 << bits) + 1, np.int64), order)
    patients = np.empty(n, np.int32 if tensor.patients < 2**31 else np.int64)
    _repeat(tensor.rows, tensor.indptr, patients)
    columns = []
    for c in (patients, *tensor.codes, tensor.values):
        out = np.empty_like(c)
        _take(c, order, out)
        columns.append(out)
    return Entries(tuple(columns[:-1]), columns[-1])


def epoch(
    entries: Entries,
    factors: Sequence[Matrix],
    *,
    learning_rate: float,
    nonnegative: bool = True,
    clip: float | None = None,
    anchors: Sequence[Matrix] | None = None,
    pulls: Sequence[NDArray[np.float64]] | None = None,
) -> tuple[list[Matrix], float]:
    """One pass over the entries in the order given; see :func:`sgd_epoch`."""
    rank = factors[0].shape[1]
    moving = tuple(padded(np.asarray(f, np.float64)) for f in factors)
    homes = tuple(padded(np.asarray(a, np.float64)) for a in anchors) if anchors is not None else ()
    weights = tuple(np.ascontiguousarray(w, np.float64) for w in pulls) if pulls is not None and homes else ()
    error = _epoch(
        lanes(blocks(rank)),
        entries.where,
        entries.values,
        moving,
        float(learning_rate),
        0.0 if nonnegative else -np.inf,
        () if clip is None else (float(clip),),
        homes,
        weights,
    )
    return [np.ascontiguousarray(f[:, :rank]) for f in moving], float(error)


def sgd_epoch(
    tensor: SparseTensor,
    factors: Sequence[Matrix],
    *,
    learning_rate: float,
    rng: np.random.Generator,
    nonnegative: bool = True,
    clip: float | None = None,
    anchors: Sequence[Matrix] | None = None,
    elastic: float = 0.0,
    variant: str = "corrected",
) -> tuple[list[Matrix], float]:
    """One shuffled pass of stochastic gradient descent over the nonzeros.

    For the entry at (i, j, k): a_i -= eta * e * (b_j * c_k) (eq. 13) and b_j -= eta * [e * (a_i * c_k) + pull_j *
    (b_j - b^_j)] (eq. 17), e the residual, all gradients at the old rows
    (ERRATA E0.19).

    Parameters
    ----------
    factors
        One (I_n, R) array per mode, patients first; not changed.
    learning_rate
        eta.
    clip
        Cut the data part of every row's gradient to this length (ERRATA E0.8b: the data part only).
    anchors
        Global feature factors b^, c^ that pull the local ones.
    elastic
        gamma. Weight gamma / n_j an observation (n_j entries have code j), so that a pass pulls once (E0.6), or
        gamma an observation for ``variant="paper"``.

    Returns
    -------
    factors, squared_error
        New factors; the sum of squared residuals, each as it was just before its step.

    Examples
    --------
    >>> t = SparseTensor([[0, 0]], [2.0], (1, 1))
    >>> (a, b), e = sgd_epoch(t, [np.ones((1, 1))] * 2, learning_rate=0.1, rng=np.random.default_rng(0))
    >>> a.tolist(), b.tolist(), e
    ([[1.1]], [[1.1]], 1.0)
    """
    pulls = None
    if anchors is not None and elastic:
        counts = [np.bincount(c, minlength=d) for c, d in zip(tensor.codes, tensor.shape[1:])]
        pulls = [np.full(len(n), elastic) if variant == "paper" else elastic / np.maximum(n, 1) for n in counts]
    return epoch(
        shuffle(tensor, rng),
        factors,
        learning_rate=learning_rate,
        nonnegative=nonnegative,
        clip=clip,
        anchors=anchors if pulls is not None else None,
        pulls=pulls,
    )
