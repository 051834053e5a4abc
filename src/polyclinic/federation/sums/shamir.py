"""Split secrets so that any t of n keepers can rebuild them, and t - 1 know nothing (Shamir 1979).

Over the prime ``p = 2^61 - 1``, many secrets at a time. A key of a mask is four numbers below p (244 bits); a share of it is four
numbers as well and travels as 32 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.sums.field import P, combine, lagrange, polynomial

__all__ = ["ELEMENTS", "Elements", "draw", "rebuild", "split", "weights"]

ELEMENTS = 4  # numbers of one key
Elements = NDArray[np.uint64]


def draw(*shape: int) -> Elements:
    """Uniform numbers below p from the operating system (uniform up to 2^-61: p itself becomes 0)."""
    raw = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64) & np.uint64(P)
    return np.where(raw == P, np.uint64(0), raw).reshape(shape)


def split(secrets: Elements, points: Sequence[int], threshold: int) -> Elements:
    """Shares of all secrets, shape (keepers, secrets).

    Parameters
    ----------
    secrets
        Numbers below p.
    points
        The keepers' public numbers, distinct and from 1.
    threshold
        How many shares rebuild a secret.

    Examples
    --------
    >>> secret = np.array([5, 7], np.uint64)
    >>> shares = split(secret, [1, 2, 3], 2)
    >>> rebuild(shares[[0, 2]], weights((1, 3)))
    array([5, 7], dtype=uint64)
    """
    x = np.asarray(points, np.int64)
    if secrets.dtype != np.uint64 or secrets.ndim != 1 or (secrets >= P).any():
        raise ValueError("secrets are numbers below 2^61 - 1")
    if len(set(points)) != len(points) or x.min() < 1 or not 1 <= threshold <= len(points):
        raise ValueError("distinct points from 1, and a threshold of at most as many")
    coefficients = draw(threshold, secrets.size)
    coefficients[0] = secrets
    return np.asarray(polynomial(coefficients, x.astype(np.uint64)))


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
