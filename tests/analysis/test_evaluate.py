"""From a fit to findings, in one process: every section, its cost, what comes back and what does not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.replication.consensus import Matched
from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.errors import ConfigError
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    out = []
    for k, s in enumerate(pc.datasets.icu_network(patients=1200, seed=3)):
        rng = np.random.default_rng(k)
        y = np.asarray(s.labels, float)
        y[rng.random(len(y)) < 0.1] = np.nan
        people = People(
            {"age": rng.normal(62, 12, s.patients), "sex": rng.choice(["F", "M"], s.patients)},
            time=rng.exponential(300, s.patients),
            event=rng.random(s.patients) < 0.5,
        )
        out.append(replace(s, labels=y, people=people))
    return out


@pytest.fixture(scope="module")
def replication(sites: list[Site]) -> pc.findings.replicate.Replication:  # type: ignore[name-defined]
    return pc.replicate(pc.SumALS(rank=6, rounds=15), sites)


def test_every_section_in_at_most_fifteen_rounds_and_200_kilobytes(sites: list[Site], replication: object) -> None:
    found = pc.evaluate(replication, sites, aggregation="masked")
    assert found.traffic["rounds"] <= 15
    assert found.traffic["bytes_up"] / len(sites) <= 200_000
    assert found.prevalence is not None and len(found.prevalence) == 6
    assert found.people is not None and found.outcome is not None and found.survival and found.completion is not None
    assert found.missing == {}
    assert found.outcome.unknown == sum(int(np.isnan(np.asarray(s.labels)).sum()) for s in sites)
    assert found.outcome.cross_fitted
    assert found.outcome.adds is not None
    json.dumps(found.to_json(), allow_nan=False)
    plain = pc.evaluate(replication, sites)
    assert plain.outcome is not None
    for a, b in zip(found.outcome.effects["coefficient"], plain.outcome.effects["coefficient"]):
        assert a == pytest.approx(b, abs=1e-6)


def test_every_cosine_has_an_interval(replication: pc.findings.replicate.Replication) -> None:  # type: ignore[name-defined]
    for row in replication.table:
        assert 0 <= row["low"] < row["halves"] < row["high"] <= 1
    alike = np.array([[0.9], [0.7], [0.95]])
    several = Matched(None, (), np.zeros((6, 1), np.int64), alike)  # type: ignore[arg-type]  # no fit is asked
    low, high = several.intervals()[0]
    assert 0.65 < low < 0.7 and 0.95 < high < 1.0  # three halvings: the scatter of one over the root of three
    single = Matched(None, (), np.zeros((2, 1), np.int64), alike[:1])  # type: ignore[arg-type]
    assert single.intervals()[0, 0] < low


def test_unknown_outcomes_move_odds_ratios_by_less_than_two_standard_errors(sites: list[Site]) -> None:
    model = pc.SumALS(rank=5, rounds=10).fit(sites)
    whole = pc.datasets.icu_network(patients=1200, seed=3)
    full = pc.evaluate(model, whole, what="outcome").outcome
    part = pc.evaluate(model, sites, what="outcome", adjust=["site"]).outcome
    assert full is not None and part is not None
    for a, b in zip(full.effects, part.effects):
        assert abs(a["coefficient"] - b["coefficient"]) < 2 * a["se"]
    assert (part.patients or 0) + (part.unknown or 0) == full.patients


def test_what_cannot_be_evaluated_is_said_all_at_once(sites: list[Site]) -> None:
    bare = [replace(s, labels=None, people=None) for s in sites]
    model = pc.SumALS(rank=2, rounds=2).fit(bare)
    with pytest.raises(ConfigError) as e:
        pc.evaluate(model, bare, what=["outcome", "survival", "neighbors"])
    assert len(e.value.faults) == 3
    with pytest.raises(ConfigError, match="adjust"):
        pc.evaluate(model, sites, adjust=["insurance"])
    assert set(pc.evaluate(model, bare).missing) == {"people", "outcome", "survival", "replicate"}


def test_permuted_codes_come_back_and_do_not_hold_together() -> None:
    sites = pc.datasets.planted_counts(1800, 40, 50, phenotypes=6, codes=(6, 8), sites=4, seed=0)
    real = pc.replicate(pc.SumALS(rank=8, rounds=20), sites)
    torn = pc.replicate(pc.SumALS(rank=8, rounds=20), permuted(sites))
    assert real.count >= 5
    assert torn.count == 0
    assert max(torn.table["halves"]) >= 0.8  # agreement alone would have called these true


def test_private_halves_are_not_called_replicable_without_a_paid_link_test() -> None:
    sites = pc.datasets.planted_counts(900, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    m = pc.DPEM(rank=3, rounds=3, privacy=pc.Privacy(2.0, 1e-5), aggregation="masked", planning_size=900)
    found = pc.replicate(m, sites)  # 900 patients are too few for it
    assert found.model.privacy_.epsilon == pytest.approx(2.0, rel=0.01)
    assert found.count == 0
    assert found.table["holds_together"] == [None] * len(found.table)
