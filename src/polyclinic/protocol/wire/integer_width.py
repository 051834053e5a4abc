"""Whole numbers that need fewer than eight bytes travel in as many as their sum needs.

A step on a grid, without noise, whose sum of n sites lies within +/- N steps of the grid needs b bytes with 2^(8 b) > 2 N + 1. Masks
are taken mod 2^64, and what is added mod 2^64 and cut to b bytes was added mod 2^(8 b): a masked vector of b bytes a number is
uniformly distributed, too, and the sum, read as a signed number of b bytes, is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.privacy.release import Step

Bytes = NDArray[np.uint8]


def width(step: Step, sites: int = 1) -> int:
    """Bytes of a number of this step (sum of so many sites): 8 unless contributions are whole multiples of a grid.

    >>> width(Step(1, "packed", {"x": (5,)}, bound=2.0**50, grid=1.0), 6), width(Step(1, "x", {"x": (5,)}, bound=1.0))
    (7, 8)
    """
    if step.grid is None or step.noise_sd > 0 or not step.grid > 0 or not np.isfinite(step.bound * step.weight_bound):
        return 8
    most = int(np.ceil(sites * step.bound * step.weight_bound / step.grid))
    return min(8, (2 * most + 1).bit_length() // 8 + 1)


def narrow(words: NDArray[np.generic], size: int = 8) -> Bytes:
    """The lowest bytes of every word, one after the other.

    >>> widen(narrow(np.array([5, -7], np.int64), 2), 2).view(np.int64).tolist()
    [5, -7]
    """
    return np.ascontiguousarray(words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :size]).ravel()


def widen(data: Bytes, size: int = 8) -> NDArray[np.uint64]:
    """Inverse of :func:`narrow`: signed numbers of ``size`` bytes as words of 64 bits."""
    out = np.zeros((len(data) // size, 8), np.uint8)
    out[:, 8 - size :] = data.reshape(-1, size)
    return np.asarray((out.view("<i8").ravel() >> (64 - 8 * size)).astype(np.int64).view(np.uint64))
