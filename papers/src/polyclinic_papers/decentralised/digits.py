"""Whole numbers as three digits of 21 bits, so that a method that only adds real numbers adds whole numbers exactly."""

from __future__ import annotations

import numpy as np

from polyclinic.aggregation.fixed_point import Words
from polyclinic.privacy.release import Array

LIMB = 21  # bits; three limbs hold the 63 bits of a whole number
LIMBS = 3


def split(words: Words) -> Array:
    """Whole numbers as three signed digits of 21 bits each, scaled to [-1, 1]: shape (3 * size,).

    A method that only adds real numbers, to within ``1 / (4 n 2^20)`` of the mean, thus adds whole numbers exactly.

    >>> join(split(np.array([5, -7], np.int64).view(np.uint64)) * 2**20).view(np.int64)
    array([ 5, -7])
    """
    rest, half, digits = words.view(np.int64), 1 << (LIMB - 1), []
    for _ in range(LIMBS - 1):
        digit = ((rest + half) & ((1 << LIMB) - 1)) - half
        digits.append(digit)
        rest = (rest - digit) >> LIMB
    return np.concatenate([*digits, rest]) / half


def join(digits: Array) -> Words:
    """The whole number from (sums of) unscaled digits, mod 2^64."""
    whole = np.rint(digits).astype(np.int64).reshape(LIMBS, -1)
    return np.asarray(sum(whole[k].view(np.uint64) << np.uint64(LIMB * k) for k in range(LIMBS)), np.uint64)
