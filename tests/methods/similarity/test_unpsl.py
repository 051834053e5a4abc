"""UnPSL, central: estimator, selection, degenerate input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.selection.folds import folds, knn_predict
from polyclinic.methods.similarity.selection.unpsl_cv import UnPSLCV
from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic_papers.baselines import GMML, ITML, LMNN, Cosine, Euclidean, LowRank
from polyclinic_papers.knn import halves
from polyclinic_papers.planted_similarity import unpsl_synthetic
from polyclinic_papers.samples import load_leukemia, load_parkinsons


def two_groups(n: int = 60, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, d))
    X[:, 0] += 3 * y
    return X, y


@pytest.mark.parametrize(
    "model",
    [UnPSL(), UnPSLCV(iterations=2, cv=2, repeats=1), Euclidean(), GMML()],
    ids=lambda m: type(m).__name__,
)
def test_it_is_a_scikit_learn_estimator(model: object) -> None:
    failed = [r for r in check_estimator(model, on_fail=None) if r["status"] == "failed"]
    assert not failed, [(r["check_name"], str(r["exception"])[:200]) for r in failed]


def test_the_metric_is_positive_semidefinite_and_agrees_with_similarity_and_transform() -> None:
    X, y = two_groups()
    u = UnPSL(iterations=20).fit(X, y)
    assert np.linalg.eigvalsh(u.metric_).min() > -1e-10
    Z = (X - u.mean_) / u.scale_
    np.testing.assert_allclose(u.similarity(X), Z @ u.metric_ @ Z.T, atol=1e-10)
    np.testing.assert_allclose(u.transform(X) @ u.transform(X).T, u.similarity(X), atol=1e-10)
    np.testing.assert_allclose(u.components_ @ u.components_.T, u.metric_, atol=1e-10)  # square: the symmetric root
    p = u.predict_proba_pairs(X[:3], X[3:6])
    np.testing.assert_allclose(p.sum(1), 1.0)
    assert ((p[:, 1] >= 0.5) == (u.predict_pairs(X[:3], X[3:6]) == 1)).all()
    assert 0 <= u.score_pairs(X[:3], X[3:6], [1, -1, 1]) <= 1


def test_the_informative_feature_is_found_and_the_others_dropped() -> None:
    X, y = two_groups(80, 6)
    u = UnPSL(l1=0.03, l2=0.01, penalty=3.0, iterations=300).fit(X, y)
    assert u.feature_weights_.argmax() == 0
    assert 0 in u.selected_features_
    assert len(u.selected_features_) < 6
    assert u.history_[-1]["primal_residual"] < 1e-2 * u.history_[0]["primal_residual"] + 1e-3


def test_iterations_lower_the_objective_and_more_starts_never_raise_it() -> None:
    X, y = two_groups()
    one = UnPSL(iterations=30, tol=0).fit(X, y)
    assert one.history_[-1]["objective"] < one.history_[0]["objective"]
    assert UnPSL(iterations=30, tol=0, n_starts=3).fit(X, y).objective_ <= one.objective_


def test_the_loss_does_not_scale_with_the_number_of_patients() -> None:
    X, y = two_groups(40)
    once = UnPSL(iterations=40).fit(X, y).feature_weights_
    twice = UnPSL(iterations=40).fit(np.vstack([X, X]), np.concatenate([y, y])).feature_weights_
    assert np.linalg.norm(once - twice) < 0.25 * np.linalg.norm(once)


def test_redundant_features_get_at_most_a_tenth_of_the_weight() -> None:
    data = unpsl_synthetic(20, 400, 0)
    rows = np.arange(200)
    pairs, y = data.pairs(rows)
    w = UnPSLCV(cv=3, repeats=1).fit_pairs(data.features[rows], pairs, y).feature_weights_
    assert w[data.redundant].sum() <= 0.1 * w.sum()


def test_few_features_are_those_that_matter_and_cost_little() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    X = rng.normal(size=(120, 12))
    X[:, :2] += 1.5 * y[:, None]
    X[:, 2] = X[:, 0] + 0.3 * rng.normal(size=120)  # tells what the first tells
    every, few = (UnPSLCV(prefer=p, cv=3, repeats=1).fit(X, y) for p in ("accuracy", "few"))
    assert len(few.selected_features_) <= 6 < len(every.selected_features_)
    assert {0, 1} & set(few.selected_features_) and few.best_score_ > every.best_score_ - 0.05
    assert any(r["features"] > len(few.selected_features_) for r in few.cv_results_)
    with pytest.raises(ConfigError, match=r"prefer: Input should be 'accuracy' or 'few' \(got 'many'\)"):
        UnPSLCV(prefer="many").fit(X, y)


def test_folds_find_two_features_among_noise() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(240, 12))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)  # neither feature alone tells anything
    m = UnPSLCV(cv=3, repeats=1).fit(X[:120], y[:120])
    assert np.mean(knn_predict(m.transform(X[:120]), y[:120], m.transform(X[120:]), k=3) == y[120:]) > 0.75
    assert set(np.argsort(m.feature_weights_)[-2:]) == {0, 1}
    named = UnPSLCV(l1s=(1e-3,), iterations=3, cv=2, repeats=1).fit(
        X[:120], y[:120]
    )  # what a person names is tried, and nothing else
    assert {r["l1"] for r in named.cv_results_} == {1e-3} and len(m.cv_results_) > len(named.cv_results_)
    with pytest.raises(ConfigError, match=r"l1s: Input should be a valid tuple \(got 0\.1\)") as wrong:
        UnPSLCV(l1s=0.1).fit(X, y)
    assert wrong.value.faults
    with pytest.raises(ConfigError, match=r"k: Input should be a valid integer.*\(got 'a'\)"):
        UnPSLCV(k="a").fit(X, y)


def test_a_metric_without_features_warns() -> None:
    X, y = two_groups()
    with pytest.warns(UserWarning, match="no feature is left"):
        UnPSL(l1=10.0).fit(X, y)


def test_constant_features_are_not_selected() -> None:
    X, y = two_groups()
    for model in (UnPSL(), UnPSLCV(iterations=2, cv=2, repeats=1), Euclidean()):
        model.fit(np.column_stack([X, np.ones(len(X))]), y)
        assert model.feature_weights_[-1] == 0.0 and X.shape[1] not in model.selected_features_


@pytest.mark.parametrize("y", [[0, 1], [1], [[1], [-1]], [True, False]])
def test_judgements_that_are_none_are_refused(y: object) -> None:
    X, labels = two_groups()
    u = UnPSL().fit(X, labels)
    with pytest.raises(DataError, match=r"judgements must be 2 values \+1"):
        u.score_pairs(X[:2], X[2:4], y)  # type: ignore[arg-type]


def test_explanations_go_by_the_names_of_features() -> None:
    pd = pytest.importorskip("pandas")
    X, y = two_groups()
    frame = pd.DataFrame(X, columns=[f"f{k}" for k in range(X.shape[1])])
    u = UnPSL().fit(frame, y)
    turned = frame[frame.columns[::-1]]
    there, back = u.explain(frame.iloc[0], frame.iloc[1]), u.explain(turned.iloc[0], turned.iloc[1])
    assert there.table() == back.table() and there.names[0] == "f0"
    with pytest.raises(DataError, match="not those") as wrong:
        u.explain(frame.rename(columns={"f0": "age"}).iloc[0], frame.iloc[1])
    assert wrong.value.faults == ("missing: f0", "unknown: age")
    with pytest.raises(DataError, match="not finite: f1"):
        u.explain(frame.iloc[0].where(frame.columns != "f1"), frame.iloc[1])
    with pytest.raises(DataError, match="a patient has 2 features"):
        u.explain([1.0, 2.0], X[0])


@pytest.mark.paper
def test_synthetic_pairs_are_called_better_than_in_the_paper() -> None:
    data = unpsl_synthetic(20, 400, 3, variant="paper")
    train, test = np.arange(200), np.arange(200, 400)
    pairs, y = data.pairs(train)
    held, truth = data.pairs(test)
    u = UnPSL(l1=1e-4, l2=1e-4, start_scale=3.0, penalty=0.2, iterations=20, tol=0, standardize="scale")
    u.fit_pairs(data.features[train], pairs, y)
    X = data.features[test]
    assert u.score_pairs(X[held[:, 0]], X[held[:, 1]], truth) > 0.9464


def test_the_printed_variant_is_kept() -> None:
    X, y = two_groups(30, 3)
    u = UnPSL(variant="paper", iterations=10).fit(X, y)
    assert u.metric_.shape == (3, 3)
    with pytest.raises(ConfigError, match="square"):
        UnPSL(variant="paper", rank=2).fit(X, y)


def test_thousands_of_genes_fit_without_a_square_matrix(data_path: Callable[[str], Path]) -> None:
    X, y, _, _ = load_leukemia(data_path("leukemia_golub1999"), split="train")
    u = UnPSL(iterations=5).fit(X, y)
    assert u.components_.shape == (37, X.shape[1])
    assert u.transform(X).shape == (38, 37)


def test_constant_features_never_count_and_duplicates_are_fine() -> None:
    X, y = two_groups(20, 3)
    X[:, 1] = 7.0
    u = UnPSL(iterations=10).fit(np.vstack([X, X]), np.concatenate([y, y]))
    assert np.isfinite(u.similarity(X)).all()
    far = X.copy()
    far[:, 1] = 1e6
    np.testing.assert_allclose(u.similarity(far), u.similarity(X))


def test_features_that_are_all_constant_are_refused() -> None:
    for model in (UnPSL(), UnPSLCV(cv=2)):
        with pytest.raises(DataError, match="nothing distinguishes them"):
            model.fit(np.ones((12, 2)), np.arange(12) % 2)


@pytest.mark.parametrize("by", ["sample", "subject"])
def test_parkinsons_neighbours_are_better_than_euclidean_ones(by: str, data_path: Callable[[str], Path]) -> None:
    """Splits that no setting was chosen on; the mean of 12."""
    X, y, subjects, _ = load_parkinsons(data_path("parkinsons"))
    right: dict[str, list[float]] = {}
    for train, test in halves(subjects, by=by, train=98, repeats=12, seed=77):  # type: ignore[arg-type]
        for model in (UnPSL(), UnPSL(compare="distance", reach="near"), Euclidean()):
            A = model.fit(X[train], y[train]).transform(X[train])
            called = knn_predict(A, y[train], model.transform(X[test]), k=3)
            right.setdefault(str(model), []).append(float(np.mean(called == y[test])))
    plain, near, euclidean = (float(np.mean(v)) for v in right.values())
    assert min(plain, near) > euclidean


def test_distances_and_neighbours_are_calibrated_for_pairs() -> None:
    X, y = two_groups(80)
    i, j = np.triu_indices(80, 1)
    same = np.where(y[i] == y[j], 1, -1)
    for model in (UnPSL(compare="distance"), UnPSL(reach="near"), UnPSLCV(k=5, iterations=5, cv=2, repeats=1)):
        model.fit(X, y)
        assert model.score_pairs(X[i], X[j], same) > 0.7
        assert np.linalg.eigvalsh(model.metric_).min() > -1e-9


def test_settings_that_cannot_be_told_apart_are_averaged() -> None:
    X, y = two_groups(40, 3)
    many = UnPSLCV(iterations=3).fit(X, y)
    one = UnPSLCV(iterations=3, blend=False).fit(X, y)
    assert len(many.members_) > len(one.members_) == 1
    assert many.best_params_ == one.best_params_
    alone = UnPSL(tol=0, **one.best_params_).fit(X, y)
    np.testing.assert_allclose(alone.metric_, one.metric_, rtol=1e-8)


@pytest.mark.parametrize(
    ("X", "y", "word"),
    [
        ([[1.0], [2.0]], [1, 1], "two classes"),
        ([[1.0], [np.nan]], [0, 1], "NaN"),
        ([[1.0]], [0], "minimum of 2"),
        ([[1.0], [2.0]], [0, 1], "class of its own"),
    ],
)
def test_unusable_patients_are_refused_with_the_reason(X: list[list[float]], y: list[int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        UnPSL().fit(X, y)


def test_all_wrong_parameters_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        UnPSL(l1=-1, penalty=0, weighting="x", rank=1.5, l2="a").fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    assert len(e.value.faults) == 5


def test_pairs_judged_all_alike_are_refused() -> None:
    with pytest.raises(DataError, match="alike"):
        UnPSL().fit_pairs(np.eye(3), [[0, 1], [1, 2]], [1, 1])


def test_cross_validation_holds_persons_out_together() -> None:
    X, y = two_groups(60)
    who = np.arange(60) // 6
    m = UnPSLCV(l2s=(1e-3,), start_scales=(1.0, 2.0), reaches=("all",), iterations=4, cv=3, repeats=1)
    for train, test in folds(who, y, cv=3, repeats=2, seed=0):
        assert not set(who[train]) & set(who[test])
    assert m.fit(X, y, groups=who).best_params_["iterations"] <= 4
    assert len(m.cv_results_) == 2


@pytest.mark.parametrize("model", [Euclidean(), Cosine(), GMML(), LowRank(), LMNN(), ITML(constraints=100)])
def test_baselines_share_the_interface(model: object) -> None:
    pytest.importorskip("metric_learn")
    X, y = two_groups(40, 3)
    model.fit(X, y)  # type: ignore[attr-defined]
    s = model.similarity(X)  # type: ignore[attr-defined]
    assert s.shape == (40, 40)
    same = (y[:, None] == y[None, :])[np.triu_indices(40, 1)]
    assert np.mean((s >= model.bias_)[np.triu_indices(40, 1)] == same) >= max(same.mean(), 1 - same.mean())  # type: ignore[attr-defined]


def test_explanations_add_up_and_name_the_feature() -> None:
    X, y = two_groups()
    u = UnPSL(iterations=20).fit(X, y)
    e = u.explain(X[1], X[3])
    assert e.contributions.sum() == pytest.approx(u.similarity(X[1:2], X[3:4])[0, 0])
    assert e.table(1)[0]["feature"] == f"x{np.abs(e.contributions).argmax()}"
    assert e.contributions.sum() == pytest.approx(e.similarity)
    np.testing.assert_allclose(u.explain(X[3], X[1]).contributions, e.contributions)
