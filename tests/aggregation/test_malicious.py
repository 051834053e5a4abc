"""Two of ten hospitals lie: what is left of the phenotypes under a plain sum and under robust rules.

FMS is measured against the planted phenotypes. Liars stay within the public bound, so that nothing refuses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.release import Contribution, Step
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.loop import Simulation

RULES = ["median", "multikrum", *(pytest.param(r, marks=pytest.mark.slow) for r in ("trimmed", "geometric", "krum"))]
ATTACKS = ["huge", "permuted"]


class Liar(ReleaseGate):
    """A door in the attacker's hands: what leaves is not what the site computed."""

    def __init__(self, site: str, lie: str) -> None:
        super().__init__(site)
        self.lie = lie

    def release(self, step: Step, mine: Contribution, **options: Any) -> Contribution:
        honest = super().release(step, mine, **options)
        if not step.counts:
            return honest
        rng, order = np.random.default_rng([step.round, len(self.site)]), np.random.default_rng(1)
        arrays = {}
        for k, a in honest.arrays.items():
            big = 1e4 * rng.standard_normal(a.shape) * max(float(np.abs(a).max()), 1e-9)
            lie = big if self.lie == "huge" else 8 * a[order.permutation(len(a))]
            arrays[k] = np.clip(lie, -step.reach, step.reach)
        return Contribution(arrays, honest.weight)


def fms(model: Any, sites: Any, rule: str, lie: str | None) -> float:
    liars = sorted(s.name for s in sites)[:2] if lie else []
    doors = {n: Liar(n, lie) for n in liars if lie}
    outcome = Simulation(model, sites, adder=by_name(rule), doors=doors).run()
    return pc.metrics.factor_match_score(sites.truth.factors, [np.asarray(f) for f in outcome.public.factors])


@pytest.fixture(scope="module")
def ten() -> Any:
    return pc.datasets.planted_counts(patients=1500, procedures=60, diagnoses=80, phenotypes=8, seed=0, sites=10)


@pytest.mark.attack
@pytest.mark.parametrize("lie", ATTACKS)
def test_a_plain_sum_is_ruined_by_two_liars(ten: Any, lie: str) -> None:
    assert fms(pc.LocalTF(rank=10, rounds=20, seed=0), ten, "plain", lie) < 0.3


@pytest.mark.attack
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lie", ATTACKS)
def test_robust_rules_keep_the_phenotypes(ten: Any, rule: str, lie: str) -> None:
    assert fms(pc.LocalTF(rank=10, rounds=20, seed=0), ten, rule, lie) >= 0.65


@pytest.mark.parametrize("rule", RULES)
def test_robust_rules_cost_little_when_all_are_honest(ten: Any, rule: str) -> None:
    assert fms(pc.LocalTF(rank=10, rounds=20, seed=0), ten, rule, None) >= 0.85


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("lie", ATTACKS)
def test_patient_level_private_em_at_epsilon_2_with_local_noise(lie: str) -> None:
    """(epsilon 2, delta 1e-6, one patient added or removed; formal): 20,000 patients, ten sites, each adds the full noise."""
    sites = pc.datasets.planted_counts(patients=20_000, seed=0, sites=10)
    privacy = pc.Privacy(epsilon=2, delta=1e-6)

    def run(rule: str) -> float:
        return fms(pc.DPEM(rank=30, rounds=8, seed=0, aggregation=rule, privacy=privacy), sites, rule, lie)

    assert run("plain") < 0.3
    for rule in ("median", "trimmed", "geometric", "multikrum"):
        assert run(rule) >= 0.65
