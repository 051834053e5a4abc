"""Findings: what the acts found, as a frozen value that a notebook reads and a report prints; small counts removed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.projection import Projector
from polyclinic.analysis.statistics.roc import Area
from polyclinic.models.phenotypes.background import background
from polyclinic.util.table import Table

Array = NDArray[np.float64]
# definition: counts from 1 to 10 are suppressed (minimum cell size 11)
MINIMUM: Final = 11
EFFECTS: Final = (
    "phenotype",
    "odds_ratio",
    "low",
    "high",
    "p",
    "q",
    "events",
    "coefficient",
    "se",
    "confirmed",
    "crude",
    "reversed",
    "inflation",
)
APART: Final = ("carried", "shown", "held", "flow", "fit", "privacy_")  # are not in findings.json by these names
MODELS: Final = ("model", "auc", "low", "high", "gain", "gain_low", "gain_high")


@dataclass(frozen=True, eq=False)
class OutcomeFound:
    """Which phenotypes go with the outcome, and what they add.

    Attributes
    ----------
    effects
        Phenotype, adjusted odds ratio of patients with the phenotype against all others with its interval, p (penalised likelihood
        ratio), q (Benjamini-Hochberg), events, ``confirmed`` (found in one half, q < .05, and in the other, p < .05 and same sign),
        ``crude`` ratio of the 2 x 2 table, ``reversed``: the adjusted interval excludes 1, and the crude ratio is on the other side of 1,
        ``inflation``: variance inflation factor. Phenotypes above 10 exclude each other or have the same patients, so that their
        adjusted odds ratios cannot be told apart.
    auc
        Of covariates and phenotypes together: pairs of patients of one hospital, scored by the regression of the other half.
    baselines
        The same for covariates alone, record sizes, random factors and raw codes, with the paired difference.
    joint
        Likelihood-ratio statistic, degrees of freedom and p of all phenotypes together, given the covariates.
    by_level
        AUC and calibration of the same risks by sex, age band and other public levels: observed share, mean predicted risk, and AUC of
        pairs of one hospital and level. None where a count is small.
    """

    name: str
    patients: int | None  # whose outcome and covariates are known; None: of few others they are not
    events: int
    unknown: int | None
    adjusted_for: tuple[str, ...]
    effects: Table
    auc: Area | None
    baselines: Table
    calibration: tuple[tuple[float, float, float, float], ...] = ()
    cross_fitted: bool = False  # placed by models of the other half, too
    note: str = ""
    joint: tuple[float, int, float] | None = None
    by_level: Table | None = None

    @property
    def best_baseline(self) -> dict[str, object] | None:
        """The comparison with the largest AUC, also where it predicts better than the phenotypes (``gain`` below 0)."""
        best = max(list(self.baselines)[1:], key=lambda r: float(r["auc"]), default=None)
        if best is None:
            return None
        gain = [best["gain"], best["gain_low"], best["gain_high"]]
        return {k: best[k] for k in ("model", "auc", "low", "high")} | {"gain": gain}

    @property
    def adds(self) -> tuple[float, float, float] | None:
        """What phenotypes add to the covariates: difference of the AUCs with its 95 % interval."""
        row = next((r for r in self.baselines if r["model"] == "covariates alone"), None)
        return None if row is None or row["gain"] is None else (row["gain"], row["gain_low"], row["gain_high"])


@dataclass(frozen=True, eq=False)
class SurvivalFound:
    """Time to the event of a phenotype's carriers and of the others (``phenotype`` None: everybody).

    ``curve``: group, time (end of a step of the grid, first 0), patients at risk at that time, share without the event, its interval.
    ``warnings``: why the grid is too coarse for these data. ``grid_error``: the most that a point of a curve can differ from the
    estimate from exact times, because the grid does not say what came first within a step.
    """

    phenotype: int | None
    curve: Table
    hazard_ratio: tuple[float, float, float] | None
    p: float | None
    log_rank_p: float | None
    mean: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    grid_error: float = 0.0


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
    carried: tuple[bool, ...] = ()  # whether enough patients have the phenotype to show its codes
    shown: tuple[NDArray[np.bool_], ...] = ()  # per mode (codes, phenotypes): which codes may be shown
    held: tuple[NDArray[np.bool_], ...] = ()  # the others that enough patients have: two hold most of the weight
    flow: tuple[int, ...] = ()  # patients in the source, with codes, taking part; in ``study.json``
    fit: Mapping[str, float | None] = field(default_factory=dict)  # in ``metrics.json``
    missing: Mapping[str, str] = field(default_factory=dict)  # section -> the line that adds it
    privacy_: Any = None
    traffic: Mapping[str, Any] = field(default_factory=dict)
    forecast: Table | None = None  # with a formal guarantee: the error of every figure, before it was bought
    not_bought: Mapping[str, str] = field(default_factory=dict)  # figure -> why it could not be read
    ranks: Table | None = None  # several ranks compared; one is suggested, none chosen
    over_cap: float | None = None  # with a formal guarantee: share of patients who carry more than count
    by_hospital: Table | None = None  # counts of the hospitals whose owners show them
    background: tuple[int, ...] = ()  # components that describe all patients: no phenotypes, no odds ratio

    @property
    def predicts_unseen_codes(self) -> bool | None:
        """Whether the model predicts codes that the patient has not shown; None: not asked."""
        return None if self.completion is None else bool(self.completion[0]["low"] > 0)

    @property
    def replicable(self) -> int | None:
        """How many phenotypes replicated; None: not asked."""
        return (
            None
            if self.replicability is None
            else sum(bool(r["replicable"]) for i, r in enumerate(self.replicability) if i not in self.background)
        )

    def to_json(self) -> dict[str, object]:
        """Plain values, for ``findings.json`` of a run folder; masks of codes, flow and fit are in other files."""
        out = _plain({f.name: getattr(self, f.name) for f in fields(self) if f.name not in APART})
        assert isinstance(out, dict)
        out["predicts_unseen_codes"], out["replicable"] = self.predicts_unseen_codes, self.replicable
        out["privacy"] = None if self.privacy_ is None else self.privacy_.to_dict()
        return out

    def __repr__(self) -> str:
        parts = [f"{self.patients:,} patients"]
        if self.replicable is not None and self.replicability is not None:
            parts.append(f"{self.replicable} of {len(self.replicability) - len(self.background)} phenotypes replicated")
        if self.outcome is not None and self.outcome.auc is not None:
            a = self.outcome.auc
            parts.append(f"AUC {a.value:.3f} ({a.low:.3f} to {a.high:.3f})")
        if self.predicts_unseen_codes is not None:
            parts.append(f"predicts unseen codes: {'yes' if self.predicts_unseen_codes else 'no'}")
        if self.not_bought:
            parts.append(f"not bought: {', '.join(self.not_bought)}")
        return f"<Findings: {'; '.join(parts)}>"


def _plain(value: object) -> object:
    """Plain JSON of findings: tables by columns and rows, values by their fields, what is not finite as None."""
    match value:
        case Table():
            return {"columns": list(value.columns), "rows": [[_plain(v) for v in r] for r in value.rows]}
        case OutcomeFound():
            further = {"adds": value.adds, "best_baseline": value.best_baseline}
            area = None if value.auc is None else (value.auc.value, value.auc.low, value.auc.high)
            joint = None if value.joint is None else dict(zip(("statistic", "df", "p"), value.joint))
            return _plain({**_fields(value), **further, "auc": area, "joint": joint})
        case SurvivalFound():
            return _plain(_fields(value))
        case Mapping():
            return {k: _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case np.generic():
            return _plain(value.item())
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _fields(value: OutcomeFound | SurvivalFound) -> dict[str, object]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


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
