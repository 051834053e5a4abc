"""Start EM without showing a patient: every patient votes for the nearest of some public points.

The points are drawn around the public mean, a vote is one count, and votes are only ever summed over hospitals; k-means++ on
the points with their votes sees no record. ``box`` starts ask nobody at all. (With privacy the start is a noisy
histogram instead: :mod:`.histogram_start`.)
"""

from __future__ import annotations

import numpy as np

from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture, blocks


def points(mean: Array, covariance: Array, k: int, rng: np.random.Generator) -> Array:
    """(m, d) public points around the public mean; m grows with the number of groups."""
    m = int(np.clip(24 * k, 128, 512))
    # Cholesky and not eigenvectors: these flip their signs on a rounding error, and all ways to add must start alike
    ridge = 1e-9 * max(float(np.trace(covariance)) / len(mean), 1e-300)
    scale = np.linalg.cholesky(covariance + ridge * np.eye(len(mean)))
    return np.asarray(mean + rng.standard_normal((m, len(mean))) @ scale.T)


def vote(X: Array, candidates: Array, unit: Array | float) -> Array:
    """(m,) how many of the site's records are nearest to each public point; a patient has one vote."""
    out = np.zeros(len(candidates))
    goal = candidates / unit
    for s in blocks(len(X), len(candidates)):
        x = X[s] / unit
        square: Array = (goal**2).sum(1)
        if np.isnan(x.sum()):  # nearest in the values that are there
            square = (~np.isnan(x)).astype(float) @ (goal**2).T
            x = np.where(np.isnan(x), 0.0, x)
        nearest = (square - 2 * x @ goal.T).argmin(1)  # squared distance less |x|^2
        out += np.bincount(nearest, minlength=len(candidates))
    return out


def plus_plus(candidates: Array, mass: Array, k: int, rng: np.random.Generator) -> Array:
    """(k, d) starting centres: k-means++ on public points weighted by votes."""
    mass = np.maximum(mass, 0.0)
    if not mass.sum():
        mass = np.ones(len(candidates))
    picks = [int(rng.choice(len(candidates), p=mass / mass.sum()))]
    distance = ((candidates - candidates[picks[0]]) ** 2).sum(1)
    while len(picks) < k:
        pull = mass * distance
        p = pull / pull.sum() if pull.sum() > 0 else np.full(len(candidates), 1 / len(candidates))
        picks.append(int(rng.choice(len(candidates), p=p)))
        distance = np.minimum(distance, ((candidates - candidates[picks[-1]]) ** 2).sum(1))
    return candidates[picks]


def centres(candidates: Array, mass: Array, k: int, rng: np.random.Generator) -> Array:
    """(k, d) the best of several k-means runs on the public points with their votes; it asks nobody again."""
    best, least = candidates[:k], np.inf
    for _ in range(10):
        trial = plus_plus(candidates, mass, k, rng)
        for _ in range(10):
            nearest = ((candidates[:, None] - trial) ** 2).sum(2).argmin(1)
            for j in range(k):
                votes = np.where(nearest == j, np.maximum(mass, 0.0), 0.0)
                if votes.sum() > 0:
                    trial[j] = votes @ candidates / votes.sum()
        cost = float(np.maximum(mass, 0.0) @ ((candidates[:, None] - trial) ** 2).sum(2).min(1))
        if cost < least:
            best, least = trial, cost
    return best


def shared(means: Array, variances: Array, kind: CovarianceType) -> Mixture:
    """Make a mixture of equal shares and one spread for all groups: its nearest group is the nearest centre."""
    k, d = means.shape
    if kind in ("full", "tied"):
        covariances = np.diag(variances) if kind == "tied" else np.broadcast_to(np.diag(variances), (k, d, d)).copy()
    else:
        covariances = np.broadcast_to(variances, (k, d)).copy() if kind == "diag" else np.full(k, variances.mean())
    return Mixture(np.full(k, 1 / k), means, covariances, kind)


def box(mean: Array, covariance: Array, k: int, kind: CovarianceType, rng: np.random.Generator) -> Mixture:
    """Draw a start that asks nobody: centres around the public mean, the public spread for every group."""
    centres = points(mean, covariance, k, rng)[:k]
    return shared(centres, np.maximum(np.diag(covariance), 1e-12), kind)
