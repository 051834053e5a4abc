"""One message of UnPSL tells who is in a small hospital; a sum over enough hospitals does not."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.records.sites.site import Site
from polyclinic_papers.attacks.gradient_span import attack

pytestmark = pytest.mark.attack


def hospitals(each: int, count: int, d: int = 40, seed: int = 0) -> tuple[list[Site], np.ndarray]:
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    X = rng.normal(size=(each * count + 60, d)) @ mix
    y = (X[:, 0] + 0.3 * rng.normal(size=len(X)) > 0).astype(int)
    sites = [
        Site(f"h{k}", features=X[k * each : (k + 1) * each], labels=y[k * each : (k + 1) * each]) for k in range(count)
    ]
    return sites, X[each * count :]


def test_a_plain_message_of_twelve_patients_gives_membership_away() -> None:
    sites, strangers = hospitals(12, 3)
    seen = attack(sites, strangers, victim="h1", l2=0.0, inner=80)
    assert seen.auc == 1.0
    assert seen.members.max() < 0.05 < 0.2 < seen.strangers.min()
    assert seen.rank <= 12


def test_the_redundancy_penalty_hides_nothing_in_round_one() -> None:
    sites, strangers = hospitals(12, 3)
    assert attack(sites, strangers, victim="h1", l2=0.1, inner=80).auc > 0.99


def test_a_sum_over_more_patients_than_features_tells_nothing() -> None:
    sites, strangers = hospitals(30, 3)
    seen = attack(sites, strangers, victim=None, l2=0.0, inner=80)
    assert abs(seen.auc - 0.5) < 0.2
