"""Eight lanes of a row at a time, for arithmetic whose order is written down: each operation rounded once, nothing fused.

A row of a multiple of eight numbers lies in memory; a kernel walks it in steps of :data:`EIGHT`. ``multiply``, ``add_row`` and ``scale``
of :mod:`.simd.rows` work on what ``load_at`` returns: they never fuse a product with a sum. Used inside compiled kernels only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import BaseTuple

from polyclinic.tensors.simd.llvm import (
    Context,
    Emitted,
    RowType,
    add_up,
    block_at,
    make_row,
    parts_of,
    pointer,
    vectors_at,
    wide,
    word,
)  # fmt: skip
from polyclinic.tensors.simd.rows import lanes

EIGHT: Final = lanes(2)  # the shape of eight doubles: two vectors


@word
def load_at(
    typingctx: object, shape: BaseTuple, array: types.Array, i: types.Integer, column: types.Integer
) -> Emitted:
    """``array[i, column : column + 8]``."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        at, c = wide(context, builder, args[2], i), wide(context, builder, args[3], column)
        return make_row(builder, vectors_at(builder, pointer(context, builder, array, args[1], at, c), count))

    return RowType(count)(shape, array, i, column), codegen


@word
def store_at(typingctx: object, row: RowType, array: types.Array, i: types.Integer, column: types.Integer) -> Emitted:
    """``array[i, column : column + 8] = row``."""

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        at, c = wide(context, builder, args[2], i), wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], at, c)
        for k, v in enumerate(parts_of(builder, args[0], row.count)):
            builder.store(v, block_at(builder, p, k), align=8)
        return context.get_dummy_value()

    return types.void(row, array, i, column), codegen


@word
def lane_sum(typingctx: object, row: RowType) -> Emitted:
    """The sum over the lanes: those 4 apart, then 2, then 1."""

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        return add_up(builder, parts_of(builder, args[0], row.count))

    return types.float64(row), codegen
