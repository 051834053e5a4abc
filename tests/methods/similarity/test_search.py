"""Search across hospitals: rounded answers that owners allowed, for the outcome that was asked, and no patient in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.methods.similarity.search import search
from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic.privacy.policy.policy import Policy
from polyclinic.records.sites.site import Site

YES = Policy(sums=("gather",))
PROFILE = [2.0, 0.0, 0.0, 0.0, 0.0]


def hospitals(n: int = 300, seed: int = 0) -> list[Site]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 5))
    X[:, 0] += 2 * y
    return [Site(f"h{k}", features=X[k::3], labels=y[k::3]) for k in range(3)]


@pytest.fixture(scope="module")
def metric() -> UnPSL:
    sites = hospitals(600, seed=1)
    return UnPSL(iterations=20).fit(
        np.concatenate([s.matrix() for s in sites]), np.concatenate([s.labels for s in sites])
    )


def open_to_all(sites: list[Site]) -> Mapping[str, Policy]:
    return {s.name: YES for s in sites}


def alike(metric: UnPSL, X: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Similarities to a profile as a hospital computes them."""
    z = np.rint((query - metric.mean_) / metric.scale_ * 4) / 4
    return ((X - metric.mean_) / metric.scale_) @ metric.metric_ @ z


def test_counts_are_multiples_of_the_smallest_cell_and_close_to_the_truth(metric: UnPSL) -> None:
    sites = hospitals(3000)
    for cell, step in ((2, 5), (11, 11), (20, 20)):
        rules = {s.name: Policy(sums=("gather",), min_cell=1) for s in sites}
        for site, a in zip(sites, search(metric, sites, PROFILE, threshold=0.0, policies=rules, min_cell=cell)):
            similar = alike(metric, site.matrix(), np.array(PROFILE)) >= 0
            share = float(np.mean(np.asarray(site.labels)[similar] == 1))
            assert a.similar is not None
            assert a.outcome_share is not None
            assert a.similar % step == 0
            assert abs(a.similar - similar.sum()) < 2 * step
            assert abs(a.outcome_share - share) < 2 * step / similar.sum()


def test_few_patients_are_not_told_and_nobody_reads_like_few(metric: UnPSL) -> None:
    sites = [s.take(np.arange(12)) for s in hospitals()]
    rules = open_to_all(sites)
    few, nobody = (search(metric, sites, PROFILE, threshold=t, policies=rules) for t in (0.0, 50.0))
    assert all(a.similar is None and a.outcome_share is None and "fewer than 11" in a.note for a in (*few, *nobody))
    one_class = [Site(s.name, features=s.matrix(), labels=np.zeros(s.patients, int)) for s in hospitals()]
    for a in search(metric, one_class, PROFILE, threshold=0.0, policies=rules):
        assert a.similar is not None
        assert a.outcome_share is None


@pytest.mark.parametrize(("well", "ill"), [("well", "ill"), (1, 2), (0, 1), (False, True)])
def test_the_outcome_is_the_class_that_was_asked_for(metric: UnPSL, well: Any, ill: Any) -> None:
    sites = hospitals(3000)
    named = [Site(s.name, features=s.matrix(), labels=np.where(np.asarray(s.labels) == 1, ill, well)) for s in sites]
    rules = open_to_all(sites)
    told = search(metric, named, PROFILE, threshold=0.0, policies=rules, outcome=ill)
    assert told == search(metric, sites, PROFILE, threshold=0.0, policies=rules)
    assert all(a.outcome_share is not None and a.outcome_share > 0.5 for a in told)
    if ill in ("ill", 2):
        with pytest.raises(ConfigError, match="whose share"):
            search(metric, named, PROFILE, threshold=0.0, policies=rules)
    with pytest.raises(ConfigError, match="no class"):
        search(metric, named, PROFILE, threshold=0.0, policies=rules, outcome="sick")


def test_three_classes_need_an_outcome_and_no_classes_need_none(metric: UnPSL) -> None:
    sites = hospitals(900)
    three = [Site(s.name, features=s.matrix(), labels=np.arange(s.patients) % 3) for s in sites]
    with pytest.raises(ConfigError, match="whose share"):
        search(metric, three, PROFILE, threshold=0.0, policies=open_to_all(sites))
    bare = [Site(s.name, features=s.matrix()) for s in sites]
    found = search(metric, bare, PROFILE, threshold=0.0, policies=open_to_all(sites))
    assert all(a.similar and a.outcome_share is None for a in found)


