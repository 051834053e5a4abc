"""UnPSL between hospitals before its rounds: the states, and the sums that standardise, weigh pairs and set the start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.methods.moments.moments import SummedMoments
from polyclinic.methods.similarity.admm import SCALES, best_scale, directions, penalty_of
from polyclinic.protocol.interfaces import Answer, Contribution, Step, Total
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.methods.similarity.federated import ConsensusUnPSL

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UnPSLPublic:
    """What everybody knows: moments, numbers of pairs, the start, W and the figures of the last round."""

    sites: int
    moments: SummedMoments
    stage: str  # moments -> pairs -> scale -> slope -> rounds -> end
    round: int
    similar: float
    different: float
    W: Array  # the answer so far, with exact zero rows
    drift: Array  # mean of U_p, which follows from earlier sums
    rho: float
    floor: float
    objective: float
    primal: float
    dual: float


@dataclass(frozen=True)
class UnPSLPrivate:
    """A site's own W_p and multipliers U_p (preconditioned), and the rho they belong to (0 before round 1)."""

    W: Array
    U: Array
    rho: float


class MomentSums(Phase[UnPSLPublic, UnPSLPrivate]):
    """Means, deviations and correlations over all hospitals, in several sums."""

    fit: ConsensusUnPSL

    def step(self, public: UnPSLPublic) -> Step:
        return public.moments.step(self.fit.params.max_patients)

    def contribute(self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Answer[UnPSLPrivate]:
        """x_k = sums over the site's patients, see :class:`~polyclinic.methods.moments.moments.SummedMoments`."""
        return private, public.moments.contribute(site.matrix())

    def combine(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """The next unit and centre; after the last sum an error where no feature varies."""
        public = replace(public, moments=public.moments.combine(total))
        if not public.moments.done:
            return public
        if np.isinf(self.fit._spread(public)[1]).all():
            radius = self.fit.params.radius
            raise DataError(
                f"every one of the {len(public.W)} feature(s) is the same in all patients: nothing distinguishes them",
                hint=f"give features that vary, by more than about 1e-24 of the public radius ({radius:g})",
            )
        return self.fit.onward(public)


class PairCounts(Phase[UnPSLPublic, UnPSLPrivate]):
    """How many pairs are similar and how many are not: they fix the weight of one."""

    fit: ConsensusUnPSL

    def step(self, public: UnPSLPublic) -> Step:
        n = max(public.moments.n, 1.0)
        return Step(0, "pairs", {"similar": (1,), "different": (1,)}, bound=n * n, counts=False)

    def contribute(self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Answer[UnPSLPrivate]:
        """x_k = numbers of similar and of dissimilar pairs within the hospital."""
        similar, different = self.fit._pairs(site).counts()
        return private, Contribution({"similar": np.array([float(similar)]), "different": np.array([float(different)])})

    def combine(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """The counts, and the directions of a thin W, now that correlations are known."""
        similar, different = (float(np.rint(total.arrays[k][0])) for k in ("similar", "different"))
        if min(similar, different) < 1:
            raise DataError(
                "no hospital has both a similar and a dissimilar pair to learn from",
                faults=[f"similar pairs within hospitals: {similar:.0f}", f"dissimilar: {different:.0f}"],
                hint="hospitals with patients of one class only cannot teach what differs; pool or regroup them",
            )
        W = public.W
        d, rank = W.shape
        if d > rank:
            rng = np.random.default_rng(self.fit.params.seed)
            W = directions(d, rank, self.fit._correlation(public), rng, 0)
        return self.fit.onward(replace(public, similar=similar, different=different, W=W))


class StartScale(Phase[UnPSLPublic, UnPSLPrivate]):
    """The multiple of the start that explains the pairs best."""

    fit: ConsensusUnPSL

    def step(self, public: UnPSLPublic) -> Step:
        n = max(public.moments.n, 1.0)
        most = (1 + abs(self.fit.params.bias)) * n * n * self.fit._largest_weight(public)
        bound = float(SCALES[-1]) ** 2 * self.fit._reach(public) + most
        return Step(0, "scale", {"losses": SCALES.shape}, bound=bound, counts=False)

    def contribute(self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Answer[UnPSLPrivate]:
        """x_k = f_k(c W) for every c of SCALES."""
        problem, A = self.fit._problem(site, public), self.fit._frame(public).go(public.W)
        return private, Contribution({"losses": np.array([problem.loss(c * A)[0] for c in SCALES])})

    def combine(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """W' = c W, c where the summed loss is least. As printed, W stays."""
        p = self.fit.params
        scale = p.start_scale * (1.0 if p.variant == "paper" else best_scale(total.arrays["losses"]))
        return self.fit.onward(replace(public, W=scale * public.W))


class StartSlope(Phase[UnPSLPublic, UnPSLPrivate]):
    """How steep the loss is at the start: the unit of rho."""

    fit: ConsensusUnPSL

    def step(self, public: UnPSLPublic) -> Step:
        bound = 2 * self.fit._reach(public) * float(np.linalg.norm(public.W, 2))
        return Step(0, "slope", {"slope": (1,)}, bound=bound + 1e-300, counts=False)

    def contribute(self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Answer[UnPSLPrivate]:
        """x_k = |grad f_k(W)|."""
        problem, A = self.fit._problem(site, public), self.fit._frame(public).go(public.W)
        return private, Contribution({"slope": np.array([np.linalg.norm(problem.loss(A)[1])])})

    def combine(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """rho = penalty * mean slope / |W|. As printed, rho is the penalty."""
        if self.fit.params.variant == "paper":
            return self.fit.onward(replace(public, rho=self.fit.params.penalty))
        mean = float(total.arrays["slope"][0]) / max(total.members, 1)
        rho = penalty_of(mean, self.fit._frame(public).go(public.W), self.fit.params.penalty)
        return self.fit.onward(replace(public, rho=rho))
