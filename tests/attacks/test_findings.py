"""Attacks on findings: who knows everything but one patient learns of them no more than epsilon allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import polyclinic as pc
from polyclinic.analysis.private.moments import PrivateFindings
from polyclinic.analysis.projection import STANDARD, Covariates, Projector
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.interfaces import Schema, Total, seeds
from polyclinic.tensors.sparse import SparseTensor

pytestmark = pytest.mark.attack
WHAT = ("carriers", "people", "outcome", "survival", "completion")


def _world() -> tuple[PrivateFindings, pc.Site, pc.Site]:
    """Everybody but the target, and the target: all phenotypes, the outcome, an age of its own."""
    rng = np.random.default_rng(0)
    factors = [np.kron(np.eye(3), np.ones((4, 1))) + 0.01, np.kron(np.eye(3), np.ones((5, 1))) + 0.01]
    n = 80
    cells = np.unique(
        np.column_stack([rng.integers(0, n, 600), rng.integers(0, 12, 600), rng.integers(0, 15, 600)]), axis=0
    )
    people = pc.People(
        {"age": rng.uniform(20, 70, n), "sex": np.where(rng.random(n) < 0.5, "F", "M")},
        time=rng.uniform(0, 700, n),
        event=rng.random(n) < 0.5,
    )
    others = pc.Site(
        "others",
        SparseTensor(cells, np.ones(len(cells)), (n, 12, 15)),
        labels=(rng.random(n) < 0.3).astype(float),
        people=people,
    )
    all_ = np.array([(0, i % 12, i % 15) for i in range(60)])
    target = pc.Site(
        "target",
        SparseTensor(all_, np.ones(60), (1, 12, 15)),
        labels=[1.0],
        people=pc.People({"age": [119.0], "sex": ["M"]}, time=[10.0], event=[True]),
    )
    from polyclinic.tensors.cp import solve_memberships

    placer = Projector(factors, lambda site: solve_memberships(site.counts(), factors))  # type: ignore[arg-type]
    act = PrivateFindings(
        model=placer,
        what=WHAT,
        privacy=pc.Privacy(1.0),
        variables=STANDARD,
        covariates=Covariates(STANDARD, site=False),
        planning_size=10**6,  # everything is bought
        aggregation="masked",
    )
    return act, others, target


def _guess(
    act: PrivateFindings,
    others: pc.Site,
    target: pc.Site,
    present: bool,
    rng: np.random.Generator,
    quieter: float = 1.0,
) -> float:
    """The best statistic there is: the likelihood ratio of all releases, given everything but the target."""
    public = act.init_public(Schema((12, 15), (), ("others",)), rng)
    score = 0.0
    while (step := act.next_step(public)) is not None:
        assert step.multiplier is not None
        sd = step.multiplier / quieter
        known = act.contribute(step, others, act.init_site(others, public, rng), public, rng)[1].arrays
        row = act.contribute(step, target, act.init_site(target, public, rng), public, rng)[1].arrays
        total: dict[str, Any] = {}
        for name in step.shapes:
            noise = sd * rng.standard_normal(known[name].shape)
            total[name] = known[name] + present * row[name] + noise
            score += float(((total[name] - known[name]) * row[name]).sum() - (row[name] ** 2).sum() / 2) / sd**2
        public = act.update_public(step, public, Total(total, 1.0, 1, sd))
    return score


def _advantage(quieter: float, runs: int) -> float:
    act, others, target = _world()
    hits = [
        (_guess(act, others, target, present, seeds(k, str(present)), quieter) > 0) == present
        for k in range(runs)
        for present in (True, False)
    ]
    return 2 * float(np.mean(hits)) - 1


def test_presence_among_all_findings_stays_below_the_bound() -> None:
    mu = 1 / calibrate(1.0, 1e-6)[0]
    bound = 2 * norm.cdf(mu / 2) - 1  # of any test at this epsilon and delta
    found = _advantage(1.0, runs := 60)
    assert found <= bound + 3 * np.sqrt(1 / (2 * runs))


def test_the_same_attack_finds_everybody_where_noise_is_missing() -> None:
    assert _advantage(30.0, 10) > 0.9
