"""Arithmetic modulo the prime p = 2^61 - 1, compiled: products of 122 bits are folded, never divided."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel

P: Final = 2**61 - 1
_P = np.uint64(P)
_BITS = np.uint64(61)
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)
_SPARE, _REST = np.uint64(29), np.uint64(2**29 - 1)  # 2^32 2^29 = 2^61 = 1


@kernel
def _reduce(a: np.uint64) -> np.uint64:
    a = (a & _P) + (a >> _BITS)
    return a - _P if a >= _P else a


@kernel
def multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """``a b mod p`` for residues below p, by halves of 32 bits: ``2^64 = 8`` and ``2^61 = 1``."""
    high, low = (a >> _HALF) * (b >> _HALF), (a & _LOW) * (b & _LOW)  # below 2^58 and 2^64
    middle = (a >> _HALF) * (b & _LOW) + (a & _LOW) * (b >> _HALF)  # below 2^62, times 2^32
    total = (high << np.uint64(3)) + (middle >> _SPARE) + ((middle & _REST) << _HALF) + (low & _P) + (low >> _BITS)
    reduced: np.uint64 = _reduce(total)
    return reduced


@kernel
def evaluate(words: NDArray[np.int64], at: np.uint64) -> np.uint64:
    """``sum_{i=1..d} words_i at^i mod p`` of signed words, by Horner's rule."""
    total = np.uint64(0)
    for i in range(words.size - 1, -1, -1):
        w = words[i]  # w = low + 2^61 high, and the shift keeps the sign: high is in -4 .. 3
        total = multiply(_reduce(total + _reduce((np.uint64(w) & _P) + _P + np.uint64(w >> np.int64(61)))), at)
    return total


@kernel
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


@kernel
def added(numbers: NDArray[np.uint64]) -> np.uint64:
    """The sum mod p of long numbers, one a row, lowest word first (``2^64 = 8``)."""
    total = np.uint64(0)
    for k in range(numbers.shape[0]):
        x = np.uint64(0)
        for j in range(numbers.shape[1] - 1, -1, -1):
            x = _reduce(multiply(x, np.uint64(8)) + _reduce(numbers[k, j]))
        total = _reduce(total + x)
    return total


def lagrange(points: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Weights with which values of a polynomial at ``points`` add up to its value at zero."""
    xs, out = [int(x) for x in points], []
    for a in xs:
        top = bottom = 1
        for b in xs:
            if b != a:
                top, bottom = top * b % P, bottom * (b - a) % P
        out.append(top * pow(bottom, -1, P) % P)
    return np.array(out, np.uint64)


@kernel
def combine(shares: NDArray[np.uint64], weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``out[m] = sum_k weights[k] shares[k, m] mod p``."""
    out = np.zeros(shares.shape[1], np.uint64)
    for k in range(weights.size):
        for i in range(out.size):
            out[i] = _reduce(out[i] + multiply(shares[k, i], weights[k]))
    return out


def weighed(words: NDArray[np.uint64], at: int, most: int) -> int:
    """:func:`evaluate` of words that are signed numbers; p, which is no residue, if one is larger than ``most`` (-1: any may be)."""
    signed = words.view(np.int64)
    if most >= 0 and (signed.max(initial=0) > most or signed.min(initial=0) < -most):
        return P
    return int(evaluate(signed, np.uint64(at)))
