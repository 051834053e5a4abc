"""The area under the ROC curve from histograms of scores, with intervals that cover at few cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.analysis.statistics.intervals import Z, wilson

__all__ = ["Area", "area", "calibration", "curve", "difference", "placements", "pooled_area"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Area:
    """AUC with its 95 % interval; ``variance`` is DeLong's."""

    value: float
    low: float
    high: float
    variance: float
    cases: int
    others: int


def placements(cases: Array, others: Array) -> tuple[Array, Array, float, float]:
    """Per bin: the part of the others below a case there, the part of the cases above another there; ties count half."""
    m, n = float(cases.sum()), float(others.sum())
    rank_below = (np.cumsum(others) - others + others / 2) / max(n, 1e-300)
    rank_above = (m - np.cumsum(cases) + cases / 2) / max(m, 1e-300)
    return rank_below, rank_above, m, n


def _delong(cases: Array, others: Array) -> tuple[float, float]:
    rank_below, rank_above, m, n = placements(cases, others)
    if m < 1 or n < 1:
        return 0.5, 0.25
    value = float(cases @ rank_below / m)
    first = float(cases @ (rank_below - value) ** 2 / max(m - 1, 1))
    second = float(others @ (rank_above - value) ** 2 / max(n - 1, 1))
    return value, first / m + second / n


def _supposed(theta: float, m: float, n: float) -> float:
    """Variance of an AUC of theta under exponential scores (Hanley and McNeil 1982)."""
    return theta * (1 - theta) * (1 + (m - 1) * (1 - theta) / (2 - theta) + (n - 1) * theta / (1 + theta)) / (m * n)


def _score_interval(value: float, parts: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """All theta whose own variance does not rule out the value: |value - theta| <= z sqrt(V(theta))."""

    def outside(theta: float) -> float:
        spread = math.sqrt(sum(w * w * _supposed(theta, m, n) for w, m, n in parts))
        return abs(value - theta) - Z * spread

    def edge(inside: float, end: float) -> float:
        if outside(end) <= 0:
            return end
        for _ in range(80):
            middle = (inside + end) / 2
            inside, end = (middle, end) if outside(middle) <= 0 else (inside, middle)
        return (inside + end) / 2

    tiny = 1e-9
    return edge(min(max(value, tiny), 1 - tiny), 0.0), (1.0 if value >= 1 - tiny else edge(max(value, tiny), 1.0))


def area(cases: ArrayLike, others: ArrayLike) -> Area:
    """AUC of one histogram of scores: numbers of cases and of others in each bin, in rising order of the score.

    The interval is the union of two: DeLong's on the logit scale, which collapses when few cases are all ranked high, and
    the score interval |A - theta| <= z sqrt(V(theta)) with Hanley and McNeil's variance, which does not. (11 cases, AUC
    .76, .96, .98, binormal and exponential scores, 500 runs each: coverage .94 to 1.0; DeLong alone .40 to .91.)

    >>> found = area([0, 1, 1], [2, 2, 0])
    >>> round(found.value, 3), found.low < 0.7, found.high > 0.98
    (0.875, True, True)
    """
    return pooled_area([(np.asarray(cases, np.float64), np.asarray(others, np.float64))])


def pooled_area(parts: Sequence[tuple[Array, Array]]) -> Area:
    """AUC over parts whose scores must not be compared (halves scored by two regressions): pairs within a part only."""
    sizes = [(float(c.sum()), float(o.sum())) for c, o in parts]
    pairs = np.array([m * n for m, n in sizes])
    m, n = sum(x for x, _ in sizes), sum(x for _, x in sizes)
    if not pairs.sum():
        return Area(0.5, 0.0, 1.0, 0.25, round(m), round(n))
    weights = pairs / pairs.sum()
    areas = [_delong(c, o) for c, o in parts]
    value = float(sum(w * v for w, (v, _) in zip(weights, areas)))
    variance = float(sum(w * w * s for w, (_, s) in zip(weights, areas)))
    low, high = _score_interval(value, [(float(w), *s) for w, s in zip(weights, sizes) if w])
    if 0 < value < 1:
        logit, spread = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
        low, high = min(low, _expit(logit - spread)), max(high, _expit(logit + spread))
    return Area(value, low, high, variance, round(m), round(n))


def _expit(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(x / 2.0))


def difference(joint: Sequence[Array]) -> tuple[float, float, float]:
    """Paired difference of two AUCs of the same patients, with its 95 % interval (DeLong).

    Parameters
    ----------
    joint
        Per part (2, B, B): others and cases by bin of the first score and bin of the second.

    Returns
    -------
    first minus second, low, high
    """
    total, value, variance = 0.0, 0.0, 0.0
    pairs = [float(j[0].sum() * j[1].sum()) for j in joint]
    for j, weight in zip(joint, pairs):
        if not weight:
            continue
        controls, cases = j
        m, n = float(cases.sum()), float(controls.sum())
        marks = [placements(cases.sum(axis), controls.sum(axis))[:2] for axis in (1, 0)]
        rank_below = marks[0][0][:, None] - marks[1][0][None, :]
        rank_above = marks[0][1][:, None] - marks[1][1][None, :]
        gap = float((cases * rank_below).sum() / m)
        spread = float((cases * (rank_below - gap) ** 2).sum()) / max(m - 1, 1) / m
        spread += float((controls * (rank_above - gap) ** 2).sum()) / max(n - 1, 1) / n
        value, variance, total = value + weight * gap, variance + weight**2 * spread, total + weight
    if not total:
        return 0.0, -1.0, 1.0
    gap, sd = value / total, math.sqrt(variance) / total
    return gap, gap - Z * sd, gap + Z * sd


def curve(cases: Array, others: Array, *, minimum: int = 11) -> tuple[tuple[float, float], ...]:
    """ROC points (false, true positive rate), no two of them nearer than ``minimum`` patients of both kinds."""
    m, n = float(cases.sum()), float(others.sum())
    points = [(0.0, 0.0)]
    a = b = 0.0
    true_positives, right = np.cumsum(cases[::-1]), np.cumsum(others[::-1])
    for x, y in zip(true_positives, right):
        if x - a >= minimum and y - b >= minimum and m - x >= minimum and n - y >= minimum:
            points.append((float(y / n), float(x / m)))
            a, b = float(x), float(y)
    return (*points, (1.0, 1.0))


def calibration(
    cases: Array, others: Array, risk: Array, *, groups: int = 10, minimum: int = 11
) -> tuple[tuple[float, float, float, float], ...]:
    """Predicted and observed share with its interval, in at most ten groups with ``minimum`` patients of both kinds.

    ``risk`` is the predicted risk of each bin.
    """
    size = cases + others
    total = float(size.sum())
    cuts, y, n = [0], 0.0, 0.0
    for at in range(len(size)):
        y, n = y + float(cases[at]), n + float(size[at])
        remaining = float(cases[at + 1 :].sum()), float(others[at + 1 :].sum())
        if n >= total / groups and y >= minimum and n - y >= minimum and min(remaining) >= minimum:
            cuts.append(at + 1)
            y = n = 0.0
    if y < minimum or n - y < minimum:  # the last group takes what is left; too few: it joins the one before
        cuts = cuts[:-1] if len(cuts) > 1 else cuts
    cuts.append(len(size))
    out = []
    for a, b in pairwise(cuts):
        k, events = float(size[a:b].sum()), float(cases[a:b].sum())
        if min(events, k - events) < minimum:
            return ()
        out.append((float(size[a:b] @ risk[a:b] / k), events / k, *wilson(events, k)))
    return tuple(out)
