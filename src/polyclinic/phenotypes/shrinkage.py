"""Empirical Bayes: what a noisy released sum most probably was, learnt from all the released numbers together.

Post-processing: only released values come in, so nothing here costs privacy (PRIVACY 5).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRID", "posterior_mean"]

Float = NDArray[np.float64]

# Ratios to the base that a code may have within a phenotype: never, hardly ever, then geometric to 300 times.
GRID: Final[Float] = np.concatenate([[0.0, 0.02], np.geomspace(0.02, 300.0, 47)[1:]])


def posterior_mean(released: Float, base: Float, noise_sd: float, *, grid: Float = GRID, steps: int = 60) -> Float:
    """Shrink noisy sums toward their base: the posterior mean of theta in ``released = theta + N(0, noise_sd^2)``.

    theta = base * rho with rho ~ G; G is the nonparametric maximum-likelihood estimate on ``grid`` by ``steps`` EM
    steps (Kiefer and Wolfowitz 1956; Jiang and Zhang 2009). Codes that the noise explains go to nearly nothing,
    codes that stand out stay as they are.

    Parameters
    ----------
    released
        Noisy sums, any shape.
    base
        Expected sums if nothing stood out, same shape, positive.
    noise_sd
        Known standard deviation of the noise. Without noise the released values are returned, clipped at zero.

    Examples
    --------
    >>> y = np.array([0.3, -0.4, 0.1, 9.0]); posterior_mean(y, np.ones(4), 0.5).round(1).tolist()
    [0.0, 0.0, 0.0, 8.6]
    """
    if noise_sd <= 0:
        return np.maximum(released, 0.0)
    y, b = released.ravel() / noise_sd, base.ravel() / noise_sd
    z = y[:, None] - b[:, None] * grid[None, :]
    log = -0.5 * z * z
    like = np.exp(log - log.max(1, keepdims=True))
    g = np.full(len(grid), 1.0 / len(grid))
    for _ in range(steps):
        weights = g / (like @ g)[:, None]
        g = (like * weights).mean(0)
    weights = like * g
    rho = (weights @ grid) / weights.sum(1)
    out: Float = (rho * base.ravel()).reshape(released.shape)
    return out
