"""survival: time to an event by phenotype. Kaplan-Meier, log-rank, and Cox's model with Efron's ties, by sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.projection import Covariates
from polyclinic.analysis.statistics.regression import Climbs, Cut, shapes, unpacked
from polyclinic.analysis.statistics.survival_curves import EfronSums, efron, efron_sums
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site

__all__ = ["SurvivalAnalysis", "SurvivalPublic"]

Array = NDArray[np.float64]
# limit: of the encoding
BOUND: Final = 2.0**20  # of every sum, divided by the number of patients


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
    table: Array  # (R + 1, 2, T, 2): not carrier or carrier, time, censored or event; the last: everybody, in [0]
    unknown: float
    climbs: Climbs


class SurvivalAnalysis(Analysis):
    """How long carriers and others stay free of the event."""

    name = "survival"
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
        table = np.zeros((self.placer.rank + 1, 2, self.grid, 2))
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
        """S(t) = prod_{s <= t} (1 - d_s / n_s) from the table; beta' = beta + H^-1 g, Efron's g and H from summed risk sets."""
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
        bin_index = np.floor(np.where(timed, time, 0.0) / self.params.width)
        happened = event & (bin_index < self.grid)
        bin_index = np.minimum(bin_index, self.grid - 1).astype(np.int64)
        carries = self.placer.has(site)
        if step.name == "survival":
            table = np.zeros((self.placer.rank + 1, 2, self.grid, 2))
            cell = (bin_index[timed], happened[timed].astype(int))
            for r in range(self.placer.rank):
                np.add.at(table[r], (carries[timed, r].astype(int), *cell), 1.0)
            np.add.at(table[-1, 0], cell, 1.0)
            return private, Contribution({"table": table, "unknown": np.array([float((~timed).sum())])})
        columns, full = self.covariates.columns(site)
        use = timed & full
        x = np.concatenate([columns, carries.astype(np.float64)], axis=1)[use]
        beta = public.climbs.trial(0)
        sums = efron_sums(x, bin_index[use], happened[use], self.grid, beta)
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
