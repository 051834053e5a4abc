"""Asking for rows of a factor before they are needed: a factor of 65,000 codes is in no near cache, and memory answers late.

A hint changes no number. Measured (400,000 entries, rank 50, two modes of 65,000 codes): 24 and 30 ms become 19 and 18 with even codes,
15 and 16 become 11 with codes by Zipf's law; numbering codes by frequency instead changed nothing, since a row fills seven lines of
its own. Factors that fit the second-level cache are left alone, as are short rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple
from numpy.typing import NDArray

from polyclinic.tensors.simd.llvm import I32, I64, WIDTH, Context, Emitted, code_at, padded_row, wide, word

FAR: Final = np.uint64(8)  # entries ahead
LARGE: Final = 1 << 20  # bytes of factors below which nothing is asked for
SHORT: Final = 16  # columns of a row below which nothing is, either
LINE: Final = 2  # vectors in a line of the cache


def distance(factors: Iterable[NDArray[np.float64]]) -> np.uint64:
    """How many entries ahead to ask, 0 for not at all.

    >>> int(distance([np.zeros((65_000, 52))])), int(distance([np.zeros((1_000, 52))])), int(distance([]))
    (8, 0, 0)
    """
    matrices = list(factors)
    worth = any(f.shape[1] >= SHORT for f in matrices) and sum(f.nbytes for f in matrices) > LARGE
    return FAR if worth else np.uint64(0)


@word
def ask(typingctx: object, shape: BaseTuple, codes: BaseTuple, factors: BaseTuple, e: types.Integer) -> Emitted:
    """Ask for the rows ``factors[n][codes[n][e]]``, padded to the blocks of ``shape``."""
    count = len(shape)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        place = ir.IntType(8).as_pointer()
        f = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [place, I32, I32, I32]), "llvm.prefetch.p0"
        )
        at = wide(context, builder, args[3], e)
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = code_at(context, builder, kind, builder.extract_value(args[1], n), at)
            row = padded_row(context, builder, factor, builder.extract_value(args[2], n), i, count)
            for k in range(0, count, LINE):
                line = builder.bitcast(builder.gep(row, [ir.Constant(I64, k * WIDTH)]), place)
                builder.call(f, [line, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(shape, codes, factors, e), codegen
