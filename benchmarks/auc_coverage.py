"""Measure the coverage of the intervals of AUC and gain: ``python benchmarks/auc_coverage.py [--studies 400] [--scenario 0 ...] [--seed 0]``.

Seven scenarios of generated studies at six hospitals of unequal level and size: records in bursts, heavy tails, correlated
background. The phenotypes are known, so that only the regression and its evaluation are repeated. The true value is the mean of the
estimates over all studies of the scenario, as the AUC is that of a regression learned from half of the patients. Each coverage must be
within 0.92 to 0.98. Exit code 1 otherwise.
"""

import argparse
import sys
from dataclasses import dataclass

import numpy as np

import polyclinic as pc
from polyclinic.analysis.projection import Projector
from polyclinic.records.sites.people import People
from polyclinic.tensors.cp import solve_memberships

CODES, RANK, HOSPITALS = 30, 5, 6


@dataclass(frozen=True)
class Scenario:
    """Patients, effects of the phenotypes, and of age."""

    name: str
    patients: int
    effect: float
    age: float = 0.0
    with_age: bool = False


SCENARIOS = (
    Scenario("effects, 900 patients", 900, 1.8),
    Scenario("no effect, 900 patients", 900, 0.0),
    Scenario("effects and age, 900 patients", 900, 1.4, 0.8, with_age=True),
    Scenario("no effect, age strong, 900 patients", 900, 0.0, 1.2, with_age=True),
    Scenario("effects, 3,600 patients", 3600, 1.8),
    Scenario("effects, 300 patients", 300, 1.8),
    Scenario("no effect, 300 patients", 300, 0.0),
)


def study(scenario: Scenario, rng: np.random.Generator) -> tuple[list[pc.Site], Projector]:
    """One study: hospitals, and the known phenotypes (blocks of codes in both modes)."""
    factor = np.zeros((CODES, RANK))
    for r in range(RANK):
        factor[6 * r : 6 * r + 6, r] = 1.0
    sizes = rng.multinomial(scenario.patients, rng.dirichlet(np.full(HOSPITALS, 3.0)))
    sites = []
    for k, n in enumerate(np.maximum(sizes, 8)):
        shared = rng.gamma(0.8, 1.0, (n, 1))  # correlated background: some patients have more of everything
        loads = rng.gamma(0.35, 1.0, (n, RANK)) * (rng.random((n, RANK)) < 0.4) + 0.05 * shared
        bursts = rng.poisson(3.0 * loads) * rng.geometric(0.5, (n, RANK))
        coords = []
        for i in range(n):
            for r in np.flatnonzero(bursts[i]):
                m = min(int(bursts[i, r]), 40)
                coords.append(np.column_stack([np.full(m, i), 6 * r + rng.integers(0, 6, (m, 2))]))
            extra = 1 + rng.poisson(2.0 * shared[i, 0])
            coords.append(np.column_stack([np.full(extra, i), rng.integers(0, CODES, (extra, 2))]))
        cells, counts = np.unique(np.concatenate(coords), axis=0, return_counts=True)
        age = rng.normal(60, 12, n)
        carries = (loads > 0.3).astype(float)
        slope = scenario.effect * np.array([1.0, -0.6, 0.4, 0.0, 0.0])
        eta = rng.normal(-2.0, 0.4) + carries @ slope + scenario.age * (age - 60) / 12
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        tensor = pc.SparseTensor(cells, counts.astype(float), (n, CODES, CODES))
        people = People({"age": age}) if scenario.with_age else None
        sites.append(pc.Site(f"h{k}", tensor, labels=y, people=people))
    factors = [factor, factor]
    return sites, Projector(factors, lambda site: solve_memberships(site.counts(), factors))


def measured(scenario: Scenario, studies: int, seed: int) -> np.ndarray:
    """(studies, 2, 3): AUC, and gain over the covariates, each with its interval."""
    out = []
    for k in range(studies):
        sites, placer = study(scenario, np.random.default_rng([seed, SCENARIOS.index(scenario), k]))
        o = pc.evaluate(placer, sites, what=("outcome",), key=f"study {k}").outcome
        if o is None or o.auc is None or o.adds is None:
            continue
        out.append([[o.auc.value, o.auc.low, o.auc.high], list(o.adds)])
    return np.array(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--scenario", type=int, nargs="+", default=list(range(len(SCENARIOS))))
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    failed = 0
    for i in a.scenario:
        found = measured(SCENARIOS[i], a.studies, a.seed)
        true = found[:, :, 0].mean(0)
        covered = ((found[:, :, 1] <= true) & (true <= found[:, :, 2])).mean(0)
        width = (found[:, :, 2] - found[:, :, 1]).mean(0)
        failed += int(((covered < 0.92) | (covered > 0.98)).sum())
        error = np.sqrt(covered * (1 - covered) / len(found))
        print(
            f"{SCENARIOS[i].name}: {len(found)} studies, AUC {true[0]:.3f} covered {covered[0]:.3f} (se {error[0]:.3f}), "
            f"width {width[0]:.3f}; gain {true[1]:+.3f} covered {covered[1]:.3f} (se {error[1]:.3f})",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
