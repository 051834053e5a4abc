"""One row of a factor matrix in the processor's vector registers: the few words the kernels are written in.

A factor's row of R numbers is a ``Row``: ``blocks`` vectors of four doubles, R padded up to a multiple of four. The
number of blocks is part of the TYPE (a kernel is compiled once per padded rank), so that every operation below
unrolls into straight vector code without a loop. Used inside ``numba.njit`` functions only. Kernels say how many
blocks they want by a tuple of that length (``lanes``), because a tuple's length is known to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numpy.typing import NDArray

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
    "times",
    "zero",
]

WIDTH: Final = 4  # doubles in one vector: AVX2's width; AVX-512 and NEON split or join it without loss
LARGEST: Final = 16  # blocks in one Row: wider ranks are worked off in slabs of WIDTH * LARGEST columns

DOUBLE = ir.DoubleType()
_vector = ir.VectorType(DOUBLE, WIDTH)
I32 = ir.IntType(32)
I64 = ir.IntType(64)


def word(typed: Callable[..., Any]) -> Callable[..., Any]:
    """A word of the kernels' language: given the types, it emits the vector code."""
    emitted: Callable[..., Any] = intrinsic(typed)
    return emitted


def blocks(rank: int) -> int:
    """Vectors of four that hold a row of ``rank`` numbers.

    >>> blocks(10), blocks(50)
    (3, 13)
    """
    return -(-rank // WIDTH)


def lanes(count: int) -> tuple[int, ...]:
    """The tuple whose length tells a kernel the number of blocks."""
    return (0,) * count


class RowType(types.Type):
    """Numba's name for a row of ``count`` vectors."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"Row({count}x{WIDTH})")


@register_model(RowType)
class RowModel(models.PrimitiveModel):  # type: ignore[misc]
    """A row is an LLVM array of vectors; the optimiser splits it into registers."""

    def __init__(self, dmm: Any, fe_type: RowType) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(_vector, fe_type.count))


def make_row(builder: Any, parts: list[Any]) -> Any:
    out = ir.Constant(ir.ArrayType(_vector, len(parts)), ir.Undefined)
    for k, part in enumerate(parts):
        out = builder.insert_value(out, part, k)
    return out


def parts_of(builder: Any, row: Any, count: int) -> list[Any]:
    return [builder.extract_value(row, k) for k in range(count)]


def splat(builder: Any, x: Any) -> Any:
    one = builder.insert_element(ir.Constant(_vector, ir.Undefined), x, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(_vector, ir.Undefined), ir.Constant(ir.VectorType(I32, WIDTH), [0] * WIDTH)
    )


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    f = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_vector, [_vector] * 3), f"llvm.fmuladd.v{WIDTH}f64"
    )
    return builder.call(f, [a, b, c])


def pointer(context: Any, builder: Any, array_type: Any, array: Any, i: Any, column: Any) -> Any:
    """Address of ``array[i, column]``; rows may be strided, columns are contiguous; ``i`` is taken as unsigned."""
    a = context.make_array(array_type)(context, builder, array)
    stride = builder.extract_value(a.strides, 0)
    address = builder.ptrtoint(a.data, I64)
    address = builder.add(address, builder.mul(i, stride))
    address = builder.add(address, builder.mul(column, ir.Constant(I64, 8)))
    return builder.inttoptr(address, DOUBLE.as_pointer())


def padded_row(context: Any, builder: Any, array_type: Any, array: Any, i: Any, count: int) -> Any:
    """Address of row i of a padded array of exactly ``count`` blocks: the stride is known to the compiler."""
    a = context.make_array(array_type)(context, builder, array)
    return builder.gep(a.data, [builder.mul(i, ir.Constant(I64, count * WIDTH))])


def block_at(builder: Any, pointer: Any, k: int) -> Any:
    p = builder.gep(pointer, [ir.Constant(I64, k * WIDTH)])
    return builder.bitcast(p, _vector.as_pointer())


def vectors_at(builder: Any, pointer: Any, count: int) -> list[Any]:
    return [builder.load(block_at(builder, pointer, k), align=8) for k in range(count)]


def wide(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    return context.cast(builder, value, kind, types.uint64)


def _mask(builder: Any, left: Any) -> Any:
    """Lanes 0 .. left-1 of the last vector."""
    count = builder.insert_element(ir.Constant(ir.VectorType(I64, WIDTH), ir.Undefined), left, ir.Constant(I32, 0))
    count = builder.shuffle_vector(
        count,
        ir.Constant(ir.VectorType(I64, WIDTH), ir.Undefined),
        ir.Constant(ir.VectorType(I32, WIDTH), [0] * WIDTH),
    )
    return builder.icmp_signed("<", ir.Constant(ir.VectorType(I64, WIDTH), list(range(WIDTH))), count)


def _left(context: Any, builder: Any, columns: Any, kind: Any, column: Any, count: int) -> Any:
    n = context.cast(builder, columns, kind, types.int64)
    return builder.sub(builder.sub(n, column), ir.Constant(I64, (count - 1) * WIDTH))


@word
def zero(typingctx: Any, shape: Any) -> Any:
    """A row of zeros; ``shape`` is ``lanes``."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return make_row(builder, [ir.Constant(_vector, [0.0] * WIDTH)] * count)

    return RowType(count)(shape), codegen


@word
def spread(typingctx: Any, shape: Any, x: Any) -> Any:
    """A row whose every lane is the number x."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return make_row(builder, [splat(builder, args[1])] * count)

    return RowType(count)(shape, types.float64), codegen


@word
def load(typingctx: Any, shape: Any, array: Any, i: Any) -> Any:
    """Row i of an array padded to exactly this many blocks."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = padded_row(context, builder, array, args[1], wide(context, builder, args[2], i), count)
        return make_row(builder, vectors_at(builder, p, count))

    return RowType(count)(shape, array, i), codegen


@word
def load_part(typingctx: Any, shape: Any, array: Any, i: Any, column: Any, columns: Any) -> Any:
    """As ``load`` from an array of ``columns`` columns that is NOT padded: missing lanes read as 0."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        c = wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], wide(context, builder, args[2], i), c)
        parts = vectors_at(builder, p, count - 1)
        mask = _mask(builder, _left(context, builder, args[4], columns, c, count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_vector, [_vector.as_pointer(), I32, ir.VectorType(ir.IntType(1), WIDTH), _vector]),
            f"llvm.masked.load.v{WIDTH}f64.p0",
        )
        last = builder.call(
            f, [block_at(builder, p, count - 1), ir.Constant(I32, 8), mask, ir.Constant(_vector, [0.0] * WIDTH)]
        )
        return make_row(builder, [*parts, last])

    return RowType(count)(shape, array, i, column, columns), codegen


@word
def store(typingctx: Any, row: Any, array: Any, i: Any) -> Any:
    """Write a row into an array padded to exactly its number of blocks."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = padded_row(context, builder, array, args[1], wide(context, builder, args[2], i), row.count)
        for k, v in enumerate(parts_of(builder, args[0], row.count)):
            builder.store(v, block_at(builder, p, k), align=8)
        return context.get_dummy_value()

    return types.void(row, array, i), codegen


@word
def store_part(typingctx: Any, row: Any, array: Any, i: Any, column: Any, columns: Any) -> Any:
    """Write a row into an array of ``columns`` columns that is not padded: surplus lanes are dropped."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        c = wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], wide(context, builder, args[2], i), c)
        values = parts_of(builder, args[0], row.count)
        for k, v in enumerate(values[:-1]):
            builder.store(v, block_at(builder, p, k), align=8)
        mask = _mask(builder, _left(context, builder, args[4], columns, c, row.count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_vector, _vector.as_pointer(), I32, ir.VectorType(ir.IntType(1), WIDTH)]),
            f"llvm.masked.store.v{WIDTH}f64.p0",
        )
        builder.call(f, [values[-1], block_at(builder, p, row.count - 1), ir.Constant(I32, 8), mask])
        return context.get_dummy_value()

    return types.void(row, array, i, column, columns), codegen


def _binary(name: str, doc: str, emit: Callable[[Any, Any, Any], Any]) -> Any:
    def typed(typingctx: Any, a: Any, b: Any) -> Any:
        count = a.count

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            xs, ys = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
            return make_row(builder, [emit(builder, x, y) for x, y in zip(xs, ys)])

        return RowType(count)(a, b), codegen

    typed.__name__ = typed.__qualname__ = name
    typed.__doc__ = doc
    return word(typed)


multiply = _binary("multiply", "a * b, lane by lane.", lambda builder, x, y: builder.fmul(x, y))
add_row = _binary("add_row", "a + b, lane by lane.", lambda builder, x, y: builder.fadd(x, y))


@word
def scale(typingctx: Any, row: Any, x: Any) -> Any:
    """row * x for a number x."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        s = splat(builder, args[1])
        return make_row(builder, [builder.fmul(v, s) for v in parts_of(builder, args[0], count)])

    return row(row, types.float64), codegen


@word
def axpy(typingctx: Any, x: Any, row: Any, to: Any) -> Any:
    """to + x * row for a number x."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        s = splat(builder, args[0])
        pairs = zip(parts_of(builder, args[1], count), parts_of(builder, args[2], count))
        return make_row(builder, [fma(builder, s, v, t) for v, t in pairs])

    return row(types.float64, row, to), codegen


@word
def times(typingctx: Any, a: Any, b: Any, to: Any) -> Any:
    """to + a * b, lane by lane."""
    count = a.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        xs = [parts_of(builder, v, count) for v in args]
        return make_row(builder, [fma(builder, u, v, t) for u, v, t in zip(*xs)])

    return a(a, b, to), codegen


@word
def ramp(typingctx: Any, row: Any) -> Any:
    """max(0, row), lane by lane: the projection on the non-negative numbers. NaN stays NaN."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.Constant(_vector, [0.0] * WIDTH)
        return make_row(
            builder,
            [
                builder.select(builder.fcmp_ordered("<", v, nothing), nothing, v)
                for v in parts_of(builder, args[0], count)
            ],
        )

    return row(row), codegen


def add_up(builder: Any, vectors: list[Any]) -> Any:
    while len(vectors) > 1:  # a tree: the same order for every machine, and short
        joined = [builder.fadd(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
        vectors = joined + ([vectors[-1]] if len(vectors) % 2 else [])
    v = vectors[0]
    items = [builder.extract_element(v, ir.Constant(I32, k)) for k in range(WIDTH)]
    return builder.fadd(builder.fadd(items[0], items[2]), builder.fadd(items[1], items[3]))


@word
def dot(typingctx: Any, a: Any, b: Any) -> Any:
    """sum of a * b over all lanes."""
    count = a.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        xs, ys = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
        chains: list[Any] = [builder.fmul(x, y) for x, y in zip(xs[:4], ys[:4])]
        for k in range(4, count):
            chains[k % 4] = fma(builder, xs[k], ys[k], chains[k % 4])
        return add_up(builder, chains)

    return types.float64(a, b), codegen


def code_at(context: Any, builder: Any, kind: Any, column: Any, e: Any) -> Any:
    """``column[e]`` as unsigned 64 bit, without the wrap-around check of signed indices."""
    a = context.make_array(kind)(context, builder, column)
    return context.cast(builder, builder.load(builder.gep(a.data, [e])), kind.dtype, types.uint64)


@word
def gather(typingctx: Any, row: Any, codes: Any, factors: Any, e: Any) -> Any:
    """row * prod_n factors[n][codes[n][e]], padded factors; tuples of any length, also empty, unrolled."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = parts_of(builder, args[0], count)
        at = wide(context, builder, args[3], e)
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = code_at(context, builder, kind, builder.extract_value(args[1], n), at)
            p = padded_row(context, builder, factor, builder.extract_value(args[2], n), i, count)
            parts = [builder.fmul(x, y) for x, y in zip(parts, vectors_at(builder, p, count))]
        return make_row(builder, parts)

    return row(row, codes, factors, e), codegen


@word
def gather_add(typingctx: Any, to: Any, row: Any, codes: Any, factors: Any, e: Any) -> Any:
    """to + row * prod_n factors[n][codes[n][e]], the last product fused with the sum."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums, parts = parts_of(builder, args[0], count), parts_of(builder, args[1], count)
        at = wide(context, builder, args[4], e)
        if not len(codes):
            return make_row(builder, [builder.fadd(t, x) for t, x in zip(sums, parts)])
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = code_at(context, builder, kind, builder.extract_value(args[2], n), at)
            p = padded_row(context, builder, factor, builder.extract_value(args[3], n), i, count)
            loaded = vectors_at(builder, p, count)
            if n == len(codes) - 1:
                return make_row(builder, [fma(builder, x, y, t) for x, y, t in zip(parts, loaded, sums)])
            parts = [builder.fmul(x, y) for x, y in zip(parts, loaded)]

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
