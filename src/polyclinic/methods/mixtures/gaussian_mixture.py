"""Groups of patients by expectation maximisation over hospitals, with sums only (Li et al. 2022, private EM), both halves.

Maximises sum_i log sum_j w_j N(x_i; mu_j, Sigma_j) over all hospitals' patients i. One round, for every group j:

    hospital k     r_ij = w_j N(x_i; mu_j, Sigma_j) / sum_l w_l N(x_i; mu_l, Sigma_l)                  eq. 2
                   a_j, b_j, C_j = sum_i r_ij (1, d_ij, d_ij d_ij'),   d_ij = x_i - mu_j               eq. 4
    coordinator    w_j' = a_j / n,   mu_j' = mu_j + b_j / a_j                                          eq. 3, 5
                   Sigma_j' = C_j / a_j - (b_j / a_j)(b_j / a_j)' + reg I          exact, E4.9

with a, b, C summed over the hospitals. All of it travels as one vector (``statistics.py``), so under ``subspace`` one consensus run
carries a round. The moments of all patients (:mod:`polyclinic.methods.moments.moments`) come first and bound every later sum. Then
votes for public points and rounds of k-means (``start.py``) give the start. The phases with privacy are :mod:`.private_mixture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.methods.mixtures import start
from polyclinic.methods.mixtures.fitted import FittedMixture
from polyclinic.methods.mixtures.private_mixture import CoarseGrid, FineGrid, NoisyCovariance, NoisyMixtureEM
from polyclinic.methods.mixtures.state import FACTS, MixtureParams, MixturePublic
from polyclinic.methods.mixtures.statistics import Statistics, bounds, expect, maximise, scaled, shapes, unscaled
from polyclinic.methods.moments.moments import ROOM, MomentsPhase, SummedMoments, WithMoments, complete
from polyclinic.methods.moments.standardizing import Nothing
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total, seeds
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site

__all__ = ["GaussianMixture", "MixtureParams", "MixturePublic", "unscaled"]

LLOYD_ROUNDS = 4  # limit: rounds of k-means between the votes and EM
EMPTY = 1e-3  # limit: a group of fewer patients than this has nobody and is moved to a new public place


class GaussianMixture(WithMoments[MixturePublic, Nothing], FittedMixture[MixtureParams, MixturePublic, Nothing]):
    """Fit one Gaussian mixture for all hospitals by federated EM.

    From the same start every parameter equals scikit-learn's ``GaussianMixture`` on the pooled records (``rounds`` is its
    ``max_iter``, ``n_starts`` its ``n_init``). Empty values (NaN) are missing at random. With ``privacy`` records are clipped
    to a public ball of ``radius`` around ``center``, which you must give, and every sum is charged to the budget.
    ``start="votes"`` takes one vote of each patient for the nearest of some public points and then four rounds of k-means.
    ``start="box"`` uses public points alone. ``variant="paper"`` keeps the old centre in the M-step as printed (ERRATA E4.9).

    See Also
    --------
    LatentClass : for categories and counts.

    References
    ----------
    Li, Gundersen, Tjell, Wisniewski, Christensen. Privacy-Preserving Distributed Expectation Maximization for Gaussian
    Mixture Model Using Subspace Perturbation. ICASSP 2022.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sites = [Site(n, features=rng.normal(m, 1.0, (100, 2))) for n, m in (("a", -4.0), ("b", 4.0))]
    >>> g = GaussianMixture(n_components=2, seed=0).fit(sites)
    >>> np.sort(g.means_[:, 0]).round(0), g.converged_
    (array([-4.,  4.]), True)
    """

    name = "mixture"
    version = 2
    facts = FACTS
    additive = True  # with privacy
    needs = "features"
    exact = 1e-6
    Params = MixtureParams
    Public = MixturePublic
    Private = Nothing
    params: MixtureParams

    def init_public(self, setting: Schema, rng: np.random.Generator) -> MixturePublic:
        """w_j = 1 / k; the moments come first or, with privacy, the public ball."""
        p, d = self.params, setting.shape[0]
        crossed = p.covariance_type in ("full", "tied")
        faults = [
            f"{name} has shape {np.shape(value)}, expected {shape}"
            for name, value, shape in (
                ("means_init", p.means_init, (p.n_components, d)),
                ("precisions_init", p.precisions_init, _shape(p.covariance_type, p.n_components, d)),
                ("center", p.center, (d,)),
            )
            if value is not None and np.shape(value) != shape
        ]
        if faults:
            raise ConfigError("the start does not fit the sites' features", faults=faults)
        empty = start.shared(np.zeros((p.n_components, d)), np.ones(d), p.covariance_type)
        moments = SummedMoments.begin(d, self._radius, crossed=crossed, gaps=True)
        return self.outset(MixturePublic("", 0, 0, 0, moments, np.zeros(0), empty))

    @property
    def phases(self) -> Mapping[str, Phase[MixturePublic, Nothing]]:
        if self.params.privacy is not None:
            return {
                "moments": NoisyCovariance(self),
                "coarse": CoarseGrid(self),
                "fine": FineGrid(self),
                "em": NoisyMixtureEM(self),
            }
        return {
            "moments": MixtureMoments(self),
            "votes": Votes(self),
            "lloyd": Lloyd(self),
            "em": MixtureEM(self),
            "score": MixtureScore(self),
        }

    def round_metrics(self, public: MixturePublic) -> Mapping[str, float | None]:
        bound, gain, number = public.last_round
        return {
            "objective": None if bound is None else -bound,
            "lower_bound": bound,
            "gain": gain,
            "start": number,
            "reseeded": public.reseeded,
        }

    def init_site(self, site: Site, public: MixturePublic, rng: np.random.Generator) -> Nothing:
        complete(site, self._radius if self.params.privacy is None else None, gaps=True)
        return Nothing()

    def finalize_site(self, site: Site, private: Nothing, public: MixturePublic) -> Arrays:
        return {"responsibilities": self._natural(public).responsibilities(site.matrix())}

    def divergence_hint(self, site: Site, public: MixturePublic) -> str:
        return f"raise reg_covar (now {self.params.reg_covar:g}) or standardise the features (pc.Standardizer)"

    def _natural(self, public: MixturePublic) -> Mixture:
        """Return the mixture in the units of the records."""
        if self.params.privacy is None:
            return public.mixture
        return public.mixture.moved(self._center(public.mixture.d), self._radius)

    # ---- public scales

    def overall(self, public: MixturePublic) -> tuple[Array, Array]:
        """Return mean and covariance of all patients; with privacy those of the uniform law on the unit ball."""
        if self.params.privacy is not None:  # nothing is known but the ball
            d = public.mixture.d
            return np.zeros(d), np.eye(d) / (d + 2)
        return public.moments.mean, public.moments.covariance()

    def deviations(self, public: MixturePublic) -> Array:
        """Return the standard deviation of every feature, 1 where it never varies."""
        variances = np.diag(self.overall(public)[1])
        return np.sqrt(np.where(variances > 0, variances, 1.0))

    def points(self, public: MixturePublic) -> Array:
        """Return the public points that patients vote for."""
        return start.points(*self.overall(public), self.params.n_components, seeds(self.params.seed, "points"))

    # ---- starts

    def begin_start(self, public: MixturePublic) -> MixturePublic:
        """Begin a start by its number; the same votes serve all of them."""
        return replace(
            public,
            round=max(public.round, 1),
            iteration=0,
            mixture=self._first_mixture(public),
            bound=None,
            converged=False,
        )

    def _first_mixture(self, public: MixturePublic) -> Mixture:
        p = self.params
        if p.means_init is not None:
            return self._given_mixture(public)
        rng = seeds(p.seed, "start", public.start)
        if p.start == "box":
            return start.box(*self.overall(public), p.n_components, p.covariance_type, rng)
        sd = self.deviations(public)
        draw = start.centres if public.start == 0 else start.plus_plus  # the best guess first, then other ones
        means = draw(self.points(public) / sd, public.votes, p.n_components, rng) * sd
        return start.shared(means, sd**2, p.covariance_type)

    def _given_mixture(self, public: MixturePublic) -> Mixture:
        p, variances = self.params, np.diag(self.overall(public)[1])
        center, radius = (0.0, 1.0) if p.privacy is None else (self._center(public.mixture.d), self._radius)
        m = start.shared((np.asarray(p.means_init, float) - center) / radius, variances, p.covariance_type)
        if p.weights_init is not None:
            m = replace(m, weights=np.asarray(p.weights_init, float))
        if p.precisions_init is not None:
            precisions = np.asarray(p.precisions_init, float)
            covariances = np.linalg.inv(precisions) if p.covariance_type in ("full", "tied") else 1 / precisions
            m = replace(m, covariances=covariances / radius**2)
        return m


class MixtureMoments(MomentsPhase[MixturePublic, Nothing]):
    """Number, mean and covariance of all patients: every later bound follows from them."""

    fit: GaussianMixture

    def refuse_few(self, moments: SummedMoments, members: int) -> None:
        """Refuse features, too, that few patients have: no sum may be about a few patients, or about nobody."""
        super().refuse_few(moments, members)
        least = self.fit.params.min_patients if members > 1 else 1
        values = np.full(len(moments.mean), moments.n) if moments.known is None else moments.known
        rare = np.flatnonzero(values < min(least, moments.n)) if moments.n else ()
        if len(rare):
            raise PolicyRefusal(
                f"values that fewer than {least} patients have",
                faults=[f"feature {j}: known of {values[j]:.0f} patients" for j in rare],
                hint="leave the feature out, add sites, or lower min_patients knowingly",
            )


class Votes(Phase[MixturePublic, Nothing]):
    """One vote of every patient for the nearest public point."""

    fit: GaussianMixture

    def due(self, public: MixturePublic) -> bool:
        return self.fit.params.asks_start

    def step(self, public: MixturePublic) -> Step:
        shapes = {"votes": (len(self.fit.points(public)),)}
        return Step(0, "votes", shapes, bound=max(public.moments.n, 1.0) * ROOM, grid=1.0, counts=False)

    def contribute(self, step: Step, site: Site, private: Nothing, public: MixturePublic) -> Answer[Nothing]:
        """x_k = for every point, the number of patients to whom it is the nearest."""
        votes = start.vote(site.matrix(), self.fit.points(public), self.fit.deviations(public))
        return private, Contribution({"votes": votes})

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """votes = sum_k x_k."""
        return self.fit.onward(replace(public, votes=total.arrays["votes"]))


class MixtureEM(Phase[MixturePublic, Nothing]):
    """The rounds of the paper."""

    fit: GaussianMixture
    hard = False  # every record belongs to its nearest group alone

    def enter(self, public: MixturePublic) -> MixturePublic:
        return self.fit.begin_start(public)

    def step(self, public: MixturePublic) -> Step:
        shapes_ = {**shapes(public.mixture.kind, *public.mixture.means.shape), "loglik": (1,)}
        bound, _ = bounds(public.moments, public.mixture)
        return Step(public.round, "statistics", shapes_, bound=bound, asides=("loglik",))

    def contribute(self, step: Step, site: Site, private: Nothing, public: MixturePublic) -> Answer[Nothing]:
        """x_k = sum_i r_ij (1, d_ij, d_ij d_ij') of every group, and sum_i log p(x_i)."""
        sums = expect(site.matrix(), public.mixture, hard=self.hard)
        arrays = scaled(sums, public.moments.unit, public.mixture.kind)
        if "loglik" in step.shapes:
            arrays["loglik"] = np.array([sums.loglik / bounds(public.moments, public.mixture)[1]])
        return private, Contribution(arrays)

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """w_j = a_j / n, mu_j += b_j / a_j, Sigma_j = C_j / a_j - dd', from the sums over all hospitals."""
        _, scale = bounds(public.moments, public.mixture)
        return self.maximise(public, unscaled(total.arrays, public.moments.unit, public.mixture.kind, scale))

    def maximise(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        """Take the M-step, and end the start where the log-likelihood rests."""
        p = self.fit.params
        bound = sums.loglik / max(float(sums.a.sum()), 1e-300)
        gain = None if public.bound is None else bound - public.bound
        converged = gain is not None and p.tol > 0 and abs(gain) < p.tol
        mixture, reseeded = self.fill(
            maximise(sums, public.mixture, reg_covar=p.reg_covar, paper=p.variant == "paper"), sums.a, public
        )
        public = replace(
            public,
            mixture=mixture,
            bound=bound,
            last_round=(bound, gain, public.start),
            converged=converged and not reseeded,
            iteration=public.iteration + 1,
            reseeded=public.reseeded + reseeded,
        )
        if not public.converged and public.iteration < p.rounds:
            return replace(public, round=public.round + 1)
        return self._end_start(public)

    def _end_start(self, public: MixturePublic) -> MixturePublic:
        """Keep the best start; begin the next one, or end with the best."""
        p = self.fit.params
        if public.best_bound is None or (public.bound is not None and public.bound > public.best_bound):
            public = replace(
                public,
                best=public.mixture,
                best_bound=public.bound,
                best_iterations=public.iteration,
                best_converged=public.converged,
            )
        if public.start + 1 < p.n_starts and p.means_init is None:
            stage = "lloyd" if p.asks_start else "em"
            return self.fit.begin_start(replace(public, stage=stage, start=public.start + 1, round=public.round + 1))
        assert public.best is not None
        return self.fit.onward(replace(public, mixture=public.best))

    def fill(self, mixture: Mixture, a: Array, public: MixturePublic) -> tuple[Mixture, int]:
        """Move groups that nobody belongs to, by a public rule: around the overall mean, with the overall spread."""
        empty = np.flatnonzero(a < EMPTY)
        if not len(empty) or mixture.k == 1:
            return mixture, 0
        rng = seeds(self.fit.params.seed, "reseed", public.start, public.round, public.iteration, public.stage)
        drawn = start.box(*self.fit.overall(public), mixture.k, mixture.kind, rng)
        means, weights, covariances = mixture.means.copy(), mixture.weights.copy(), mixture.covariances.copy()
        means[empty], weights[empty] = drawn.means[empty], 1 / mixture.k
        if mixture.kind != "tied":
            covariances[empty] = drawn.covariances[empty]
        return Mixture(weights / weights.sum(), means, covariances, mixture.kind), len(empty)


class Lloyd(MixtureEM):
    """Rounds of k-means between the votes and EM: the E-step gives every patient to the nearest centre."""

    hard = True

    def due(self, public: MixturePublic) -> bool:
        return self.fit.params.asks_start

    def step(self, public: MixturePublic) -> Step:
        bound, _ = bounds(public.moments, public.mixture)
        shapes_ = shapes(public.mixture.kind, *public.mixture.means.shape)
        return Step(0, f"lloyd-{public.start}-{public.iteration}", shapes_, bound=bound, counts=False)

    def maximise(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        """Move the centres to the means of their patients; after the last round take the M-step."""
        m = public.mixture
        if public.iteration + 1 < LLOYD_ROUNDS:
            moves = np.where(sums.a[:, None] > 0, sums.b / np.maximum(sums.a, EMPTY)[:, None], 0.0)
            return replace(public, iteration=public.iteration + 1, mixture=replace(m, means=m.means + moves))
        mixture, reseeded = self.fill(maximise(sums, m, reg_covar=self.fit.params.reg_covar), sums.a, public)
        return replace(public, stage="em", iteration=0, mixture=mixture, reseeded=public.reseeded + reseeded)


class MixtureScore(Phase[MixturePublic, Nothing]):
    """The log-likelihood of the final mixture."""

    def step(self, public: MixturePublic) -> Step:
        bound = max(public.moments.n, 1.0) * ROOM
        return Step(public.round, "score", {"loglik": (1,)}, bound=bound, counts=False)

    def contribute(self, step: Step, site: Site, private: Nothing, public: MixturePublic) -> Answer[Nothing]:
        """x_k = sum_i log p(x_i), in the unit that keeps it below n."""
        _, scale = bounds(public.moments, public.mixture)
        loglik = float(public.mixture.log_density(site.matrix()).sum())
        return private, Contribution({"loglik": np.array([loglik / scale])})

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """loglik = sum_k x_k."""
        _, scale = bounds(public.moments, public.mixture)
        return replace(public, stage="end", loglik=float(total.arrays["loglik"][0]) * scale)


def _shape(kind: CovarianceType, k: int, d: int) -> tuple[int, ...]:
    shapes_: dict[str, tuple[int, ...]] = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
    return shapes_[kind]
