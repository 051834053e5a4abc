"""One row of a factor matrix in the processor's vector registers: the few words the kernels are written in.

A factor's row of R numbers is a ``Row``: ``blocks`` vectors of four doubles, R padded up to a multiple of four. The
number of blocks is part of the TYPE (a kernel is compiled once per padded rank), so that every operation below
unrolls into straight vector code without a loop. Used inside ``numba.njit`` functions only. Kernels say how many
blocks they want by a tuple of that length (``lanes``), because a tuple's length is known to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple
from numpy.typing import NDArray

from polyclinic.tensors.simd.llvm import (
    I32,
    VECTOR,
    WIDTH,
    Context,
    Emitted,
    RowType,
    Word,
    add_up,
    block_at,
    code_at,
    fma,
    left_of,
    make_row,
    mask_of,
    padded_row,
    parts_of,
    pointer,
    splat,
    vectors_at,
    wide,
    word,
)  # fmt: skip

__all__ = [
    "WIDTH",
    "add_row",
    "aligned",
    "axpy",
    "blocks",
    "dot",
    "gather",
    "gather_add",
    "lanes",
    "load",
    "load_part",
    "multiply",
    "padded",
    "ramp",
    "scale",
    "spread",
    "store",
    "store_part",
    "zero",
]

LARGEST: Final = 24  # blocks in one Row: wider ranks are worked off in slabs of at most WIDTH * LARGEST columns


def blocks(rank: int) -> int:
    """Vectors of four that hold a row of ``rank`` numbers.

    >>> blocks(10), blocks(50)
    (3, 13)
    """
    return -(-rank // WIDTH)


def lanes(count: int) -> tuple[int, ...]:
    """The tuple whose length tells a kernel the number of blocks."""
    return (0,) * count


@word
def zero(typingctx: object, shape: BaseTuple) -> Emitted:
    """A row of zeros; ``shape`` is ``lanes``."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        return make_row(builder, [ir.Constant(VECTOR, [0.0] * WIDTH)] * count)

    return RowType(count)(shape), codegen


@word
def spread(typingctx: object, shape: BaseTuple, x: types.Float) -> Emitted:
    """A row whose every lane is the number x."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        return make_row(builder, [splat(builder, args[1])] * count)

    return RowType(count)(shape, types.float64), codegen


@word
def load(typingctx: object, shape: BaseTuple, array: types.Array, i: types.Integer) -> Emitted:
    """Row i of an array padded to exactly this many blocks."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        p = padded_row(context, builder, array, args[1], wide(context, builder, args[2], i), count)
        return make_row(builder, vectors_at(builder, p, count))

    return RowType(count)(shape, array, i), codegen


