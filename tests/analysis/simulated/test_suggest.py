"""A rank from pairs of codes in two halves of the patients; or none."""

from __future__ import annotations

import pytest

import polyclinic as pc
from polyclinic.records.sites.site import Sites


@pytest.fixture(scope="module")
def sites() -> Sites:
    return pc.datasets.planted_counts(2400, 40, 50, phenotypes=5, codes=(5, 6), sites=3, background=0.2, seed=4)


def test_a_rank_is_suggested_between_hospitals_and_beyond_what_permuted_codes_have(sites: Sites) -> None:
    found = pc.suggest_rank(sites, aggregation="masked", control=True)
    assert (found.rank, found.confirmed) == (6, 5)  # five phenotypes and the marginals
    assert found.control is not None and found.control <= 1
    assert found.reason == "two halves of the patients confirm 5 directions of codes that occur together"
    assert pc.suggest_rank(sites).rank == found.rank == pc.Topics(rank="auto", rounds=1).fit(sites).result_.rank


def test_too_few_patients_and_permuted_codes_support_no_rank(sites: Sites) -> None:
    from polyclinic.analysis.replication.negative_control import permuted

    few = pc.suggest_rank([s.take(range(12)) for s in sites])
    assert few.rank is None and few.reason.startswith("no rank is supported")
    assert pc.suggest_rank(permuted(sites, 1), control=True).rank is None
