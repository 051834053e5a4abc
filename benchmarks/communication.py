"""What one site sends until the federated model is as good as the pooled one: `python benchmarks/communication.py icu planted synpuf vocabulary`.

For every method, after every round: squared error of its global factors over all cells of the weighted counts (memberships solved
anew, not negative) beside that of pooled CP-ALS, best of several starts. A method has arrived where its RMSE is within 1 % or .1 % of the
pooled one's, or where it has lost at most 5 % of what the pooled model explains,

    lost = (SSE - SSE_pooled) / (||X||^2 - SSE_pooled),

which says more where data are sparse (there a model of zeros is within 2 %). kB are all that one site sent up until then, keys and headers
too, by sums as named. "-" means: not within its rounds. LocalTF and DPFact also from the Gram start's factors, as an experiment.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import polyclinic as pc
from polyclinic.methods.rounds.observed_pass import WARM
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.weighting import weighted

GOALS = ("1 %", "0.1 %", "lost 5 %")
DATA: dict[str, tuple[Callable[[int], list[Site]], int, int]] = {  # sites of a seed, rank, starts of the pooled fit
    "icu": (lambda seed: list(pc.datasets.icu_network(patients=3000, seed=seed)), 14, 3),
    "planted": (
        lambda seed: list(pc.datasets.planted_counts(3000, 60, 80, phenotypes=9, codes=(6, 8), sites=4, seed=seed)),
        10,
        3,
    ),
    "synpuf": (lambda seed: list(pc.datasets.load_synpuf()), 10, 5),
    "vocabulary": (lambda seed: list(pc.datasets.load_synpuf(procedures=None, diagnoses=None)), 10, 3),
}


@dataclass(frozen=True)
class Way:
    """One method with its settings; ``gram``: LocalTF and DPFact set on the Gram start's factors."""

    name: str
    method: Callable[..., pc.SumALS]
    settings: dict[str, object]
    gram: bool = False


WAYS = (
    Way("SumALS, as shipped", pc.SumALS, {}),
    Way("TRIP, as shipped", pc.TRIP, {}),
    Way("TRIP, literal", pc.TRIP, {"variant": "paper", "rounds": 60}),
    Way("SumALS, tol=0.0001", pc.SumALS, {"tol": 1e-4}),
    Way("SumALS, tol=0.0001, 64 bits", pc.SumALS, {"tol": 1e-4, "packed": False}),
    Way("TRIP, tol=0.0001", pc.TRIP, {"tol": 1e-4}),
    Way("SumALS, random start, 64 bits", pc.SumALS, {"start": "random", "packed": False}),
    Way("LocalTF", pc.LocalTF, {"rounds": 60}),
    Way("LocalTF from the Gram", pc.LocalTF, {"rounds": 40}, gram=True),
    Way("DPFact", pc.DPFact, {"rounds": 60, "sparsity": 0.0}),
    Way("DPFact from the Gram", pc.DPFact, {"rounds": 40, "sparsity": 0.0}, gram=True),
    Way("distributed SGD", pc.DistributedSGD, {"rounds": 60}),
)


class Ruler:
    """Squared errors over all patients for given feature factors."""

    def __init__(self, sites: list[Site], rank: int, starts: int) -> None:
        best = max((pc.CPALS(rank=rank, seed=s).fit(sites) for s in range(starts)), key=lambda m: m.score(sites))
        self.tensor = weighted(pooled(sites).counts(), best.saturation_)
        self.norm, self.members = self.tensor.norm_squared(), None
        self.pooled = self.error(best.factors_)

    def error(self, factors) -> float:
        unit, _ = cp.normalise(list(factors))
        if self.members is None or self.members.shape[1] != unit[0].shape[1]:
            self.members = cp.solve_memberships(self.tensor, unit)
        everyone = [self.members, *unit]
        g, m = cp.gram(everyone, 0), kernels.mttkrp(self.tensor, everyone, 0)
        self.members = cp.hals(self.members, g, m, sweeps=10)
        return cp.squared_error(self.norm, self.members, g, m)

    def lost(self, error: float) -> float:
        return (error - self.pooled) / (self.norm - self.pooled)

    def reached(self, error: float) -> dict[str, bool]:
        ratio = float(np.sqrt(error / self.pooled))
        return {"1 %": ratio <= 1.01, "0.1 %": ratio <= 1.001, "lost 5 %": self.lost(error) <= 0.05}


