"""One look at an array, without a copy: its largest absolute value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.simd.jit import kernel


@kernel
def _largest(a: NDArray[np.float64]) -> float:
    top, invalid = 0.0, 0
    for i in range(a.size):
        x = abs(a[i])
        top = max(top, x)
        invalid += x != x
    return np.inf if invalid else top


def largest(a: NDArray[np.float64]) -> float:
    """Largest absolute value; infinity if one is NaN or infinite, 0 of nothing.

    >>> largest(np.array([[1.0, -3.0]])), largest(np.array([1.0, np.nan])), largest(np.empty(0))
    (3.0, inf, 0.0)
    """
    return float(_largest(np.ascontiguousarray(a, np.float64).ravel()))
