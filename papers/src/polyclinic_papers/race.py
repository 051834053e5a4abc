"""Who comes near the pooled model with the fewest bytes, every method tuned alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from polyclinic.analysis.simulated.summary import to_truth
from polyclinic.errors import PolyclinicError
from polyclinic.methods.central.als import CPALS
from polyclinic.records.sites.site import pooled, truth_of
from polyclinic_papers.cohorts import cohort
from polyclinic_papers.controls import RANDOM, ZERO, blank
from polyclinic_papers.experiment import Lab
from polyclinic_papers.interval import Interval, interval
from polyclinic_papers.reach import trace

__all__ = ["TUNED_ON", "Finish", "Pooled", "Runner", "cheaper", "costs", "race", "untrained"]

TUNED_ON: Final = (1000, 1001, 1002)  # seeds that no figure uses
Measure = Literal["full", "nonzeros"]


@dataclass(frozen=True)
class Runner:
    """A method with the settings that it may choose from, and when it has arrived.

    ``measure``: ``full``, over all cells, a share of what pooled CP-ALS explains. ``nonzeros``, the papers' own: RMSE over
    nonzeros at most 1 % above the worst last one among all runners of this measure, so that all arrive at an equal loss.
    """

    name: str
    make: Callable[..., Any]
    settings: Sequence[Mapping[str, Any]]
    measure: Measure = "full"


@dataclass(frozen=True)
class Finish:
    """A method's results: per seed, rounds and bytes to the goal (None: never), its last RMSE over the goal, and what it spent.

    ``own`` are the hits of another goal: within 1 % of the method's own last RMSE. ``drift`` is by how much, relatively,
    the RMSE still fell in the last five rounds.
    """

    setting: Mapping[str, Any]
    hits: list[dict[str, float] | None]
    last: list[float]
    spent: list[float]
    own: list[dict[str, float] | None] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    bars: Sequence[float] = ()
    measure: Measure = "full"

    @property
    def by_own_end(self) -> Finish:
        """The same runs, judged by where each ended itself."""
        return replace(self, hits=self.own)

    @property
    def arrived(self) -> str:
        """On how many seeds."""
        return f"{sum(h is not None for h in self.hits)} of {len(self.hits)}"

    def values(self, key: str) -> list[float]:
        """Rounds or bytes of the seeds that arrived."""
        return [h[key] for h in self.hits if h]

    def median(self, key: str) -> float | None:
        """Over the seeds that arrived."""
        got = self.values(key)
        return float(np.median(got)) if got else None


def cheaper(left: Finish, right: Finish) -> tuple[Interval, bool]:
    """Ratio of bytes on the same seeds (geometric mean), and whether the left is cheaper: it arrives always, ratio below 1.

    Where the right never arrives it counts with what it spent, which is less than its true cost.
    """
    own = [h["bytes"] if h else spent for h, spent in zip(left.hits, left.spent)]
    other = [h["bytes"] if h else spent for h, spent in zip(right.hits, right.spent)]
    log = interval([np.log(a / b) if np.isfinite(a) and np.isfinite(b) else None for a, b in zip(own, other)])
    ratio = Interval(float(np.exp(log.mean)), float(np.exp(log.low)), float(np.exp(log.high)), log.n)
    return ratio, all(left.hits) and ratio.below(1.0)


def costs(left: Finish, right: Finish) -> dict[str, Any]:
    """Figures for a claim that the left costs fewer bytes than the right: the ratio, who arrived, and in how many rounds."""
    a, b = left.median("rounds"), right.median("rounds")
    return {
        "ratio": cheaper(left, right)[0],
        "missed": sum(hit is None for hit in left.hits),
        "arrived": left.arrived,
        "other_arrived": right.arrived,
        "more_rounds": a is not None and b is not None and a > b,
        "rounds": a,
        "other_rounds": b,
    }


def untrained(lab: Lab, data: str, left: Finish) -> dict[str, dict[str, float]]:
    """Figures of a claim on costs with a control in the left's place: it sends nothing, and either is there at once or never."""
    key = "full" if left.measure == "full" else "observed"
    parts = [
        lab.part(
            f"controls {data} {s}", lambda s=s: blank(pooled(cohort(data, s, lab["patients"])).counts(), lab["rank"], s)
        )
        for s in lab.seeds
    ]
    return {
        name: {"missed": sum(p[name][key] > bar for p, bar in zip(parts, left.bars)), "ratio": 0.0}
        for name in (ZERO, RANDOM)
    }


