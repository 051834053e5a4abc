"""Private EM: the phases of a mixture with patient-level differential privacy.

Records are clipped to a public ball and every sum has its noise. The start is a histogram: a coarse grid over the ball, then a fine
grid where patients are (:mod:`.histogram_start`). Above three features the grids lie in the directions in which a noisy covariance
says that patients differ most. Then come rounds of EM with one row of length at most 1 per patient (:mod:`.private_statistics`):

    hospital k     x_k = sum_i v_i,   v_i = r_ij (1, y_ij / c, y_ij y_ij' / c^2) / sqrt 3,   |v_i| <= 1,   y_ij = P_j'(x_i - mu_j)
    coordinator    M-step from sum_k x_k + noise; the noise on a covariance is c^2 times the group's own variance

The start has ``start_share`` of the budget mu^2. EM rounds share the rest, and later rounds get more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from polyclinic.methods.mixtures.private_statistics import bounded, improve
from polyclinic.methods.mixtures.start import plus_plus, shared
from polyclinic.methods.mixtures.state import MixturePublic
from polyclinic.methods.mixtures.statistics import expect, maximise, shapes
from polyclinic.methods.moments.moments import GRID, in_ball, moment_rows, noisy_moments
from polyclinic.methods.moments.standardizing import Nothing
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.interfaces import Answer, Contribution, Step, Total, seeds
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture

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


FLAT_SHARES: Final = {"coarse": 0.3, "fine": 0.7}  # of the start's budget, up to three features
SHARES: Final = {"moments": 0.3, "coarse": 0.2, "fine": 0.5}  # above


class _NoisySum(Phase[MixturePublic, Nothing]):
    """A sum of rows of length at most 1 with its noise."""

    fit: GaussianMixture
    name: str
    grid = GRID
    counts = False

    def shapes(self, public: MixturePublic) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    def share(self, public: MixturePublic) -> float:
        """Return the part of the budget that the sum has."""
        shares = SHARES if public.mixture.d > FLAT else FLAT_SHARES
        return self.fit.params.start_share * shares[self.name]

    def step(self, public: MixturePublic) -> Step:
        p = self.fit.params
        assert p.privacy is not None
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(float(self.share(public)),))
        return Step(
            public.round,
            self.name,
            self.shapes(public),
            bound=float(p.max_patients),
            sensitivity=1.0,
            multiplier=multiplier,
            grid=self.grid,
            counts=self.counts,
        )

    def records(self, site: Site) -> tuple[Array, NDArray[np.bool_]]:
        """Return records in the unit ball, missing values at its centre, and which values are there.

        A missing value adds nothing to a record's length. What stands in for it is public, so a row is still the patient's own.
        """
        X = site.matrix()
        present, center = ~np.isnan(X), self.fit._center(X.shape[1])
        return in_ball(np.where(present, X, center), center, self.fit._radius), present

    def contribute(self, step: Step, site: Site, private: Nothing, public: MixturePublic) -> Answer[Nothing]:
        """x_k = sum of one row of length <= 1 per patient."""
        return private, Contribution(self.sums(*self.records(site), public))

    def sums(self, Z: Array, present: NDArray[np.bool_], public: MixturePublic) -> dict[str, Array]:
        """Sum the rows of records in the unit ball."""
        raise NotImplementedError


class NoisyCovariance(_NoisySum):
    """The covariance of all patients, above three features: it says where the grids lie."""

    name = "moments"

    def due(self, public: MixturePublic) -> bool:
        return self.fit.params.asks_start and public.mixture.d > FLAT

    def shapes(self, public: MixturePublic) -> dict[str, tuple[int, ...]]:
        d = public.mixture.d
        return {"rows": (1 + d + d * (d + 1) // 2,)}

    def sums(self, Z: Array, present: NDArray[np.bool_], public: MixturePublic) -> dict[str, Array]:
        return {"rows": moment_rows(Z)}

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """basis = leading eigenvectors of the noisy covariance."""
        moments = noisy_moments(total.arrays["rows"], total.noise_sd, public.mixture.d)
        basis = directions(moments.covariance(), self.fit.params.n_components)
        return self.fit.onward(replace(public, moments=moments, basis=basis))


class CoarseGrid(_NoisySum):
    """Counts of patients in the cells of a grid over the whole ball."""

    name = "coarse"
    grid = 1.0

    def due(self, public: MixturePublic) -> bool:
        return self.fit.params.asks_start

    def enter(self, public: MixturePublic) -> MixturePublic:
        m = public.mixture.d if public.basis is None else public.basis.shape[1]
        return replace(public, frame=np.stack([np.zeros(m), np.ones(m)]))

    def cells(self, public: MixturePublic) -> tuple[Array, int]:
        """Return the frame of the grid, and its cells per axis."""
        assert public.frame is not None
        return public.frame, side(public.frame.shape[1], fine=self.name == "fine")

    def shapes(self, public: MixturePublic) -> dict[str, tuple[int, ...]]:
        frame, cells = self.cells(public)
        return {"votes": (cells ** frame.shape[1],)}

    def sums(self, Z: Array, present: NDArray[np.bool_], public: MixturePublic) -> dict[str, Array]:
        if public.basis is None:
            places = Z[present.all(1)]
        else:
            places = np.where(present, Z, public.moments.mean) @ public.basis
        return {"votes": vote(places, *self.cells(public))}

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """frame = the box around all cells that rise above noise."""
        frame = zoom(total.arrays["votes"], *self.cells(public), total.noise_sd)
        return self.fit.onward(replace(public, frame=frame))


class FineGrid(CoarseGrid):
    """Counts of patients in the cells of a grid where patients are; the first mixture is fitted to them."""

    name = "fine"

    def enter(self, public: MixturePublic) -> MixturePublic:
        return public

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """w, mu, Sigma = those of the histogram, by EM from several starts."""
        p, m = self.fit.params, public.moments
        mixture = fit_histogram(
            total.arrays["votes"],
            *self.cells(public),
            p.n_components,
            p.covariance_type if public.basis is None else "full",
            noise_sd=total.noise_sd,
            starts=max(p.n_starts, 10),
            rng=seeds(p.seed, "start", 0),
        )
        if public.basis is not None:
            mixture = in_all_features(mixture, public.basis, m.mean, m.covariance(), p.covariance_type)
        return replace(public, stage="em", round=1, mixture=mixture)


class NoisyMixtureEM(_NoisySum):
    """Rounds of EM."""

    name = "statistics"
    counts = True

    def enter(self, public: MixturePublic) -> MixturePublic:
        return self.fit.begin_start(public)

    @property
    def rounds(self) -> int:
        return min(self.fit.params.rounds, self.fit.params.paid_rounds)

    def share(self, public: MixturePublic) -> float:
        """Return (1 - start_share) t / sum_s s in round t: noise matters most at the end."""
        p = self.fit.params
        weights = np.arange(1, self.rounds + 1, dtype=float)
        start = p.start_share if p.asks_start else 0.0
        return float((1 - start) * weights[public.iteration] / weights.sum())

    def shapes(self, public: MixturePublic) -> dict[str, tuple[int, ...]]:
        return shapes(public.mixture.kind, *public.mixture.means.shape)

    def sums(self, Z: Array, present: NDArray[np.bool_], public: MixturePublic) -> dict[str, Array]:
        return bounded(np.where(present, Z, np.nan), public.mixture)

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """w, mu, Sigma = the M-step from sum_k x_k + noise."""
        reg_covar = self.fit.params.reg_covar / self.fit._radius**2
        mixture = improve(dict(total.arrays), total.noise_sd, public.mixture, reg_covar=reg_covar)
        public = replace(public, mixture=mixture, iteration=public.iteration + 1)
        if public.iteration < self.rounds:
            return replace(public, round=public.round + 1)
        return replace(public, stage="end", best=mixture, best_iterations=public.iteration)
