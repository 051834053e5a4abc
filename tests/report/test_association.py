"""The outcome tables say what other software says, and no single patient can be read from their curves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from polyclinic.analysis.simulated.association import auc_interval, benjamini_hochberg, curves, logistic


def _outcome(rng: np.random.Generator, n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    x = rng.gamma(0.5, 1.0, (n, 4))
    risk = 1 / (1 + np.exp(2.2 - 0.9 * x[:, 0] + 0.4 * x[:, 1]))
    return x, (rng.random(n) < risk).astype(int)


def test_coefficients_equal_unpenalised_logistic_regression(rng: np.random.Generator) -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = _outcome(rng)
    z = (x - x.mean(0)) / x.std(0)
    theirs = LogisticRegression(C=1e9, tol=1e-10, max_iter=5000).fit(z, y).coef_[0]
    assert np.allclose([e.coefficient for e in logistic(x, y)], theirs, atol=2e-3)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    hits, tries = 0, 150
    for seed in range(tries):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(400, 2))
        y = (rng.random(400) < 1 / (1 + np.exp(1.0 - 0.5 * x[:, 0]))).astype(int)
        e = logistic(x, y)[0]
        hits += e.low <= 0.5 * x[:, 0].std() <= e.high
    assert 0.89 <= hits / tries <= 0.99


def test_separated_outcome_stays_finite_and_uncertain() -> None:
    x = np.concatenate([np.zeros(30), np.ones(30)])[:, None]
    effect = logistic(x, (x[:, 0] > 0).astype(int))[0]
    assert np.isfinite([effect.coefficient, effect.low, effect.high]).all()
    assert effect.low < 0 < effect.high


def test_a_phenotype_that_nobody_carries_has_no_effect(rng: np.random.Generator) -> None:
    x, y = _outcome(rng)
    x[:, 2] = 0.0
    assert [e.phenotype for e in logistic(x, y)] == [0, 1, 3]


def test_benjamini_hochberg_equals_scipy(rng: np.random.Generator) -> None:
    p = rng.random(40) ** 3
    assert np.allclose(benjamini_hochberg(p), false_discovery_control(p))


def test_auc_interval_agrees_with_bootstrap(rng: np.random.Generator) -> None:
    from sklearn.metrics import roc_auc_score

    y = rng.random(400) < 0.3
    r = rng.normal(size=400) + y
    aucs = []
    for _ in range(300):
        i = rng.integers(0, 400, 400)
        aucs.append(roc_auc_score(y[i], r[i]))
    low, high = auc_interval(y.astype(int), r)
    assert low == pytest.approx(np.quantile(aucs, 0.025), abs=0.02)
    assert high == pytest.approx(np.quantile(aucs, 0.975), abs=0.02)


@pytest.mark.parametrize(("n", "share"), [(900, 0.1), (400, 0.5), (150, 0.2), (60, 0.3)])
def test_every_step_of_roc_and_calibration_has_at_least_eleven_of_each_kind(n: int, share: float) -> None:
    rng = np.random.default_rng(n)
    y = (rng.random(n) < share).astype(int)
    roc, calibration = curves(y, rng.random(n) + 0.3 * y)
    if not roc:
        assert y.sum() < 22 or n < 200
        return
    steps = np.diff(np.array(roc), axis=0) * [(y == 0).sum(), (y == 1).sum()]
    assert steps.min() >= 11 - 0.1
    assert len(calibration) == len(roc) - 1 <= 20
    assert roc[0] == (0.0, 0.0) and roc[-1] == (1.0, 1.0)


def test_too_few_outcomes_draw_no_curve(rng: np.random.Generator) -> None:
    y = np.zeros(500, int)
    y[:15] = 1
    assert curves(y, rng.random(500)) == ((), ())
