"""Sums outside their windows, found and put right by a few numbers more: power sums over a prime field.

A digit of a packed word (:mod:`.packing.packed_sums`) is known modulo its levels L_j. If its sum lies q_j windows away, it is read q_j L_j too low and
the next digit of its word q_j too high. Every site also sends s_k = sum_j v_j w_j(k) mod p, k = 0 .. 2 t - 1, with public weights

    w_j(k) = (b_j^k + w_next(k)) / L_j      in the field of p, next: the digit above in the same word, b_j = j + 1,

so what the read digits lack is s_k - sum_j r_j w_j(k) = sum_j q_j b_j^k: the power sums of the b_j of the digits that were misread. Up to t
of them follow by Berlekamp and Massey's algorithm: the shortest recurrence of the s_k has the b_j as its roots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
# p, the largest prime below 2^22: products fit in a word, and two sums of six sites in one of 50 bits
# definition: a field in which every digit has an inverse
PRIME: Final = 4_194_301


def weights(levels: Whole, above: Whole, digit: Whole, count: int) -> Whole:
    """(count, numbers) w_j(k); ``above``: the next digit of the word, -1 for the last; ``digit``: its place in the word, from 0.

    Sites in one process have the same layout: the weights of the last ones are kept.
    """
    return _weights(levels.tobytes(), above.tobytes(), digit.tobytes(), count)


@lru_cache(maxsize=32)
def _weights(levels_: bytes, above_: bytes, digit_: bytes, count: int) -> Whole:
    levels, above, digit = (np.frombuffer(x, np.int64) for x in (levels_, above_, digit_))
    inverse = _powers(levels % PRIME, PRIME - 2)
    lanes = [np.flatnonzero(digit == k) for k in range(int(digit.max(initial=-1)), -1, -1)]  # from the highest down
    beta, power = np.arange(1, len(levels) + 1, dtype=np.int64) % PRIME, np.ones(len(levels), np.int64)
    out = np.empty((count, len(levels)), np.int64)
    for k in range(count):
        weight_row = power.copy()
        for lane in lanes:
            next_digit = above[lane]
            carry = np.where(next_digit >= 0, weight_row[next_digit], 0)
            weight_row[lane] = (weight_row[lane] + carry) % PRIME * inverse[lane] % PRIME
        out[k] = weight_row
        power = power * beta % PRIME
    return out


def lacking(value: Whole, weight: Whole) -> Whole:
    """sum_j v_j w_j(k) mod p for every k."""
    return np.asarray((value % PRIME * weight % PRIME).sum(1) % PRIME)


def located(power_sums: Sequence[int], numbers: int) -> tuple[Whole, Whole] | None:
    """Which digits were misread, and by how many windows each; None: more than half as many as there are power sums.

    >>> sums = [(3 * pow(5, k, PRIME) - 2 * pow(8, k, PRIME)) % PRIME for k in range(4)]
    >>> [x.tolist() for x in located(sums, 10)]
    [[4, 7], [3, -2]]
    """
    recurrence = _recurrence(power_sums)
    order = len(recurrence) - 1
    if not order or 2 * order > len(power_sums):
        return None
    points = np.arange(1, numbers + 1, dtype=np.int64)
    value = np.zeros(numbers, np.int64)
    for c in recurrence:  # x^order C(1/x)
        value = (value * points + c) % PRIME
    places = np.flatnonzero(value == 0)
    if len(places) != order:
        return None
    q = _solved([int(x) for x in points[places]], list(power_sums[:order]))
    return places, np.array([x - PRIME if x > PRIME // 2 else x for x in q], np.int64)


def _powers(base: Whole, exponent: int) -> Whole:
    out, square = np.ones_like(base), base.copy()
    while exponent:
        out = out * square % PRIME if exponent & 1 else out
        square, exponent = square * square % PRIME, exponent >> 1
    return out


def _recurrence(sums: Sequence[int]) -> list[int]:
    """Berlekamp and Massey: the shortest c with c_0 = 1 and sum_i c_i s_(n-i) = 0 for all n."""
    current, previous, length, gap, last = [1], [1], 0, 1, 1
    for n in range(len(sums)):
        off = sum(c * sums[n - i] for i, c in enumerate(current) if i <= n) % PRIME
        if not off:
            gap += 1
            continue
        ratio = off * pow(last, PRIME - 2, PRIME) % PRIME
        longer = current + [0] * max(0, len(previous) + gap - len(current))
        for i, b in enumerate(previous):
            longer[i + gap] = (longer[i + gap] - ratio * b) % PRIME
        if 2 * length <= n:
            previous, length, last, gap = current, n + 1 - length, off, 1
        else:
            gap += 1
        current = longer
    return (current + [0] * (length + 1))[: length + 1]


def _solved(roots: list[int], sums: list[int]) -> list[int]:
    """q with sum_j q_j b_j^k = s_k (Gauss and Jordan)."""
    n = len(roots)
    rows = [[pow(b, k, PRIME) for b in roots] + [sums[k]] for k in range(n)]
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = pow(rows[i][i], PRIME - 2, PRIME)
        rows[i] = [x * scale % PRIME for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                rows[r] = [(x - rows[r][i] * y) % PRIME for x, y in zip(rows[r], rows[i])]
    return [row[n] for row in rows]