def started(way: Way, rank: int, seed: int, sites: list[Site], how: str) -> tuple[Simulation, float]:
    """A run to be, and what was sent up a site before."""
    if not way.gram:
        return Simulation(way.method(rank=rank, seed=seed, aggregation=how, **way.settings), sites), 0.0
    first = Simulation(pc.SumALS(rank=rank, seed=seed, aggregation=how), sites)
    while first.public is None or first.public.stage in ("setup", "start"):
        first.advance()
    method = way.method(rank=rank, seed=seed, aggregation=how, **(way.settings | {"rounds": 40 + WARM}))
    fold = Simulation(method, sites)
    fold.advance()  # sizes
    found = tuple(f[:, :rank] for f in first.public.factors)  # without the columns that the first sweep tries beside
    fold.public = replace(fold.public, factors=found, round=1 + WARM)
    for (
        party
    ) in fold.parties.values():  # its passes are no first ones any more: whole sites, least squares, own factors
        party.private = replace(party.private, factors=found, passes=WARM)
    return fold, first.traffic.bytes_up / len(sites)


def follow(way: Way, rank: int, seed: int, sites: list[Site], ruler: Ruler, how: str) -> dict[str, float]:
    """kB until every goal, and where it ends."""
    fold, before = started(way, rank, seed, sites, how)
    out, seen = dict.fromkeys(GOALS, np.inf), -1
    error, kb, ruler.members = np.inf, 0.0, None
    while fold.advance():
        ready = fold.public.stage not in ("setup", "start") and fold.public.factors[0].shape[1] >= rank
        if not ready or (fold.public.round, fold.public.stage) == seen:
            continue
        seen = (fold.public.round, fold.public.stage)
        factors = [f[:, :rank] for f in fold.public.factors]  # without the columns that a first sweep tries beside
        error, kb = ruler.error(factors), (before + fold.traffic.bytes_up / len(sites)) / 1e3
        for goal, there in ruler.reached(error).items():
            out[goal] = min(out[goal], kb) if there else out[goal]
    return out | {"ends": kb, "lost": ruler.lost(error)}


def table(name: str, seeds: list[int], ways: list[Way], how: str) -> str:
    load, rank, starts = DATA[name]
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        sites = load(seed)
        ruler = Ruler(sites, rank, starts)
        zeros = float(np.sqrt(ruler.norm / ruler.pooled)) - 1
        print(
            name,
            seed,
            f"pooled explains {1 - ruler.pooled / ruler.norm:.4f}; zeros are {100 * zeros:.1f} % above",
            flush=True,
        )
        for way in ways:
            one = follow(way, rank, seed, sites, ruler, how)
            found.setdefault(way.name, []).append(one)
            print(name, seed, way.name, {k: round(float(v), 4) for k, v in one.items()}, flush=True)
    head = f"| {name}, {how}, seeds {', '.join(map(str, seeds))} | " + " | ".join(f"kB to {g}" for g in GOALS)
    lines = [f"{head} | kB where it ends | lost there |", "|---|" + "---|" * (len(GOALS) + 2)]
    for way, runs in found.items():
        cells = [", ".join("-" if np.isinf(r[g]) else f"{r[g]:.0f}" for r in runs) for g in GOALS]
        ends = ", ".join(f"{r['ends']:.0f}" for r in runs)
        lost = ", ".join(f"{r['lost']:.3f}" for r in runs)
        lines.append(f"| {way} | {' | '.join(cells)} | {ends} | {lost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", choices=list(DATA))
    parser.add_argument("--seeds", type=int, nargs="+", default=[3101, 3102])
    parser.add_argument("--ways", nargs="*", default=[], help="only ways whose name holds one of these")
    parser.add_argument("--aggregation", default="masked")
    a = parser.parse_args()
    ways = [w for w in WAYS if not a.ways or any(x in w.name for x in a.ways)]
    print("\n" + "\n\n".join([table(name, a.seeds, ways, a.aggregation) for name in a.data]))
