"""Findings of paid sums: every interval contains the known noise; what was not bought is said, with the reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.findings import EFFECTS, MODELS, Findings, OutcomeFound, SurvivalFound
from polyclinic.analysis.private.moments import FARTHEST, PrivateFindings, PrivateFindingsPublic
from polyclinic.analysis.statistics.intervals import Z, adjusted, normal_p
from polyclinic.analysis.statistics.roc import Area, placements
from polyclinic.analysis.statistics.survival_curves import kaplan_meier
from polyclinic.privacy.card.card import Card
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.analysis.statistics.survival_curves import Survival

Array = NDArray[np.float64]
# limit: precision of the simulated noise
DRAWS = 400  # of the noise, for curves


def paid_findings(
    act: PrivateFindings, public: PrivateFindingsPublic, outcome: str, missing: dict[str, str], card: Card | None = None
) -> Findings:
    """The value of what was bought."""
    spending = act.spending(public)
    reasons = dict(missing)
    unbought = spending.refused | ({"outcome": public.unread, "auc": public.unread} if public.unread else {})
    if not public.tables:
        return Findings(0, missing=reasons, privacy_=card, forecast=spending.table(), not_bought=unbought)
    counts = act.table(public, "carriers")
    assert counts is not None
    n = max(float(counts[0][0]), 1.0)
    return Findings(
        round(n),
        prevalence=_prevalence(counts[0], counts[1]) if "carriers" in act.params.what else None,
        people=_people(act, public),
        outcome=_outcome(act, public, outcome),
        survival=_survival(act, public),
        completion=_completion(act, public),
        missing=reasons,
        privacy_=card,
        forecast=spending.table(),
        not_bought=unbought,
        over_cap=float(np.clip(counts[0][1] / n, 0.0, 1.0)),
    )


def _prevalence(counts: Array, sd: float) -> Table:
    """Shares with the error of sampling and of both noises: of the carriers and of the patients."""
    n = max(float(counts[0]), 1.0)
    rows = []
    for r, c in enumerate(counts[2:]):
        p = min(max(float(c) / n, 0.0), 1.0)
        error = Z * math.sqrt(p * (1 - p) / n + (sd / n) ** 2 * (1 + p * p))
        rows.append([r, max(round(float(c)), 0), p, max(p - error, 0.0), min(p + error, 1.0), None])
    return Table(["phenotype", "patients", "share", "low", "high", "effective"], rows)


def _people(act: PrivateFindings, public: PrivateFindingsPublic) -> Table | None:
    release = act.table(public, "people")
    if release is None:
        return None
    table, sd = release
    rows: list[list[object]] = []
    start = 0
    for v in act.variables:
        counts = table[:, start : start + len(v.words)]
        start += len(v.words)
        for g in (*range(1, len(counts)), 0):
            total = max(float(counts[g].sum()), 1.0)
            for word, x in zip(v.words, counts[g]):
                p = min(max(float(x) / total, 0.0), 1.0)
                # the level's own noise and that of the whole, which it is part of
                noise = (sd / total) ** 2 * ((1 - p) ** 2 + p * p * (len(v.words) - 1))
                error = Z * math.sqrt(p * (1 - p) / total + noise)
                interval = [max(p - error, 0.0), min(p + error, 1.0)]
                rows.append([v.name, word, None if g == 0 else g - 1, max(round(float(x)), 0), p, *interval])
    return Table(["variable", "level", "phenotype", "patients", "share", "low", "high"], rows)


def _outcome(act: PrivateFindings, public: PrivateFindingsPublic, name: str) -> OutcomeFound | None:
    m = act.moments(public)
    if m is None:
        return None
    names = act.covariates.names
    models = Table(MODELS, [])
    first = act.table(public, "carriers")
    assert first is not None
    unknown = max(round(float(first[0][0]) - m.known), 0)
    events = max(round(m.events), 0)
    if public.unread or public.covariance is None or public.at is None:
        note = f"not bought: {public.unread}"
        return OutcomeFound(name, round(m.known), events, unknown, names, Table(EFFECTS, []), None, models, note=note)
    rank = act.placer.rank
    b, se = public.at[-1][1 : 1 + rank], np.sqrt(np.diag(public.covariance))[1 : 1 + rank]
    p = np.array([normal_p(x) for x in b / se])
    q = adjusted(p)
    events_with = [max(round(float(x)), 0) for x in m.xy[1 : 1 + rank]]
    unbought = (None, None, False, None)  # confirmed, crude, reversed, inflation
    rows = [
        [
            r,
            *np.exp(b[r] + Z * se[r] * np.array([0, -1, 1])).tolist(),
            float(p[r]),
            float(q[r]),
            events_with[r],
            float(b[r]),
            float(se[r]),
            *unbought,
        ]
        for r in range(rank)
    ]
    hist = act.score(public, "scores")
    auc = None if hist is None else noisy_area(hist[0][1], hist[0][0], hist[1])
    return OutcomeFound(name, round(m.known), events, unknown, names, Table(EFFECTS, rows), auc, models)


def noisy_area(cases: Array, others: Array, sd: float) -> Area:
    """AUC of a histogram with noise of ``sd`` in every cell: DeLong's variance and that of the noise by the delta method.

    dA / dcases_i = (below_i - A) / C, dA / dothers_j = (above_j - A) / O.
    """
    rank_below, rank_above, c, o = placements(cases, others)
    if c < 1 or o < 1:
        return Area(0.5, 0.0, 1.0, 0.25, max(round(c), 0), max(round(o), 0))
    value = float(np.clip(cases @ rank_below / c, 0.0, 1.0))
    noise = sd**2 * (
        float(np.square((rank_below - value) / c).sum()) + float(np.square((rank_above - value) / o).sum())
    )
    pc, po = np.maximum(cases, 0.0), np.maximum(others, 0.0)
    sampling = float(pc @ np.square(rank_below - value)) / c**2 + float(po @ np.square(rank_above - value)) / o**2
    spread = Z * math.sqrt(noise + sampling)
    return Area(value, max(value - spread, 0.0), min(value + spread, 1.0), noise + sampling, round(c), round(o))


def _survival(act: PrivateFindings, public: PrivateFindingsPublic) -> tuple[SurvivalFound, ...]:
    """Curves with Greenwood's variance and that of the noise, drawn anew; carriers of a phenotype where they can be read."""
    release = act.table(public, "survival")
    if release is None:
        return ()
    table, sd = release
    rng = np.random.default_rng(act.params.seed)
    columns = ["group", "time", "at_risk", "survival", "low", "high"]
    out = []
    for g in (*range(1, len(table)), 0):
        groups = {"everybody": table[0]} if g == 0 else {"carriers": table[g]}
        rows: list[list[object]] = []
        for name, cells in groups.items():
            curve = _curve(cells)
            noise = np.std([_curve(cells + sd * rng.standard_normal(cells.shape)).share for _ in range(DRAWS)], axis=0)
            sampling = (curve.high - curve.low) / (2 * Z)
            error = Z * np.hypot(noise, sampling)
            for t in range(len(cells)):
                if error[t] > 0.15:  # 30 points wide: says nothing
                    break
                interval = [max(float(curve.share[t] - error[t]), 0.0), min(float(curve.share[t] + error[t]), 1.0)]
                days = float((t + 1) * act.step_days)
                rows.append([name, days, max(round(float(curve.at_risk[t])), 0), float(curve.share[t]), *interval])
        if rows:
            out.append(SurvivalFound(None if g == 0 else g - 1, Table(columns, rows), None, None, None))
    return tuple(out)


def _curve(cells: Array) -> Survival:
    missed = np.full(len(cells), 0.5)
    missed[-1:] = 0.0  # the last step of the released table also holds those who were followed past it
    return kaplan_meier(np.maximum(cells[:, 0], 0.0), np.maximum(cells[:, 1], 0.0), missed=missed)


def _completion(act: PrivateFindings, public: PrivateFindingsPublic) -> Table | None:
    release = act.score(public, "completion")
    if release is None:
        return None
    (gain, square, patients), sd = release
    n = max(float(patients), 1.0)
    mean = FARTHEST * float(gain) / n
    spread = min(max(FARTHEST**2 * (float(square) + 2 * sd) / n - mean**2, 0.0), FARTHEST**2)  # on the safe side
    error = Z * math.sqrt(spread / n + (FARTHEST * sd / n) ** 2 + (mean * sd / n) ** 2)
    row = [f"rank {act.placer.rank}", mean, mean - error, mean + error, 0.0, 0.0, None, round(n)]
    return Table(["model", "nats", "low", "high", "to_best", "se", "events", "patients"], [row])
