"""LocalModel: every hospital alone, then the columns are matched and averaged once. The baseline without federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.rounds.factorization import FederatedFactorization, WeightedParams
from polyclinic.methods.rounds.facts import FACTORS, RARE, SETUP
from polyclinic.methods.rounds.setup import own_sizes, setup, sizes_of
from polyclinic.methods.starts.random import start
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp, observed_only
from polyclinic.tensors.matching import match
from polyclinic.tensors.weighting import weighted

Array = NDArray[np.float64]
FACTS = MethodFacts(
    paper="each site's own factorization, side by side",
    attacks=(KnownAttack("each", "each site's model is shown as it is: a code that a single patient carries is seen"),),
    steps={"setup": SETUP, "factors": StepMeaning(f"your own model: {FACTORS}", RARE)},
)


class LocalModelParams(WeightedParams):
    """Parameters of the local model."""

    rounds: int = Field(200, ge=1, le=100_000, description="Sweeps at each site at most.")
    tol: float = Field(1e-6, ge=0, description="Each site stops when its objective changes by less, relative.")


@dataclass(frozen=True)
class AlonePublic:
    """Factors; one gathering is all that happens, after a sum that says how patients are weighed."""

    stage: Literal["setup", "factors", "end"]
    factors: tuple[Array, ...]
    objective: float | None = None
    energy: Array | None = None
    saturation: float | None = None


@dataclass(frozen=True)
class AlonePrivate:
    """Nothing is carried."""

    done: bool = False


class LocalModel(FederatedFactorization[LocalModelParams, AlonePublic, AlonePrivate]):
    """CPALS at each site, columns matched to the site with the most nonzeros (TRIP's pivot), averaged once."""

    name = "localmodel"
    whole_only = "every hospital shows its own factors: there are no sums that halves could share"
    facts = FACTS
    Params = LocalModelParams
    Public = AlonePublic
    Private = AlonePrivate
    params: LocalModelParams

    def init_public(self, setting: Schema, rng: np.random.Generator) -> AlonePublic:
        """A public start for every hospital."""
        if self.params.privacy is not None:
            raise ConfigError(
                "LocalModel adds no noise: it has no private version", hint="use DPEM, or leave out privacy"
            )
        p = self.params
        factors = tuple(start(setting.shape, p.rank, p.seed))
        return AlonePublic("setup" if p.estimates else "factors", factors, saturation=p.public_saturation)

    def next_step(self, public: AlonePublic) -> Step | None:
        """Sizes (if weights are estimated), then every hospital's own factors, shown singly."""
        if public.stage == "end":
            return None
        if public.stage == "setup":
            return setup(self.params)
        shapes = {f"mode{n}": f.shape for n, f in enumerate(public.factors, start=1)}
        return Step(1, "factors", shapes, bound=1.0 + 1e-9, weight_bound=1e12, how="gather")

    def update_public(self, step: Step, public: AlonePublic, total: Total) -> AlonePublic:
        """average_n = F_n + sum_k F_kn P_k, P_k matching site k's columns to the largest site's; columns to length 1."""
        if step.name == "setup":
            return replace(public, stage="factors", saturation=sizes_of(self.params, total).saturation)
        modes = range(1, len(public.factors) + 1)
        models = {s: [c.arrays[f"mode{n}"] for n in modes] for s, c in sorted(total.gathered.items())}
        weight = {s: c.weight for s, c in total.gathered.items()}
        reference = max(models, key=lambda s: (weight[s], s))
        average = [np.array(f) for f in models[reference]]
        for site, factors in models.items():
            if site == reference or not weight[site]:
                continue
            pairs = match(models[reference], factors)
            for n, f in enumerate(factors):
                average[n][:, pairs.left] += f[:, pairs.right]
        unit, _ = cp.normalise(average)
        return replace(public, stage="end", factors=tuple(unit))

    def init_site(self, site: Site, public: AlonePublic, rng: np.random.Generator) -> AlonePrivate:
        return AlonePrivate()

    def contribute(
        self, step: Step, site: Site, private: AlonePrivate, public: AlonePublic, rng: np.random.Generator
    ) -> tuple[AlonePrivate, Contribution]:
        """F_k = argmin ||X_k - [A_k; F_k]||^2, the hospital alone; weight = its nonzeros."""
        p, tensor = self.params, site.counts()
        if step.name == "setup":
            return private, own_sizes(p, site)
        if tensor.nnz == 0:
            return AlonePrivate(True), Contribution({k: np.zeros(s) for k, s in step.shapes.items()}, 0.0)
        model = CPALS(
            rank=p.rank,
            rounds=p.rounds,
            tol=p.tol,
            seed=p.seed,
            nonnegative=p.nonnegative,
            zeros=p.zeros,
            weighting="none" if public.saturation is None else "saturating",
            saturation=public.saturation,
        ).fit(tensor)
        arrays = {f"mode{n}": f for n, f in enumerate(model.factors_, start=1)}
        return AlonePrivate(True), Contribution(arrays, float(tensor.nnz))

    def finalize_site(self, site: Site, private: AlonePrivate, public: AlonePublic) -> Arrays:
        p = self.params
        a = observed_only.memberships(
            weighted(site.counts(), public.saturation), public.factors, nonnegative=p.nonnegative, zeros=p.zeros
        )
        return {"memberships": a}
