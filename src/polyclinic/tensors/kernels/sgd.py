"""Element-wise stochastic gradient descent over the nonzeros (P-SGD of DPFact, eq. 13 and 17).

A pass visits every nonzero once in random order. Random order is hostile to caches, so the entries themselves are
shuffled (not an index into them) and read in sequence, and the factor rows of an entry are asked for a few entries
ahead. The shuffle is uniform and works in cache: every entry draws a bucket, then each bucket is shuffled
(Rao and Sandelius); its random numbers are a hash of a counter, so that the two passes over the entries agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import BaseTuple
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel
from polyclinic.tensors.simd.llvm import (
    DOUBLE,
    Context,
    Emitted,
    add_up,
    block_at,
    code_at,
    fma,
    padded_row,
    splat,
    wide,
    word,
)  # fmt: skip
from polyclinic.tensors.simd.prefetch import ask
from polyclinic.tensors.simd.rows import blocks, lanes, padded

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor


def _others(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """For every mode the product of all the other modes' vectors, by prefix and suffix products."""
    n = len(rows)
    before, after = [*rows], [*rows]  # the ends are never read: mode 0 has nothing before it, the last nothing after
    for k in range(1, n):
        before[k] = rows[0] if k == 1 else builder.fmul(before[k - 1], rows[k - 1])
        m = n - 1 - k
        after[m] = rows[-1] if k == 1 else builder.fmul(after[m + 1], rows[m + 1])
    middle = [builder.fmul(before[k], after[k]) for k in range(1, n - 1)]
    return [after[0], *middle, before[-1]] if n > 1 else rows


def _inner_products(
    builder: ir.IRBuilder, rows: Sequence[ir.Value], count: int, *, lengths: bool
) -> list[list[ir.Value]]:
    """Four partial sums of the model at an entry; with ``lengths`` also of the squared gradient of every mode's row."""
    chains: list[list[ir.Value]] = [[] for _ in range(len(rows) + 1)]
    for k in range(count):
        xs = [builder.load(block_at(builder, p, k), align=8) for p in rows]
        if lengths:
            others = _others(builder, xs)
            terms = [(xs[0], others[0]), *((o, o) for o in others)]
        else:
            rest = xs[1]
            for x in xs[2:]:
                rest = builder.fmul(rest, x)
            terms = [(xs[0], rest)]
        for chain, (u, v) in zip(chains, terms):
            if len(chain) < 4:
                chain.append(builder.fmul(u, v))
            else:
                chain[k % 4] = fma(builder, u, v, chain[k % 4])
    return chains


def _clipped(builder: ir.IRBuilder, step: ir.Value, residual: ir.Value, square: ir.Value, bound: ir.Value) -> ir.Value:
    """The step of a row, shortened where its gradient is longer than the bound."""
    size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [DOUBLE]), [residual])
    root = builder.module.declare_intrinsic("llvm.sqrt", [DOUBLE])
    length = builder.fmul(size, builder.call(root, [square]))
    return builder.select(
        builder.fcmp_ordered("<=", length, bound), step, builder.fmul(step, builder.fdiv(bound, length))
    )


@word
def descend(
    typingctx: object, shape: BaseTuple, index: BaseTuple, factors: BaseTuple, e: types.Integer, value: types.Float, rate: types.Float, floor: types.Float, clip: BaseTuple,
    anchors: BaseTuple, pulls: BaseTuple,
) -> Emitted:  # fmt: skip
    """One step of stochastic gradient descent at entry e: rows index[n][e] of every factor move, in place.

    All gradients are taken at the old rows (DPFact eq. 13 and 17). ``clip`` is () or (L,): the data part of each row's
    gradient is cut to length L (ERRATA E0.8b). ``anchors`` and ``pulls`` are () or, per FEATURE mode, the global
    factor and the weight of the elastic pull for each of its rows (E0.6). ``floor`` is 0 or minus infinity.
    Returns the residual model - value before the step.
    """
    count, modes = len(shape), len(factors)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        at = wide(context, builder, args[3], e)
        where = [code_at(context, builder, index[n], builder.extract_value(args[1], n), at) for n in range(modes)]
        rows = [
            padded_row(context, builder, factors[n], builder.extract_value(args[2], n), where[n], count)
            for n in range(modes)
        ]
        chains = _inner_products(builder, rows, count, lengths=len(clip) > 0)
        residual = builder.fsub(add_up(builder, chains[0]), args[4])
        step = builder.fneg(builder.fmul(args[5], residual))
        steps = [step] * modes
        if len(clip):
            bound = builder.extract_value(args[7], 0)
            steps = [_clipped(builder, step, residual, add_up(builder, chain), bound) for chain in chains[1:]]
        spread = [splat(builder, s) for s in steps]
        low = splat(builder, args[6])
        pulled: list[tuple[ir.Value, ir.Value]] = []
        for n in range(1, modes if len(anchors) else 0):
            home = padded_row(context, builder, anchors[n - 1], builder.extract_value(args[8], n - 1), where[n], count)
            weight = context.make_array(pulls[n - 1])(context, builder, builder.extract_value(args[9], n - 1))
            strength = builder.fmul(args[5], builder.load(builder.gep(weight.data, [where[n]])))
            pulled.append((home, splat(builder, strength)))
        for k in range(count):
            xs = [builder.load(block_at(builder, p, k), align=8) for p in rows]
            for n, other in enumerate(_others(builder, xs)):
                new = fma(builder, spread[n], other, xs[n])
                if n and pulled:
                    home, strength = pulled[n - 1]
                    away = builder.fsub(builder.load(block_at(builder, home, k), align=8), xs[n])
                    new = fma(builder, strength, away, new)
                new = builder.select(builder.fcmp_ordered("<", new, low), low, new)
                builder.store(new, block_at(builder, rows[n], k), align=8)
        return residual

    signature = types.float64(
        shape, index, factors, e, types.float64, types.float64, types.float64, clip, anchors, pulls
    )
    return signature, codegen


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
            ask(shape, (rows,), (a,), e + np.uint64(AHEAD))
        r = descend(shape, index, factors, e, values[e], rate, floor, clip, anchors, pulls)
        total += r * r
    return total


def shuffle(tensor: SparseTensor, rng: np.random.Generator) -> Entries:
    """A copy of all nonzeros in random order, every order equally likely.

    >>> from polyclinic.tensors.sparse import SparseTensor
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
    >>> from polyclinic.tensors.sparse import SparseTensor
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
