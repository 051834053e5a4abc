"""Findings with a formal guarantee against exact ones of the same patients: diabetes-130, epsilon 1 for the whole act, masked.

    python benchmarks/findings_private.py [--draws 20] [--epsilon 1] [--sizes 33653 10000] [--rank 10]

Prints, over the draws of the noise (and of the patients, below the whole): the 95 % point of the error of a prevalence, the rmse of
log odds ratios and how many of their intervals contain the exact value, the rmse of the AUC, the ledger's epsilon. Exact values
are those of the plain act on the same patients, adjusted for age and sex, without a hospital term; "cut" ones count a
patient for the strongest phenotypes only, as the paid act does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

import polyclinic as pc
from polyclinic.analysis.private.rows import Records
from polyclinic.analysis.statistics.regression import profile
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.records.sites.site import Site


def some(sites: list[Site], size: int, rng: np.random.Generator) -> list[Site]:
    """A random part of the patients of every site."""
    whole = sum(s.patients for s in sites)
    if size >= whole:
        return sites
    out = []
    for s in sites:
        keep = np.sort(rng.permutation(s.patients)[: round(size * s.patients / whole)])
        assert s.people is not None and s.labels is not None
        out.append(replace(s, tensor=s.counts()[keep], labels=s.labels[keep], people=s.people.take(keep)))
    return out


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The exact maximum."""
    b = np.zeros(x.shape[1])
    for _ in range(40):
        part = profile(x, y, b, own=False)
        step = np.linalg.solve(part.information + 1e-9 * np.eye(len(b)), part.score)
        b += step
        if np.abs(step).max() < 1e-10:
            break
    return b


def auc(score: np.ndarray, y: np.ndarray) -> float:
    """Ties count half."""
    from scipy.stats import rankdata

    ranks, n = rankdata(score), y.sum()
    return float((ranks[y == 1].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def main() -> None:
    """Measure and print."""
    given = argparse.ArgumentParser()
    given.add_argument("--draws", type=int, default=20)
    given.add_argument("--epsilon", type=float, default=1.0)
    given.add_argument("--sizes", type=int, nargs="+", default=[33_653, 10_000])
    given.add_argument("--rank", type=int, default=10)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--planned", action="store_true", help="the size is said, not bought")
    a = given.parse_args()
    every = list(pc.datasets.load_diabetes130())
    model = pc.SumALS(rank=a.rank, rounds=20).fit(every)
    for size in a.sizes:
        prevalence, cut, log_or, covered, areas, spent, cost = [], [], [], [], [], [], 0
        for draw in range(a.draws):
            rng = np.random.default_rng([a.seed, size, draw])
            sites = some(every, size, rng)
            doors = {s.name: ReleaseGate(s.name, noise=SimulatedNoise(rng)) for s in sites}
            found = pc.evaluate(
                model,
                sites,
                privacy=pc.Privacy(a.epsilon, 1e-6),
                aggregation="masked",
                doors=doors,
                planning_size=size if a.planned else None,
            )
            act = pc_act(model, sites)
            parts = [Records.of(act, s) for s in sites]
            has = np.concatenate([act.placer.has(s) for s in sites]).astype(float)
            kept = np.concatenate([p.carried for p in parts])
            y, z = np.concatenate([p.y for p in parts]), np.concatenate([p.z for p in parts])
            x = np.column_stack([np.ones(len(y)), has, z])
            exact = logistic(x, y)
            spent.append(max(d.ledger.epsilon(1e-6) for d in doors.values()))
            cost = found.traffic["bytes_up"] // len(sites)
            if found.prevalence is not None:
                prevalence.append(np.subtract(found.prevalence["share"], has.mean(0)))
                cut.append(np.subtract(found.prevalence["share"], kept.mean(0)))
            if found.outcome is not None and found.outcome.effects.rows:
                gap = np.subtract(found.outcome.effects["coefficient"], exact[1 : 1 + a.rank])
                log_or.append(gap)
                covered.append(np.abs(gap) <= 1.96 * np.asarray(found.outcome.effects["se"]))
                areas.append(found.outcome.auc.value - auc(x @ exact, y))
        print(
            f"{size:,} patients, epsilon {a.epsilon:g}, {a.draws} draws; ledger {max(spent):.6f}; {cost / 1000:.1f} kB up a site"
        )
        if prevalence:
            p95, c95 = (100 * np.quantile(np.abs(v), 0.95) for v in (prevalence, cut))
            print(f"  prevalence: 95 % of errors within {p95:.2f} points ({c95:.2f} of the cut ones)")
        if log_or:
            root = np.sqrt(np.mean(np.square(log_or)))
            print(f"  log odds ratios: rmse {root:.3f}, intervals contain the exact value in {np.mean(covered):.3f}")
            e = np.abs(areas)
            print(f"  AUC: rmse {np.sqrt(np.mean(np.square(areas))):.4f}, 95 % within {np.quantile(e, 0.95):.4f}")
        for name, why in found.not_bought.items():
            print(f"  not bought: {name} ({why})")


def pc_act(model: object, sites: list[Site]) -> object:
    """The paid act, for its own view of the records."""
    from polyclinic.analysis.pipelines.evaluate import plan_for
    from polyclinic.analysis.projection import Projector

    plan = plan_for(sites, privacy=pc.Privacy(1.0))
    return plan.acts(Projector.of(model))[0]


if __name__ == "__main__":
    main()
