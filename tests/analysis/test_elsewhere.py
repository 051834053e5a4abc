"""On request: without one hospital, from other starts, and where there is nothing to find."""

from __future__ import annotations

import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError


def test_control_and_left_out_hospitals_are_told_on_request() -> None:
    sites = pc.datasets.planted_counts(1500, 30, 40, phenotypes=3, codes=(4, 5), sites=3, seed=2)
    found = pc.replicate(pc.SumALS(rank=3, rounds=15, n_starts=2), sites, control=True, leave_out=True)
    assert found.count == 3 and found.false_rate == 0.0
    assert "control, codes permuted inside every hospital: 0 of 3 (0%)" in repr(found)
    assert found.elsewhere is not None and found.elsewhere.columns == ("phenotype", "starts", "lowest", "without")
    assert min(found.elsewhere["lowest"]) > 0.9 and min(found.elsewhere["starts"]) > 0.9
    assert set(found.elsewhere["without"]) <= {s.name for s in sites}
    bare = pc.replicate(pc.SumALS(rank=3, rounds=5), sites)
    assert bare.control is None and bare.elsewhere is None and bare.false_rate is None and "control" not in repr(bare)


def test_what_would_have_to_be_paid_for_is_refused() -> None:
    sites = pc.datasets.planted_counts(300, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=2)
    private = pc.DPEM(rank=3, rounds=2, privacy=pc.Privacy(8.0, 1e-5), aggregation="masked", planning_size=300)
    with pytest.raises(ConfigError, match="control costs as much privacy budget"):
        pc.replicate(private, sites, control=True)
    with pytest.raises(ConfigError, match="left out of one"):
        pc.replicate(pc.SumALS(rank=2, rounds=2), sites[:1], leave_out=True)


def test_halves_that_would_plan_by_what_they_buy_are_refused_before_they_pay() -> None:
    sites = pc.datasets.planted_counts(300, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=2)
    asked = pc.Privacy(8.0, 1e-5)
    with pytest.raises(ConfigError, match="cannot be fitted on halves") as wrong:
        pc.replicate(pc.DPEM(rank=3, rounds=2, privacy=asked, aggregation="masked"), sites)
    assert "give planning_size" in str(wrong.value.faults)
    prior = pc.DPEM(rank=3, rounds=2, aggregation="masked").fit(sites).result_
    leaning = pc.DPEM(
        rank=3, rounds=2, privacy=asked, aggregation="masked", planning_size=300, prior=prior, prior_is_public=True
    )
    with pytest.raises(ConfigError, match="cannot be fitted on halves") as wrong:
        pc.replicate(leaning, sites)
    assert "without prior" in str(wrong.value.faults)
