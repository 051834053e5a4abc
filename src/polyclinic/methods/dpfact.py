"""DPFact: federated phenotyping by elastic averaging (Ma et al. 2019), both halves.

Every hospital keeps feature factors B_t of its own and pulls them to the global ones by the elastic penalty
gamma/2 ||B_t - B^||^2 (eq. 5); the l2,1 norm on its patients turns off phenotypes that it does not have (eq. 9). The
coordinator moves the global factors towards the hospitals' (eq. 19): B^ + eta gamma sum_t (B_t - B^).

``weights="elastic"`` keeps what eq. 5 and 19 are made for. Where a hospital stands still, its gradient is
gamma (B_t - B^), so sum_t gamma_t (B_t - B^) = 0 says that the gradients of all hospitals add up to nothing: the global
factors fit all patients. An average weighted by anything else ends elsewhere, and with small hospitals far away. With
e_tr the energy of phenotype r at hospital t, a hospital moves by the part e/(e + gamma) of the way to its own optimum, so::

    B^_r + alpha sum_t gamma_t (B_t - B^)_r / sum_t gamma_t e_tr / (e_tr + gamma_t)

is a step as long whether one hospital has the phenotype or all. gamma is the same for all hospitals but for how well the
model explains them: small ones are held fast, large ones decide.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.methods.localtf import FACTS as LOCALTF
from polyclinic.methods.localtf import LocalParams, LocalPrivate, LocalPublic, LocalTF
from polyclinic.methods.rounds.observed_pass import WARM, Elastic, Passed
from polyclinic.methods.rounds.step_size import rate_at
from polyclinic.privacy.facts import KnownAttack, MethodFacts
from polyclinic.protocol.interfaces import Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp

Array = NDArray[np.float64]
# docs/benchmarks/constants.md
FORCE: Final = 3.0  # gamma of weights="elastic", in units of the mean hospital's tr(Gram)/R
# docs/benchmarks/constants.md
HALFWAY: Final = 0.5  # alpha: a whole step by columns overshoots where phenotypes share codes
FACTS = MethodFacts(
    paper="Ma et al. 2019 (DPFact)",
    attacks=(
        KnownAttack("noise", "one entry decides whether a site leaves a saddle point: shifts up to 89 times the claim"),
        *(a for a in LOCALTF.attacks or () if a.against == "sum"),
    ),
    steps=LOCALTF.steps,
)


class DPFactParams(LocalParams):
    """Parameters of DPFact."""

    elastic: float = Field(
        1.0, ge=0, description="gamma; where zeros are observed in units of tr(Gram)/R (0.3 to 3 works)."
    )
    weights: Literal["elastic", "energy", "uniform", "nonzeros"] | None = Field(  # type: ignore[assignment]
        None,
        description="How sites count in the average; None: by elastic forces (zero where all patients are fitted) with saturating "
        "weights, else by phenotype energy where zeros are observed, else uniform.",
    )
    sparsity: float | dict[str, float] = Field(
        1.0, description="l2,1 on patients (mu; 1 to 4 noise units): a number, or one per site."
    )
    server_step: float = Field(
        1.0, gt=0, lt=2, description="alpha = eta gamma T of eq. 19; 1 = the mean, below 2 stable (E0.7)."
    )

    @property
    def balanced(self) -> bool:
        """Whether the sites send their elastic forces."""
        able = self.zeros == "observed" and self.privacy is None and self.elastic > 0 and self.variant == "corrected"
        return able and (self.weights == "elastic" or (self.weights is None and self.weighting == "saturating"))


class DPFact(LocalTF):
    """Elastic averaging: every hospital keeps factors of its own."""

    name = "dpfact"
    version = 2
    facts = FACTS
    Params = DPFactParams
    params: DPFactParams

    def _passes(self, site: Site, private: LocalPrivate, public: LocalPublic) -> Passed:
        """Passes from the site's OWN factors, pulled to the global ones; the own factors persist.

        Departs from the paper in the first ten passes, which adopt the global factors: own factors from a random start
        name the phenotypes differently at every site, and the elastic force then merges some of them for good.
        """
        if self.params.variant == "corrected" and self.params.zeros == "observed" and private.passes < WARM:
            return super()._passes(site, private, public)
        start = private.factors if private.passes or self.params.variant == "paper" else public.factors
        gamma = self.params.elastic * (self._balance(site, public) if self._balances(public) else 1.0)
        elastic = Elastic(public.factors, gamma) if gamma else None
        return self._run(self.records(site, public), site.name, private, start, elastic)

    def _pull(self) -> float:
        return self.params.elastic

    def _balances(self, public: LocalPublic) -> bool:
        """Whether this round's messages are elastic forces: not before the phenotypes mean the same everywhere."""
        return self.params.balanced and public.sites > 1 and (public.round - 1) * self.params.local_passes >= WARM

    def _balance(self, site: Site, public: LocalPublic) -> float:
        """What turns a gamma in units of the site's own tr(Gram)/R into units of the mean site's."""
        energy = self.records(site, public).norm_squared()
        return FORCE * public.norm / public.sites / energy if energy > 0 else FORCE

    def _weighted(self, passed: Passed, site: Site, public: LocalPublic) -> tuple[dict[str, Array], float]:
        if not self._balances(public):
            return super()._weighted(passed, site, public)
        energy = np.square(passed.patients).sum(0) / public.norm
        gamma = self.params.elastic * self._balance(site, public) * float(energy.mean())
        moves = energy / np.maximum(energy + gamma, 1e-300)
        pairs = zip(passed.factors, public.factors)
        return {f"mode{n}": gamma * (moves * old + (own - old)) for n, (own, old) in enumerate(pairs, start=1)}, 1.0

    def _server(self, mode: int, public: LocalPublic, total: Total) -> Array:
        """Eq. 19: B^ + alpha (average - B^)."""
        old, balances = public.factors[mode - 1], self._balances(public)
        average = self._average(total.arrays[f"mode{mode}"], total, old)
        alpha = self._alpha(total.members) * (HALFWAY if balances else 1.0)
        if alpha == 1.0:
            return average
        factor = old + alpha * (average - old)
        if balances and self.params.nonnegative:
            factor = np.maximum(factor, 0.0)  # a sum of forces may point out of the model
        return factor if self.params.zeros == "missing" else cp.unit_columns(factor, old)

    def _alpha(self, sites: int) -> float:
        return self.params.server_step if self.params.variant == "corrected" else super()._alpha(sites)

    def _check(self, sites: int) -> None:
        super()._check(sites)
        alpha = self._alpha(sites)
        if not 0 < alpha < 2:
            p = self.params
            eta: object = rate_at(p.learning_rate, 1, p.zeros)
            raise ConfigError(
                f"the server step eta gamma T = {eta:g} x {p.elastic:g} x {sites} = {alpha:g} is not stable (ERRATA E0.7)",
                faults=["eq. 19 converges only for 0 < eta gamma T < 2"],
                hint=f"use learning_rate below {2 / max(p.elastic * sites, 1e-12):.3g}, e.g. {1 / max(p.elastic * sites, 1e-12):.3g}",
            )
