"""Tables of an outcome from the sums of its regressions: odds ratios, AUC within hospitals, comparisons, calibration."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.findings import EFFECTS, MINIMUM, MODELS, OutcomeFound
from polyclinic.analysis.outcome import OutcomeAnalysis, OutcomePublic
from polyclinic.analysis.statistics.intervals import Z, adjusted, chi_square, normal_p, wilson
from polyclinic.analysis.statistics.roc import Area, Ranks, calibration, inflation
from polyclinic.privacy.small_cells import hide_given_away, suppress
from polyclinic.util.table import Table

Array = NDArray[np.float64]
# definition: significance after adjustment for multiple tests
LEVEL: Final = 0.05
LEVELS: Final = (
    "variable",
    "level",
    "patients",
    "observed",
    "observed_low",
    "observed_high",
    "predicted",
    "auc",
    "low",
    "high",
)


def outcome_found(act: OutcomeAnalysis, public: OutcomePublic, name: str, minimum: int = MINIMUM) -> OutcomeFound:
    """Tables of the outcome from the sums; nothing that points at fewer than ``minimum`` patients."""
    cases, controls = int(public.tally[:, 1].sum()), int(public.tally[:, 0].sum())
    unknown: int | None = int(public.tally[:, 2].sum())
    patients: int | None = cases + controls
    if unknown and unknown < minimum:  # with the number of all patients either number gives the other
        unknown = patients = None
    names = (*act.covariates.names, *(("hospital",) if act.covariates.site else ()))
    if min(cases, controls) < minimum:
        note = f"fewer than {minimum} patients with (or without) the outcome: nothing is shown"
        return OutcomeFound(name, patients, 0, unknown, names, Table(EFFECTS, []), None, Table(MODELS, []), note=note)
    ranks, factor = Ranks(public.ranks), inflation(act.placer.rank, _evidence(act, public, "covariates"))
    rows: list[list[object]] = []
    areas: list[Area] = []
    for i, d in enumerate(act.judged):
        width = act.designs.width(d) - int(not act.covariates.site)  # an intercept is no evidence
        a = ranks.area(i, inflation(width, _evidence(act, public, d.name, alone=True)))
        areas.append(a)
        gain = (None, None, None) if i == 0 else ranks.gain(i, factor)
        rows.append(["covariates and phenotypes" if i == 0 else d.words, a.value, a.low, a.high, *gain])
    all_bins = np.concatenate([public.bins[h] for h in (0, 1)], axis=1)
    risk = np.concatenate([_risks(public, act, 2 - h) for h in (0, 1)])
    order = np.argsort(risk, kind="stable")
    y1, y0 = all_bins[1][order], all_bins[0][order]
    return OutcomeFound(
        name,
        patients,
        cases,
        unknown,
        names,
        Table(EFFECTS, hide_given_away(_effects(act, public, minimum), 6, (0, 9), cases, minimum)),
        areas[0],
        Table(MODELS, rows),
        calibration(y1, y0, risk[order], minimum=minimum),
        len(act.params.halves) == 2,
        joint=_joint(act, public),
        by_level=_by_level(act, public, minimum),
    )


def _by_level(act: OutcomeAnalysis, public: OutcomePublic, minimum: int) -> Table | None:
    """AUC and calibration by public level; a level with a small count, or one that gives such a count away, has none."""
    rows: list[list[object]] = []
    start, width = 0, act.designs.width(act.judged[0]) - int(not act.covariates.site)
    factor = inflation(width, _evidence(act, public, "phenotypes", alone=True))
    for v in act.params.groups:
        levels = public.levels[:, start : start + len(v.words)]
        start += len(v.words)
        events, patients, risk = levels[:, :, 2, :3].sum(0).T
        hide = np.any(suppress(np.rint([events, patients - events]), minimum=minimum)[:-1, :-1], axis=0)
        for k, word in enumerate(v.words):
            if not patients[k]:
                continue
            if hide[k] or min(events[k], patients[k] - events[k]) < minimum:
                rows.append([v.name, word, *([None] * 8)])
                continue
            share, area = events[k] / patients[k], Ranks(levels[:, k, :2]).area(0, factor)
            observed = [round(patients[k]), float(share), *wilson(events[k], patients[k]), float(risk[k] / patients[k])]
            rows.append([v.name, word, *observed, area.value, area.low, area.high])
    return Table(LEVELS, rows) if rows else None


def _risks(public: OutcomePublic, act: OutcomeAnalysis, slot: int) -> Array:
    """The predicted risk in the middle of every bin."""
    low, high = public.grid[act._at("phenotypes", slot)]
    n = public.bins.shape[-1]
    middle = low + (np.arange(n) + 0.5) / n * (high - low)
    out: Array = 0.5 * (1 + np.tanh(middle / 2))
    return out


def _evidence(act: OutcomeAnalysis, public: OutcomePublic, name: str, *, alone: bool = False) -> float:
    """Mean likelihood ratio of the halves: of a design against intercepts (``alone``), or of the phenotypes against the design."""
    climbs, out = public.climbs, []
    for slot in (1, 2):
        j = act._at(name, slot)
        if not alone:
            prior = act.placer.rank * math.log(2.0)  # of the coefficients that the smaller regression holds at 0
            out.append(2 * float(climbs.height[act._at("phenotypes", slot)] - climbs.height[j] + prior))
            continue
        null = float(climbs.first[j])
        if (
            not act.covariates.site
        ):  # the regression starts without its intercept: take the likelihood of the share instead
            n = public.tally[slot - 1, :2]
            null = float(n @ np.log(np.maximum(n, 1.0) / max(float(n.sum()), 1.0)))
            null -= math.log(2.0) * (len(climbs.base[j]) - 1)
        out.append(2 * (float(climbs.height[j]) - null))
    return sum(out) / 2


def _joint(act: OutcomeAnalysis, public: OutcomePublic) -> tuple[float, int, float]:
    """Test of all phenotypes together: twice the gain of the penalised log-likelihood over covariates alone."""
    full, less = act._at("effects", 0), act._at("covariates", 0)
    rank = act.placer.rank
    statistic = max(2 * float(public.climbs.height[full] - public.climbs.height[less] + rank * math.log(2.0)), 0.0)
    return statistic, rank, chi_square(statistic, rank)


def _effects(act: OutcomeAnalysis, public: OutcomePublic, minimum: int) -> list[list[object]]:
    common, rank = act.designs.common, act.placer.rank
    slots = []
    for s in (0, 1, 2):
        j = act._at("effects", s)
        se = np.sqrt(np.maximum(np.diag(public.climbs.covariance(j)), 0.0))[common:]
        slots.append((public.climbs.base[j][common:], se))
    beta, se = slots[0]
    usable = public.climbs.information[0][common:, common:].diagonal() > 0.2501  # more than the prior's own quarter
    # the prior of the coefficient that is held at 0 has height -log 2 there; both sides must have it
    ratio = 2 * (public.climbs.height[0] - public.tests.height + math.log(2.0))
    p = np.array([chi_square(x) if u else np.nan for x, u in zip(ratio, usable)])
    q = adjusted(p)
    halves = [np.array([normal_p(b / s) if s > 0 else 1.0 for b, s in zip(*x)]) for x in slots[1:]]
    significant = [adjusted(x) < LEVEL for x in halves]
    same_sign = np.sign(slots[1][0]) == np.sign(slots[2][0])
    confirmed = same_sign & ((significant[0] & (halves[1] < LEVEL)) | (significant[1] & (halves[0] < LEVEL)))
    rows: list[list[object]] = []
    inflation = public.climbs.information[0].diagonal()[common:] * np.square(se)
    for r in range(rank):
        events = int(public.events[r])
        crude, small = _crude(events, float(public.carriers[r]), public.tally[:, :2].sum(0), minimum)
        shown_events = None if small else events  # patients, events and carriers are shown, so each cell would follow
        if not usable[r]:
            rows.append([r, *[None] * 5, shown_events, None, None, False, None, False, None])
            continue
        b, error = float(beta[r]), float(se[r])
        odds = [math.exp(b), math.exp(b - Z * error), math.exp(b + Z * error)]
        reversal = abs(b) > Z * error and (crude - 1) * b < 0
        tests = [float(p[r]), float(q[r]), shown_events, b, error, bool(confirmed[r])]
        rows.append([r, *odds, *tests, crude, bool(reversal), round(float(inflation[r]), 2)])
    return rows


def _crude(events: float, carriers: float, tally: Array, minimum: int) -> tuple[float, bool]:
    """Odds ratio of the 2 x 2 table, half a patient added to each cell, and whether a cell is too small to be shown."""
    cells = np.array([events, tally[0] - carriers + events, carriers - events, tally[1] - events])
    a, d, b, c = cells + 0.5
    return float(a * d / (b * c)), bool(((cells > 0) & (cells < minimum)).any())