@dataclass(frozen=True)
class Pooled:
    """What pooled CP-ALS reaches: RMSE over all cells and over nonzeros, the zero model's, and its FMS to a planted truth."""

    full: float
    observed: float
    zero: float
    truth: float | None = None

    @classmethod
    def of(cls, lab: Lab, data: str, seed: int) -> Pooled:
        """Of a cohort with the lab's number of patients and rank; computed once."""
        patients, rank = lab["patients"], lab["rank"]

        def fit() -> dict[str, float | None]:
            sites = cohort(data, seed, patients)
            model = CPALS(weighting="none", rank=rank, seed=seed).fit(sites)
            score, union = model.quality(sites), pooled(sites).counts()
            cells = float(np.prod([float(d) for d in union.shape]))
            return {
                "full": score["rmse_full"],
                "observed": score["rmse_observed"],
                "zero": float(np.sqrt(union.norm_squared() / cells)),
                "truth": to_truth(model.result_, truth_of(sites)).get("fms_to_truth"),
            }

        return cls(**lab.part(f"pooled {data} {rank} {seed}", fit))

    @property
    def explained(self) -> float:
        """Share of the squared counts."""
        return 1.0 - (self.full / self.zero) ** 2

    def share(self, rmse: float) -> float:
        """How much of what this model explains another does."""
        return (1.0 - (rmse / self.zero) ** 2) / self.explained

    def goal(self, share: float) -> float:
        """RMSE over all cells of a model that explains ``share`` of what this one does."""
        return self.zero * float(np.sqrt(1.0 - share * self.explained))


def race(lab: Lab, data: str, runners: Sequence[Runner]) -> dict[str, Finish]:
    """Run every method with its best setting, found on seeds apart; the lab's ``share`` of what pooled explains is the goal.

    Over nonzeros there is nothing to explain (zeros are no floor there), hence the other measure of :class:`Runner`.
    """
    if len({len(r.settings) for r in runners}) != 1:
        raise ValueError("unequal tuning budgets: " + ", ".join(f"{r.name} {len(r.settings)}" for r in runners))

    def goal(seed: int) -> float:
        return Pooled.of(lab, data, seed).goal(lab["share"])

    def run(runner: Runner, seed: int, setting: Mapping[str, Any]) -> dict[str, list[float]] | None:
        bar = goal(seed) if runner.measure == "full" else None
        try:
            found = trace(
                runner.make(rank=lab["rank"], rounds=lab["rounds"], seed=seed, tol=0.0, **setting),
                cohort(data, seed, lab["patients"]),
                nonzeros=bar is None,
                until=None if bar is None else lambda t: t.full[-1] <= bar,
            )
        except PolyclinicError:
            return None
        if not found.full or (bar is None and found.model is None):
            return None
        return {"curve": found.full if bar is not None else found.observed, "bytes": found.bytes}

    def loss(runner: Runner, setting: Mapping[str, Any]) -> float | None:
        """Mean bytes to the goal, twice what was spent where it was never reached; over nonzeros, the last RMSE."""
        found = [run(runner, s, setting) for s in TUNED_ON[: lab["tuned"]]]
        known = [f for f in found if f is not None]
        if len(known) < len(found):
            return None
        if runner.measure == "nonzeros":
            return float(np.mean([f["curve"][-1] for f in known]))
        return float(np.mean([f["bytes"][-1] * (1 + (f["curve"][-1] > goal(s))) for f, s in zip(known, TUNED_ON)]))

    settings, runs = {}, {}
    for r in runners:
        best = lab.tune(f"{data} {r.name}", r.settings, lambda r=r, **setting: loss(r, setting))
        settings[r.name] = best
        runs[r.name] = [
            lab.part(f"{data} {r.name} {best} {s}", lambda r=r, best=best, s=s: run(r, s, best)) for s in lab.seeds
        ]
    ends = [
        max((runs[r.name][k]["curve"][-1] for r in runners if r.measure == "nonzeros" and runs[r.name][k]), default=0.0)
        for k in range(len(lab.seeds))
    ]
    bars = {"full": [goal(s) for s in lab.seeds], "nonzeros": [1.01 * e for e in ends]}
    return {
        r.name: replace(_finish(settings[r.name], runs[r.name], bars[r.measure]), measure=r.measure) for r in runners
    }


def _finish(setting: Mapping[str, Any], runs: Sequence[dict[str, list[float]] | None], bars: Sequence[float]) -> Finish:
    nan = float("nan")
    return Finish(
        setting,
        [_hit(f, bar) for f, bar in zip(runs, bars)],
        [f["curve"][-1] if f else nan for f in runs],
        [f["bytes"][-1] if f else nan for f in runs],
        [_hit(f, 1.01 * f["curve"][-1]) if f else None for f in runs],
        [f["curve"][-6:][0] / f["curve"][-1] - 1.0 if f else nan for f in runs],
        bars,
    )


def _hit(found: dict[str, list[float]] | None, bar: float) -> dict[str, float] | None:
    at = next((k for k, v in enumerate(found["curve"]) if v <= bar), None) if found else None
    return None if at is None or found is None else {"rounds": at + 1.0, "bytes": found["bytes"][at]}
