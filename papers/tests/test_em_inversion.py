"""Exact EM sums give honest records away, whatever the sum; paid noise stops it (issue 5, ERRATA E4.8)."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic_papers.attacks import em_inversion

pytestmark = pytest.mark.attack


CENTRES = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
HONEST = ("n0", "n1", "n2")


def network(seed: int, crowd: int) -> list[pc.Site]:
    """Three honest sites of one patient each, and one of colluders."""
    rng = np.random.default_rng(seed)
    x = CENTRES[np.arange(3 + crowd) % 3] + rng.normal(size=(3 + crowd, 2))
    return [*(pc.Site(n, features=x[i : i + 1]) for i, n in enumerate(HONEST)), pc.Site("z", features=x[3:])]


@pytest.mark.parametrize(("seed", "aggregation"), [(0, "plain"), (1, "masked")])
def test_exact_sums_give_three_honest_records_away(seed: int, aggregation: str) -> None:
    found = em_inversion.run(
        network(seed, 21), HONEST, seed=seed, n_components=3, rounds=2, tol=0, aggregation=aggregation, start="box"
    )
    assert found.succeeded
    assert found.error < 1e-6


def test_at_patient_level_epsilon_4_the_attack_fails() -> None:
    found = em_inversion.run(
        network(0, 600),
        HONEST,
        seed=0,
        starts=3,
        n_components=3,
        radius=10.0,
        aggregation="masked",
        privacy=pc.Privacy(epsilon=4.0, delta=1e-6),
    )
    assert not found.succeeded
    assert found.error > 0.5 * found.spread  # no better than a guess from the public model
