"""Arithmetic modulo the prime p = 2^61 - 1, compiled: products of 122 bits are folded, never divided."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

import polyclinic.tensors.compiled  # noqa: F401  (where compiled kernels are kept)

__all__ = [
    "P",
    "accumulate",
    "added",
    "combine",
    "evaluate",
    "lagrange",
    "multiply",
    "polynomial",
    "residues",
    "within",
]

P: Final = 2**61 - 1
_P = np.uint64(P)
_BITS = np.uint64(61)


@intrinsic  # type: ignore[untyped-decorator]
def _wide(typing: Any, a: Any, b: Any) -> Any:
    """``(low, high)`` with ``a b = low + 2^61 high``, both below 2^61 for factors below 2^61."""
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from llvmlite import ir  # type: ignore[import-untyped]

        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        low = builder.and_(builder.trunc(product, word), ir.Constant(word, P))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 61)), word)
        return context.make_tuple(builder, signature.return_type, [low, high])

    return signature, code


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def multiply(a: Any, b: Any) -> Any:
    """``a b mod p`` for residues below p."""
    low, high = _wide(a, b)
    s = low + high
    return s - _P if s >= _P else s


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _residue(w: Any) -> Any:
    """A signed word as a number below 2^62 that is congruent to it: ``w = low + 2^61 high``, and ``2^61 = 1``."""
    low, high = np.uint64(w) & _P, w >> np.int64(61)  # the shift keeps the sign: high is in -4 .. 3
    return low + _P + np.uint64(high)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _reduce(a: Any) -> Any:
    a = (a & _P) + (a >> _BITS)
    return a - _P if a >= _P else a


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _horner(a: Any, at: Any, w: Any) -> Any:
    """``a at + w``, below 2^61 + 8: reduced as far as the next product needs, and no further."""
    low, high = _wide(a, at)
    s = low + high + _residue(w)  # below 2^63
    return (s & _P) + (s >> _BITS)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def residues(words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Signed whole numbers modulo p."""
    out = np.empty(words.size, np.uint64)
    for i in range(words.size):
        out[i] = _reduce(_residue(words[i]))
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def evaluate(words: NDArray[np.int64], at: np.uint64) -> Any:
    """``sum_{i=1..d} words_i at^i mod p``, by eight interleaved Horner schemes so that products overlap in the processor."""
    d = words.size
    step = multiply(at, at)
    step = multiply(step, step)
    step = multiply(step, step)  # at^8
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = np.uint64(0)
    for k in range(d // 8 - 1, -1, -1):
        i = 8 * k
        a0 = _horner(a0, step, words[i])
        a1 = _horner(a1, step, words[i + 1])
        a2 = _horner(a2, step, words[i + 2])
        a3 = _horner(a3, step, words[i + 3])
        a4 = _horner(a4, step, words[i + 4])
        a5 = _horner(a5, step, words[i + 5])
        a6 = _horner(a6, step, words[i + 6])
        a7 = _horner(a7, step, words[i + 7])
    total, power = np.uint64(0), np.uint64(1)
    for a in (a0, a1, a2, a3, a4, a5, a6, a7):
        power = multiply(power, at)
        total = _reduce(total + multiply(_reduce(a), power))
    rest = np.uint64(0)
    for i in range(d - 1, d // 8 * 8 - 1, -1):
        rest = multiply(_reduce(rest + _reduce(_residue(words[i]))), at)
    blocks = d // 8  # the last few words stand behind whole blocks
    while blocks:
        if blocks & 1:
            rest = multiply(rest, step)
        step, blocks = multiply(step, step), blocks >> 1
    return _reduce(total + rest)


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
def added(numbers: NDArray[np.uint64]) -> Any:
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
