"""Where EM starts, without showing a patient: everybody votes for the nearest of some public points.

The points depend on public values only (a grid in a public ball; or draws around the public mean), a vote is one count, and
votes are only ever summed over hospitals (with noise, where privacy is paid for). k-means++ on the points with their votes is then free:
it sees no record. ``box`` starts ask nobody at all.
"""

from __future__ import annotations

import numpy as np

from polyclinic.mixtures.mixture import Array, CovarianceType, Mixture, blocks
from polyclinic.mixtures.statistics import expect, maximise

__all__ = ["box", "from_votes", "grid", "plus_plus", "points", "shared", "vote"]

CELLS = 4096  # cells of a grid at most
GRID_FEATURES = 5  # above this many features a grid is too coarse to see groups


def grid(d: int) -> Array:
    """Centres of a grid over the cube around the unit ball, those whose cell meets the ball only.

    >>> len(grid(1)), grid(2).shape[1]
    (64, 2)
    """
    side = min(64, int(CELLS ** (1 / d) + 1e-9))
    axis = (np.arange(side) + 0.5) * 2 / side - 1
    cells = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
    nearest = np.maximum(np.abs(cells) - 1 / side, 0.0)
    return np.asarray(cells[(nearest**2).sum(1) <= 1.0])


def points(mean: Array, covariance: Array, k: int, rng: np.random.Generator) -> Array:
    """(m, d) public points around the public mean; m grows with the number of groups."""
    m = int(np.clip(16 * k, 64, 256))
    values, vectors = np.linalg.eigh(covariance)
    scale = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + rng.standard_normal((m, len(mean))) @ scale.T)


def vote(X: Array, candidates: Array, unit: Array | float) -> Array:
    """(m,) how many of the site's records are nearest to each public point; a patient has one vote."""
    out = np.zeros(len(candidates))
    goal = candidates / unit
    for s in blocks(len(X), len(candidates)):
        nearest = ((goal**2).sum(1) - 2 * (X[s] / unit) @ goal.T).argmin(1)  # squared distance less |x|^2
        out += np.bincount(nearest, minlength=len(candidates))
    return out


def plus_plus(candidates: Array, mass: Array, k: int, rng: np.random.Generator) -> Array:
    """(k, d) starting centres: k-means++ on public points weighted by votes."""
    mass = np.maximum(mass, 0.0)
    if not mass.sum():
        mass = np.ones(len(candidates))
    chosen = [int(rng.choice(len(candidates), p=mass / mass.sum()))]
    far = ((candidates - candidates[chosen[0]]) ** 2).sum(1)
    while len(chosen) < k:
        pull = mass * far
        p = pull / pull.sum() if pull.sum() > 0 else np.full(len(candidates), 1 / len(candidates))
        chosen.append(int(rng.choice(len(candidates), p=p)))
        far = np.minimum(far, ((candidates - candidates[chosen[-1]]) ** 2).sum(1))
    return candidates[chosen]


def shared(means: Array, variances: Array, kind: CovarianceType) -> Mixture:
    """Equal shares, and one spread for all groups: the mixture whose nearest group is the nearest centre."""
    k, d = means.shape
    if kind in ("full", "tied"):
        covariances = np.diag(variances) if kind == "tied" else np.broadcast_to(np.diag(variances), (k, d, d)).copy()
    else:
        covariances = np.broadcast_to(variances, (k, d)).copy() if kind == "diag" else np.full(k, variances.mean())
    return Mixture(np.full(k, 1 / k), means, covariances, kind)


def box(mean: Array, covariance: Array, k: int, kind: CovarianceType, rng: np.random.Generator) -> Mixture:
    """A start that asks nobody: centres drawn around the public mean, the public spread for every group."""
    centres = points(mean, covariance, k, rng)[:k]
    return shared(centres, np.maximum(np.diag(covariance), 1e-12), kind)


def from_votes(
    cells: Array,
    votes: Array,
    k: int,
    kind: CovarianceType,
    *,
    noise_sd: float,
    starts: int,
    rng: np.random.Generator,
    sweeps: int = 60,
) -> Mixture:
    """A mixture fitted to a noisy histogram alone: everything here is computed from what was released already.

    Cells that noise alone explains (below 3 standard deviations) are emptied. Several starts cost nothing; the
    one with the best likelihood of the histogram is taken.
    """
    width = float(np.diff(np.unique(cells[:, 0])).min()) if len(cells) > 1 else 1.0
    mass = np.where(votes > 3 * noise_sd, votes, 0.0)
    if np.count_nonzero(mass) < k:
        mass = np.maximum(votes, 0.0) + 1e-9
    kept = mass > 0
    x, w = cells[kept], mass[kept]
    spread = np.full(
        x.shape[1],
        max(float(np.average((x - np.average(x, axis=0, weights=w)) ** 2, weights=w, axis=0).mean()), width**2),
    )
    best, bound = None, -np.inf
    for _ in range(starts):
        m = shared(plus_plus(x, w, k, rng), spread / k ** (2 / x.shape[1]), kind)
        total = expect(x, m, mass=w)
        for sweep in range(sweeps):
            total = expect(x, m, mass=w, hard=sweep < 5)
            m = maximise(total, m, reg_covar=width**2 / 12)  # a record is anywhere in its cell
        if np.isfinite(total.loglik) and total.loglik > bound:
            best, bound = m, total.loglik
    assert best is not None
    return best
