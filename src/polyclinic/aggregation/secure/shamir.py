"""Split secrets so that any t of n keepers can rebuild them, and t - 1 know nothing (Shamir 1979).

Over the prime ``p = 2^61 - 1``, many secrets at a time. A key of a mask is three numbers below p (183 bits); a share of it is three
numbers as well and travels as 24 bytes. Where t keepers' shares are random numbers that they know already (from a key in common),
the secret follows from those, and only the other keepers' shares have to be sent (:func:`complete`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polyclinic.aggregation.secure.prime_field import P, combine, lagrange

ELEMENTS = 3  # numbers of one key
BYTES = 8 * ELEMENTS  # of a share
Elements = NDArray[np.uint64]


def draw(*shape: int) -> Elements:
    """Uniform numbers below p from the operating system (uniform up to 2^-61: p itself becomes 0)."""
    return reduce(np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64)).reshape(shape)


def reduce(raw: Elements) -> Elements:
    """Uniform words as uniform numbers below p."""
    low = raw & np.uint64(P)
    return np.where(low == P, np.uint64(0), low)


def complete(shares: Elements, known: Sequence[int], others: Sequence[int]) -> tuple[Elements, Elements]:
    """The secrets, and the shares at ``others``, of the polynomials that have these shares at ``known`` (as many as rebuild).

    If the shares at ``known`` are uniform and independent, so is the secret, and any t - 1 shares say nothing about it.

    >>> secret, rest = complete(np.array([[12], [19]], np.uint64), [1, 2], [3])  # 5 + 7 x
    >>> int(secret[0]), int(rest[0, 0])
    (5, 26)
    """
    points = np.asarray(known, np.uint64)
    rows = [
        rebuild(shares, weights(tuple(int(x) for x in (points + np.uint64(P - o)) % np.uint64(P))))
        for o in (0, *others)
    ]
    return rows[0], np.array(rows[1:], np.uint64).reshape(len(others), shares.shape[1])


@lru_cache(maxsize=4096)
def weights(points: tuple[int, ...]) -> Elements:
    """Lagrange weights at zero: a secret is the weighted sum of its shares. One set serves every secret.

    >>> int(weights((1, 2))[0])
    2
    """
    return np.asarray(lagrange(np.asarray(points, np.uint64)))


def rebuild(shares: Elements, lagrange: Elements) -> Elements:
    """The secrets from exactly the threshold's number of rows."""
    if shares.shape[0] != lagrange.size or shares.dtype != np.uint64:
        raise ValueError(f"{lagrange.size} shares are needed")
    return np.asarray(combine(np.ascontiguousarray(shares) % np.uint64(P), lagrange))
