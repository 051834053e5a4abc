"""Findings: what the acts found, as a frozen value that a notebook reads and a report prints; small counts removed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.outcome import OutcomeAnalysis, OutcomePublic
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.statistics.intervals import Z, adjusted, chi_square, normal_p
from polyclinic.analysis.statistics.roc import Area, calibration, curve, pooled_area
from polyclinic.analysis.statistics.survival_curves import kaplan_meier, log_rank, restricted_mean
from polyclinic.analysis.survival import SurvivalAnalysis, SurvivalPublic
from polyclinic.models.phenotypes.background import background
from polyclinic.privacy.small_cells import hide_given_away
from polyclinic.util.table import Table

__all__ = ["Findings", "OutcomeFound", "SurvivalFound", "outcome_found", "survival_found"]

Array = NDArray[np.float64]
# definition: counts from 1 to 10 are suppressed (minimum cell size 11)
MINIMUM: Final = 11
# definition: significance after adjustment for multiple tests
LEVEL: Final = 0.05


@dataclass(frozen=True, eq=False)
class OutcomeFound:
    """Which phenotypes go with the outcome, and what they add.

    Attributes
    ----------
    effects
        Phenotype, odds ratio of carriers with its interval, p (penalised likelihood ratio), q (Benjamini-Hochberg), events,
        ``confirmed``: found in one half (q < .05), and again in the other (p < .05, same sign).
    auc
        Of covariates and phenotypes together, cross-fitted.
    baselines
        The same for covariates alone, record sizes, random factors and raw codes, with the paired difference.
    """

    name: str
    patients: int
    events: int
    unknown: int
    adjusted_for: tuple[str, ...]
    effects: Table
    auc: Area | None
    baselines: Table
    roc: tuple[tuple[float, float], ...] = ()
    calibration: tuple[tuple[float, float, float, float], ...] = ()
    brier: float | None = None
    cross_fitted: bool = False  # placed by models of the other half, too
    note: str = ""

    @property
    def adds(self) -> tuple[float, float, float] | None:
        """What phenotypes add to the covariates: difference of the AUCs with its 95 % interval."""
        row = next((r for r in self.baselines if r["model"] == "covariates alone"), None)
        return None if row is None or row["gain"] is None else (row["gain"], row["gain_low"], row["gain_high"])


@dataclass(frozen=True, eq=False)
class SurvivalFound:
    """Time to the event of a phenotype's carriers and of the others (``phenotype`` None: everybody)."""

    phenotype: int | None
    curve: Table  # group, time, at_risk, survival, low, high
    hazard_ratio: tuple[float, float, float] | None
    p: float | None
    log_rank_p: float | None
    mean: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that followed the fit. A part that was not asked for is None."""

    patients: int
    prevalence: Table | None = None
    people: Table | None = None
    outcome: OutcomeFound | None = None
    survival: tuple[SurvivalFound, ...] = ()
    completion: Table | None = None
    replicability: Table | None = None
    shown: tuple[NDArray[np.bool_], ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # section -> the line that adds it
    privacy_: Any = None
    traffic: Mapping[str, Any] = field(default_factory=dict)
    forecast: Table | None = None  # with a formal guarantee: the error of every figure, before it was bought
    not_bought: Mapping[str, str] = field(default_factory=dict)  # figure -> why it could not be read
    ranks: Table | None = None  # several ranks compared; one is suggested, none chosen
    over_cap: float | None = None  # with a formal guarantee: share of patients who carry more than count
    background: tuple[int, ...] = ()  # components that describe all patients: no phenotypes, no odds ratio

    @property
    def predicts_unseen_codes(self) -> bool | None:
        """Whether the model predicts codes that the patient has not shown; None: not asked."""
        return None if self.completion is None else bool(self.completion[0]["low"] > 0)

    @property
    def replicable(self) -> int | None:
        """How many phenotypes come back and hold together; None: not asked."""
        return (
            None
            if self.replicability is None
            else sum(bool(r["replicable"]) for i, r in enumerate(self.replicability) if i not in self.background)
        )

    def to_json(self) -> dict[str, object]:
        """Plain values, for ``findings.json`` of a run folder."""
        out: dict[str, object] = {
            "patients": self.patients,
            "missing": dict(self.missing),
            "traffic": dict(self.traffic),
        }
        for name in ("prevalence", "people", "completion", "replicability", "forecast", "ranks"):
            out[name] = _table(getattr(self, name))
        out["background"] = list(self.background)
        out["not_bought"], out["over_cap"] = dict(self.not_bought), self.over_cap
        out["privacy"] = None if self.privacy_ is None else self.privacy_.to_dict()
        out["predicts_unseen_codes"], out["replicable"] = self.predicts_unseen_codes, self.replicable
        o = self.outcome
        out["outcome"] = (
            None
            if o is None
            else {
                "name": o.name,
                "patients": o.patients,
                "events": o.events,
                "unknown": o.unknown,
                "adjusted_for": list(o.adjusted_for),
                "effects": _table(o.effects),
                "auc": None if o.auc is None else [o.auc.value, o.auc.low, o.auc.high],
                "adds": None if o.adds is None else list(o.adds),
                "baselines": _table(o.baselines),
                "roc": [list(p) for p in o.roc],
                "calibration": [list(p) for p in o.calibration],
                "brier": o.brier,
                "cross_fitted": o.cross_fitted,
                "note": o.note,
            }
        )
        out["survival"] = [
            {
                "phenotype": s.phenotype,
                "curve": _table(s.curve),
                "hazard_ratio": None if s.hazard_ratio is None else list(s.hazard_ratio),
                "p": s.p,
                "log_rank_p": s.log_rank_p,
                "mean": dict(s.mean),
            }
            for s in self.survival
        ]
        return out

    def __repr__(self) -> str:
        parts = [f"{self.patients:,} patients"]
        if self.replicable is not None and self.replicability is not None:
            parts.append(f"{self.replicable} of {len(self.replicability) - len(self.background)} phenotypes replicable")
        if self.outcome is not None and self.outcome.auc is not None:
            a = self.outcome.auc
            parts.append(f"AUC {a.value:.3f} ({a.low:.3f} to {a.high:.3f})")
        if self.predicts_unseen_codes is not None:
            parts.append(f"predicts unseen codes: {'yes' if self.predicts_unseen_codes else 'no'}")
        if self.not_bought:
            parts.append(f"not bought: {', '.join(self.not_bought)}")
        return f"<Findings: {'; '.join(parts)}>"


def _table(t: Table | None) -> dict[str, object] | None:
    if t is None:
        return None
    return {"columns": list(t.columns), "rows": [[_plain(v) for v in r] for r in t.rows]}


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def outcome_found(act: OutcomeAnalysis, public: OutcomePublic, name: str, minimum: int = MINIMUM) -> OutcomeFound:
    """Tables of the outcome from the sums; nothing that points at fewer than ``minimum`` patients."""
    cases, controls = int(public.tally[:, 1].sum()), int(public.tally[:, 0].sum())
    unknown = int(public.tally[:, 2].sum())
    names = (*act.covariates.names, *(("hospital",) if act.covariates.site else ()))
    columns = ["phenotype", "odds_ratio", "low", "high", "p", "q", "events", "coefficient", "se", "confirmed"]
    model_columns = ["model", "auc", "low", "high", "gain", "gain_low", "gain_high"]
    if min(cases, controls) < minimum:
        note = f"fewer than {minimum} patients with (or without) the outcome: nothing is shown"
        empty = Table(columns, []), Table(model_columns, [])
        return OutcomeFound(name, cases + controls, 0, unknown, names, empty[0], None, empty[1], note=note)
    auc = pooled_area([(b[1], b[0]) for b in public.bins[0]])
    gains = _gains(public)
    rows = []
    for i, d in enumerate(act.judged):
        a = pooled_area([(b[1], b[0]) for b in public.bins[i]])
        gain = (None, None, None) if i == 0 else gains[i - 1]
        words = "covariates and phenotypes" if i == 0 else d.words
        rows.append([words, a.value, a.low, a.high, *gain])
    all_bins = np.concatenate([public.bins[0][h] for h in (0, 1)], axis=1)
    risk = np.concatenate([_risks(public, act, 2 - h) for h in (0, 1)])
    order = np.argsort(risk, kind="stable")
    y1, y0 = all_bins[1][order], all_bins[0][order]
    brier = float(public.brier[0, 0] / max(public.brier[0, 1], 1.0))
    return OutcomeFound(
        name,
        cases + controls,
        cases,
        unknown,
        names,
        Table(columns, hide_given_away(_effects(act, public, minimum), 6, (0, 9), cases, minimum)),
        auc,
        Table(model_columns, rows),
        curve(y1, y0, minimum=minimum),
        calibration(y1, y0, risk[order], minimum=minimum),
        brier,
        len(act.params.halves) == 2,
    )


def _risks(public: OutcomePublic, act: OutcomeAnalysis, slot: int) -> Array:
    """The predicted risk in the middle of every bin."""
    low, high = public.grid[act._at("phenotypes", slot)]
    n = public.bins[0].shape[-1]
    middle = low + (np.arange(n) + 0.5) / n * (high - low)
    out: Array = 0.5 * (1 + np.tanh(middle / 2))
    return out


def _gains(public: OutcomePublic) -> list[tuple[float, float, float]]:
    """Phenotypes minus each baseline: paired, by DeLong's placements, within halves."""
    out = []
    pairs = np.array([b[0].sum() * b[1].sum() for b in public.bins[0]])
    weights = pairs / max(pairs.sum(), 1.0)
    for sums in public.paired:
        value, variance = 0.0, 0.0
        for h, w in enumerate(weights):
            n, m = (float(public.bins[0][h][k].sum()) for k in (0, 1))
            if not w:
                continue
            gap = float(sums[h, 1, 0]) / m
            spread = 0.0
            for k, size in ((0, n), (1, m)):
                mean = sums[h, k, 0] / size
                spread += max(sums[h, k, 1] / size - mean**2, 0.0) / max(size - 1, 1.0)
            value, variance = value + w * gap, variance + w * w * spread
        sd = math.sqrt(variance)
        out.append((float(value), float(value - Z * sd), float(value + Z * sd)))
    return out


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
    for r in range(rank):
        events = int(public.events[r])
        if not usable[r]:
            rows.append([r, None, None, None, None, None, None if 0 < events < minimum else events, None, None, False])
            continue
        b, error = float(beta[r]), float(se[r])
        odds = [math.exp(b), math.exp(b - Z * error), math.exp(b + Z * error)]
        shown_events = None if 0 < events < minimum else events
        rows.append([r, *odds, float(p[r]), float(q[r]), shown_events, b, error, bool(confirmed[r])])
    return rows


