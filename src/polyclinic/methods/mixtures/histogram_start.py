"""Start private EM from a noisy histogram, which a patient enters with one vote.

Two passes. A coarse grid over the public ball shows where patients are at all; a fine grid over that region shows
groups. So a generous radius costs next to nothing. Above three features the grid lies in the plane (or space) in which patients
differ most, found from one noisy release of the covariance. Everything after the releases is free: the histogram is
smoothed until it rises above its noise, and a mixture is fitted to it from many starts.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from polyclinic.methods.mixtures.start import plus_plus, shared
from polyclinic.methods.mixtures.statistics import expect, maximise
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture

# Added to variances, in squared cells: EM narrows a group that starts too wide, one too narrow is stuck.
CELL_VARIANCE = 0.25
FLAT = 3  # features up to which a grid is laid in all of them: docs/dev/decisions/0005-mixture-units.md
SIDES = {1: (64, 256), 2: (16, 64), 3: (8, 16)}  # limit: cells per axis, coarse and fine, at most 4,096 in all


def side(dimensions: int, *, fine: bool) -> int:
    """Return the number of cells per axis."""
    return SIDES[dimensions][fine]


def vote(P: Array, frame: Array, cells: int) -> Array:
    """Count the site's patients in each cell, (cells ** m,); who lies outside the frame has no vote, everybody else one.

    Parameters
    ----------
    P
        (n, m) positions.
    frame
        (2, m) centre and half-width of the grid.
    cells
        Cells per axis.

    Examples
    --------
    >>> vote(np.array([[-0.9], [0.9], [0.95], [7.0]]), np.array([[0.0], [1.0]]), 2)
    array([1., 2.])
    """
    t = np.floor((P - frame[0] + frame[1]) / (2 * frame[1]) * cells).astype(np.int64)
    t = np.where(frame[0] + frame[1] == P, cells - 1, t)
    in_frame = ((t >= 0) & (t < cells)).all(1)
    index = np.ravel_multi_index(tuple(t[in_frame].T), (cells,) * P.shape[1])
    return np.bincount(index, minlength=cells ** P.shape[1]).astype(float)


def above(cells: int) -> float:
    """Return the standard deviations that no one of this many empty cells is expected to reach by noise."""
    return float(np.sqrt(2 * np.log(max(cells, 2)))) + 0.3


def _centres(frame: Array, cells: int) -> Array:
    m = frame.shape[1]
    axis = (np.arange(cells) + 0.5) * 2 / cells - 1
    grid = np.stack(np.meshgrid(*[axis] * m, indexing="ij"), -1).reshape(-1, m)
    return np.asarray(frame[0] + frame[1] * grid)


def zoom(votes: Array, frame: Array, cells: int, noise_sd: float) -> Array:
    """Frame all cells that rise above noise, one cell wider; keep the old frame if there is none."""
    occupied = _centres(frame, cells)[votes > above(len(votes)) * noise_sd]
    if not len(occupied):
        return frame
    width = 2 * frame[1] / cells
    low = np.maximum(occupied.min(0) - 1.5 * width, frame[0] - frame[1])
    high = np.minimum(occupied.max(0) + 1.5 * width, frame[0] + frame[1])
    return np.stack([(low + high) / 2, (high - low) / 2])


def _smooth(votes: Array, m: int, cells: int, noise_sd: float) -> Array:
    """Smooth the noise away, no more than needed to keep three quarters of what any smoothing keeps.

    Smoothing with a Gaussian of ``h`` cells divides the noise by ``(4 pi h^2)^(m/4)``; a cell is kept where it then stands
    out among all that are independent.
    """
    table = votes.reshape((cells,) * m)
    levels = [np.where(table > above(table.size) * noise_sd, table, 0.0)]
    for h in (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0):
        if h > cells / 8:
            break
        area = (4 * np.pi * h * h) ** (m / 2)
        soft = gaussian_filter(table, h, mode="constant", truncate=5.0)
        levels.append(np.where(soft > above(int(table.size / area)) * noise_sd / np.sqrt(area), soft, 0.0))
    most = max(k.sum() for k in levels)
    return np.asarray(next(k for k in levels if k.sum() >= 0.75 * most)).ravel()


def fit_histogram(
    votes: Array,
    frame: Array,
    cells: int,
    k: int,
    kind: CovarianceType,
    *,
    noise_sd: float,
    starts: int,
    rng: np.random.Generator,
) -> Mixture:
    """Fit a mixture to the histogram alone; several starts cost no privacy, the most likely one is taken."""
    m = frame.shape[1]
    mass = _smooth(votes, m, cells, noise_sd)
    centres, width = _centres(frame, cells), 2 * frame[1] / cells
    if not mass.any():  # noise everywhere: the frame is all that is known
        mass = np.ones(len(mass))
    x, w = centres[mass > 0] / width, mass[mass > 0]  # in cells, so that groups of any shape look alike
    spread = np.maximum(np.average((x - np.average(x, axis=0, weights=w)) ** 2, weights=w, axis=0), 1.0)
    tries: list[tuple[float, Mixture]] = []
    for _ in range(starts):
        mixture = shared(plus_plus(x, w, k, rng), spread / k ** (2 / m), "full")
        for sweep in range(15):
            total = expect(x, mixture, mass=w, hard=sweep < 5)
            mixture = maximise(total, mixture, reg_covar=CELL_VARIANCE)
        tries.append((total.loglik, mixture))
    best = max(tries, key=lambda t: t[0])[1]
    for _ in range(40):
        best = maximise(expect(x, best, mass=w), best, reg_covar=CELL_VARIANCE)
    scaled = Mixture(best.weights, best.means * width, best.covariances * np.outer(width, width), "full")
    return recast(scaled, kind)


def recast(mixture: Mixture, kind: CovarianceType) -> Mixture:
    """Turn a mixture of full covariances into one of another type."""
    c = mixture.covariances
    if kind == "tied":
        c = np.einsum("j,jpq->pq", mixture.weights, c)
    elif kind == "diag":
        c = np.einsum("jpp->jp", c).copy()
    elif kind == "spherical":
        c = np.einsum("jpp->j", c) / mixture.d
    return Mixture(mixture.weights, mixture.means, c, kind)


def directions(covariance: Array, groups: int) -> Array:
    """(d, m) orthonormal directions in which patients differ most; k groups differ in at most k - 1."""
    m = max(1, min(FLAT, groups - 1))
    _, vectors = np.linalg.eigh(covariance)
    return np.ascontiguousarray(vectors[:, ::-1][:, :m])


def in_all_features(flat: Mixture, basis: Array, mean: Array, covariance: Array, kind: CovarianceType) -> Mixture:
    """Extend a mixture of projections to all features: across the projection, every group is like all patients."""
    across = np.eye(len(mean)) - basis @ basis.T
    remainder = across @ covariance @ across
    means = mean @ across + flat.means @ basis.T
    covariances = np.stack([remainder + basis @ flat.covariance(j) @ basis.T for j in range(flat.k)])
    return recast(Mixture(flat.weights, means, covariances, "full"), kind)
