"""The paid way of a mixture: noisy covariance (above 3 features), coarse and fine histogram, then EM; every sum has its noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.methods.mixtures import histogram_start as histogram
from polyclinic.methods.mixtures import private_statistics as paid
from polyclinic.methods.mixtures.fitted import FittedMixture
from polyclinic.methods.mixtures.histogram_start import FLAT
from polyclinic.methods.mixtures.state import MixtureParams, MixturePublic
from polyclinic.methods.mixtures.statistics import shapes
from polyclinic.methods.moments.moments import GRID, RADIUS, in_ball, moment_rows, noisy_moments
from polyclinic.methods.moments.standardizing import Nothing
from polyclinic.models.mixtures.gaussian import Array, Mixture
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.interfaces import Contribution, Step, Total, seeds

__all__ = ["PaidMixture"]


class PaidMixture(FittedMixture[MixtureParams, MixturePublic, Nothing]):
    """What a mixture does with ``privacy``: records in the unit ball, one bounded row per patient, noise on every sum."""

    params: MixtureParams

    def _center(self, d: int) -> Array:
        return np.zeros(d) if self.params.center is None else np.asarray(self.params.center, float)

    @property
    def _radius(self) -> float:
        return RADIUS if self.params.radius is None else self.params.radius

    @property
    def _paid_rounds(self) -> int:
        return min(self.params.rounds, self.params.paid_rounds)

    def _multiplier(self, public: MixturePublic) -> float:
        """Noise of the coming release: the start has its share, EM rounds share the rest, later ones more."""
        p = self.params
        assert p.privacy is not None
        asked = p.start == "votes" and p.means_init is None
        share = p.start_share if asked else 0.0
        if public.stage == "em":
            late = np.arange(1, self._paid_rounds + 1, dtype=float)
            part = (1 - share) * late[public.iteration] / late.sum()
        else:
            parts = (
                {"moments": 0.3, "coarse": 0.2, "fine": 0.5}
                if public.mixture.d > FLAT
                else {"coarse": 0.3, "fine": 0.7}
            )
            part = share * parts[self._paid_name(public)]
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(float(part),))
        return multiplier

    def _paid_name(self, public: MixturePublic) -> str:
        if public.stage == "votes":
            return "fine" if public.iteration else "coarse"
        return {"moments": "moments", "em": "statistics"}[public.stage]

    def _paid_step(self, public: MixturePublic) -> Step:
        p, (k, d) = self.params, public.mixture.means.shape
        sums: dict[str, tuple[int, ...]]
        if public.stage == "votes":
            assert public.frame is not None
            m = public.frame.shape[1]
            sums = {"votes": (histogram.side(m, fine=public.iteration > 0) ** m,)}
        elif public.stage == "moments":
            sums = {"rows": (1 + d + d * (d + 1) // 2,)}
        else:
            sums = shapes(p.covariance_type, k, d)
        return Step(
            public.round if public.stage == "em" else 0,
            self._paid_name(public),
            sums,
            bound=float(p.max_patients),
            sensitivity=1.0,
            multiplier=self._multiplier(public),
            grid=1.0 if public.stage == "votes" else GRID,
            counts=public.stage == "em",
        )

    def _paid_contribution(self, X: Array, public: MixturePublic) -> Contribution:
        # A missing value adds nothing to a record's length; what stands in for it is public, so a row is still the patient's own.
        there, center = ~np.isnan(X), self._center(X.shape[1])
        Z = in_ball(np.where(there, X, center), center, self._radius)
        if public.stage == "moments":
            return Contribution({"rows": moment_rows(Z)})
        if public.stage == "votes":
            assert public.frame is not None
            cells = histogram.side(public.frame.shape[1], fine=public.iteration > 0)
            if public.basis is not None:
                filled = np.where(there, Z, public.moments.mean)
                return Contribution({"votes": histogram.vote(filled @ public.basis, public.frame, cells)})
            return Contribution({"votes": histogram.vote(Z[there.all(1)], public.frame, cells)})
        return Contribution(paid.bounded(np.where(there, Z, np.nan), public.mixture))

    def _paid_combine(self, public: MixturePublic, total: Total) -> MixturePublic:
        p = self.params
        if public.stage == "moments":
            moments = noisy_moments(total.arrays["rows"], total.noise_sd, public.mixture.d)
            basis = histogram.directions(moments.covariance(), p.n_components)
            m = basis.shape[1]
            return replace(
                public, stage="votes", moments=moments, basis=basis, frame=np.stack([np.zeros(m), np.ones(m)])
            )
        if public.stage == "votes":
            return self._paid_votes(public, total)
        mixture = paid.improve(
            dict(total.arrays), total.noise_sd, public.mixture, reg_covar=p.reg_covar / self._radius**2
        )
        public = replace(public, mixture=mixture, iteration=public.iteration + 1)
        if public.iteration < self._paid_rounds:
            return replace(public, round=public.round + 1)
        return replace(public, stage="end", best=mixture, best_iterations=public.iteration)

    def _paid_votes(self, public: MixturePublic, total: Total) -> MixturePublic:
        p, frame, votes = self.params, public.frame, total.arrays["votes"]
        assert frame is not None
        cells = histogram.side(frame.shape[1], fine=public.iteration > 0)
        if public.iteration == 0:
            return replace(public, iteration=1, frame=histogram.zoom(votes, frame, cells, total.noise_sd))
        flat = public.basis is None
        mixture = histogram.fit_histogram(
            votes,
            frame,
            cells,
            p.n_components,
            p.covariance_type if flat else "full",
            noise_sd=total.noise_sd,
            starts=max(p.n_starts, 10),
            rng=seeds(p.seed, "start", 0),
        )
        if public.basis is not None:
            m = public.moments
            mixture = histogram.lift(mixture, public.basis, m.mean, m.covariance(), p.covariance_type)
        return replace(public, stage="em", iteration=0, round=1, mixture=mixture)

    def _natural(self, public: MixturePublic) -> Mixture:
        """The mixture in the units of the records."""
        if self.params.privacy is None:
            return public.mixture
        return public.mixture.moved(self._center(public.mixture.d), self._radius)
