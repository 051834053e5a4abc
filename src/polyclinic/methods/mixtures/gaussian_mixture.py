"""Groups of patients by expectation maximisation over hospitals, with sums only (Li et al., private EM), both halves.

A round is one sum of ``(a, b, C)``: patients per group, first and second moments around the public centres, the symmetric half
only. All scalars of an M-step travel as one vector, so under ``subspace`` one consensus run carries a round.
Set-up sums (``methods.moments.moments``) give the mean and spread from which every later bound follows: what a site adds
cannot exceed what all patients together add, and that is known from the moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.methods.mixtures import start
from polyclinic.methods.mixtures.bounds import bounds, scaled, unscaled
from polyclinic.methods.mixtures.facts import FACTS
from polyclinic.methods.mixtures.histogram_start import FLAT
from polyclinic.methods.mixtures.private_mixture import PaidMixture
from polyclinic.methods.mixtures.state import MixtureParams, MixturePublic
from polyclinic.methods.mixtures.statistics import Statistics, expect, maximise, shapes
from polyclinic.methods.moments.moments import ROOM, SummedMoments, complete
from polyclinic.methods.moments.standardizing import Nothing
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total, seeds
from polyclinic.protocol.parameter_types import GaussianMixtureTyped
from polyclinic.records.sites.site import Site

__all__ = ["GaussianMixture", "MixtureParams", "MixturePublic", "scaled", "unscaled"]

LLOYD = 4  # k-means rounds between the votes and EM
EMPTY = 1e-3  # a group of fewer patients than this is moved to a new public place


class GaussianMixture(GaussianMixtureTyped, PaidMixture):
    """Groups of patients that all hospitals agree on; the same fit as on pooled data, and no record leaves.

    From the same start every parameter equals scikit-learn's on the pooled records. Empty values (NaN) are missing at
    random: a patient counts with what is known and with what that lets expect. With ``privacy`` records are clipped to a
    public ball, every sum is paid for, and nothing else leaves.

    Parameters
    ----------
    n_components, covariance_type, tol, reg_covar, weights_init, means_init, precisions_init
        As in ``sklearn.mixture.GaussianMixture`` (``rounds`` is its ``max_iter``, ``n_starts`` its ``n_init``).
    start
        ``"votes"``: each patient has one vote for the nearest of some public points; only summed votes are seen; then
        ``4`` rounds of k-means. ``"box"``: public points alone, nobody is asked.
    variant
        ``"corrected"``: exact M-step, ``C/a - dd'`` (ERRATA E4.9); ``"paper"`` keeps the old centre as printed.
    privacy
        ``pc.Privacy(epsilon=, delta=)``; then ``radius`` (and ``center``) of the ball are public numbers you must give.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sites = [Site(n, features=rng.normal(m, 1.0, (100, 2))) for n, m in (("a", -4.0), ("b", 4.0))]
    >>> g = GaussianMixture(n_components=2, seed=0).fit(sites)
    >>> np.sort(g.means_[:, 0]).round(0), g.converged_
    (array([-4.,  4.]), True)
    """

    name = "mixture"
    facts = FACTS
    needs = "features"
    exact = 1e-6
    Params = MixtureParams
    Public = MixturePublic
    Private = Nothing
    params: MixtureParams

    # ---- coordinator, or every node

    def init_public(self, setting: Schema, rng: np.random.Generator) -> MixturePublic:
        """Mixture of k empty groups; the moments come first."""
        p, d = self.params, setting.shape[0]
        crossed = p.covariance_type in ("full", "tied")
        wrong = [
            f"{name} has shape {np.shape(value)}, expected {shape}"
            for name, value, shape in (
                ("means_init", p.means_init, (p.n_components, d)),
                ("precisions_init", p.precisions_init, _shape(p.covariance_type, p.n_components, d)),
                ("center", p.center, (d,)),
            )
            if value is not None and np.shape(value) != shape
        ]
        if wrong:
            raise ConfigError("the start does not fit the sites' features", faults=wrong)
        empty = start.shared(np.zeros((p.n_components, d)), np.ones(d), p.covariance_type)
        public = MixturePublic(
            "moments", 0, 0, 0, SummedMoments.begin(d, self._radius, crossed=crossed, gaps=True), np.zeros(0), empty
        )
        return public if p.privacy is None else self._ready(public)

    def next_step(self, public: MixturePublic) -> Step | None:
        """Moments, votes for public points, Lloyd rounds, EM rounds, and the likelihood."""
        p, d = self.params, public.mixture.d
        if public.stage == "end":
            return None
        if p.privacy is not None:
            return self._paid_step(public)
        if public.stage == "moments":
            return public.moments.step(p.max_patients)
        n = max(public.moments.n, 1.0)
        if public.stage == "votes":
            return Step(0, "votes", {"votes": (len(self._points(public)),)}, bound=n * ROOM, grid=1.0, counts=False)
        if public.stage == "score":
            return Step(public.round, "score", {"loglik": (1,)}, bound=n * ROOM, counts=False)
        bound, _ = bounds(public.moments, public.mixture)
        sums = shapes(p.covariance_type, p.n_components, d)
        if public.stage == "lloyd":
            return Step(0, f"lloyd-{public.start}-{public.iteration}", sums, bound=bound, counts=False)
        return Step(public.round, "statistics", {**sums, "loglik": (1,)}, bound=bound, asides=("loglik",))

    def update_public(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        """w_j = n_j / n, mu_j = s_j / n_j, Sigma_j = S_j / n_j - mu_j mu_j' + reg I, from n_j, s_j, S_j = sum_k."""
        p = self.params
        if p.privacy is not None:
            return self._paid_combine(public, total)
        if public.stage == "moments":
            moments = public.moments.combine(total)
            if public.moments.stage == 0 and total.members > 1 and moments.n < p.min_patients:
                raise PolicyRefusal(
                    f"fewer than {p.min_patients} patients in all: exact sums over rounds would give their records away",
                    hint="add sites, lower min_patients knowingly, or ask for privacy=pc.Privacy(...)",
                )
            if public.moments.stage == 0:
                self._known(moments, total.members)
            public = replace(public, moments=moments)
            return self._ready(public) if moments.done else public
        if public.stage == "votes":
            return self._begin_start(replace(public, votes=total.arrays["votes"]))
        if public.stage == "score":
            _, scale = bounds(public.moments, public.mixture)
            return replace(public, stage="end", loglik=float(total.arrays["loglik"][0]) * scale)
        _, scale = bounds(public.moments, public.mixture)
        sums = unscaled(total.arrays, public.moments.unit, p.covariance_type, scale)
        if public.stage == "lloyd":
            return self._lloyd(public, sums)
        return self._em(public, sums)

    def _known(self, moments: SummedMoments, members: int) -> None:
        """Refuse features of which too little is known: no sum may be about a few patients, or about nobody."""
        least = self.params.min_patients if members > 1 else 1
        known = moments.n * np.ones(len(moments.mean)) if moments.known is None else moments.known
        few = np.flatnonzero(known < min(least, moments.n)) if moments.n else ()
        if len(few):
            raise PolicyRefusal(
                f"values that fewer than {least} patients have",
                faults=[f"feature {j}: known of {known[j]:.0f} patients" for j in few],
                hint="leave the feature out, add sites, or lower min_patients knowingly",
            )

    def round_metrics(self, public: MixturePublic) -> Mapping[str, float | None]:
        bound, gain, number = public.told
        return {
            "objective": None if bound is None else -bound,
            "lower_bound": bound,
            "gain": gain,
            "start": number,
            "reseeded": public.reseeded,
        }

    # ---- hospital k

    def init_site(self, site: Site, public: MixturePublic, rng: np.random.Generator) -> Nothing:
        complete(site, self._radius if self.params.privacy is None else None, gaps=True)
        return Nothing()

    def contribute(
        self, step: Step, site: Site, private: Nothing, public: MixturePublic, rng: np.random.Generator
    ) -> tuple[Nothing, Contribution]:
        """n_j = sum_i r_ij, s_j = sum_i r_ij x_i, S_j = sum_i r_ij x_i x_i'; r_ij = w_j N(x_i; mu_j, Sigma_j), rows to 1."""
        p, X = self.params, site.matrix()
        if p.privacy is not None:
            return private, self._paid_contribution(X, public)
        if public.stage == "moments":
            return private, public.moments.contribute(X)
        if public.stage == "votes":
            return private, Contribution({"votes": start.vote(X, self._points(public), self._sd(public))})
        _, scale = bounds(public.moments, public.mixture)
        if public.stage == "score":
            return private, Contribution({"loglik": np.array([float(public.mixture.log_density(X).sum()) / scale])})
        s = expect(X, public.mixture, hard=public.stage == "lloyd")
        arrays = scaled(s, public.moments.unit, p.covariance_type)
        if public.stage == "em":
            arrays["loglik"] = np.array([s.loglik / scale])
        return private, Contribution(arrays)

    def finalize_site(self, site: Site, private: Nothing, public: MixturePublic) -> Arrays:
        return {"responsibilities": self._natural(public).responsibilities(site.matrix())}

    def divergence_hint(self, site: Site, public: MixturePublic) -> str:
        return f"raise reg_covar (now {self.params.reg_covar:g}) or standardise the features (pc.Standardizer)"

    # ---- starts and rounds, exact sums

    def _ready(self, public: MixturePublic) -> MixturePublic:
        """The moments are known (or, with privacy, the ball): choose the way to start."""
        p = self.params
        if p.means_init is not None:
            return replace(public, stage="em", round=1, mixture=self._explicit(public))
        if p.start == "box":
            return self._begin_start(public)
        if p.privacy is None:
            return replace(public, stage="votes")
        d = public.mixture.d
        if d > FLAT:
            return replace(public, stage="moments")
        return replace(public, stage="votes", frame=np.stack([np.zeros(d), np.ones(d)]))

    def _explicit(self, public: MixturePublic) -> Mixture:
        p, (_, covariance) = self.params, self._overall(public)
        means = np.asarray(p.means_init, float)
        if p.privacy is not None:
            means = (means - self._center(public.mixture.d)) / self._radius
        m = start.shared(means, np.diag(covariance), p.covariance_type)
        if p.weights_init is not None:
            m = replace(m, weights=np.asarray(p.weights_init, float))
        if p.precisions_init is not None:
            precisions = np.asarray(p.precisions_init, float)
            full = p.covariance_type in ("full", "tied")
            covariances = np.linalg.inv(precisions) if full else 1 / precisions
            m = replace(m, covariances=covariances / (self._radius**2 if p.privacy is not None else 1.0))
        return m

    def _begin_start(self, public: MixturePublic) -> MixturePublic:
        """A start by its number; the same votes serve all of them."""
        p, (mean, covariance) = self.params, self._overall(public)
        rng = seeds(p.seed, "start", public.start)
        if p.start == "box":
            mixture = start.box(mean, covariance, p.n_components, p.covariance_type, rng)
        else:
            sd = self._sd(public)
            draw = start.centres if public.start == 0 else start.plus_plus  # the best guess first, then other ones
            mixture = start.shared(
                draw(self._points(public) / sd, public.votes, p.n_components, rng) * sd, sd**2, p.covariance_type
            )
        stage: Literal["lloyd", "em"] = "em" if p.start == "box" else "lloyd"
        number = max(public.round, 1) if public.start == 0 else public.round
        return replace(public, stage=stage, round=number, iteration=0, mixture=mixture, bound=None, converged=False)

    def _lloyd(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        m = public.mixture
        if public.iteration + 1 < LLOYD:
            moved = m.means + np.where(sums.a[:, None] > 0, sums.b / np.maximum(sums.a, EMPTY)[:, None], 0.0)
            return replace(public, iteration=public.iteration + 1, mixture=replace(m, means=moved))
        mixture, lost = self._filled(maximise(sums, m, reg_covar=self.params.reg_covar), sums.a, public)
        return replace(public, stage="em", iteration=0, mixture=mixture, reseeded=public.reseeded + lost)

    def _em(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        p = self.params
        bound = sums.loglik / max(float(sums.a.sum()), 1e-300)
        gain = None if public.bound is None else bound - public.bound
        converged = gain is not None and p.tol > 0 and abs(gain) < p.tol
        mixture = maximise(sums, public.mixture, reg_covar=p.reg_covar, paper=p.variant == "paper")
        mixture, lost = self._filled(mixture, sums.a, public)
        public = replace(
            public,
            mixture=mixture,
            bound=bound,
            told=(bound, gain, public.start),
            converged=converged and not lost,
            iteration=public.iteration + 1,
            reseeded=public.reseeded + lost,
        )
        if not public.converged and public.iteration < p.rounds:
            return replace(public, round=public.round + 1)
        return self._end_start(public)

    def _end_start(self, public: MixturePublic) -> MixturePublic:
        p = self.params
        if public.best_bound is None or (public.bound is not None and public.bound > public.best_bound):
            public = replace(
                public,
                best=public.mixture,
                best_bound=public.bound,
                best_iterations=public.iteration,
                best_converged=public.converged,
            )
        if public.start + 1 < p.n_starts and p.means_init is None:
            return self._begin_start(replace(public, start=public.start + 1, round=public.round + 1))
        assert public.best is not None
        return replace(public, stage="score", mixture=public.best)

    def _filled(self, mixture: Mixture, a: Array, public: MixturePublic) -> tuple[Mixture, int]:
        """Move groups that nobody belongs to, by a public rule: around the overall mean, with the overall spread."""
        lost = np.flatnonzero(a < EMPTY)
        if not len(lost) or mixture.k == 1:
            return mixture, 0
        mean, covariance = self._overall(public)
        rng = seeds(self.params.seed, "reseed", public.start, public.round, public.iteration, public.stage)
        fresh = start.box(mean, covariance, mixture.k, mixture.kind, rng)
        means, weights = mixture.means.copy(), mixture.weights.copy()
        means[lost], weights[lost] = fresh.means[lost], 1 / mixture.k
        covariances = mixture.covariances
        if mixture.kind != "tied":
            covariances = covariances.copy()
            covariances[lost] = fresh.covariances[lost]
        return Mixture(weights / weights.sum(), means, covariances, mixture.kind), len(lost)

    # ---- public scales

    def _overall(self, public: MixturePublic) -> tuple[Array, Array]:
        d = public.mixture.d
        if self.params.privacy is not None:  # in units of the ball, nothing is known but the ball
            return np.zeros(d), np.eye(d) / (d + 2)  # covariance of the uniform law on the unit ball
        return public.moments.mean, public.moments.covariance()

    def _sd(self, public: MixturePublic) -> Array:
        variances = np.diag(self._overall(public)[1])
        return np.sqrt(np.where(variances > 0, variances, 1.0))

    def _points(self, public: MixturePublic) -> Array:
        return start.points(*self._overall(public), self.params.n_components, seeds(self.params.seed, "points"))


def _shape(kind: CovarianceType, k: int, d: int) -> tuple[int, ...]:
    shapes_: dict[str, tuple[int, ...]] = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
    return shapes_[kind]
