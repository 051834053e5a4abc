"""The outcome model is scikit-learn's: same optimum, same area under the curve."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic_papers.prediction import predict, ridge_logistic


@pytest.mark.parametrize(("n", "d", "seed"), [(60, 3, 0), (400, 20, 1), (50, 60, 2), (300, 5, 3)])
def test_logistic_regression_and_auc_are_those_of_scikit_learn(n: int, d: int, seed: int) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(seed)
    x = np.round(rng.gamma(0.5, size=(2 * n, d)), 1)
    y = (x[:, 0] + rng.normal(size=2 * n) > 1).astype(int)
    got = predict(x[:n], y[:n], x[n:], y[n:])
    mean, sd = x[:n].mean(0), x[:n].std(0)
    sd[sd == 0] = 1
    oracle = LogisticRegression(C=1.0, max_iter=10_000, tol=1e-10).fit((x[:n] - mean) / sd, y[:n])
    risks = oracle.predict_proba((x[n:] - mean) / sd)[:, 1]
    np.testing.assert_allclose(got.coefficients, oracle.coef_[0], atol=1e-5)
    np.testing.assert_allclose(got.risks, risks, atol=1e-6)
    assert got.auc == pytest.approx(roc_auc_score(y[n:], got.risks), abs=1e-12)
    assert got.auc == pytest.approx(roc_auc_score(y[n:], risks), abs=2e-3)


def test_separable_patients_have_finite_weights() -> None:
    x = np.linspace(-1, 1, 40)[:, None] * 1e3
    w = ridge_logistic(x, (x[:, 0] > 0).astype(int))
    assert np.isfinite(w).all()
    assert w[1] > 0
