"""Who comes near the pooled model with the fewest bytes, every method tuned alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from polyclinic.errors import PolyclinicError
from polyclinic.papers.cohorts import cohort
from polyclinic.papers.experiment import Interval, Lab, interval
from polyclinic.papers.reach import Trace, trace
from polyclinic.phenotypes.als import CPALS
from polyclinic.tensors.site import pooled

__all__ = ["TUNED_ON", "Finish", "Runner", "cheaper", "pooled_reference", "race"]

TUNED_ON: Final = 1000  # a seed that no figure uses
Measure = Literal["full", "observed", "own"]


@dataclass(frozen=True)
class Runner:
    """A method with the settings that it may choose from, and when it has arrived.

    ``measure``: ``full``, over all cells, a share of what pooled CP-ALS explains; ``observed``, RMSE over nonzeros at
    most 1 % above pooled CP-ALS's; ``own``, RMSE over nonzeros within 1 % of where this run itself ends, which is what
    "converged" means in the papers.
    """

    name: str
    make: Callable[..., Any]
    settings: Sequence[Mapping[str, Any]]
    measure: Measure = "full"


@dataclass(frozen=True)
class Finish:
    """A method's results: per seed, rounds and bytes to the goal (None: never) and its last RMSE over the goal."""

    setting: Mapping[str, Any]
    hits: list[dict[str, float] | None]
    last: list[float]
    spent: list[float]

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
    """Ratio of bytes on the same seeds, and whether the left is cheaper: it arrives on every seed, ratio below 1.

    Where the right never arrives it counts with what it spent, which is less than its true cost.
    """
    own = [h["bytes"] if h else spent for h, spent in zip(left.hits, left.spent)]
    other = [h["bytes"] if h else spent for h, spent in zip(right.hits, right.spent)]
    ratio = interval([a / b if np.isfinite(a) and np.isfinite(b) else None for a, b in zip(own, other)])
    return ratio, all(left.hits) and ratio.below(1.0)


def pooled_reference(data: str, seed: int, patients: int, rank: int) -> dict[str, float]:
    """RMSE of pooled CP-ALS (all cells, nonzeros) and of the zero model (all cells)."""
    sites = cohort(data, seed, patients)
    score = CPALS(rank=rank, seed=seed).fit(sites).score(sites)
    union = pooled(sites).counts()
    cells = float(np.prod([float(d) for d in union.shape]))
    zero = float(np.sqrt(union.norm_squared() / cells))
    return {"full": score["rmse_full"], "observed": score["rmse_observed"], "zero": zero}


def race(
    lab: Lab, data: str, runners: Sequence[Runner], *, patients: int, rank: int, share: float
) -> dict[str, Finish]:
    """Run every method with its best setting, found on a seed apart; ``share`` of what the pooled model explains is the goal.

    Over nonzeros there is nothing to explain (zeros are no floor there), hence the other measures of :class:`Runner`.
    """
    if len({len(r.settings) for r in runners}) != 1:
        raise ValueError("unequal tuning budgets: " + ", ".join(f"{r.name} {len(r.settings)}" for r in runners))

    def goal(runner: Runner, seed: int) -> float:
        known = lab.part(f"pooled {data} {rank} {seed}", lambda: pooled_reference(data, seed, patients, rank))
        if runner.measure == "observed":
            return 1.01 * float(known["observed"])
        return float(np.sqrt(known["zero"] ** 2 - share * (known["zero"] ** 2 - known["full"] ** 2)))

    def run(runner: Runner, seed: int, setting: Mapping[str, Any]) -> dict[str, Any]:
        bar = 0.0 if runner.measure == "own" else goal(runner, seed)

        def curve(t: Trace) -> list[float]:
            return t.full if runner.measure == "full" else t.observed

        try:
            method = runner.make(rank=rank, rounds=lab["rounds"], seed=seed, tol=0.0, **setting)
            found = trace(
                method,
                cohort(data, seed, patients),
                nonzeros=runner.measure != "full",
                until=lambda t: curve(t)[-1] <= bar,
            )
        except PolyclinicError:
            return {"hit": None, "last": None, "spent": None}
        values = curve(found)
        if not values or (runner.measure == "own" and found.model is None):
            return {"hit": None, "last": None, "spent": None}
        at: int | None
        if runner.measure == "own":  # from here on it stays within 1 % of its end
            away = np.flatnonzero(np.abs(np.array(values) / values[-1] - 1) > 0.01)
            at = int(away[-1]) + 1 if len(away) else 0
        else:
            at = next((k for k, v in enumerate(values) if v <= bar), None)
        hit = None if at is None else {"rounds": at + 1.0, "bytes": found.bytes[at]}
        return {"hit": hit, "last": values[-1], "spent": found.bytes[-1]}

    def loss(runner: Runner, setting: Mapping[str, Any]) -> float | None:
        found = run(runner, TUNED_ON, setting)
        if found["last"] is None:
            return None
        if runner.measure == "own":
            return float(found["last"])
        return float(found["hit"]["bytes"] if found["hit"] else 1e15 * found["last"])

    out = {}
    for r in runners:
        best = lab.tune(f"{data} {r.name}", r.settings, lambda r=r, **setting: loss(r, setting))
        found = [
            lab.part(f"{data} {r.name} {best} {s}", lambda r=r, best=best, s=s: run(r, s, best)) for s in lab.seeds
        ]
        spent = [float("nan") if f["spent"] is None else f["spent"] for f in found]
        last = [float("nan") if f["last"] is None else f["last"] for f in found]
        out[r.name] = Finish(best, [f["hit"] for f in found], last, spent)
    return out
