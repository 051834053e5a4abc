"""SumALS with a loss for counts or yes/no: both halves of its rounds. One sum a round, all feature modes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, model_validator

from polyclinic.federation.outcome import Outcome
from polyclinic.federation.protocol import Arrays, Contribution, Step, Total
from polyclinic.learned.placing import Likely, Placing
from polyclinic.phenotypes.factorization import FederatedFactorization, WeightedParams, power_of_two
from polyclinic.phenotypes.losses import TOL, Climb, Loss, begun, climbed, likelihood_step, only_counts
from polyclinic.sites.site import Site
from polyclinic.tensors.count_kernels import Likelihood
from polyclinic.tensors.likelihood import ceiling, constant_fit, explained, placed

if TYPE_CHECKING:
    from polyclinic.phenotypes.sumals import SumALSParams, SumPrivate, SumPublic

    Base = FederatedFactorization[SumALSParams, SumPublic, SumPrivate]
else:
    Base = FederatedFactorization  # SumALS names the types: its file reads this one

__all__ = ["LossParams", "SumLikelihood"]

HEADROOM = 1e5  # how far a site's sums may exceed the unit, the number of nonzeros
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


class SumLikelihood(Base):
    """What SumALS does in place of sweeps where ``loss`` is no least squares."""

    @property
    def _loss(self) -> Likelihood:
        assert self.params.loss != "squares"
        return self.params.loss

    # ---- coordinator

    def _climbing(self, public: SumPublic) -> SumPublic:
        """The start is known: begin to climb from it, where a likelihood is asked for."""
        if self.params.loss == "squares" or public.stage != "sweep":
            return public
        factors = begun(public.factors)
        start = replace(public.start, rows=None, sites=())
        norm = power_of_two(public.nonzeros)
        return replace(public, factors=factors, climb=Climb(factors, -np.inf), start=start, norm=norm)

    def _likelihood_sum(self, public: SumPublic) -> Step:
        rank = public.factors[0].shape[1]
        codes = sum(len(f) for f in public.factors)
        if public.stage == "score":
            return Step(public.round, "score", {"energy": (rank,), "fit": (3,)}, bound=HEADROOM, counts=False)
        shapes: dict[str, tuple[int, ...]] = {"events": (codes, rank), "fit": (3,)}
        return Step(public.round, "likelihood", shapes, bound=HEADROOM, asides=("fit",))

    def _likelihood_combine(self, public: SumPublic, total: Total) -> SumPublic:
        assert public.climb is not None
        p = self.params
        value, events, top = (float(x) * public.norm for x in total.arrays["fit"])
        share = explained(value, events, top, public.cells, self._loss)
        if public.stage == "score":
            energy = total.arrays["energy"] * public.norm
            return replace(public, stage="end", energy=energy, objective=-value, deviance_explained=share)
        tol = TOL if p.tol is None else p.tol
        gain = tol * abs(value - constant_fit(events, public.cells, self._loss))
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

    # ---- hospital

    def _likelihood_part(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic
    ) -> tuple[SumPrivate, Contribution]:
        tensor, loss = site.counts(), self._loss
        top, events = ceiling(tensor, loss), float(tensor.values.sum())
        if step.name == "score":
            a = placed(tensor, public.factors, loss)
            _, _, value = likelihood_step(tensor, public.factors, loss, a)
            energy = np.square(a).sum(0) / public.norm
            return private, Contribution({"energy": energy, "fit": np.array([value, events, top]) / public.norm})
        before = None if private.first else private.patients
        patients, sums, value = likelihood_step(tensor, public.factors, loss, before)
        arrays = {"events": sums / public.norm, "fit": np.array([value, events, top]) / public.norm}
        return replace(private, patients=patients, first=False), Contribution(arrays)

    def _likelihood_close(self, site: Site, public: SumPublic) -> Arrays:
        return {"memberships": placed(site.counts(), public.factors, self._loss)}

    # ---- results

    def _look_at_loss(self, site: Site) -> None:
        if self.params.loss != "squares":
            only_counts([site.counts()], self.params.loss)

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        if self.params.loss != "squares":
            self.saturation_ = None  # it weighed the start only

    def _placing(self) -> Placing:
        return super()._placing() if self.params.loss == "squares" else Likely(self._loss)
