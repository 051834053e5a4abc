"""Measurements in a noisy sum: in units of each class's own, public, centre and spread, so that noise is small beside them.

With ``y = (x - mu_j) / sd_j``, cut off at ``REACH``, a patient adds ``r_j (y / REACH, (y / REACH)^2, 1)``: each at most 1,
whatever the record, as in :mod:`polyclinic.methods.mixtures.private_statistics`. Cutting off narrows a Gaussian by a known factor.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.stats import norm

from polyclinic.models.mixtures.columns import Array, Layout

__all__ = ["in_own_units", "in_public_units"]

REACH: Final = 3.0
_tail = float(norm.sf(REACH))
NARROWED: Final = 1 - 2 * _tail - 2 * REACH * float(norm.pdf(REACH)) + 2 * REACH**2 * _tail  # E of y^2, cut off


def in_own_units(layout: Layout, profiles: Array, X: Array, F: Array) -> Array:
    """(n, k, width) statistics with measurements in each class's units; every column's part has its bounded length."""
    out = np.repeat(F[:, None, :], len(profiles), axis=1)
    at, p = 1, 0
    for j, c in enumerate(layout.columns):
        if c.kind == "continuous":
            x = np.clip(X[:, j], c.low, c.high)[:, None]
            y = np.clip((x - profiles[:, p]) / np.sqrt(profiles[:, p + 1]), -REACH, REACH) / REACH
            y = np.where(np.isnan(y), 0.0, y)
            out[:, :, at], out[:, :, at + 1] = y, y * y
        at, p = at + c.statistics, p + c.parameters
    return out


def in_public_units(layout: Layout, profiles: Array, sums: Array) -> Array:
    """(k, width) sums of :func:`in_own_units` as sums in the columns' public centre and unit."""
    out, at, p = np.array(sums), 1, 0
    for c in layout.columns:
        if c.kind == "continuous":
            shift = (profiles[:, p] - c.centre) / c.unit
            spread = REACH * np.sqrt(profiles[:, p + 1]) / c.unit
            first, known = spread * sums[:, at], np.maximum(sums[:, at + 2], 1.0)
            second = np.maximum(spread**2 * sums[:, at + 1] / NARROWED, first**2 / known)
            out[:, at], out[:, at + 1] = shift * known + first, shift**2 * known + 2 * shift * first + second
            out[:, at + 2] = known
        at, p = at + c.statistics, p + c.parameters
    return out
