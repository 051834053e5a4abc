"""Errors over nonzeros, over all cells and per nonzero; held-out entries; factor match score."""

from __future__ import annotations

import numpy as np
import pytest
from tests import reference_kernels as oracle

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError


@pytest.fixture
def problem() -> tuple[pc.SparseTensor, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (12, 5, 4)
    coords = np.stack([rng.integers(0, d, 60) for d in shape], 1)
    t = pc.SparseTensor(coords, rng.poisson(2, 60) + 1.0, shape)
    return t, [rng.random((d, 3)) for d in shape]


def test_three_rmse_equal_their_definitions(problem: tuple[pc.SparseTensor, list[np.ndarray]]) -> None:
    t, f = problem
    values = np.array(t.values)
    full = oracle.squared_error_full(t.coords, values, t.shape, f)
    observed = float(np.square(values - oracle.model(t.coords, f)).sum())
    assert pc.metrics.rmse(t, f) == pytest.approx(np.sqrt(observed / t.nnz))
    assert pc.metrics.rmse(t, f, over="full") == pytest.approx(np.sqrt(full / np.prod(t.shape)))
    assert pc.metrics.rmse(t, f, over="per_nonzero") == pytest.approx(np.sqrt(full / t.nnz))
    assert pc.metrics.fit(t, f) == pytest.approx(1 - np.sqrt(full / t.norm_squared()))


def test_held_out_entries_are_not_in_the_training_tensor(problem: tuple[pc.SparseTensor, list[np.ndarray]]) -> None:
    t, f = problem
    train, coords, values = pc.metrics.held_out(t, 0.2, np.random.default_rng(1))
    assert train.nnz + len(values) == t.nnz
    assert len(values) == round(0.2 * t.nnz)
    left = {tuple(x) for x in train.coords.tolist()}
    assert not any(tuple(x) in left for x in coords.tolist())
    expected = np.sqrt(np.mean((values - oracle.model(coords, f)) ** 2))
    assert pc.metrics.rmse_at(coords, values, f) == pytest.approx(expected)


def test_factor_match_score_ignores_order_sign_and_scale() -> None:
    rng = np.random.default_rng(0)
    a = [rng.standard_normal((9, 4)), rng.standard_normal((7, 4))]
    b = [x[:, [3, 1, 0, 2]] * [1.0, -2.0, 3.0, -0.5] for x in a]
    assert pc.metrics.factor_match_score(a, b) == pytest.approx(1.0)
    fewer = [x[:, :2] for x in b]
    assert pc.metrics.factor_match_score(fewer, a) == pytest.approx(1.0)
    other = [rng.standard_normal((9, 4)), rng.standard_normal((7, 4))]
    assert 0 <= pc.metrics.factor_match_score(a, other) < 0.7


def test_factor_match_score_counts_components_that_the_model_lacks() -> None:
    truth, half = [np.eye(4)], [np.eye(4)[:, :2]]
    assert pc.metrics.factor_match_score(truth, half) == pytest.approx(0.5)
    assert pc.metrics.recovery(truth, half) == pc.metrics.recovery([-np.eye(4)[:, ::-1]], half)
    scored = pc.metrics.recovery(half, [np.column_stack([np.eye(4), np.zeros(4)])])
    assert (scored.recall, scored.precision, scored.components) == pytest.approx((1.0, 0.5, 4))


def test_factor_match_score_multiplies_over_modes_and_penalises_weights() -> None:
    half = np.array([[1.0], [1.0]])
    e = np.array([[1.0], [0.0]])
    assert pc.metrics.factor_match_score([e, e], [half, half]) == pytest.approx(0.5)
    assert pc.metrics.factor_match_score([e], [e], weights=([4.0], [1.0])) == pytest.approx(0.25)


def test_wrong_shapes_and_words_are_named(problem: tuple[pc.SparseTensor, list[np.ndarray]]) -> None:
    t, f = problem
    with pytest.raises(DataError, match="do not fit"):
        pc.metrics.rmse(t, f[:2])
    with pytest.raises(ConfigError, match="everything"):
        pc.metrics.rmse(t, f, over="everything")  # type: ignore[arg-type]
