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
    "axpy",
    "blocks",
    "descend",
    "dot",
    "gather",
    "gather_add",
    "lanes",
    "load",
    "load_part",
    "multiply",
    "padded",
    "prefetch",
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

_double = ir.DoubleType()
_vector = ir.VectorType(_double, WIDTH)
_i32 = ir.IntType(32)
_i64 = ir.IntType(64)


def _word(typed: Callable[..., Any]) -> Callable[..., Any]:
    """A word of the kernels' language: given the types, it emits the vector code."""
    word: Callable[..., Any] = intrinsic(typed)
    return word


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


def _make(builder: Any, parts: list[Any]) -> Any:
    out = ir.Constant(ir.ArrayType(_vector, len(parts)), ir.Undefined)
    for k, part in enumerate(parts):
        out = builder.insert_value(out, part, k)
    return out


def _parts(builder: Any, row: Any, count: int) -> list[Any]:
    return [builder.extract_value(row, k) for k in range(count)]


def _splat(builder: Any, x: Any) -> Any:
    one = builder.insert_element(ir.Constant(_vector, ir.Undefined), x, ir.Constant(_i32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(_vector, ir.Undefined), ir.Constant(ir.VectorType(_i32, WIDTH), [0] * WIDTH)
    )


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    f = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_vector, [_vector] * 3), f"llvm.fmuladd.v{WIDTH}f64"
    )
    return builder.call(f, [a, b, c])


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, i: Any, column: Any) -> Any:
    """Address of ``array[i, column]``; rows may be strided, columns are contiguous; ``i`` is taken as unsigned."""
    a = context.make_array(array_type)(context, builder, array)
    stride = builder.extract_value(a.strides, 0)
    address = builder.ptrtoint(a.data, _i64)
    address = builder.add(address, builder.mul(i, stride))
    address = builder.add(address, builder.mul(column, ir.Constant(_i64, 8)))
    return builder.inttoptr(address, _double.as_pointer())


def _padded_row(context: Any, builder: Any, array_type: Any, array: Any, i: Any, count: int) -> Any:
    """Address of row i of a padded array of exactly ``count`` blocks: the stride is known to the compiler."""
    a = context.make_array(array_type)(context, builder, array)
    return builder.gep(a.data, [builder.mul(i, ir.Constant(_i64, count * WIDTH))])


def _at(builder: Any, pointer: Any, k: int) -> Any:
    p = builder.gep(pointer, [ir.Constant(_i64, k * WIDTH)])
    return builder.bitcast(p, _vector.as_pointer())


def _load(builder: Any, pointer: Any, count: int) -> list[Any]:
    return [builder.load(_at(builder, pointer, k), align=8) for k in range(count)]


