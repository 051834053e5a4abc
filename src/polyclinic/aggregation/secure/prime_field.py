"""Arithmetic modulo the prime p = 2^61 - 1, compiled: products of 122 bits are folded, never divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.base import BaseContext
from numba.core.types.containers import BaseTuple
from numba.core.typing.templates import Signature
from numba.extending import intrinsic
from numpy.typing import NDArray

import polyclinic.tensors.simd.jit  # noqa: F401  (where compiled kernels are kept)

P: Final = 2**61 - 1
_P = np.uint64(P)
_BITS = np.uint64(61)


@intrinsic  # type: ignore[untyped-decorator]
def _wide(typing: object, a: types.Integer, b: types.Integer) -> tuple[object, Callable[..., ir.Value]]:
    """``(low, high)`` with ``a b = low + 2^61 high``, both below 2^61 for factors below 2^61."""
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        low = builder.and_(builder.trunc(product, word), ir.Constant(word, P))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 61)), word)
        made: ir.Value = context.make_tuple(builder, signature.return_type, [low, high])
        return made

    return signature, code


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """``a b mod p`` for residues below p."""
    low, high = _wide(a, b)
    s: np.uint64 = low + high
    return s - _P if s >= _P else s


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _residue(w: np.int64) -> np.uint64:
    """A signed word as a number below 2^62 that is congruent to it: ``w = low + 2^61 high``, and ``2^61 = 1``."""
    low, high = np.uint64(w) & _P, w >> np.int64(61)  # the shift keeps the sign: high is in -4 .. 3
    return low + _P + np.uint64(high)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _reduce(a: np.uint64) -> np.uint64:
    a = (a & _P) + (a >> _BITS)
    return a - _P if a >= _P else a


@intrinsic  # type: ignore[untyped-decorator]
def _block(
    typing: object, words: types.Array, begin: types.Integer, powers: BaseTuple
) -> tuple[object, Callable[..., ir.Value]]:
    """``sum_{k=0..7} words[begin + k] powers_k`` modulo p, below 2^63: eight products of 124 bits, reduced once."""
    signature = types.uint64(words, begin, powers)

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        wide, word = ir.IntType(128), ir.IntType(64)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        total: ir.Value = ir.Constant(wide, 0)
        for k in range(8):  # signed words: the sum is above -2^127 and below 2^127
            x = builder.load(builder.gep(data, [builder.add(args[1], ir.Constant(word, k))]))
            power = builder.sext(builder.extract_value(args[2], k), wide)  # it is below 2^61: one signed product
            total = builder.add(total, builder.mul(builder.sext(x, wide), power))
        low, middle, high = [builder.trunc(builder.ashr(total, ir.Constant(wide, n)), word) for n in (0, 61, 122)]
        low, middle = [builder.and_(x, ir.Constant(word, P)) for x in (low, middle)]
        high = builder.add(high, ir.Constant(word, P))  # the shift keeps the sign: high was in -32 .. 31
        return builder.add(builder.add(low, middle), high)

    return signature, code


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def residues(words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Signed whole numbers modulo p."""
    out = np.empty(words.size, np.uint64)
    for i in range(words.size):
        out[i] = _reduce(_residue(words[i]))
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def evaluate(words: NDArray[np.int64], at: np.uint64) -> np.uint64:
    """``sum_{i=1..d} words_i at^i mod p``: Horner in ``at^8``, blocks of eight from the end."""
    r2 = multiply(at, at)
    r3, r4 = multiply(r2, at), multiply(r2, r2)
    r5, r6, r7, r8 = multiply(r4, at), multiply(r4, r2), multiply(r4, r3), multiply(r4, r4)
    powers = (at, r2, r3, r4, r5, r6, r7, r8)
    total, whole = np.uint64(0), words.size // 8 * 8
    for i in range(words.size - 1, whole - 1, -1):
        total = multiply(_reduce(total + _reduce(_residue(words[i]))), at)
    for i in range(whole - 8, -1, -8):
        low, high = _wide(total, r8)
        s: np.uint64 = low + high + _block(words, i, powers)
        total = (s & _P) + (s >> _BITS)  # below 2^61 + 8: as far as the next product needs
    reduced: np.uint64 = _reduce(total)
    return reduced


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def accumulate(vector: NDArray[np.uint64], random: NDArray[np.uint64], sign: int) -> None:
    """Add a mask (or take it off) in place: all words mod 2^64, the last mod p.

    ``random`` is one word longer: its last two words are 128 bits, reduced mod p (``2^64 = 8``).
    """
    d = vector.size - 1
    m = _reduce(_reduce(random[d]) + multiply(_reduce(random[d + 1]), np.uint64(8)))
    if sign > 0:
        for i in range(d):
            vector[i] += random[i]
        vector[d] = _reduce(vector[d] + m)
    else:
        for i in range(d):
            vector[i] -= random[i]
        vector[d] = _reduce(vector[d] + (_P - m))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def added(numbers: NDArray[np.uint64]) -> np.uint64:
    """The sum mod p of long numbers, one a row, lowest word first (``2^64 = 8``)."""
    total = np.uint64(0)
    for k in range(numbers.shape[0]):
        x = np.uint64(0)
        for j in range(numbers.shape[1] - 1, -1, -1):
            x = _reduce(multiply(x, np.uint64(8)) + _reduce(numbers[k, j]))
        total = _reduce(total + x)
    return total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def polynomial(coefficients: NDArray[np.uint64], points: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``out[k, m] = sum_j coefficients[j, m] points[k]^j mod p``."""
    t, m = coefficients.shape
    out = np.zeros((points.size, m), np.uint64)
    for k in range(points.size):
        x = points[k]
        for j in range(t - 1, -1, -1):
            for i in range(m):
                out[k, i] = _reduce(multiply(out[k, i], x) + coefficients[j, i])
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lagrange(points: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Weights with which values of a polynomial at ``points`` add up to its value at zero."""
    out = np.empty(points.size, np.uint64)
    for a in range(points.size):
        top, bottom = np.uint64(1), np.uint64(1)
        for b in range(points.size):
            if b != a:
                top = multiply(top, points[b])
                bottom = multiply(bottom, _reduce(points[b] + (_P - points[a])))
        power = _P - np.uint64(2)  # the inverse, by Fermat
        while power:
            if power & np.uint64(1):
                top = multiply(top, bottom)
            bottom, power = multiply(bottom, bottom), power >> np.uint64(1)
        out[a] = top
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def combine(shares: NDArray[np.uint64], weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``out[m] = sum_k weights[k] shares[k, m] mod p``."""
    out = np.zeros(shares.shape[1], np.uint64)
    for k in range(weights.size):
        for i in range(out.size):
            out[i] = _reduce(out[i] + multiply(shares[k, i], weights[k]))
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def within(words: NDArray[np.int64], most: np.int64) -> bool:
    """Whether no word is larger than ``most`` in absolute value."""
    high = low = np.int64(0)
    for i in range(words.size):
        high = max(high, words[i])
        low = min(low, words[i])
    return bool(high <= most and low >= -most)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def weighed(words: NDArray[np.uint64], at: int, most: int) -> np.int64:
    """:func:`evaluate` of words that are signed numbers; p, which is no residue, if one is larger than ``most`` (-1: any may be)."""
    whole = words.view(np.int64)
    if most >= 0 and not within(whole, np.int64(most)):
        return np.int64(P)
    return np.int64(evaluate(whole, np.uint64(at)))
