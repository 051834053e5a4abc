"""One step of stochastic gradient descent on a nonzero, in vector registers: the inner word of the SGD pass."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple

from polyclinic.tensors.simd.llvm import (
    DOUBLE,
    I32,
    I64,
    WIDTH,
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


@word
def prefetch(typingctx: object, shape: BaseTuple, array: types.Array, i: types.Integer) -> Emitted:
    """Ask for every cache line of row ``array[i]`` before it is needed. Never faults."""
    lines = -(-len(shape) * WIDTH * 8 // 64)

    def codegen(context: Context, builder: ir.IRBuilder, sig: object, args: Sequence[ir.Value]) -> ir.Value:
        p = padded_row(context, builder, array, args[1], wide(context, builder, args[2], i), len(shape))
        f = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), I32, I32, I32]),
            "llvm.prefetch.p0",
        )
        byte = builder.bitcast(p, ir.IntType(8).as_pointer())
        for k in range(lines):
            at = builder.gep(byte, [ir.Constant(I64, 64 * k)])
            builder.call(f, [at, *(ir.Constant(I32, x) for x in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(shape, array, i), codegen


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
        cut = len(clip) > 0
        chains: list[list[ir.Value]] = [[] for _ in range(modes + 1)]
        for k in range(count):
            xs = [builder.load(block_at(builder, p, k), align=8) for p in rows]
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
                    chain[k % 4] = fma(builder, u, v, chain[k % 4])
        residual = builder.fsub(add_up(builder, chains[0]), args[4])
        step = builder.fneg(builder.fmul(args[5], residual))
        steps = [step] * modes
        if cut:
            bound = builder.extract_value(args[7], 0)
            size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [DOUBLE]), [residual])
            root = builder.module.declare_intrinsic("llvm.sqrt", [DOUBLE])
            for n in range(modes):
                length = builder.fmul(size, builder.call(root, [add_up(builder, chains[n + 1])]))
                short = builder.fcmp_ordered("<=", length, bound)
                steps[n] = builder.select(short, step, builder.fmul(step, builder.fdiv(bound, length)))
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
