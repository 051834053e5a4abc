"""Which phenotypes go with the outcome, and does knowing them predict it? Tables 5 and 7 of DPFact, with intervals.

The factors never saw an outcome. Every patient is placed by ``transform``. Association: one logistic regression on all
memberships together. Prediction: learned on 60 % of each site's patients, judged on the other 40 %, beside what a count
of events and frozen random factors reach: an AUC alone proves little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.cross_fit import Judging
from polyclinic.analysis.simulated.prediction import predict
from polyclinic.analysis.simulated.presence import MINIMUM
from polyclinic.analysis.statistics.intervals import Z
from polyclinic.analysis.statistics.ranks import ranks_of
from polyclinic.errors import DataError
from polyclinic.records.sites.site import Site

__all__ = ["Association", "Effect", "Judged", "associate", "auc_interval", "benjamini_hochberg", "curves", "logistic"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """One phenotype in the regression: log odds per standard deviation of its membership, the others held fixed."""

    phenotype: int
    coefficient: float
    low: float
    high: float
    p_value: float
    adjusted: float

    @property
    def odds_ratio(self) -> tuple[float, float, float]:
        """Odds ratio with its 95 % interval."""
        return math.exp(self.coefficient), math.exp(self.low), math.exp(self.high)


@dataclass(frozen=True)
class Judged:
    """How well something predicts the outcome of held-out patients: AUC with a 95 % interval (DeLong)."""

    name: str
    auc: float
    low: float
    high: float


@dataclass(frozen=True)
class Association:
    """Everything about the outcome that a report shows; no count of patients from 1 to 10 can be read from it.

    Attributes
    ----------
    patients
        All patients, those without a known outcome included.
    unknown
        How many of them have no known outcome: they are left out here and nowhere else. None: 1 to 10.
    outcome
        What was asked for, in words.
    sites_without
        Sites where nobody's outcome is known.
    reason
        Why nothing can be shown; empty where something is.
    """

    patients: int
    events: int | None
    effects: tuple[Effect, ...] = ()
    judged: tuple[Judged, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()  # false and true positive rate
    calibration: tuple[tuple[float, float, float, float], ...] = ()  # predicted, observed, low, high
    note: str = ""
    unknown: int | None = 0
    outcome: str = "outcome"
    sites_without: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def associate(
    model: object,
    sites: Sequence[Site],
    *,
    seed: int = 0,
    minimum: int = MINIMUM,
    random: Sequence[Array] | None = None,
    outcome: str | None = None,
    held: Judging | None = None,
) -> Association | None:
    """The outcome tables of a fitted phenotype model, or the reason why there are none.

    Patients whose label is unknown (NaN) are left out here and nowhere else, before anything is split: the tables are
    those of the study without these patients. None only where no site has labels and no outcome was asked for.

    Parameters
    ----------
    model
        Fitted; its ``transform`` places patients.
    sites
        Hospitals with labels.
    seed
        Of the split into 60 and 40 %.
    minimum
        Fewer patients than this with or without the outcome, among those judged: nothing is shown.
    random
        Frozen random factors to compare with; default: a start of the same size.
    outcome
        What was asked for, in words.
    held
        The patients by whom it is judged, where they are placed already; else from the arguments before.
    """
    if outcome is None and all(s.labels is None for s in sites):
        return None
    held = Judging(model, sites, seed, random) if held is None else held
    labelled = held.known
    patients = sum(s.patients for s in sites)
    empty = Association(
        patients,
        None,
        unknown=None if 0 < labelled.unknown < minimum else labelled.unknown,
        outcome=outcome or "outcome",
        sites_without=labelled.without,
    )
    if not labelled.sites:
        return replace(empty, reason="no patient has a known outcome")
    y = held.labels
    if not np.isin(y, (0, 1)).all():
        return replace(empty, reason="the outcome has other values than 0 and 1")
    if min((y == 1).sum(), (y == 0).sum()) < 2 * minimum:
        rare = "to have had it" if (y == 1).sum() < 2 * minimum else "not to have had it"
        reason = f"fewer than {2 * minimum} patients are known {rare}: too few to judge, and to show"
        return replace(empty, reason=reason)
    names = ["phenotypes", "numbers of events and of different entries", "frozen random factors"]
    train, test = held.halves(y)
    try:
        designs = [held.placed, np.concatenate([_counts(s) for s in labelled.sites]), held.random]
        predictions = [predict(a, train, b, test) for a, b in map(held.halves, designs)]
    except DataError as e:
        return replace(empty, reason=e.what)
    best = predictions[0]
    roc, calibration = curves(best.labels, best.risks, minimum=minimum)
    comparisons = tuple(Judged(n, f.auc, *auc_interval(f.labels, f.risks)) for n, f in zip(names, predictions))
    return replace(
        empty,
        events=int((y == 1).sum()),
        effects=logistic(held.placed, y),
        judged=comparisons,
        roc=roc,
        calibration=calibration,
    )


def logistic(memberships: Array, outcome: NDArray[np.generic]) -> tuple[Effect, ...]:
    """Joint logistic regression with Wald intervals and Benjamini-Hochberg over phenotypes.

    A ridge of one thousandth of an observation per standard deviation keeps separated data finite; columns nobody
    carries have no effect and are left out (their interval is infinite, shown as not estimable).
    """
    from scipy.special import expit, ndtr

    x, y = np.asarray(memberships, np.float64), np.asarray(outcome, np.float64)
    sd = x.std(0)
    usable = np.flatnonzero(sd > 1e-12)
    design = np.column_stack([np.ones(len(x)), (x[:, usable] - x[:, usable].mean(0)) / sd[usable]])
    ridge = np.full(design.shape[1], 1e-3)
    ridge[0] = 0.0
    beta = np.zeros(design.shape[1])
    beta[0] = math.log((y.mean() + 1e-12) / (1 - y.mean() + 1e-12))

    def objective(b: Array) -> float:
        eta = design @ b
        return float(np.logaddexp(0.0, eta).sum() - y @ eta + 0.5 * ridge @ b**2)

    information = np.eye(len(beta))
    for _ in range(60):
        p = expit(design @ beta)
        information = (design * (p * (1 - p))[:, None]).T @ design + np.diag(ridge + 1e-12)
        step = np.linalg.lstsq(information, design.T @ (y - p) - ridge * beta, rcond=None)[0]
        scale, value = 1.0, objective(beta)
        while objective(beta + scale * step) > value and scale > 1e-6:  # Newton may overshoot on separated data
            scale /= 2
        beta = beta + scale * step
        if np.abs(scale * step).max() < 1e-9:
            break
    se = np.sqrt(np.maximum(np.diag(np.linalg.pinv(information)), 0.0))
    ratio = np.abs(beta) / np.maximum(se, 1e-300)
    p_values = 2 * ndtr(-ratio[1:])
    adjusted = benjamini_hochberg(p_values)
    return tuple(
        Effect(int(r), float(b), float(b - Z * s), float(b + Z * s), float(p), float(q))
        for r, b, s, p, q in zip(usable, beta[1:], se[1:], p_values, adjusted)
    )


def benjamini_hochberg(p_values: Sequence[float] | Array) -> Array:
    """Adjusted p-values: the false-discovery rate at which each would be called (Benjamini and Hochberg 1995).

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.5]).round(4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    raised = p[order] * len(p) / np.arange(1, len(p) + 1)
    out = np.empty_like(p)
    out[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return out


def auc_interval(labels: NDArray[np.generic], risks: Array) -> tuple[float, float]:
    """95 % interval of the area under the ROC curve (DeLong, DeLong and Clarke-Pearson 1988).

    >>> low, high = auc_interval(np.array([0, 0, 1, 1] * 20), np.array([0.1, 0.4, 0.35, 0.8] * 20))
    >>> 0.6 < low < 0.75 < high < 0.9
    True
    """
    y, r = np.asarray(labels).astype(bool), np.asarray(risks, np.float64)
    m, n = int(y.sum()), int((~y).sum())
    ranks = ranks_of(r)
    rank_above = (ranks[y] - ranks_of(r[y])) / n  # part of the healthy below each case
    rank_below = 1 - (ranks[~y] - ranks_of(r[~y])) / m
    auc = float(rank_above.mean())
    spread = math.sqrt(rank_above.var(ddof=1) / m + rank_below.var(ddof=1) / n) if m > 1 and n > 1 else 1.0
    return max(0.0, auc - Z * spread), min(1.0, auc + Z * spread)


def curves(
    labels: NDArray[np.generic], risks: Array, *, minimum: int = MINIMUM, groups: int = 20
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float, float, float], ...]]:
    """ROC and calibration in steps of at least ``minimum`` patients with and without the outcome.

    A full ROC curve gives single patients away (each step is one). Here the patients, by rising risk, are cut into at
    most ``groups`` groups, each with at least ``minimum`` of both kinds; both curves know only these groups.

    Returns
    -------
    roc
        (false, true positive rate) from (0, 0) to (1, 1).
    calibration
        Mean predicted risk, observed share, and its 95 % interval (Wilson), per group.
    """
    order = np.argsort(np.asarray(risks), kind="stable")
    y, r = np.asarray(labels).astype(int)[order], np.asarray(risks, np.float64)[order]
    cuts, start = [0], 0
    target = max(1, len(y) // groups)
    for stop in range(1, len(y) + 1):
        part = y[start:stop]
        if len(part) >= target and part.sum() >= minimum and len(part) - part.sum() >= minimum:
            cuts.append(stop)
            start = stop
    last_bin = y[cuts[-1] :]
    if len(cuts) > 1 and len(last_bin):
        cuts[-1] = len(y)  # what is left over joins the last group
    if len(cuts) < 3:
        return (), ()
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    sick = np.array([y[p].sum() for p in parts])
    well = np.array([len(y[p]) for p in parts]) - sick
    tpr = np.concatenate([[0.0], np.cumsum(sick[::-1]) / sick.sum()])
    fpr = np.concatenate([[0.0], np.cumsum(well[::-1]) / well.sum()])
    calibration = []
    for p, k, w in zip(parts, sick, well):
        low, high = _wilson(int(k), int(k + w))
        calibration.append((round(float(r[p].mean()), 4), round(float(k / (k + w)), 4), round(low, 4), round(high, 4)))
    return tuple((round(float(a), 4), round(float(b), 4)) for a, b in zip(fpr, tpr)), tuple(calibration)


def _wilson(k: int, n: int) -> tuple[float, float]:
    centre = (k + Z**2 / 2) / (n + Z**2)
    half = Z * math.sqrt(k * (n - k) / n + Z**2 / 4) / (n + Z**2)
    return centre - half, centre + half


def _counts(site: Site) -> Array:
    """(patients, 2) log number of events and of different entries: what a counter without a model knows."""
    t = site.counts()
    patient = t.coords[:, 0]
    return np.log1p(
        np.column_stack([np.bincount(patient, t.values, t.patients), np.bincount(patient, minlength=t.patients)])
    ).astype(np.float64)
