"""Empirical Bayes: what a noisy released sum most probably was, learnt from all the released numbers together.

Post-processing: only released values come in, so nothing here costs privacy.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

# Ratios to the base that a code may have within a phenotype: never, hardly ever, then geometric to 300 times.
GRID: Final[Float] = np.concatenate([[0.0, 0.02], np.geomspace(0.02, 300.0, 47)[1:]])
TRUST: Final = 0.99  # weight of a prior's column before any data speak
# definition: free numbers of the model in Schwarz' criterion
BENDS: Final = 6  # numbers that describe how data differ from a prior, in Schwarz' criterion


def posterior_mean(
    released: Float, base: Float, noise_sd: float | Float, *, grid: Float = GRID, steps: int = 60
) -> Float:
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
        Known standard deviation of the noise, of all or of every column. Without noise the released values are returned,
        clipped at zero.

    Examples
    --------
    >>> y = np.array([0.3, -0.4, 0.1, 9.0]); posterior_mean(y, np.ones(4), 0.5).round(1).tolist()
    [0.0, 0.0, 0.0, 8.6]
    """
    if np.max(noise_sd) <= 0:
        return np.maximum(released, 0.0)
    y, b = (released / noise_sd).ravel(), (base / noise_sd).ravel()
    z = y[:, None] - b[:, None] * grid[None, :]
    log = -0.5 * z * z
    like = np.exp(log - log.max(1, keepdims=True))
    g = np.full(len(grid), 1.0 / len(grid))
    for _ in range(steps):
        g = g * (like.T @ (1.0 / (like @ g))) / len(y)
    rho = (like @ (g * grid)) / (like @ g)
    out: Float = (rho * base.ravel()).reshape(released.shape)
    return out


def between(
    released: Float, base: Float, prior: Float, noise_sd: float | Float, *, grid: Float = GRID, steps: int = 60
) -> Float:
    """The posterior mean with two bases: every column follows the marginals or a prior's column, as its data say.

    A cell of column r is ``base * rho`` with rho ~ G_0, with probability w_r ``prior * rho`` with rho ~ G_1. Both G and
    all w_r are maximum-likelihood estimates by EM, started at w_r = TRUST, G_0 around and G_1 at 1: where the noise hides
    everything nothing moves; a prior of another law loses its weight. Where the likelihood gains less over the prior
    itself than Schwarz' criterion asks for, the prior is returned as it is.

    Parameters
    ----------
    released, base, prior
        (codes, R): noisy sums, expected sums if nothing stood out, expected sums by the prior.
    noise_sd
        Known standard deviation of the noise, of all or of every column; 0: the released values, clipped at zero.

    Examples
    --------
    >>> y, flat, told = np.array([[9.0], [8.0], [0.5], [-0.6]]), np.full((4, 1), 4.0), np.array([[8.0], [8.0], [0.1], [0.1]])
    >>> between(y, flat, told, 1.0).round(0).ravel().tolist()
    [8.0, 8.0, 0.0, 0.0]
    >>> far = between(y, flat, told, 1e6).ravel(); (far / far.sum()).round(1).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    if np.max(noise_sd) <= 0:
        return np.maximum(released, 0.0)
    y = released / noise_sd
    logs = np.stack([-0.5 * np.square(y[..., None] - (b / noise_sd)[..., None] * grid) for b in (base, prior)])
    top = logs.max((0, 3), keepdims=True)
    like = np.exp(logs - top)  # (2, codes, R, atoms)
    around = np.exp(-0.5 * np.square(np.log(np.maximum(grid, grid[1]))))
    around[0] = around.sum() / 10  # never
    g = np.stack([around / around.sum()] * 2)
    g[1] *= 1.0 - TRUST
    g[1, np.abs(grid - 1.0).argmin()] += TRUST  # as the prior says, until the data say otherwise
    w = np.tile(np.array([1.0 - TRUST, TRUST])[:, None], released.shape[1])  # (2, R)
    for _ in range(steps):
        joint = w[:, None, :] * np.einsum("bcra,ba->bcr", like, g)
        responsibility = joint / joint.sum(0)
        part = like * g[:, None, None, :]
        part *= (responsibility / np.maximum(part.sum(-1), 1e-300))[..., None]
        g = part.sum((1, 2))
        g /= np.maximum(g.sum(1, keepdims=True), 1e-300)
        w = responsibility.mean(1)
    part = like * g[:, None, None, :] * w[:, None, :, None]
    gain = (np.log(part.sum((0, 3))) + top[0, ..., 0] + 0.5 * np.square(y - prior / noise_sd)).sum()
    if gain < 0.5 * BENDS * np.log(y.size):  # the noise explains the difference: the prior stays as it is
        return prior.copy()
    part /= part.sum((0, 3), keepdims=True)
    rho = part @ grid  # (2, codes, R), already weighted by whose cell it is
    out: Float = rho[0] * base + rho[1] * prior
    return out
