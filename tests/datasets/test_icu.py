"""The ICU network keeps what its truth says."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import polyclinic as pc
from polyclinic.datasets.icu import _axes, _table
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites


@pytest.fixture(scope="module")
def units() -> Sites:
    return pc.datasets.icu_network(patients=3000, seed=0)


def test_six_units_of_unequal_size_share_public_axes(units: Sites) -> None:
    assert [s.name for s in units] == ["TSICU", "SICU", "MICU", "CSRU", "CCU", "NICU"]
    assert sum(s.patients for s in units) == 3000
    assert len({s.patients for s in units}) >= 4
    assert {s.tensor.axes[1:] for s in units} == {units.truth.axes}  # type: ignore[union-attr]
    assert all(a.vocabulary == "public" for a in units.truth.axes)
    assert units.truth.axes[1].describe(units.truth.axes[1].labels.index("428.0")) == "congestive heart failure"


def test_newborn_phenotypes_only_at_nicu_and_adult_ones_absent_there(units: Sites) -> None:
    truth = units.truth
    nicu = list(truth.memberships).index("NICU")
    only_there = truth.prevalence[nicu] & (truth.prevalence.sum(0) == 1)
    assert only_there.sum() >= 1
    assert (~truth.prevalence[nicu]).sum() >= 2
    for k, site in enumerate(units):
        carried = truth.memberships[site.name].sum(0) > 0
        assert np.array_equal(carried, truth.prevalence[k]), site.name
    # the counts agree: codes of the newborn phenotypes alone are (almost) unseen elsewhere
    support = truth.factors[1] > 0
    newborn = support[:, only_there].any(1) & ~support[:, ~only_there].any(1)

    def share(site: pc.Site) -> float:
        assert site.tensor is not None
        return float(site.tensor.values[newborn[site.tensor.codes[1]]].sum() / site.tensor.values.sum())

    assert share(units[nicu]) > 0.5
    assert max(share(s) for k, s in enumerate(units) if k != nicu) < 0.05


def test_truth_columns_have_length_one_and_counts_follow_them(units: Sites) -> None:
    truth = units.truth
    for factor, axis in zip(truth.factors, truth.axes):
        assert factor.shape == (len(axis.labels), truth.rank)
        assert np.allclose(np.linalg.norm(factor, axis=0), 1)
        assert (factor >= 0).all()
    # expected marginal of the diagnoses against what was drawn
    members = np.concatenate([truth.memberships[s.name] for s in units])
    simplex = truth.factors[1] / truth.factors[1].sum(0)
    expected = simplex @ members.sum(0)
    drawn = np.sum([np.bincount(s.tensor.codes[1], s.tensor.values, len(expected)) for s in units], axis=0)  # type: ignore[union-attr]
    planted = expected > 200
    ratio = drawn[planted] / expected[planted]
    assert planted.sum() > 50
    assert ratio.min() > 0.9  # nothing planted is missing
    assert np.median(ratio) < 1.25  # background adds a little


def test_background_share_and_events_are_as_asked() -> None:
    net = pc.datasets.icu_network(patients=2000, seed=3, events=40.0, background=0.3)
    total = sum(s.tensor.values.sum() for s in net)  # type: ignore[union-attr]
    planted = sum(m.sum() for m in net.truth.memberships.values())
    assert total / 2000 == pytest.approx(40, rel=0.05)
    assert 1 - planted / total == pytest.approx(0.3, abs=0.02)


def test_mortality_is_predictable_from_true_risks(units: Sites) -> None:
    truth = units.truth
    risk = np.concatenate([truth.risks(s.name) for s in units])
    died = np.concatenate([s.labels for s in units])
    assert 0.75 <= truth.bayes_auc <= 0.87
    assert died.mean() == pytest.approx(risk.mean(), abs=0.02)
    assert risk.mean() == pytest.approx(0.12, abs=1e-6)
    assert roc_auc_score(died, risk) == pytest.approx(truth.bayes_auc, abs=0.04)


def test_same_seed_same_network_other_seed_other_network() -> None:
    one, two, other = (pc.datasets.icu_network(patients=200, seed=k) for k in (5, 5, 6))
    assert all(a.tensor == b.tensor and np.array_equal(a.labels, b.labels) for a, b in zip(one, two))  # type: ignore[arg-type]
    assert one[2].tensor != other[2].tensor


def test_own_vocabulary_lists_only_seen_codes_and_loses_no_count() -> None:
    shared = pc.datasets.icu_network(patients=400, seed=2)
    own = pc.datasets.icu_network(patients=400, seed=2, own_vocabulary=True)
    assert len({s.tensor.shape[1:] for s in own}) > 1  # type: ignore[union-attr]
    first = own[0].tensor
    assert first is not None
    assert len(np.unique(first.codes[1])) == first.shape[2]

    def by_label(site: pc.Site) -> dict[tuple[int, str, str], float]:
        t = site.tensor
        assert t is not None
        return {(int(i), t.axes[1].label(j), t.axes[2].label(k)): v for (i, j, k), v in zip(t.coords, t.values)}

    assert by_label(own[0]) == by_label(shared[0])


def test_fewer_phenotypes_keep_the_newborn_ones() -> None:
    truth = pc.datasets.icu_network(patients=100, phenotypes=5).truth
    assert truth.rank == 5
    assert truth.names[-2:] == ("prematurity with respiratory distress", "term newborn under observation")


def test_wrong_options_name_every_fault() -> None:
    with pytest.raises(ConfigError) as raised:
        pc.datasets.icu_network(events=-1, background=1.0, mortality=0)
    assert len(raised.value.faults) == 3
    with pytest.raises(ConfigError, match="ICU9"):
        pc.datasets.icu_network(sizes={"ICU9": 10})
    with pytest.raises(ConfigError, match="at least 60"):
        pc.datasets.icu_network(patients=10)


def test_every_planted_code_is_listed_once_with_a_name() -> None:
    for axis in _axes():
        assert len(set(axis.labels)) == len(axis.labels)  # type: ignore[arg-type]
        assert all(axis.names)  # type: ignore[arg-type]
        assert {c for p in _table() for c in p.codes[axis.name]} <= set(axis.labels)  # type: ignore[arg-type]


def test_codes_are_real_icd9cm(data_path: Callable[[str], Path]) -> None:
    folder = data_path("mimic3_demo")
    for axis, file in zip(_axes(), ("D_ICD_PROCEDURES", "D_ICD_DIAGNOSES")):
        with gzip.open(folder / f"{file}.csv.gz", "rt") as stream:
            known = {row["icd9_code"] for row in csv.DictReader(stream)}
        assert axis.labels is not None
        assert [c for c in axis.labels if c.replace(".", "") not in known] == []


def test_a_network_of_a_hundred_thousand_patients_has_that_many() -> None:
    net = pc.datasets.icu_network(patients=100_000, seed=1)
    assert sum(s.patients for s in net) == 100_000
