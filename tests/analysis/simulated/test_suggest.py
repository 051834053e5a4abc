"""A rank by what comes back and by hidden codes; or none."""

from __future__ import annotations

import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites


@pytest.fixture(scope="module")
def sites() -> Sites:
    return pc.datasets.planted_counts(2400, 40, 50, phenotypes=5, codes=(5, 6), sites=3, background=0.2, seed=4)


def test_a_rank_is_suggested_between_hospitals_and_none_on_permuted_codes(sites: Sites) -> None:
    found = pc.suggest_rank(sites, (3, 5, 8), aggregation="masked", control=True)
    assert found.rank == 5 and "hold together" in found.reason
    assert [t.rank for t in found.trials] == [3, 5, 8]
    assert found.trials[1].replicable == 5 and found.trials[1].low > 0
    assert found.trials[2].replicable == 5  # what is asked for too much is joined, or fails
    assert found.proposed in (4, 5, 6)
    assert found.control is not None and found.control.rank is None
    assert found.control.reason.startswith("no rank is supported")


def test_too_few_patients_support_no_rank(sites: Sites) -> None:
    few = [s.take(range(12)) for s in sites]
    assert pc.suggest_rank(few, (2, 4), rounds=5).rank is None
    with pytest.raises(ConfigError, match="ranks of at least 1"):
        pc.suggest_rank(sites, (0, 3))
