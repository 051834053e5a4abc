"""Judging a similarity: closed forms equal brute force, votes equal scikit-learn's, few errors are not shown."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.simulated.neighbours import neighbours
from polyclinic.methods.similarity.metric import explain


class _Metric:
    """A similarity that is given, not learned."""

    def __init__(self, components: np.ndarray) -> None:
        self.components_ = components
        self.n_features_in_ = components.shape[1]
        self.mean_, self.scale_, self.bias_ = np.zeros(self.n_features_in_), np.ones(self.n_features_in_), 1.0


def _sites(rng: np.random.Generator, gap: float, n: int = 60) -> list[pc.Site]:
    out = []
    for name in ("a", "b"):
        y = rng.integers(0, 2, n)
        out.append(pc.Site(name, features=rng.normal(size=(n, 3)) + gap * y[:, None] * [1, 0, 0], labels=y))
    return out


def test_mean_parts_equal_the_explanations_of_all_pairs(rng: np.random.Generator) -> None:
    model, sites = _Metric(rng.normal(size=(2, 3))), _sites(rng, 1.0, n=30)
    found = neighbours(model, sites, minimum=5)
    assert found is not None
    kinds: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for s in sites:
        for i in range(s.patients):
            for j in range(i):
                parts = explain(model, s.features[i], s.features[j]).contributions  # type: ignore[arg-type, index]
                kinds[bool(s.labels[i] == s.labels[j])].append(parts)  # type: ignore[index]
    assert np.allclose(found.same, np.mean(kinds[True], axis=0))
    assert np.allclose(found.different, np.mean(kinds[False], axis=0))


def test_votes_equal_leave_one_out_of_scikit_learn(rng: np.random.Generator) -> None:
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    sites = _sites(rng, 0.6)
    found = neighbours(_Metric(np.eye(3)), sites, k=5)
    assert found is not None
    right = sum(
        int((cross_val_predict(KNeighborsClassifier(5), s.features, s.labels, cv=LeaveOneOut()) == s.labels).sum())
        for s in sites
    )
    assert found.figures["accuracy"] == pytest.approx(right / found.patients)
    assert 0.5 < found.figures["pair_auc"] < 1


def test_few_wrong_votes_are_not_shown(rng: np.random.Generator) -> None:
    found = neighbours(_Metric(np.eye(3)), _sites(rng, 5.0))
    assert found is not None and set(found.figures) == {"pair_auc"} and "not shown" in found.note


def test_nothing_is_said_of_a_rare_class(rng: np.random.Generator) -> None:
    site = pc.Site("a", features=rng.normal(size=(80, 2)), labels=[1] * 15 + [0] * 65)
    assert neighbours(_Metric(np.eye(2)), [site]) is None
