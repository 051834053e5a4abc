"""The area under the ROC curve within hospitals, from ranks that add up, with intervals that cover after cross-fitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.statistics.intervals import Z, wilson

Array = NDArray[np.float64]
# definition: with fewer cases DeLong's interval collapses, and the score interval joins it
FEW: Final = 30


@dataclass(frozen=True)
class Area:
    """AUC with its 95 % interval and variance."""

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


def ranked(scores: Array, y: Array) -> Array:
    """Return one hospital's part of the AUCs of D scores (D, n), first against all others: (D + 1, 4), additive over hospitals.

    Pairs are of patients of the same hospital, weighted by w = m n / (m + n) (van Elteren): what a score is worth where it is used,
    without any hospital's level. Row i: w A_i, and sums of u^2 v, u^2 v^2 and u^2 (v_0 - v_i)^2, where v is DeLong's placement of a patient
    among the other kind at the hospital and u = w / m or w / n. Last row: w, the sum of u^2, m and n.
    """
    m, n = float((y == 1).sum()), float((y == 0).sum())
    out = np.zeros((len(scores) + 1, 4))
    if not m or not n:
        return out
    w = m * n / (m + n)
    u = np.where(y == 1, w / m, w / n)
    first: Array | None = None
    for i, s in enumerate(scores):
        others, cases = np.sort(s[y == 0]), np.sort(s[y == 1])
        v = np.where(
            y == 1,
            (np.searchsorted(others, s, "left") + np.searchsorted(others, s, "right")) / (2 * n),
            1 - (np.searchsorted(cases, s, "left") + np.searchsorted(cases, s, "right")) / (2 * m),
        )
        first = v if first is None else first
        out[i] = w * v[y == 1].mean(), (u**2 * v).sum(), np.square(u * v).sum(), np.square(u * (first - v)).sum()
    out[-1] = w, np.square(u).sum(), m, n
    return out


def inflation(columns: int, evidence: float) -> float:
    """Return by how much the variance of a cross-fitted AUC exceeds that of fixed scores: 1.75 (no effect), 2.25 (weak), to 1 (strong).

    Each half is scored by the regression of the other. Without an effect both halves estimate one number, the product of their
    differences between cases and others, so their mean has the variance of one of them. With ``evidence`` (likelihood ratio of a half
    on ``columns``) of noncentrality L, second-order terms are 2.5 (columns - 1) / L of the variance. docs/howto/findings.md has the coverage.

    >>> [round(inflation(5, x), 3) for x in (4.0, 15.0, 105.0)]
    [1.75, 2.0, 1.1]
    """
    beyond, q = max(evidence - columns, 1e-9), max(columns, 1)
    return 1.0 + min(0.75 + 0.5 * beyond / q, 1.25, 2.5 * max(q - 1, 1) / beyond)


@dataclass(frozen=True, eq=False)
class Ranks:
    """Summed :func:`ranked` of both halves, (2, D + 1, 4)."""

    sums: Array

    def value(self, i: int) -> float:
        """AUC of score i: sum of w A over sum of w, over hospitals and halves."""
        return float(self.sums[:, i, 0].sum() / max(float(self.sums[:, -1, 0].sum()), 1e-300))

    def area(self, i: int, factor: float = 1.0) -> Area:
        """AUC with its interval; the variance is DeLong's for strata, times ``factor``.

        With few cases the interval is the union with the score interval |A - theta| <= z sqrt(V(theta)) of Hanley and McNeil's
        variance, which does not collapse when all cases are ranked high.
        """
        m, n = (round(float(self.sums[:, -1, k].sum())) for k in (2, 3))
        total = float(self.sums[:, -1, 0].sum())
        if not total:
            return Area(0.5, 0.0, 1.0, 0.25, m, n)
        value = self.value(i)
        variance = factor * self._variance(self.sums[:, i, 0], self.sums[:, i, 1], self.sums[:, i, 2])
        low = high = value
        if min(m, n) < FEW:
            weights = self.sums[:, -1, 0] / total * math.sqrt(factor)
            parts = [(float(w), float(s[2]), float(s[3])) for w, s in zip(weights, self.sums[:, -1]) if w]
            low, high = _score_interval(value, parts)
        if 0 < value < 1:
            logit, spread = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
            low, high = min(low, _expit(logit - spread)), max(high, _expit(logit + spread))
        return Area(value, low, high, variance, m, n)

    def gain(self, i: int, factor: float = 1.0) -> tuple[float, float, float]:
        """Score 0 minus score i on the same patients, with its interval."""
        first, other = self.sums[:, 0], self.sums[:, i]
        gap = self.value(0) - self.value(i)
        sd = math.sqrt(factor * self._variance(first[:, 0] - other[:, 0], first[:, 1] - other[:, 1], other[:, 3]))
        return gap, gap - Z * sd, gap + Z * sd

    def _variance(self, weighted: Array, linear: Array, square: Array) -> float:
        """Sum over halves of u^2 (v - A)^2, over the squared total weight: weighted = w A, linear = u^2 v, square = u^2 v^2."""
        w, base = self.sums[:, -1, 0], self.sums[:, -1, 1]
        mean = weighted / np.maximum(w, 1e-300)
        return float(np.maximum(square - 2 * mean * linear + mean**2 * base, 0.0).sum()) / max(
            float(w.sum()) ** 2, 1e-300
        )


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


def _expit(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(x / 2.0))


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