def survival_found(act: SurvivalAnalysis, public: SurvivalPublic, minimum: int = MINIMUM) -> tuple[SurvivalFound, ...]:
    """Curves, log-rank and hazard ratios; a point of a curve stands for at least ``minimum`` patients who left."""
    out = []
    c, width = len(act.covariates.names), act.params.width
    beta = public.climbs.base[0]
    se = np.sqrt(np.maximum(np.diag(public.climbs.covariance(0)), 0.0))
    columns = ["group", "time", "at_risk", "survival", "low", "high"]
    for r in range(act.placer.rank + 1):
        everyone = r == act.placer.rank
        groups = (
            {"everybody": public.table[-1, 0]}
            if everyone
            else {"carriers": public.table[r, 1], "others": public.table[r, 0]}
        )
        if any(g[:, 1].sum() < minimum for g in groups.values()):
            continue
        rows: list[list[object]] = []
        mean = {}
        for name, g in groups.items():
            curve = kaplan_meier(g[:, 0], g[:, 1])
            mean[name] = restricted_mean(curve, width)
            at_risk = 0.0
            for t in range(len(g)):
                at_risk += float(g[t].sum())
                if at_risk >= minimum and curve.at_risk[t] - g[t].sum() >= minimum:
                    days = float((t + 1) * width)
                    rows.append(
                        [
                            name,
                            days,
                            int(curve.at_risk[t]),
                            *(float(x[t]) for x in (curve.share, curve.low, curve.high)),
                        ]
                    )
                    at_risk = 0.0
        tested = None if everyone else log_rank(*((g[:, 0], g[:, 1]) for g in groups.values()))
        hazard = None
        p = None
        if not everyone and se[c + r] > 0:
            b, s = float(beta[c + r]), float(se[c + r])
            hazard, p = (math.exp(b), math.exp(b - Z * s), math.exp(b + Z * s)), normal_p(b / s)
        out.append(
            SurvivalFound(
                None if everyone else r, Table(columns, rows), hazard, p, None if tested is None else tested[1], mean
            )
        )
    return tuple(out)


