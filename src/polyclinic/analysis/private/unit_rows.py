"""Rows of length at most 1: how a patient's figures become one vector whose sum over patients can be paid for.

A release is the sum over patients of one row. A row is made of parts; part p has entries x with |x|^2 <= ``most`` whatever the
record, and enters as ``u x`` with ``u <= sqrt(share / most)`` and ``sum of shares <= 1``, so that the row's length is at most 1
and one patient more or less moves the sum by at most 1. Parts of one release are as private as separate releases whose
shares of mu^2 are these shares: stacking them only saves rounds. Entries are truncated toward zero to whole multiples of 2^-20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# limit: rows are whole multiples of it, so that their sum is exact
GRID: Final = 2.0**-20
# limit: memory
CHUNK: Final = 4096  # patients at once


@dataclass(frozen=True)
class Part:
    """One part of a row.

    Attributes
    ----------
    most
        Largest squared length of its entries, of any record.
    share
        Its part of the row's squared length.
    """

    name: str
    shape: tuple[int, ...]
    most: float
    share: float

    @property
    def unit(self) -> int:
        """Grid steps of an entry of 1: truncated, so that the length cannot grow."""
        return max(math.floor(math.sqrt(self.share * (1 - 2.0**-40) / self.most) / GRID), 1)

    @property
    def scale(self) -> float:
        """What an entry of 1 adds to the sum."""
        return self.unit * GRID

    def natural(self, total: Array) -> Array:
        """The sum in the entries' own unit."""
        return np.asarray(total, np.float64).reshape(self.shape) / self.scale

    def counted(self, counts: NDArray[np.int64]) -> Array:
        """The sum over patients of entries that are 0 or 1, from how many are 1."""
        return np.multiply(np.asarray(counts, np.int64).reshape(self.shape) * self.unit, GRID, dtype=np.float64)


def scaled(parts: Sequence[Part], shares: Mapping[str, float]) -> tuple[Part, ...]:
    """The parts with shares that sum to 1 in the proportion of ``shares``."""
    total = sum(shares[p.name] for p in parts)
    return tuple(Part(p.name, p.shape, p.most, shares[p.name] / total) for p in parts)


def summed(rows: Array, part: Part) -> Array:
    """The sum over patients of real entries, each cut to [-1, 1] and each patient's to length sqrt(most), in whole grid steps.

    A record that is no number (NaN) is a row of zeros.

    >>> p = Part("x", (2,), most=1.0, share=1.0)
    >>> summed(np.array([[np.inf, np.nan], [3.0, 4.0]]), p).round(3).tolist()
    [0.707, 0.707]
    """
    out = np.zeros(rows.shape[1], np.int64)
    for at in range(0, len(rows), CHUNK):
        x = np.clip(np.nan_to_num(rows[at : at + CHUNK], nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
        length = np.sqrt(np.square(x).sum(1, keepdims=True))
        most = math.sqrt(part.most)
        x = np.where(length > most, x * (most / np.maximum(length, most)) * (1 - 2.0**-40), x)
        out += np.trunc(x * part.unit).astype(np.int64).sum(0)
    return np.multiply(out, GRID, dtype=np.float64).reshape(part.shape)
