"""What the words of :mod:`.simd.rows` are made of: LLVM's instructions for rows of vectors, and the types they are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

WIDTH: Final = 4  # doubles in one vector: AVX2's width; AVX-512 and NEON split or join it without loss


class Stored(Protocol):
    """An array inside the generated code: where its numbers lie."""

    data: ir.Value
    strides: ir.Value


class Context(Protocol):
    """What numba's target context is asked for while code is generated."""

    def make_array(self, kind: types.Array) -> Callable[[Context, ir.IRBuilder, ir.Value], Stored]: ...
    def cast(self, builder: ir.IRBuilder, value: ir.Value, old: types.Type, new: types.Type) -> ir.Value: ...
    def get_dummy_value(self) -> ir.Value: ...


Codegen = Callable[[Context, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]
Emitted = tuple[object, Codegen]  # numba's signature, and who writes the code
Word = Callable[..., Any]  # called inside compiled code only: numba infers what it returns, Python never sees it

DOUBLE = ir.DoubleType()
VECTOR = ir.VectorType(DOUBLE, WIDTH)
I32 = ir.IntType(32)
I64 = ir.IntType(64)


def word(typed: Callable[..., Emitted]) -> Word:
    """A word of the kernels' language: given the types, it emits the vector code."""
    emitted: Word = intrinsic(typed)
    return emitted


class RowType(types.Type):
    """Numba's name for a row of ``count`` vectors."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"Row({count}x{WIDTH})")


@register_model(RowType)
class RowModel(models.PrimitiveModel):  # type: ignore[misc]
    """A row is an LLVM array of vectors; the optimiser splits it into registers."""

    def __init__(self, dmm: object, fe_type: RowType) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(VECTOR, fe_type.count))


def make_row(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """The row of these vectors."""
    out: ir.Value = ir.Constant(ir.ArrayType(VECTOR, len(parts)), ir.Undefined)
    for k, part in enumerate(parts):
        out = builder.insert_value(out, part, k)
    return out


def parts_of(builder: ir.IRBuilder, row: ir.Value, count: int) -> list[ir.Value]:
    return [builder.extract_value(row, k) for k in range(count)]


def splat(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    vector = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), x, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        vector, ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(I32, WIDTH), [0] * WIDTH)
    )


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    f = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fmuladd.v{WIDTH}f64"
    )
    return builder.call(f, [a, b, c])


def pointer(
    context: Context, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, i: ir.Value, column: ir.Value
) -> ir.Value:
    """Address of ``array[i, column]``; rows may be strided, columns are contiguous; ``i`` is taken as unsigned."""
    a = context.make_array(array_type)(context, builder, array)
    stride = builder.extract_value(a.strides, 0)
    address = builder.ptrtoint(a.data, I64)
    address = builder.add(address, builder.mul(i, stride))
    address = builder.add(address, builder.mul(column, ir.Constant(I64, 8)))
    return builder.inttoptr(address, DOUBLE.as_pointer())


def padded_row(
    context: Context, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, i: ir.Value, count: int
) -> ir.Value:
    """Address of row i of a padded array of exactly ``count`` blocks: the stride is known to the compiler."""
    a = context.make_array(array_type)(context, builder, array)
    return builder.gep(a.data, [builder.mul(i, ir.Constant(I64, count * WIDTH))])


def block_at(builder: ir.IRBuilder, pointer: ir.Value, k: int) -> ir.Value:
    p = builder.gep(pointer, [ir.Constant(I64, k * WIDTH)])
    return builder.bitcast(p, VECTOR.as_pointer())


def vectors_at(builder: ir.IRBuilder, pointer: ir.Value, count: int) -> list[ir.Value]:
    return [builder.load(block_at(builder, pointer, k), align=8) for k in range(count)]


def wide(context: Context, builder: ir.IRBuilder, value: ir.Value, kind: types.Type) -> ir.Value:
    return context.cast(builder, value, kind, types.uint64)


def mask_of(builder: ir.IRBuilder, left: ir.Value) -> ir.Value:
    """Lanes 0 .. left-1 of the last vector."""
    count = builder.insert_element(ir.Constant(ir.VectorType(I64, WIDTH), ir.Undefined), left, ir.Constant(I32, 0))
    count = builder.shuffle_vector(
        count,
        ir.Constant(ir.VectorType(I64, WIDTH), ir.Undefined),
        ir.Constant(ir.VectorType(I32, WIDTH), [0] * WIDTH),
    )
    return builder.icmp_signed("<", ir.Constant(ir.VectorType(I64, WIDTH), list(range(WIDTH))), count)


def left_of(
    context: Context, builder: ir.IRBuilder, columns: ir.Value, kind: types.Type, column: ir.Value, count: int
) -> ir.Value:
    n = context.cast(builder, columns, kind, types.int64)
    return builder.sub(builder.sub(n, column), ir.Constant(I64, (count - 1) * WIDTH))


def add_up(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    while len(vectors) > 1:  # a tree: the same order for every machine, and short
        joined = [builder.fadd(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
        vectors = joined + ([vectors[-1]] if len(vectors) % 2 else [])
    v = vectors[0]
    items = [builder.extract_element(v, ir.Constant(I32, k)) for k in range(WIDTH)]
    return builder.fadd(builder.fadd(items[0], items[2]), builder.fadd(items[1], items[3]))


def code_at(context: Context, builder: ir.IRBuilder, kind: types.Array, column: ir.Value, e: ir.Value) -> ir.Value:
    """``column[e]`` as unsigned 64 bit, without the wrap-around check of signed indices."""
    a = context.make_array(kind)(context, builder, column)
    return context.cast(builder, builder.load(builder.gep(a.data, [e])), kind.dtype, types.uint64)
