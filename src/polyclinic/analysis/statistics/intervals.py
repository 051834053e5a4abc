"""Shares, false-discovery rates and penalised logistic regression: pure functions, each checked against an oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Z: Final = 1.959963984540054  # definition: 95 % of a normal distribution


def wilson(successes: float, trials: float, z: float = Z) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): covers also near 0 and 1, where the usual one is empty.

    >>> tuple(round(x, 4) for x in wilson(0, 20))
    (0.0, 0.1611)
    """
    if trials <= 0:
        return 0.0, 1.0
    p, square = successes / trials, z * z
    middle = (p + square / (2 * trials)) / (1 + square / trials)
    half = z * math.sqrt(max(p * (1 - p), 0.0) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def adjusted(p_values: Sequence[float] | Array) -> Array:
    """The false-discovery rate at which each test would be called (Benjamini and Hochberg 1995); NaN stays NaN.

    >>> adjusted([0.01, 0.04, 0.03, 0.5]).round(4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    p = np.asarray(p_values, np.float64)
    out = np.full(p.shape, np.nan)
    finite = np.flatnonzero(np.isfinite(p))
    order = finite[np.argsort(p[finite], kind="stable")]
    raised = p[order] * len(finite) / np.arange(1, len(finite) + 1)
    out[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return out


def normal_p(z: float) -> float:
    """Two-sided p-value of a normal deviate.

    >>> round(normal_p(1.959963984540054), 6)
    0.05
    """
    return math.erfc(abs(z) / math.sqrt(2.0))


def chi_square(statistic: float, freedom: int = 1) -> float:
    """Upper tail of a chi-square distribution: the p-value of a likelihood-ratio test.

    >>> round(chi_square(3.841459), 4)
    0.05
    """
    from scipy.special import gammaincc

    return float(gammaincc(freedom / 2.0, max(statistic, 0.0) / 2.0))


def logf(beta: Array, unit: ArrayLike = 1.0) -> tuple[float, Array, Array]:
    """The log-F(1,1) prior (Greenland and Mansournia 2015): log density, score and information of each coefficient.

    log p(b) = b/2 - log(1 + e^b) with b the coefficient per ``unit`` of the covariate: as if one patient with the
    covariate at 1 had half an event and half a non-event. It keeps separated data finite and shrinks little else.
    """
    scale = np.broadcast_to(np.asarray(unit, np.float64), beta.shape)
    b = beta / scale
    s = 0.5 * (1.0 + np.tanh(b / 2.0))
    density = float((b / 2.0 - np.logaddexp(0.0, b)).sum())
    return density, (0.5 - s) / scale, s * (1.0 - s) / scale**2
