"""The loss of pairs: value, gradient, tiles, weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyclinic.errors import DataError
from polyclinic.methods.similarity import pairs as module
from polyclinic.methods.similarity.admm import Problem, State, iterate
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, near_pairs, pair_loss
from polyclinic.methods.similarity.redundancy import Redundancy, row_norms, row_shrink, shrink_norms, speak_once


def by_hand(A: np.ndarray, y: np.ndarray, bias: float) -> float:
    total, count = 0.0, 0
    for i in range(len(A)):
        for j in range(i + 1, len(A)):
            sign = 1.0 if y[i] == y[j] else -1.0
            total += np.log1p(np.exp(-sign * (A[i] @ A[j] - bias)))
            count += 1
    return total / count


def test_the_loss_is_the_mean_over_pairs_i_below_j() -> None:
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(9, 3)), rng.integers(0, 3, 9)
    assert pair_loss(A, LabelPairs.of(y), 0.7)[0] == pytest.approx(by_hand(A, y, 0.7), rel=1e-12)


@pytest.mark.parametrize("weighting", ["mean", "balanced", "sum"])
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("distance", [False, True])
def test_the_gradient_agrees_with_finite_differences(weighting: str, literal: bool, distance: bool) -> None:
    rng = np.random.default_rng(1)
    X, y, W = rng.normal(size=(12, 4)), rng.integers(0, 2, 12), rng.normal(size=(4, 4))
    pairs = LabelPairs.of(y, weighting=weighting)  # type: ignore[arg-type]
    problem = Problem(X, pairs, 1.0, Redundancy.of_patients(X), 0.0, 0.0, literal=literal, distance=distance)
    _, G = problem.loss(W)
    for k, l in ((0, 0), (2, 1), (3, 3)):
        E = np.zeros_like(W)
        E[k, l] = 1e-6
        slope = (problem.loss(W + E)[0] - problem.loss(W - E)[0]) / 2e-6
        assert G[k, l] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("distance", [False, True])
def test_tiles_and_listed_pairs_give_the_same_loss_and_gradient(
    distance: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    A, y, g = rng.normal(size=(53, 5)), rng.integers(0, 3, 53), rng.integers(0, 2, 53)
    whole = pair_loss(A, LabelPairs.of(y, groups=g), 1.0, distance=distance)
    monkeypatch.setattr(module, "TILE", 7)
    tiled = pair_loss(A, LabelPairs.of(y, groups=g), 1.0, distance=distance)
    monkeypatch.setattr(module, "PURE_CLASSES", 1)  # as with many classes: tiles of mixed pairs
    mixed = pair_loss(A, LabelPairs.of(y, groups=g), 1.0, distance=distance)
    i, j = np.triu_indices(53, 1)
    keep = g[i] == g[j]
    sign = np.where(y[i] == y[j], 1, -1)[keep]
    judged = ListedPairs.of(np.column_stack([i, j])[keep], sign, patients=53)
    listed = pair_loss(A, judged, 1.0, distance=distance)
    monkeypatch.setattr(module, "DENSE_PATIENTS", 0)
    sparse = pair_loss(A, judged, 1.0, distance=distance)
    for other in (tiled, mixed, listed, sparse):
        assert other[0] == pytest.approx(whole[0], rel=1e-12)
        np.testing.assert_allclose(other[1], whole[1], atol=1e-14)


def test_near_pairs_are_the_nearest_of_either_kind() -> None:
    rng = np.random.default_rng(6)
    Z, y = rng.normal(size=(25, 3)), rng.integers(0, 2, 25)
    near = near_pairs(Z, y)
    have = {(int(i), int(j)) for i, j in zip(near.left, near.right)}
    gap = ((Z[:, None] - Z[None]) ** 2).sum(-1)
    wanted = set()
    for i in range(25):
        for kind in (y == y[i], y != y[i]):
            others = [j for j in np.argsort(gap[i]) if kind[j] and j != i][:5]
            wanted |= {(min(i, int(j)), max(i, int(j))) for j in others}
    assert have == wanted
    assert all((y[i] == y[j]) == (s > 0) for i, j, s in zip(near.left, near.right, near.sign))
    assert near.weight.sum() == pytest.approx(1.0)


def test_more_features_than_patients_give_the_same_step_in_their_span() -> None:
    rng = np.random.default_rng(8)
    X, y, W = rng.normal(size=(9, 30)), np.arange(9) % 2, rng.normal(size=(30, 4))
    span = np.linalg.svd(X, full_matrices=False)[2].T
    whole = Problem(X, LabelPairs.of(y), 1.0, Redundancy.of_patients(X), 0.1, 0.1)
    start = State(W, W, W, 0 * W, 0 * W)
    a, b = (iterate(p, start, 2.0, 200, p.redundancy.solver(0.1, 2.0)) for p in (whole, replace(whole, span=span)))
    np.testing.assert_allclose(a.W, b.W, atol=1e-6)
    assert a.objective == pytest.approx(b.objective, rel=1e-8)


def test_a_feature_that_repeats_another_hands_its_weight_over_and_nothing_else_changes() -> None:
    rng = np.random.default_rng(9)
    Z = rng.normal(size=(40, 3))
    Z = np.column_stack([Z, 2.0 * Z[:, 0] + 1.0, -Z[:, 1]])
    Z = (Z - Z.mean(0)) / Z.std(0)
    W = rng.normal(size=(5, 5))
    V = speak_once(W, Z.T @ Z / 40, 40)
    np.testing.assert_allclose(Z @ V @ V.T @ Z.T, Z @ W @ W.T @ Z.T, atol=1e-9)
    assert not V[3].any()
    assert V[4].any()  # an opposite is no twin
    assert row_norms(V).sum() <= row_norms(W).sum()
    both = Redundancy.of_patients(Z)
    assert both.trace(V) == pytest.approx(both.trace(W))
    np.testing.assert_array_equal(speak_once(W, Z.T @ Z / 40, 9), W)


def test_huge_similarities_do_not_overflow() -> None:
    A = np.array([[1e4], [1e4], [-1e4]])
    value, G = pair_loss(A, LabelPairs.of([0, 1, 1]), 1.0)
    assert np.isfinite(value)
    assert np.isfinite(G).all()


def test_listed_pairs_name_every_fault() -> None:
    with pytest.raises(DataError) as e:
        ListedPairs.of([[0, 9], [1, 1]], [1, 0], patients=3)
    assert len(e.value.faults) == 2


def test_the_factored_redundancy_equals_the_dense_one() -> None:
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(4, 30))
    Z = (Z - Z.mean(0)) / Z.std(0)
    R = Z.T @ Z / 4
    thin, dense = Redundancy.of_patients(Z), Redundancy.of_correlation(R)
    assert thin.factor is not None
    W = rng.normal(size=(30, 3))
    np.testing.assert_allclose(thin.times(W), dense.times(W), atol=1e-12)
    np.testing.assert_allclose(thin.solver(0.3, 0.7)(W), dense.solver(0.3, 0.7)(W), atol=1e-12)
    Z3 = dense.solver(0.3, 0.7)(W)  # eq. 3.18: stationary point of 3.13
    np.testing.assert_allclose(2 * 0.3 * (R * R) @ Z3 + 2 * 0.7 * (Z3 - W / 2), 0.0, atol=1e-12)


def test_the_trace_rewards_opposed_rows_and_the_convex_penalty_does_not() -> None:
    """ERRATA E3.4: two features with r = .95."""
    both = Redundancy.of_correlation(np.array([[1.0, 0.95], [0.95, 1.0]]))
    aligned, opposed = np.array([[1.0], [1.0]]), np.array([[1.0], [-1.0]])
    assert both.trace(aligned) == pytest.approx(3.805)
    assert both.trace(opposed) == pytest.approx(0.195)
    assert both.exclusive(opposed) == both.exclusive(aligned) == pytest.approx(3.805)


def test_shrinking_lengths_is_the_proximal_step() -> None:
    rng = np.random.default_rng(4)
    Z = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6))
    R = Redundancy.of_correlation(np.corrcoef(Z.T))  # type: ignore[arg-type]
    T = rng.normal(size=(6, 2))

    def cost(V: np.ndarray) -> float:
        return 0.2 * row_norms(V).sum() + 0.3 * R.exclusive(V) + 0.5 * 1.5 * float(((V - T) ** 2).sum())  # type: ignore[no-any-return]

    V = shrink_norms(T, R, 0.2, 0.3, 1.5)
    assert all(cost(V) <= cost(V + 1e-3 * rng.normal(size=V.shape)) for _ in range(50))
    np.testing.assert_allclose(shrink_norms(T, R, 0.2, 0.0, 1.5), row_shrink(T, 0.2 / 1.5))
