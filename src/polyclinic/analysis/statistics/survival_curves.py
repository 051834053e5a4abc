"""Time to an event on a grid of days: Kaplan-Meier, log-rank, and the pieces of Cox's model with Efron's ties."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.statistics.intervals import Z, chi_square
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Survival:
    """A curve: (T,) at risk at the start of each time, events at it, share still free of the event after it."""

    at_risk: Array
    events: Array
    share: Array
    low: Array
    high: Array


def kaplan_meier(censored: Array, events: Array, beyond: float = 0.0, missed: float | Array = 0.0) -> Survival:
    """Return the share without the event at the end of each step, S = prod (1 - d / (n - missed c)), with Greenwood's variance.

    With ``missed`` 0 times are exact, and patients who are censored at a time leave after it. 1/2 is the actuarial form: patients who are
    censored within a step were at risk for half of it on average. Whatever the order within the steps, the estimate from exact times
    lies between the results with ``missed`` 1 and 0. The interval is on the log-log scale.

    Parameters
    ----------
    censored, events
        (T,) patients who leave within each step of the grid, without and with the event.
    beyond
        Patients who are followed past the last step.

    >>> kaplan_meier(np.array([0.0, 1.0]), np.array([1.0, 1.0])).share.round(3).tolist()
    [0.667, 0.333]
    """
    n = (censored + events)[::-1].cumsum()[::-1] + beyond
    exposed = np.maximum(n - missed * censored, events)
    safe = np.maximum(exposed, 1e-300)
    share: Array = np.cumprod(np.where(exposed > 0, 1.0 - events / safe, 1.0), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        remain = np.maximum(exposed - events, 1e-300)
        greenwood = np.cumsum(np.where(exposed > events, events / (safe * remain), 0.0))
        inner = (share > 0) & (share < 1)
        logs = np.log(np.where(inner, share, 0.5))
        sd = Z * np.sqrt(greenwood) / np.abs(logs)
        low = np.where(inner, np.exp(logs * np.exp(sd)), np.where(share >= 1, share, 0.0))
        high = np.where(inner, np.exp(logs * np.exp(-sd)), np.where(share >= 1, 1.0, share))
    return Survival(n, events, share, low, high)


def step_of(time: Array, width: float) -> NDArray[np.int64]:
    """Return the step of the grid that holds each time: step k ends at (k + 1) width, its end included, as in Kaplan-Meier's S(t).

    >>> step_of(np.array([0.0, 6.5, 7.0, 7.5]), 7.0).tolist()
    [0, 0, 0, 1]
    """
    steps: NDArray[np.int64] = np.maximum(np.ceil(time / width) - 1, 0).astype(np.int64)
    return steps


def restricted_mean(curve: Survival, width: float) -> float:
    """Return the mean time without the event within the grid: the area under straight lines between the ends of steps."""
    points = np.concatenate([[1.0], curve.share])
    return float(width * (points[:-1] + points[1:]).sum() / 2)


def log_rank(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[float, float]:
    """Test that two groups have the same hazard: chi-square statistic and p-value; each group is (censored, events)."""
    n = [(g[0] + g[1])[::-1].cumsum()[::-1] for g in (first, second)]
    d, at_risk = first[1] + second[1], n[0] + n[1]
    use = at_risk > 1
    share = np.where(use, n[0] / np.maximum(at_risk, 1.0), 0.0)
    observed, expected = float(first[1].sum()), float((d * n[0] / np.maximum(at_risk, 1.0)).sum())
    variance = float((d * share * (1 - share) * (at_risk - d) / np.maximum(at_risk - 1, 1.0))[use].sum())
    statistic = (observed - expected) ** 2 / variance if variance > 0 else 0.0
    return statistic, chi_square(statistic)


@dataclass(frozen=True, eq=False)
class EfronSums:
    """Sums over patients that Cox's model needs of one group: risk sets and tied events by time."""

    risk0: Array  # (T,)
    risk1: Array  # (T, p)
    risk2: Array  # (T, p, p)
    tied0: Array
    tied1: Array
    tied2: Array
    deaths: Array  # (T,)
    direct: Array  # (p,) sum of x over events


def efron_sums(x: Array, time: NDArray[np.int64], event: NDArray[np.bool_], grid: int, beta: Array) -> EfronSums:
    """S0, S1, S2 of everybody at risk and of those who die, at every time of the grid; additive over patients."""
    eta = np.clip(x @ beta, -8.0, 8.0)
    w = np.exp(eta)
    p = x.shape[1]
    outer = (x[:, :, None] * x[:, None, :]).reshape(len(x), p * p)
    rows = np.column_stack([w, w[:, None] * x, w[:, None] * outer])

    def by_time(use: NDArray[np.bool_]) -> Array:
        out = np.zeros((grid, rows.shape[1]))
        np.add.at(out, time[use], rows[use])
        return out

    risk_set = by_time(np.ones(len(x), bool))[::-1].cumsum(0)[::-1]
    dead = by_time(event)
    deaths = np.bincount(time[event], minlength=grid).astype(np.float64)
    cut = (1, 1 + p)
    a, b = np.split(risk_set, cut, axis=1), np.split(dead, cut, axis=1)
    return EfronSums(
        a[0][:, 0], a[1], a[2].reshape(grid, p, p), b[0][:, 0], b[1], b[2].reshape(grid, p, p), deaths, x[event].sum(0)
    )


def efron(s: EfronSums, beta: Array) -> tuple[float, Array, Array]:
    """Log partial likelihood, score and information with Efron's ties: each of d tied deaths sees l/d of the others gone."""
    value, score, information = ordered.inner(s.direct, beta), s.direct.copy(), np.zeros((len(beta), len(beta)))
    for t in np.flatnonzero(s.deaths):
        d = round(float(s.deaths[t]))
        part = np.arange(d) / d
        s0 = np.maximum(s.risk0[t] - part * s.tied0[t], 1e-300)
        s1 = (s.risk1[t][None, :] - part[:, None] * s.tied1[t][None, :]) / s0[:, None]
        value -= float(np.log(s0).sum())
        score = score - s1.sum(0)
        information = information + float((1.0 / s0).sum()) * s.risk2[t] - float((part / s0).sum()) * s.tied2[t]
        information = information - ordered.transposed_product(s1, s1)
    return value, score, information


def interval(log_ratio: float, se: float) -> tuple[float, float, float]:
    """A ratio with its 95 % interval from the log scale."""
    return math.exp(log_ratio), math.exp(log_ratio - Z * se), math.exp(log_ratio + Z * se)
