"""Statistics by simulation, 500 runs each: power where Wald has none, no false alarm from differences between hospitals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyclinic.analysis.statistics.intervals import adjusted, chi_square
from polyclinic.analysis.statistics.regression import Climbs, Cut, profile

RUNS = 500


def climb(xs: list[np.ndarray], ys: list[np.ndarray]) -> Climbs:
    width = xs[0].shape[1]
    c = Climbs.at([np.zeros(width)])
    while c.active:
        parts = [profile(x, y, c.trial(0), own=True) for x, y in zip(xs, ys)]
        total = Cut(
            sum(p.height for p in parts),
            np.sum([p.score for p in parts], axis=0),
            np.sum([p.information for p in parts], axis=0),
        )
        c = c.seen({0: total}, {0: np.ones(width, bool)})
    return c


def p_values(x: np.ndarray, y: np.ndarray, site: np.ndarray) -> np.ndarray:
    """Penalised likelihood-ratio tests with a term for each hospital, as the act makes them."""
    where = [site == k for k in np.unique(site)]
    ys = [y[w] for w in where]
    full = climb([x[w] for w in where], ys).height[0]
    less = [climb([np.delete(x[w], r, axis=1) for w in where], ys).height[0] for r in range(x.shape[1])]
    return np.array([chi_square(2 * (full - h + math.log(2))) for h in less])


@pytest.mark.slow
def test_twelve_carriers_who_all_die_are_found() -> None:
    rng, found = np.random.default_rng(11), 0
    for _ in range(RUNS):
        x = np.zeros((300, 2))
        x[rng.choice(300, 12, replace=False), 0] = 1
        x[:, 1] = rng.random(300) < 0.3
        y = (rng.random(300) < 0.1).astype(float)
        y[x[:, 0] == 1] = 1
        found += p_values(x, y, rng.integers(0, 3, 300))[0] < 0.05
    assert found / RUNS >= 0.95


@pytest.mark.slow
def test_differences_between_hospitals_are_no_effect() -> None:
    rng, false = np.random.default_rng(12), 0
    for _ in range(RUNS):
        site = rng.integers(0, 5, 600)
        carries = np.array([0.1, 0.2, 0.3, 0.4, 0.5])[site]
        x = np.column_stack([rng.random(600) < carries, rng.random(600) < 0.3]).astype(float)
        y = (rng.random(600) < np.array([0.05, 0.1, 0.2, 0.3, 0.4])[site]).astype(float)
        false += p_values(x, y, site)[0] < 0.05
    assert false / RUNS <= 0.07


@pytest.mark.slow
def test_false_discoveries_stay_at_their_level() -> None:
    rng, called = np.random.default_rng(13), 0
    for _ in range(RUNS):
        site = rng.integers(0, 5, 400)
        x = (rng.random((400, 6)) < 0.25).astype(float)
        y = (rng.random(400) < np.array([0.1, 0.15, 0.2, 0.3, 0.35])[site]).astype(float)
        called += bool((adjusted(p_values(x, y, site)) < 0.05).any())
    assert called / RUNS <= 0.07
