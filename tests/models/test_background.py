"""Components that describe all patients are background: labelled, not counted, and without an odds ratio."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.findings import Findings
from polyclinic.models.phenotypes.background import background

PHENOTYPES = 4


@pytest.fixture(scope="module")
def findings() -> Findings:
    sites = pc.datasets.planted_counts(
        1500, 40, 50, phenotypes=PHENOTYPES, codes=(6, 8), background=0.5, sites=3, seed=11
    )
    model = pc.DPEM(rank=PHENOTYPES + 1, background=False, seed=0).fit(sites)
    return pc.evaluate(model, sites, what=["carriers", "outcome"])


def test_a_component_that_most_patients_carry_is_background_and_has_no_odds_ratio(findings: Findings) -> None:
    assert findings.prevalence is not None and findings.outcome is not None
    (column,) = findings.background
    shares = np.array([np.nan if s is None else s for s in findings.prevalence["share"]])
    assert not (np.delete(shares, column) >= 0.75).any() and not shares[column] < 0.75
    assert sorted(findings.outcome.effects["phenotype"]) == [r for r in range(PHENOTYPES + 1) if r != column]
    assert findings.to_json()["background"] == [column]


def test_planted_phenotypes_are_never_background() -> None:
    for seed in (12, 13):
        truth = pc.datasets.planted_counts(300, seed=seed).truth
        unit = [f / np.linalg.norm(f, axis=0) for f in truth.factors]
        assert not background(unit, np.ones(truth.rank)).any()


def test_a_component_near_the_marginals_in_one_mode_only_is_a_phenotype() -> None:
    apart, flat = np.eye(4), np.column_stack([np.eye(4)[:, :3], np.full(4, 0.5)])
    assert background([flat, flat], np.ones(4)).tolist() == [False, False, False, True]
    assert not background([flat, apart], np.ones(4)).any()
