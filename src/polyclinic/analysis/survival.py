"""survival: time to an event by phenotype. Kaplan-Meier, log-rank, and Cox's model with Efron's ties, by sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.findings import MINIMUM, SurvivalFound
from polyclinic.analysis.projection import Covariates
from polyclinic.analysis.statistics.intervals import Z, normal_p
from polyclinic.analysis.statistics.regression import Climbs, Cut, shapes, unpacked
from polyclinic.analysis.statistics.survival_curves import (
    EfronSums,
    Survival,
    efron,
    efron_sums,
    kaplan_meier,
    log_rank,
    restricted_mean,
    step_of,
)
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.util.table import Table

Array = NDArray[np.float64]
# limit: of the encoding
BOUND: Final = 2.0**20  # of every sum, divided by the number of patients

# docs/howto/findings.md: longer steps change a hazard ratio by more than a third of its standard error
LONGEST: Final = 730.0
# docs/howto/findings.md: a grid that may move a point of a curve by more than this is coarse
COARSE: Final = 0.01


class SurvivalParams(AnalysisParams):
    """Parameters of survival."""

    covariates: Any = Field(None, description="What Cox's model is adjusted for; with site it is stratified.")
    width: float = Field(30.0, gt=0, description="Days of one step of the grid.")
    until: float = Field(730.0, gt=0, description="Days that are followed; later events are not counted.")


@dataclass(frozen=True)
class SurvivalPublic:
    """Tables by time of all sites, and the hazard ratios."""

    stage: Literal["table", "cox", "end"]
    round: int
    table: Array  # (R + 1, 2, T + 1, 2): not carrier or carrier, step (T: followed past the grid), censored or event; [-1, 0]: everybody
    unknown: float
    climbs: Climbs


class SurvivalAnalysis(Analysis):
    """How long carriers and others stay free of the event."""

    name = "survival"
    version = 3
    facts = MethodFacts(
        steps={
            "survival": StepMeaning("patients by time, event and phenotype", "the day on which one patient left"),
            "cox": StepMeaning("slopes and curvatures of Cox's model", "little of one patient"),
        }
    )
    Params = SurvivalParams
    Public = SurvivalPublic
    params: SurvivalParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        p = self.params
        self.covariates: Covariates = p.covariates if p.covariates is not None else Covariates()
        self.grid = int(np.ceil(p.until / p.width))
        self.width = self.placer.rank + len(self.covariates.names)
        self.exact = None if self.covariates.site else 1e-6  # type: ignore[misc]

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> SurvivalPublic:
        """Table 0, beta = 0."""
        table = np.zeros((self.placer.rank + 1, 2, self.grid + 1, 2))
        return SurvivalPublic("table", 1, table, 0.0, Climbs.at([np.zeros(self.width)]))

    def next_step(self, public: SurvivalPublic) -> Step | None:
        """Patients by time, event and phenotype; then Newton rounds of Cox's model."""
        if public.stage == "end":
            return None
        if public.stage == "table":
            return Step(1, "survival", {"table": public.table.shape, "unknown": (1,)}, bound=PATIENTS, counts=False)
        t, p = self.grid, self.width
        if self.covariates.site:  # stratified: nothing by time leaves a hospital
            return Step(public.round, "cox", shapes("cox", p), bound=BOUND, counts=False)
        arrays: dict[str, tuple[int, ...]] = {"deaths": (t,), "direct": (p,)}
        for k in ("risk", "tied"):
            arrays |= {f"{k}0": (t,), f"{k}1": (t, p), f"{k}2": (t, p * (p + 1) // 2)}
        return Step(public.round, "cox", arrays, bound=BOUND, counts=False)

    def update_public(self, step: Step, public: SurvivalPublic, total: Total) -> SurvivalPublic:
        """S(t) = prod_{s <= t} (1 - d_s / (n_s - c_s / 2)) from the table; beta' = beta + H^-1 g, Efron's g and H from summed risk sets."""
        a = total.arrays
        if step.name == "survival":
            table = np.rint(a["table"])
            any_event = table[-1, 0, :, 1].sum() > 0
            return replace(
                public,
                table=table,
                unknown=float(np.rint(a["unknown"][0])),
                stage="cox" if any_event else "end",
                round=2,
            )
        trial = public.climbs.trial(0)
        n = self._patients(public)
        if self.covariates.site:
            part = unpacked(a, "cox", n)
        else:
            part = Cut(*efron(_together({k: v * n for k, v in a.items()}, self.width), trial))
        climbs = public.climbs.seen({0: part}, {0: np.ones(self.width, bool)})
        return replace(public, climbs=climbs, round=public.round + 1, stage="cox" if climbs.active else "end")

    def _patients(self, public: SurvivalPublic) -> float:
        """A power of two above the number of patients: sums are sent in units of it."""
        return float(2.0 ** np.ceil(np.log2(max(float(public.table[-1].sum()), 1.0))))

    # ---- hospital

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: SurvivalPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """d_t, n_t by carrier; then sums of e^{x'beta} (1, x, xx') over the risk sets, or its own g, H if stratified."""
        people, n = site.people, site.patients
        time = np.full(n, np.nan) if people is None or people.time is None else people.time
        event = np.zeros(n, bool) if people is None or people.event is None else people.event
        timed = np.isfinite(time)
        step_index = step_of(np.where(timed, time, 0.0), self.params.width)
        happened = event & (step_index < self.grid)
        step_index = np.minimum(step_index, self.grid)
        carries = self.placer.has(site)
        if step.name == "survival":
            table = np.zeros(public.table.shape)
            cell = (step_index[timed], happened[timed].astype(int))
            for r in range(self.placer.rank):
                np.add.at(table[r], (carries[timed, r].astype(int), *cell), 1.0)
            np.add.at(table[-1, 0], cell, 1.0)
            return private, Contribution({"table": table, "unknown": np.array([float((~timed).sum())])})
        columns, full = self.covariates.columns(site)
        use = timed & full
        x = np.concatenate([columns, carries.astype(np.float64)], axis=1)[use]
        beta = public.climbs.trial(0)
        sums = efron_sums(x, np.minimum(step_index[use], self.grid - 1), happened[use], self.grid, beta)
        if self.covariates.site:
            sums_out = Cut(*efron(sums, beta)).arrays("cox")
            return private, Contribution({k: v / self._patients(public) for k, v in sums_out.items()})
        upper = np.triu_indices(self.width)
        arrays: dict[str, Array] = {"deaths": sums.deaths, "direct": sums.direct}
        for k in ("risk", "tied"):
            arrays |= {f"{k}0": getattr(sums, f"{k}0"), f"{k}1": getattr(sums, f"{k}1")}
            arrays[f"{k}2"] = getattr(sums, f"{k}2")[:, upper[0], upper[1]]
        return private, Contribution({k: v / self._patients(public) for k, v in arrays.items()})


def _together(a: Any, p: int) -> EfronSums:
    """The risk sets of all sites from what was sent."""
    upper = np.triu_indices(p)

    def square(flat: Array) -> Array:
        out = np.zeros((len(flat), p, p))
        out[:, upper[0], upper[1]] = flat
        out[:, upper[1], upper[0]] = flat
        return out

    return EfronSums(
        a["risk0"],
        a["risk1"],
        square(a["risk2"]),
        a["tied0"],
        a["tied1"],
        square(a["tied2"]),
        np.rint(a["deaths"]),
        a["direct"],
    )


def survival_found(act: SurvivalAnalysis, public: SurvivalPublic, minimum: int = MINIMUM) -> tuple[SurvivalFound, ...]:
    """Curves, log-rank and hazard ratios; a point of a curve stands for at least ``minimum`` patients who left."""
    out = []
    c, width = len(act.covariates.names), act.params.width
    beta = public.climbs.base[0]
    se = np.sqrt(np.maximum(np.diag(public.climbs.covariance(0)), 0.0))
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
        mean, error = {}, 0.0
        for name, g in groups.items():
            steps, beyond = g[:-1], float(g[-1].sum())
            curve, *ends = (kaplan_meier(steps[:, 0], steps[:, 1], beyond, missed=m) for m in (0.5, 0.0, 1.0))
            mean[name] = restricted_mean(curve, width)
            points = _points(name, curve, steps.sum(1), width, minimum)
            shown = [round(float(str(p[1])) / width) - 1 for p in points[1:]]
            error = max([error, *(float(np.abs(x.share - curve.share)[shown].max(initial=0.0)) for x in ends)])
            rows += points
        tested = None if everyone else log_rank(*((g[:, 0], g[:, 1]) for g in groups.values()))
        hazard = None
        p = None
        if not everyone and se[c + r] > 0:
            b, s = float(beta[c + r]), float(se[c + r])
            hazard, p = (math.exp(b), math.exp(b - Z * s), math.exp(b + Z * s)), normal_p(b / s)
        table = Table(["group", "time", "at_risk", "survival", "low", "high"], rows)
        log_rank_p = None if tested is None else tested[1]
        out.append(
            SurvivalFound(None if everyone else r, table, hazard, p, log_rank_p, mean, _coarse(error, width), error)
        )
    return tuple(out)


def _points(name: str, curve: Survival, leave: Array, width: float, minimum: int) -> list[list[object]]:
    """Rows of one curve: time 0, and ends of steps between which, and after which, ``minimum`` patients or more leave."""
    rows: list[list[object]] = [[name, 0.0, int(curve.at_risk[0]), 1.0, 1.0, 1.0]]
    left = 0.0
    for t, n in enumerate(leave):
        left += float(n)
        remain = float(curve.at_risk[t] - n)
        if left >= minimum and remain >= minimum:
            share = [float(x[t]) for x in (curve.share, curve.low, curve.high)]
            rows.append([name, float((t + 1) * width), int(remain), *share])
            left = 0.0
    return rows


def _coarse(error: float, width: float) -> tuple[str, ...]:
    """Sentences on a grid that is too coarse: the order of events and censoring within a step is not known."""
    out = []
    if width > LONGEST:
        out.append(f"A step of {width:g} days is longer than two years. Hazard ratios are then less precise.")
    if error > COARSE:
        finer = f'[people] survival = {{grid = "{max(round(width / 3), 1)}d"}}'
        out.append(
            f"Steps of {width:g} days are coarse. A point of a curve may be off by up to {error:.3f}. A finer grid: {finer}."
        )
    return tuple(out)