def test_no_policy_is_the_default_policy_and_a_misspelt_name_is_an_error(metric: UnPSL) -> None:
    sites = hospitals()
    with pytest.raises(PolicyRefusal, match="gather") as e:
        search(metric, sites, PROFILE, threshold=0.0)
    assert all(s.name in str(e.value) for s in sites)
    with pytest.raises(PolicyRefusal, match="'h2': the default policy"):
        search(metric, sites, PROFILE, threshold=0.0, policies={"h0": YES, "h1": YES})
    with pytest.raises(ConfigError, match="'H1'"):
        search(metric, sites, PROFILE, threshold=0.0, policies={**open_to_all(sites), "H1": Policy()})


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (Policy(sums=("gather",), min_patients=1000), "fewer than 1000 patients"),
        (Policy(sums=("gather",), min_sites=4), "at least 4"),
        (Policy(sums=("gather",), methods=("unpsl",)), "prototype-search"),
        (Policy(sums=("gather",), max_epsilon_total=1.0), "patient-level bound"),
        (Policy(), "gather"),
    ],
)
def test_an_owners_rules_hold(metric: UnPSL, rule: Policy, word: str) -> None:
    sites = hospitals()
    with pytest.raises(PolicyRefusal, match=word):
        search(metric, sites, PROFILE, threshold=0.0, policies={**open_to_all(sites), "h1": rule})


def test_a_patients_row_is_no_query_unless_both_sides_allow_it(metric: UnPSL) -> None:
    sites = hospitals()
    row = sites[1].matrix()[0]
    everybody = open_to_all(sites)
    for consent, rules in ((False, everybody), (True, None), (True, {**everybody, "h1": Policy()})):
        with pytest.raises(PolicyRefusal, match="patient"):
            search(metric, sites, row, kind="patient", allow_patient_query=consent, policies=rules)
    assert len(search(metric, sites, row, kind="patient", allow_patient_query=True, policies=everybody)) == 3


def test_hospitals_columns_are_put_in_the_metrics_order() -> None:
    sites = hospitals(900)
    frames = {s.name: pd.DataFrame(s.matrix(), columns=list("abcde")) for s in sites}
    named = UnPSL(iterations=20).fit(pd.concat(frames.values()), np.concatenate([s.labels for s in sites]))
    turned = [Site(s.name, features=frames[s.name][list("edcba")], labels=s.labels) for s in sites]
    rules = open_to_all(sites)
    assert search(named, turned, PROFILE, threshold=0.0, policies=rules) == search(
        named, sites, PROFILE, threshold=0.0, policies=rules
    )


def test_profiles_and_thresholds_cannot_be_moved_a_little(metric: UnPSL) -> None:
    sites = hospitals(900)
    rules = open_to_all(sites)
    first = search(metric, sites, PROFILE, threshold=0.3, policies=rules)
    assert first == search(metric, sites, PROFILE, threshold=0.3, policies=rules)  # nothing to average
    assert first == search(metric, sites, np.array(PROFILE) * 1.001, threshold=0.3, policies=rules)
    with pytest.raises(ConfigError, match="tenths"):
        search(metric, sites, PROFILE, threshold=0.31, policies=rules)
    with pytest.raises(DataError, match="lacks 1"):
        search(metric, sites, [np.nan, 0, 0, 0, 0], threshold=0.3, policies=rules)


def isolating(metric: UnPSL, X: np.ndarray) -> Iterator[tuple[int, np.ndarray, float, float]]:
    """Pairs of permitted searches that differ in exactly one patient: patient, profile, lower and upper threshold."""
    rng = np.random.default_rng(5)
    seen: set[int] = set()
    for _ in range(300):
        z = np.rint(rng.normal(size=5) * 4) / 4
        query = metric.mean_ + metric.scale_ * z
        s = alike(metric, X, query)
        for t in np.arange(-30, 31) / 10:
            between = np.flatnonzero((s >= t) & (s < t + 0.1 - 1e-12))
            if len(between) == 1 and between[0] not in seen and (s >= t).sum() > 40:
                seen.add(int(between[0]))
                yield int(between[0]), query, float(t), float(np.rint((t + 0.1) * 10) / 10)


def test_differencing_two_searches_does_not_give_a_patients_outcome(metric: UnPSL) -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(150, 5)), rng.integers(0, 2, 150)  # the outcome has nothing to do with the features
    site = Site("h", features=X, labels=y)
    exact, guessed, one_sided = [], [], []
    for i, query, low, high in isolating(metric, X):
        s = alike(metric, X, query)
        exact.append(int(y[s >= low].sum() - y[s >= high].sum()) == y[i])  # what exact answers would have told
        a, b = (search(metric, [site], query, threshold=t, policies={"h": YES})[0] for t in (low, high))
        assert a.similar is not None
        assert b.similar is not None
        assert (a.similar - b.similar) % 11 == 0
        if a.outcome_share is None or b.outcome_share is None:
            continue
        ill = round(a.outcome_share * a.similar - b.outcome_share * b.similar)
        well = a.similar - b.similar - ill
        if ill != well:
            guessed.append((ill > well) == (y[i] == 1))
        if (ill == 0) != (well == 0):  # one count moved, the other stayed: the patient must be in the one that moved?
            one_sided.append((ill != 0) == (y[i] == 1))
    assert len(exact) > 80
    assert all(exact)  # the attack is a real one
    for found in (guessed, one_sided):  # and now no better than a coin
        assert len(found) > 30
        assert np.mean(found) < 0.5 + 2 * 0.5 / np.sqrt(len(found))
