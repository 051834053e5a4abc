"""Ranks of numbers, ties sharing the mean of theirs (``scipy.stats`` takes a fresh process longer to import than most fits take)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks_of(x: ArrayLike) -> NDArray[np.float64]:
    """1 for the smallest; equal numbers share the mean of their ranks.

    >>> ranks_of([0.3, 0.1, 0.3, 7.0]).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, place, counts = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])
