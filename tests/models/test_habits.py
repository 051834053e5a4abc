"""Estimators feel at home in Python: scikit-learn's habits, parameters as attributes, errors that help."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted
from tests.models.conftest import MAKERS, TABLES, TENSORS

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.sites.site import pooled

OURS = [
    n
    for n in sorted(MAKERS)
    if n != "TRIP masked" and n.split()[0] not in ("UnPSL", "UnPSLCV", "Euclidean", "Cosine", "GMML", "LowRank")
]


@pytest.mark.parametrize("name", OURS)
def test_clone_tags_fit_transform_and_names(name: str, fitted: Any) -> None:
    m = fitted(name)
    copy = clone(m)
    assert copy.get_params() == m.get_params()
    assert "result_" not in vars(copy)
    check_is_fitted(m)
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(copy)
    tags = m.__sklearn_tags__()
    phenotypes = m.result_.kind == "phenotypes"
    assert tags.input_tags.two_d_array is not phenotypes
    assert tags.target_tags.required is False
    one: Any = pooled(TENSORS).counts() if phenotypes else pooled(TABLES).matrix()
    made = copy.fit_transform(one, None)
    assert made.shape == (len(one), copy.result_.rank)
    assert list(copy.get_feature_names_out()) == [f"{type(m).__name__.lower()}{r}" for r in range(copy.result_.rank)]
    frame = copy.set_output(transform="pandas").transform(one)
    assert list(frame.columns) == list(copy.get_feature_names_out())
    np.testing.assert_array_equal(frame.to_numpy(), pickle.loads(pickle.dumps(copy.result_)).transform(one))
    assert type(copy).fit is not None
    assert "y" in inspect.signature(copy.fit).parameters


def test_score_is_a_float_and_quality_the_dictionary(fitted: Any) -> None:
    for name in ("TRIP", "DPEM", "CPALS"):
        m = fitted(name)
        assert isinstance(m.score(TENSORS), float)
        assert m.score(TENSORS, None) == m.quality(TENSORS)["fit"]
        assert set(m.quality(TENSORS)) == {"rmse_observed", "rmse_full", "fit"}
    g = fitted("GaussianMixture")
    assert g.quality(TABLES)["log_likelihood"] == g.score(TABLES)


def test_a_tensor_is_an_x() -> None:
    net = pc.datasets.icu_network(patients=400, seed=0)
    one = pooled(pc.align(net))
    x, y = one.counts(), np.asarray(one.labels)
    assert len(x) == 400
    assert x[10:20] == x.take(np.arange(10, 20)) == x[np.arange(400) // 10 == 1] == x[list(range(10, 20))]
    assert x[[-1]] == x.take([399])
    for wrong in ((0, 1), 3, np.ones(3, bool)):
        with pytest.raises(IndexError):
            x[wrong]
    steps = make_pipeline(pc.CPALS(rank=6, rounds=20), FunctionTransformer(np.log1p), LogisticRegression(max_iter=500))
    assert cross_val_score(steps, x, y, cv=3, scoring="roc_auc").mean() > 0.55
    search = GridSearchCV(pc.CPALS(rounds=5), {"rank": [2, 6]}, cv=3).fit(x)
    assert search.best_params_ == {"rank": 6}
    inside = GridSearchCV(steps, {"cpals__rank": [2, 4]}, cv=3, scoring="roc_auc").fit(x, y)
    assert set(inside.best_params_) == {"cpals__rank"}
    federated = make_pipeline(pc.TRIP(rank=3, rounds=3), LogisticRegression(max_iter=500))
    assert federated.fit(x, y).predict_proba(x).shape == (400, 2)


def test_a_federation_in_a_pipeline_is_refused_with_the_reason() -> None:
    y = np.concatenate([np.asarray(s.labels) for s in TENSORS])
    for method in (pc.TRIP(rank=2, rounds=2), pc.CPALS(rank=2, rounds=2)):
        with pytest.raises(ConfigError, match=r"a federation is fitted, never passed on.*[\s\S]*pc\.evaluate"):
            make_pipeline(method, LogisticRegression()).fit(TENSORS, y)


def test_features_of_one_hospital_are_a_matrix() -> None:
    x = TABLES[0].matrix()
    steps = make_pipeline(
        pc.Standardizer(), pc.FederatedPCA(n_components=2), pc.GaussianMixture(n_components=2, rounds=3)
    )
    assert steps.fit(x).predict(x).shape == (len(x),)


def test_a_parameter_is_an_attribute_that_is_checked() -> None:
    m = pc.TRIP(rank=4)
    m.rank = 5
    assert (m.rank, m.params.rank) == (5, 5)
    with pytest.raises(ConfigError, match=r"rank"):
        m.rank = 0
    assert m.rank == 5
    assert m.fit(TENSORS).result_.rank == 5
    assert {"rank", "seed", "result_", "fit", "transform"} <= set(dir(m))
    assert not {"combine", "contribute", "begin"} & set(dir(m))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"rnak": 3}, "did you mean 'rank'"), ({"rank": "twelve"}, "rank"), ({"nonsense": 1}, "known: aggregation")],
)
def test_wrong_parameters_are_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        pc.TRIP(**wrong)


def test_what_cannot_be_fitted_is_told() -> None:
    for data in (3, "sites", [3], None):
        with pytest.raises(DataError, match=r"sites must be a list of pc\.Site, or one hospital's patients"):
            pc.TRIP(rank=2).fit(data)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r'\[pc.Site\("north", tensor\)'):
        pc.TRIP(rank=2).fit([TENSORS[0].counts()])  # type: ignore[list-item]
    with pytest.raises(DataError, match="no sites given"):
        pc.TRIP(rank=2).fit([])
    with pytest.raises(ConfigError, match="set_output"):
        pc.TRIP().set_output(transform="excel")  # type: ignore[arg-type]


def test_one_hospital_given_as_a_tensor_a_site_or_a_list_is_one_model() -> None:
    site = example_sites("tensor")[2]
    made = [pc.TRIP(rank=2, rounds=3).fit(x) for x in (pc.Site("local", site.counts()), site.counts())]
    assert made[0].result_ == made[1].result_
    assert made[1].memberships_["local"].shape == (site.patients, 2)
