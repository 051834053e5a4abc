"""Which method for which data, and the method of a study that names none."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError

FEATURES = np.random.default_rng(0).normal(size=(20, 3))


def test_data_decide_the_method() -> None:
    many = pc.datasets.planted_counts(patients=1000, seed=0)
    few = pc.datasets.planted_counts(patients=999, seed=0)
    courses = pc.datasets.planted_courses(patients=60, codes=20, phenotypes=2, seed=0)
    cells = pc.SparseTensor([[0, 0, 0], [1, 1, 1]], [1.0, 1.0], (2, 2, 2), [None, "diagnosis", "time"])
    found = [
        pc.recommend(many),
        pc.recommend(few),
        pc.recommend(many, privacy=pc.Privacy(epsilon=1.0)),
        pc.recommend(courses),
        pc.recommend(cells),
        pc.recommend([pc.Site("a", features=FEATURES)]),
        pc.recommend([pc.Site("a", features=FEATURES, labels=np.arange(20) % 2)]),
    ]
    names = ["Topics", "DPEM", "DPEM", "PARAFAC2", "TRIP", "GaussianMixture", "UnPSL"]
    assert [f.method for f in found] == names
    assert all(hasattr(pc, f.method) and f.reason for f in found)


def test_a_study_of_codes_without_a_name_takes_topics_and_with_privacy_dpem() -> None:
    asked = {
        "study": {"name": "a"},
        "tensor": {"modes": ["drug", "diagnosis"]},
        "method": {"rank": 4, "aggregation": "masked"},
    }
    assert pc.Study.parse(asked).chosen().name == "topics"
    assert pc.Study.parse({**asked, "privacy": {"epsilon": 1.0}}).chosen().name == "dpem"
    named = {**asked, "method": {"name": "trip", "aggregation": "masked"}}
    assert pc.Study.parse(named).chosen().name == "trip"


def test_a_study_of_features_must_name_its_method() -> None:
    with pytest.raises(ConfigError, match=r"method\.name"):
        pc.Study.parse({"study": {"name": "a"}, "features": {"columns": ["age"]}, "method": {"aggregation": "masked"}})
