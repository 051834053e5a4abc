"""The loss of all pairs by panels: the processor's value and gradient, with numpy here and with CuPy where there is a card."""

from typing import Any

import numpy as np
import pytest

from polyclinic.methods.similarity import gpu as card
from polyclinic.methods.similarity.pairs import LabelPairs, pair_loss


def draw(n: int, d: int, rank: int, classes: int, hospitals: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, classes, n), rng.integers(0, hospitals, n)
    pairs = LabelPairs.of(labels, groups=groups if hospitals > 1 else None, weighting="balanced")
    return rng.standard_normal((n, d)), rng.standard_normal((d, rank)) * 0.6, pairs


CASES = [(700, 12, 5, 3, 1, False), (700, 12, 5, 40, 1, True), (900, 6, 6, 2, 4, True), (300, 5, 2, 30, 3, False)]


def compare(xp: Any, case: Any) -> None:
    *shape, distance = case
    X, W, pairs = draw(*shape, seed=sum(shape))  # type: ignore[misc]
    for literal in (False, True):
        w = W.T.copy() if literal else W
        value, gradient = card.loss_and_gradient(
            xp.asarray(X), w, pairs, 0.4, literal=literal, distance=distance, xp=xp
        )
        expected, G = pair_loss(X @ (w.T if literal else w), pairs, 0.4, distance=distance)
        against = G.T @ X if literal else X.T @ G
        assert isinstance(gradient, np.ndarray)
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, against, rtol=0, atol=1e-12 * np.abs(against).max())
        again = card.loss_and_gradient(xp.asarray(X), w, pairs, 0.4, literal=literal, distance=distance, xp=xp)
        assert again[0] == value
        assert np.array_equal(again[1], gradient)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("least", [card.LEAST_PANEL, 37])
def test_panels_give_the_loss_and_gradient_of_all_pairs(monkeypatch: pytest.MonkeyPatch, case: Any, least: Any) -> None:
    monkeypatch.setattr(card, "LEAST_PANEL", least)
    monkeypatch.setattr(card, "PANEL_PAIRS", 1)  # several panels
    compare(np, case)


@pytest.mark.parametrize("case", [*CASES, (6_000, 40, 20, 5, 1, True)])
def test_the_card_gives_the_same_and_twice_the_same_bits(case: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install polyclinic[cuda13]")
    try:
        cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError as e:
        pytest.skip(f"no CUDA device: {e}")
    compare(cupy, case)


def test_extreme_margins_stay_finite() -> None:
    pairs = LabelPairs.of([0, 0, 1, 1])
    value, gradient = card.panel_loss(np.array([[1e4], [-1e4], [1e4], [0.0]]), pairs, 0.0)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
