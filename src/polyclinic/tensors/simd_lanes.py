"""Eight lanes of a row at a time, for arithmetic whose order is written down: each operation rounded once, nothing fused.

A row of a multiple of eight numbers lies in memory; a kernel walks it in steps of :data:`EIGHT`. ``multiply``, ``add_row`` and ``scale``
of :mod:`.simd` work on what ``load_at`` returns: they never fuse a product with a sum. Used inside compiled kernels only.
"""

from __future__ import annotations

from typing import Any, Final

from polyclinic.tensors.simd import (
    RowType,
    add_up,
    block_at,
    lanes,
    make_row,
    parts_of,
    pointer,
    vectors_at,
    wide,
    word,
)

__all__ = ["EIGHT", "lane_sum", "load_at", "store_at"]

EIGHT: Final = lanes(2)  # the shape of eight doubles: two vectors


@word
def load_at(typingctx: Any, shape: Any, array: Any, i: Any, column: Any) -> Any:
    """``array[i, column : column + 8]``."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, c = wide(context, builder, args[2], i), wide(context, builder, args[3], column)
        return make_row(builder, vectors_at(builder, pointer(context, builder, array, args[1], at, c), count))

    return RowType(count)(shape, array, i, column), codegen


@word
def store_at(typingctx: Any, row: Any, array: Any, i: Any, column: Any) -> Any:
    """``array[i, column : column + 8] = row``."""
    from numba.core import types

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, c = wide(context, builder, args[2], i), wide(context, builder, args[3], column)
        p = pointer(context, builder, array, args[1], at, c)
        for k, v in enumerate(parts_of(builder, args[0], row.count)):
            builder.store(v, block_at(builder, p, k), align=8)
        return context.get_dummy_value()

    return types.void(row, array, i, column), codegen


@word
def lane_sum(typingctx: Any, row: Any) -> Any:
    """The sum over the lanes: those 4 apart, then 2, then 1."""
    from numba.core import types

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return add_up(builder, parts_of(builder, args[0], row.count))

    return types.float64(row), codegen