def _wide(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    return context.cast(builder, value, kind, types.uint64)


def _mask(builder: Any, left: Any) -> Any:
    """Lanes 0 .. left-1 of the last vector."""
    count = builder.insert_element(ir.Constant(ir.VectorType(_i64, WIDTH), ir.Undefined), left, ir.Constant(_i32, 0))
    count = builder.shuffle_vector(
        count,
        ir.Constant(ir.VectorType(_i64, WIDTH), ir.Undefined),
        ir.Constant(ir.VectorType(_i32, WIDTH), [0] * WIDTH),
    )
    return builder.icmp_signed("<", ir.Constant(ir.VectorType(_i64, WIDTH), list(range(WIDTH))), count)


def _left(context: Any, builder: Any, columns: Any, kind: Any, column: Any, count: int) -> Any:
    n = context.cast(builder, columns, kind, types.int64)
    return builder.sub(builder.sub(n, column), ir.Constant(_i64, (count - 1) * WIDTH))


@_word
def zero(typingctx: Any, shape: Any) -> Any:
    """A row of zeros; ``shape`` is ``lanes``."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _make(builder, [ir.Constant(_vector, [0.0] * WIDTH)] * count)

    return RowType(count)(shape), codegen


@_word
def spread(typingctx: Any, shape: Any, x: Any) -> Any:
    """A row whose every lane is the number x."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _make(builder, [_splat(builder, args[1])] * count)

    return RowType(count)(shape, types.float64), codegen


@_word
def load(typingctx: Any, shape: Any, array: Any, i: Any) -> Any:
    """Row i of an array padded to exactly this many blocks."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _padded_row(context, builder, array, args[1], _wide(context, builder, args[2], i), count)
        return _make(builder, _load(builder, p, count))

    return RowType(count)(shape, array, i), codegen


@_word
def load_part(typingctx: Any, shape: Any, array: Any, i: Any, column: Any, columns: Any) -> Any:
    """As ``load`` from an array of ``columns`` columns that is NOT padded: missing lanes read as 0."""
    count = len(shape)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        c = _wide(context, builder, args[3], column)
        p = _pointer(context, builder, array, args[1], _wide(context, builder, args[2], i), c)
        parts = _load(builder, p, count - 1)
        mask = _mask(builder, _left(context, builder, args[4], columns, c, count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_vector, [_vector.as_pointer(), _i32, ir.VectorType(ir.IntType(1), WIDTH), _vector]),
            f"llvm.masked.load.v{WIDTH}f64.p0",
        )
        last = builder.call(
            f, [_at(builder, p, count - 1), ir.Constant(_i32, 8), mask, ir.Constant(_vector, [0.0] * WIDTH)]
        )
        return _make(builder, [*parts, last])

    return RowType(count)(shape, array, i, column, columns), codegen


@_word
def store(typingctx: Any, row: Any, array: Any, i: Any) -> Any:
    """Write a row into an array padded to exactly its number of blocks."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _padded_row(context, builder, array, args[1], _wide(context, builder, args[2], i), row.count)
        for k, v in enumerate(_parts(builder, args[0], row.count)):
            builder.store(v, _at(builder, p, k), align=8)
        return context.get_dummy_value()

    return types.void(row, array, i), codegen


@_word
def store_part(typingctx: Any, row: Any, array: Any, i: Any, column: Any, columns: Any) -> Any:
    """Write a row into an array of ``columns`` columns that is not padded: surplus lanes are dropped."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        c = _wide(context, builder, args[3], column)
        p = _pointer(context, builder, array, args[1], _wide(context, builder, args[2], i), c)
        values = _parts(builder, args[0], row.count)
        for k, v in enumerate(values[:-1]):
            builder.store(v, _at(builder, p, k), align=8)
        mask = _mask(builder, _left(context, builder, args[4], columns, c, row.count))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_vector, _vector.as_pointer(), _i32, ir.VectorType(ir.IntType(1), WIDTH)]),
            f"llvm.masked.store.v{WIDTH}f64.p0",
        )
        builder.call(f, [values[-1], _at(builder, p, row.count - 1), ir.Constant(_i32, 8), mask])
        return context.get_dummy_value()

    return types.void(row, array, i, column, columns), codegen


def _binary(name: str, doc: str, emit: Callable[[Any, Any, Any], Any]) -> Any:
    def typed(typingctx: Any, a: Any, b: Any) -> Any:
        count = a.count

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            xs, ys = _parts(builder, args[0], count), _parts(builder, args[1], count)
            return _make(builder, [emit(builder, x, y) for x, y in zip(xs, ys)])

        return RowType(count)(a, b), codegen

    typed.__name__ = typed.__qualname__ = name
    typed.__doc__ = doc
    return _word(typed)


multiply = _binary("multiply", "a * b, lane by lane.", lambda builder, x, y: builder.fmul(x, y))
add_row = _binary("add_row", "a + b, lane by lane.", lambda builder, x, y: builder.fadd(x, y))


@_word
def scale(typingctx: Any, row: Any, x: Any) -> Any:
    """row * x for a number x."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        s = _splat(builder, args[1])
        return _make(builder, [builder.fmul(v, s) for v in _parts(builder, args[0], count)])

    return row(row, types.float64), codegen


@_word
def axpy(typingctx: Any, x: Any, row: Any, to: Any) -> Any:
    """to + x * row for a number x."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        s = _splat(builder, args[0])
        pairs = zip(_parts(builder, args[1], count), _parts(builder, args[2], count))
        return _make(builder, [_fma(builder, s, v, t) for v, t in pairs])

    return row(types.float64, row, to), codegen


@_word
def times(typingctx: Any, a: Any, b: Any, to: Any) -> Any:
    """to + a * b, lane by lane."""
    count = a.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        xs = [_parts(builder, v, count) for v in args]
        return _make(builder, [_fma(builder, u, v, t) for u, v, t in zip(*xs)])

    return a(a, b, to), codegen


@_word
def ramp(typingctx: Any, row: Any) -> Any:
    """max(0, row), lane by lane: the projection on the non-negative numbers. NaN stays NaN."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.Constant(_vector, [0.0] * WIDTH)
        return _make(
            builder,
            [
                builder.select(builder.fcmp_ordered("<", v, nothing), nothing, v)
                for v in _parts(builder, args[0], count)
            ],
        )

    return row(row), codegen


def _sum(builder: Any, vectors: list[Any]) -> Any:
    while len(vectors) > 1:  # a tree: the same order for every machine, and short
        joined = [builder.fadd(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
        vectors = joined + ([vectors[-1]] if len(vectors) % 2 else [])
    v = vectors[0]
    items = [builder.extract_element(v, ir.Constant(_i32, k)) for k in range(WIDTH)]
    return builder.fadd(builder.fadd(items[0], items[2]), builder.fadd(items[1], items[3]))


@_word
def dot(typingctx: Any, a: Any, b: Any) -> Any:
    """sum of a * b over all lanes."""
    count = a.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        xs, ys = _parts(builder, args[0], count), _parts(builder, args[1], count)
        chains: list[Any] = [builder.fmul(x, y) for x, y in zip(xs[:4], ys[:4])]
        for k in range(4, count):
            chains[k % 4] = _fma(builder, xs[k], ys[k], chains[k % 4])
        return _sum(builder, chains)

    return types.float64(a, b), codegen


def _index(context: Any, builder: Any, kind: Any, column: Any, e: Any) -> Any:
    """``column[e]`` as unsigned 64 bit, without the wrap-around check of signed indices."""
    a = context.make_array(kind)(context, builder, column)
    return context.cast(builder, builder.load(builder.gep(a.data, [e])), kind.dtype, types.uint64)


@_word
def gather(typingctx: Any, row: Any, codes: Any, factors: Any, e: Any) -> Any:
    """row * prod_n factors[n][codes[n][e]], padded factors; tuples of any length, also empty, unrolled."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = _parts(builder, args[0], count)
        at = _wide(context, builder, args[3], e)
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = _index(context, builder, kind, builder.extract_value(args[1], n), at)
            p = _padded_row(context, builder, factor, builder.extract_value(args[2], n), i, count)
            parts = [builder.fmul(x, y) for x, y in zip(parts, _load(builder, p, count))]
        return _make(builder, parts)

    return row(row, codes, factors, e), codegen


@_word
def gather_add(typingctx: Any, to: Any, row: Any, codes: Any, factors: Any, e: Any) -> Any:
    """to + row * prod_n factors[n][codes[n][e]], the last product fused with the sum."""
    count = row.count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums, parts = _parts(builder, args[0], count), _parts(builder, args[1], count)
        at = _wide(context, builder, args[4], e)
        if not len(codes):
            return _make(builder, [builder.fadd(t, x) for t, x in zip(sums, parts)])
        for n, (kind, factor) in enumerate(zip(codes, factors)):
            i = _index(context, builder, kind, builder.extract_value(args[2], n), at)
            p = _padded_row(context, builder, factor, builder.extract_value(args[3], n), i, count)
            loaded = _load(builder, p, count)
            if n == len(codes) - 1:
                return _make(builder, [_fma(builder, x, y, t) for x, y, t in zip(parts, loaded, sums)])
            parts = [builder.fmul(x, y) for x, y in zip(parts, loaded)]

    return row(to, row, codes, factors, e), codegen


@_word
def prefetch(typingctx: Any, shape: Any, array: Any, i: Any) -> Any:
    """Ask for every cache line of row ``array[i]`` before it is needed. Never faults."""
    lines = -(-len(shape) * WIDTH * 8 // 64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _padded_row(context, builder, array, args[1], _wide(context, builder, args[2], i), len(shape))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _i32, _i32, _i32]),
            "llvm.prefetch.p0",
        )
        byte = builder.bitcast(p, ir.IntType(8).as_pointer())
        for k in range(lines):
            at = builder.gep(byte, [ir.Constant(_i64, 64 * k)])
            builder.call(f, [at, *(ir.Constant(_i32, x) for x in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(shape, array, i), codegen


def _others(builder: Any, rows: list[Any]) -> list[Any]:
    """For every mode the product of all the other modes' vectors, by prefix and suffix products."""
    n = len(rows)
    before: list[Any] = [None] * n
    after: list[Any] = [None] * n
    for k in range(1, n):
        before[k] = rows[k - 1] if before[k - 1] is None else builder.fmul(before[k - 1], rows[k - 1])
        m = n - 1 - k
        after[m] = rows[m + 1] if after[m + 1] is None else builder.fmul(after[m + 1], rows[m + 1])
    return [b if a is None else a if b is None else builder.fmul(b, a) for b, a in zip(before, after)]


@_word
def descend(
    typingctx: Any, shape: Any, index: Any, factors: Any, e: Any, value: Any, rate: Any, floor: Any, clip: Any,
    anchors: Any, pulls: Any,
) -> Any:  # fmt: skip
    """One step of stochastic gradient descent at entry e: rows index[n][e] of every factor move, in place.

    All gradients are taken at the old rows (DPFact eq. 13 and 17). ``clip`` is () or (L,): the data part of each row's
    gradient is cut to length L (ERRATA E0.8b). ``anchors`` and ``pulls`` are () or, per FEATURE mode, the global
    factor and the weight of the elastic pull for each of its rows (E0.6). ``floor`` is 0 or minus infinity.
    Returns the residual model - value before the step.
    """
    count, modes = len(shape), len(factors)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = _wide(context, builder, args[3], e)
        where = [_index(context, builder, index[n], builder.extract_value(args[1], n), at) for n in range(modes)]
        rows = [
            _padded_row(context, builder, factors[n], builder.extract_value(args[2], n), where[n], count)
            for n in range(modes)
        ]
        cut = len(clip) > 0
        chains: list[list[Any]] = [[] for _ in range(modes + 1)]
        for k in range(count):
            xs = [builder.load(_at(builder, p, k), align=8) for p in rows]
            if cut:
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
                    chain[k % 4] = _fma(builder, u, v, chain[k % 4])
        residual = builder.fsub(_sum(builder, chains[0]), args[4])
        step = builder.fneg(builder.fmul(args[5], residual))
        steps = [step] * modes
        if cut:
            bound = builder.extract_value(args[7], 0)
            size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [_double]), [residual])
            root = builder.module.declare_intrinsic("llvm.sqrt", [_double])
            for n in range(modes):
                length = builder.fmul(size, builder.call(root, [_sum(builder, chains[n + 1])]))
                short = builder.fcmp_ordered("<=", length, bound)
                steps[n] = builder.select(short, step, builder.fmul(step, builder.fdiv(bound, length)))
        spread = [_splat(builder, s) for s in steps]
        low = _splat(builder, args[6])
        pulled: list[Any] = []
        for n in range(1, modes if len(anchors) else 0):
            home = _padded_row(context, builder, anchors[n - 1], builder.extract_value(args[8], n - 1), where[n], count)
            weight = context.make_array(pulls[n - 1])(context, builder, builder.extract_value(args[9], n - 1))
            strength = builder.fmul(args[5], builder.load(builder.gep(weight.data, [where[n]])))
            pulled.append((home, _splat(builder, strength)))
        for k in range(count):
            xs = [builder.load(_at(builder, p, k), align=8) for p in rows]
            for n, other in enumerate(_others(builder, xs)):
                new = _fma(builder, spread[n], other, xs[n])
                if n and pulled:
                    home, strength = pulled[n - 1]
                    away = builder.fsub(builder.load(_at(builder, home, k), align=8), xs[n])
                    new = _fma(builder, strength, away, new)
                new = builder.select(builder.fcmp_ordered("<", new, low), low, new)
                builder.store(new, _at(builder, rows[n], k), align=8)
        return residual

    signature = types.float64(
        shape, index, factors, e, types.float64, types.float64, types.float64, clip, anchors, pulls
    )
    return signature, codegen


def padded(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """A copy with columns padded by zeros to whole vectors."""
    out = np.zeros((matrix.shape[0], blocks(matrix.shape[1]) * WIDTH))
    out[:, : matrix.shape[1]] = matrix
    return out