def without_background(findings: Findings, placer: Projector, carriers: Table | None) -> Findings:
    """Label the background components, and remove their odds and hazard ratios."""
    carried = None if carriers is None else list(carriers["share"])
    columns = tuple(np.flatnonzero(background(placer.factors, placer.weights, carried)).tolist())
    if not columns:
        return findings
    outcome = findings.outcome
    if outcome is not None:
        rows = [r for r in outcome.effects.rows if r[0] not in columns]
        outcome = replace(outcome, effects=Table(outcome.effects.columns, rows))
    survival = tuple(s for s in findings.survival if s.phenotype not in columns)
    return replace(findings, background=columns, outcome=outcome, survival=survival)


def hidden_counts(table: Table, total: int, minimum: int = MINIMUM) -> Table:
    """Prevalence with counts from 1 to ``minimum`` - 1, of carriers or of the others, as None."""
    rows = []
    rows_: Sequence[Sequence[Any]] = table.rows
    for r in rows_:
        small = 0 < r[1] < minimum or 0 < total - r[1] < minimum
        rows.append([r[0], *([None] * 4 if small else r[1:5]), None if r[5] < minimum else round(r[5], 1)])
    return Table(table.columns, rows)


def order_of(sections: Sequence[str]) -> tuple[str, ...]:
    """Sections in the order of a paper."""
    acts = ("replicate", "carriers", "people", "outcome", "survival", "completion")
    return tuple(s for s in acts if s in sections)
