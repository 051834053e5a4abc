"""What a site and its neighbours refuse at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "a\\b", "a\nb", "x" * 101])
def test_a_name_that_is_no_folder_name_is_refused(name: Any) -> None:
    with pytest.raises(DataError, match="folders are named after sites"):
        pc.Site(name, features=[[1.0]])


def test_unknown_labels_stay_with_their_patients() -> None:
    site = pc.Site("a", features=[[1.0], [2.0], [3.0]], labels=[0.0, np.nan, 1.0])
    assert np.isnan(site.take([1]).labels).all() and site.take([0, 2]).labels.tolist() == [0.0, 1.0]  # type: ignore[arg-type, union-attr]
    with pytest.raises(DataError, match="1 are infinite; unknown is NaN"):
        pc.Site("a", features=[[1.0], [2.0]], labels=[0.0, np.inf])


def test_two_sites_of_one_name_are_not_aligned() -> None:
    a = pc.Site("a", pc.SparseTensor([[0, 0, 0]], [1.0], (1, 1, 1), axes=[["x"], ["p"]]))
    with pytest.raises(DataError, match="two sites have one name"):
        pc.align([a, a])


def test_factors_with_nan_are_not_scored() -> None:
    with pytest.raises(DataError, match="NaN"):
        pc.metrics.factor_match_score([np.full((2, 1), np.nan)], [np.ones((2, 1))])


def test_a_table_names_its_columns_when_asked_for_another() -> None:
    model = pc.CPALS(rank=2, rounds=2, seed=0).fit(pc.datasets.icu_network(patients=100, seed=0))
    with pytest.raises(KeyError, match="phenotype"):
        model.phenotypes_.where(foo=1)


def test_a_parameter_reads_like_an_attribute() -> None:
    model = pc.TRIP(rank=3)
    assert (model.rank, model.rounds) == (3, 100)
    assert not hasattr(model, "rankk")


def test_a_wrong_parameter_is_one_fault() -> None:
    with pytest.raises(ConfigError) as e:
        pc.LocalTF(rank=2, learning_rate="fast")  # type: ignore[arg-type]
    assert sum(f.startswith("learning_rate") for f in e.value.faults) == 1


@pytest.mark.parametrize("what", [3, pc.TRIP])
def test_only_a_method_can_be_checked(what: Any) -> None:
    with pytest.raises(ConfigError, match="needs a method"):
        pc.check_protocol(what)
