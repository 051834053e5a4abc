"""The variational bound of Topics, and the fixed point of alpha."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, polygamma, psi

Array = NDArray[np.float64]


def patients_bound(gamma: Array, alpha: Array) -> float:
    """Sum over patients of E log p(theta | alpha) - E log q(theta | gamma)."""
    total = gamma.sum(1)
    logs = psi(gamma) - psi(total)[:, None]
    constant = (gammaln(alpha.sum()) - gammaln(alpha).sum()) * len(gamma)
    return float(constant + ((alpha - gamma) * logs).sum() + gammaln(gamma).sum() - gammaln(total).sum())


def columns_bound(posterior: list[Array], priors: list[Array]) -> float:
    """Kullback-Leibler divergence of the columns from their prior, summed over modes and columns."""
    total = 0.0
    for x, prior in zip(posterior, priors):
        logs = psi(x) - psi(x.sum(0))
        total += float((gammaln(x.sum(0)) - gammaln(x).sum(0) + ((x - prior) * logs).sum(0)).sum())
        total -= float((gammaln(prior.sum(0)) - gammaln(prior).sum(0)).sum())
    return total


def fixed_point(alpha: Array, logs: Array, steps: int = 5) -> Array:
    """Maximise the likelihood of Dirichlet(alpha), the mean of log theta being ``logs`` (Minka 2000)."""
    for _ in range(steps):
        y = psi(alpha.sum()) + logs
        x = np.where(y > -2.22, np.exp(np.minimum(y, 50.0)) + 0.5, -1.0 / (y + np.euler_gamma))
        for _ in range(5):
            x = np.maximum(x - (psi(x) - y) / polygamma(1, x), 1e-4)
        alpha = np.clip(x, 1e-3, 50.0)
    return alpha