@word
def load_part(
    typingctx: object,
    shape: BaseTuple,
    array: types.Array,
    i: types.Integer,
    column: types.Integer,
    columns: types.Integer,
) -> Emitted:
    """As ``load`` from an array of ``columns`` columns that is NOT padded: missing lanes read as 0."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        c = wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], wide(context, builder, args[2], i), c)
        parts = vectors_at(builder, p, count - 1)
        mask = mask_of(builder, left_of(context, builder, args[4], columns, c, count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(VECTOR, [VECTOR.as_pointer(), I32, ir.VectorType(ir.IntType(1), WIDTH), VECTOR]),
            f"llvm.masked.load.v{WIDTH}f64.p0",
        )
        last = builder.call(
            f, [block_at(builder, p, count - 1), ir.Constant(I32, 8), mask, ir.Constant(VECTOR, [0.0] * WIDTH)]
        )
        return make_row(builder, [*parts, last])

    return RowType(count)(shape, array, i, column, columns), codegen


@word
def store(typingctx: object, row: RowType, array: types.Array, i: types.Integer) -> Emitted:
    """Write a row into an array padded to exactly its number of blocks."""

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        p = padded_row(context, builder, array, args[1], wide(context, builder, args[2], i), row.count)
        for k, v in enumerate(parts_of(builder, args[0], row.count)):
            builder.store(v, block_at(builder, p, k), align=8)
        return context.get_dummy_value()

    return types.void(row, array, i), codegen


@word
def store_part(
    typingctx: object, row: RowType, array: types.Array, i: types.Integer, column: types.Integer, columns: types.Integer
) -> Emitted:
    """Write a row into an array of ``columns`` columns that is not padded: surplus lanes are dropped."""

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        c = wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], wide(context, builder, args[2], i), c)
        values = parts_of(builder, args[0], row.count)
        for k, v in enumerate(values[:-1]):
            builder.store(v, block_at(builder, p, k), align=8)
        mask = mask_of(builder, left_of(context, builder, args[4], columns, c, row.count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [VECTOR, VECTOR.as_pointer(), I32, ir.VectorType(ir.IntType(1), WIDTH)]),
            f"llvm.masked.store.v{WIDTH}f64.p0",
        )
        builder.call(f, [values[-1], block_at(builder, p, row.count - 1), ir.Constant(I32, 8), mask])
        return context.get_dummy_value()

    return types.void(row, array, i, column, columns), codegen


def _binary(name: str, doc: str, emit: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]) -> Word:
    def typed(typingctx: object, a: RowType, b: RowType) -> Emitted:
        count = a.count

        def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
            xs, ys = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
            return make_row(builder, [emit(builder, x, y) for x, y in zip(xs, ys)])

        return RowType(count)(a, b), codegen

    typed.__name__ = typed.__qualname__ = name
    typed.__doc__ = doc
    return word(typed)


multiply = _binary("multiply", "a * b, lane by lane.", lambda builder, x, y: builder.fmul(x, y))
add_row = _binary("add_row", "a + b, lane by lane.", lambda builder, x, y: builder.fadd(x, y))


@word
def scale(typingctx: object, row: RowType, x: types.Float) -> Emitted:
    """row * x for a number x."""
    count = row.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        s = splat(builder, args[1])
        return make_row(builder, [builder.fmul(v, s) for v in parts_of(builder, args[0], count)])

    return row(row, types.float64), codegen


@word
def axpy(typingctx: object, x: types.Float, row: RowType, to: RowType) -> Emitted:
    """to + x * row for a number x."""
    count = row.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        s = splat(builder, args[0])
        pairs = zip(parts_of(builder, args[1], count), parts_of(builder, args[2], count))
        return make_row(builder, [fma(builder, s, v, t) for v, t in pairs])

    return row(types.float64, row, to), codegen


@word
def ramp(typingctx: object, row: RowType) -> Emitted:
    """max(0, row), lane by lane: the projection on the non-negative numbers. NaN stays NaN."""
    count = row.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        nothing = ir.Constant(VECTOR, [0.0] * WIDTH)
        return make_row(
            builder,
            [
                builder.select(builder.fcmp_ordered("<", v, nothing), nothing, v)
                for v in parts_of(builder, args[0], count)
            ],
        )

    return row(row), codegen


@word
def dot(typingctx: object, a: RowType, b: RowType) -> Emitted:
    """sum of a * b over all lanes."""
    count = a.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        xs, ys = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
        chains: list[ir.Value] = [builder.fmul(x, y) for x, y in zip(xs[:4], ys[:4])]
        for k in range(4, count):
            chains[k % 4] = fma(builder, xs[k], ys[k], chains[k % 4])
        return add_up(builder, chains)

    return types.float64(a, b), codegen


@word
def gather(typingctx: object, row: RowType, codes: BaseTuple, factors: BaseTuple, e: types.Integer) -> Emitted:
    """row * prod_n factors[n][codes[n][e]], padded factors; tuples of any length, also empty, unrolled."""
    count = row.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        parts = parts_of(builder, args[0], count)
        at = wide(context, builder, args[3], e)
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = code_at(context, builder, kind, builder.extract_value(args[1], n), at)
            p = padded_row(context, builder, factor, builder.extract_value(args[2], n), i, count)
            parts = [builder.fmul(x, y) for x, y in zip(parts, vectors_at(builder, p, count))]
        return make_row(builder, parts)

    return row(row, codes, factors, e), codegen


@word
def gather_add(
    typingctx: object, to: RowType, row: RowType, codes: BaseTuple, factors: BaseTuple, e: types.Integer
) -> Emitted:
    """to + row * prod_n factors[n][codes[n][e]], the last product fused with the sum."""
    count = row.count

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        sums, parts = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
        at = wide(context, builder, args[4], e)
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = code_at(context, builder, kind, builder.extract_value(args[2], n), at)
            p = padded_row(context, builder, factor, builder.extract_value(args[3], n), i, count)
            loaded = vectors_at(builder, p, count)
            if n == len(codes) - 1:
                sums = [fma(builder, x, y, t) for x, y, t in zip(parts, loaded, sums)]
            else:
                parts = [builder.fmul(x, y) for x, y in zip(parts, loaded)]
        return make_row(builder, sums if len(codes) else [builder.fadd(t, x) for t, x in zip(sums, parts)])

    return row(to, row, codes, factors, e), codegen


def aligned(rows: int, columns: int) -> NDArray[np.float64]:
    """Zeros whose rows start on whole vectors: a vector that straddles two cache lines costs two loads."""
    raw = np.zeros(rows * columns + 8)
    skip = -(raw.ctypes.data // 8) % 8
    return raw[skip : skip + rows * columns].reshape(rows, columns)


def padded(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """An aligned copy with columns padded by zeros to whole vectors."""
    out = aligned(matrix.shape[0], blocks(matrix.shape[1]) * WIDTH)
    out[:, : matrix.shape[1]] = matrix
    return out
