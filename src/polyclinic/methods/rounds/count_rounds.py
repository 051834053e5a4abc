"""SumALS with a loss for counts or yes/no: the phases in place of its sweeps and score. One sum a round, all feature modes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.methods.factorization import WeightedParams, power_of_two
from polyclinic.methods.rounds.losses import TOL, Climb, Loss, begun, climbed, likelihood_step
from polyclinic.methods.rounds.phases import HEADROOM, Phase
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors.kernels.counts import Likelihood
from polyclinic.tensors.likelihood import ceiling, constant_fit, explained, placed

if TYPE_CHECKING:
    from polyclinic.methods.sumals import SumALS, SumPrivate, SumPublic

    Base = Phase[SumPublic, SumPrivate]
else:
    Base = Phase  # SumALS names the types: its file reads this one

REST = 2  # rounds in a row that gain less than `tol`: a step further may stand still once


class LossParams(WeightedParams):
    """Parameters of the methods that know several losses."""

    loss: Loss = Field(
        "squares",
        description="What the model minimises: squares, or the deviance of counts (poisson) or of yes/no (bernoulli, "
        "P(x = 1) = 1 - exp(-m)). Weighting then concerns the start only.",
    )

    @model_validator(mode="after")
    def _counts_only(self) -> Self:
        if self.loss == "squares":
            return self
        faults = []
        if not self.nonnegative:
            faults.append("rates are never negative: nonnegative=True")
        if self.zeros == "missing":
            faults.append("a cell without an event is a count of 0: zeros='observed'")
        if self.variant == "paper":
            faults.append("no paper of ours prints it: variant='corrected'")
        if self.privacy is not None:
            faults.append("no noise is added: privacy=None (pc.DPEM is the private model of counts)")
        if faults:
            raise ValueError(f"loss = {self.loss!r}: " + "; ".join(faults))
        return self


class Climbing(Base):
    """Rounds that climb the likelihood (:mod:`.rounds.losses`); the unit of what travels is the number of nonzeros."""

    fit: SumALS

    @property
    def loss(self) -> Likelihood:
        assert self.fit.params.loss != "squares"
        return self.fit.params.loss

    def enter(self, public: SumPublic) -> SumPublic:
        factors = begun(public.factors)
        start = replace(public.start, lifted=(), patients=None, diagonal=None, rows=None, sites=())
        climb, norm = Climb(factors, -np.inf), power_of_two(public.nonzeros)
        return replace(public, factors=factors, climb=climb, start=start, norm=norm)

    def step(self, public: SumPublic) -> Step:
        shapes: dict[str, tuple[int, ...]] = {"events": (sum(public.shape), public.rank), "fit": (3,)}
        return Step(public.round, "likelihood", shapes, bound=HEADROOM, asides=("fit",))

    def contribute(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic
    ) -> tuple[SumPrivate, Contribution]:
        """x_k = what the codes should be multiplied by, and (log-likelihood, events, its ceiling)."""
        before = None if private.first else private.patients
        patients, sums, value = likelihood_step(site.counts(), public.factors, self.loss, before)
        arrays = {"events": sums / public.norm, "fit": self.told(site, value) / public.norm}
        return replace(private, patients=patients, first=False), Contribution(arrays)

    def told(self, site: Site, value: float) -> NDArray[np.float64]:
        tensor = site.counts()
        return np.array([value, float(tensor.values.sum()), ceiling(tensor, self.loss)])

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        """A' = A * sum_k x_k, a step further where that rose; the share of the deviance that is explained."""
        assert public.climb is not None
        p = self.fit.params
        value, events, top = (float(x) * public.norm for x in total.arrays["fit"])
        share = explained(value, events, top, public.cells, self.loss)
        tol = TOL if p.tol is None else p.tol
        gain = tol * abs(value - constant_fit(events, public.cells, self.loss))
        climb, ahead = climbed(public.climb, public.factors, total.arrays["events"] * public.norm, value, gain)
        ended = public.round >= p.rounds or (tol > 0 and climb.still >= REST)
        rose = public.objective is None or -value < public.objective
        return replace(
            public,
            stage="score" if ended else "sweep",
            round=public.round + (not ended),
            factors=climb.good if ended else ahead,
            climb=climb,
            objective=-value if rose else public.objective,
            deviance_explained=share if rose else public.deviance_explained,
        )


class ClimbScore(Climbing):
    """The last sum, by likelihood."""

    def step(self, public: SumPublic) -> Step:
        return Step(public.round, "score", {"energy": (public.rank,), "fit": (3,)}, bound=HEADROOM, counts=False)

    def contribute(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic
    ) -> tuple[SumPrivate, Contribution]:
        """x_k = sum over patients of P_k^2, and (log-likelihood, events, its ceiling)."""
        a = placed(site.counts(), public.factors, self.loss)
        _, _, value = likelihood_step(site.counts(), public.factors, self.loss, a)
        energy = np.square(a).sum(0) / public.norm
        return private, Contribution({"energy": energy, "fit": self.told(site, value) / public.norm})

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        """objective = -sum_k log-likelihood."""
        value, events, top = (float(x) * public.norm for x in total.arrays["fit"])
        share = explained(value, events, top, public.cells, self.loss)
        energy = total.arrays["energy"] * public.norm
        return replace(public, stage="end", energy=energy, objective=-value, deviance_explained=share)
