"""DPFact: federated phenotyping by elastic averaging (Ma et al. 2019), both halves.

Every hospital keeps feature factors B_t of its own and pulls them to the global ones by the elastic penalty
gamma/2 ||B_t - B^||^2 (eq. 5); the l2,1 norm on its patients turns off phenotypes that it does not have (eq. 9). The
coordinator moves the global factors towards the hospitals' (eq. 19): B^ + eta gamma sum_t (B_t - B^).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.federation.keywords import DPFactTyped
from polyclinic.federation.protocol import Total
from polyclinic.phenotypes import facts as known
from polyclinic.phenotypes.local_pass import WARM, Elastic, Passed
from polyclinic.phenotypes.localtf import LocalParams, LocalPrivate, LocalPublic, LocalTF
from polyclinic.phenotypes.rate import rate_at
from polyclinic.tensors import cp
from polyclinic.tensors.site import Site

__all__ = ["DPFact"]

Array = NDArray[np.float64]


class DPFactParams(LocalParams):
    """Parameters of DPFact."""

    elastic: float = Field(
        1.0, ge=0, description="gamma; where zeros are observed in units of tr(Gram)/R (0.3 to 3 works)."
    )
    sparsity: float | dict[str, float] = Field(
        1.0, description="l2,1 on patients (mu; 1 to 4 noise units): a number, or one per site."
    )
    server_step: float = Field(
        1.0, gt=0, lt=2, description="alpha = eta gamma T of eq. 19; 1 = the mean, below 2 stable (E0.7)."
    )


class DPFact(DPFactTyped, LocalTF):
    """Phenotypes by elastic averaging, with phenotypes of a site's own.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.DPFact(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    name = "dpfact"
    facts = known.DPFACT
    Params = DPFactParams
    params: DPFactParams

    def _passes(self, site: Site, private: LocalPrivate, public: LocalPublic) -> Passed:
        """Passes from the site's OWN factors, pulled to the global ones; the own factors persist.

        Departs from the paper in the first ten passes, which adopt the global factors: own factors from a random start
        name the phenotypes differently at every site, and the elastic force then merges some of them for good.
        """
        if self.params.variant == "corrected" and self.params.zeros == "observed" and private.passes < WARM:
            return super()._passes(site, private, public)
        own = private.factors if private.passes else public.factors
        elastic = Elastic(public.factors, self.params.elastic) if self.params.elastic else None
        return self._run(self._cells(site, public), site.name, private, own, elastic)

    def _server(self, mode: int, old: Array, total: Total) -> Array:
        """Eq. 19: B^ + alpha (average - B^)."""
        average = self._average(total.arrays[f"mode{mode}"], total, old)
        alpha = self._alpha(total.members)
        if alpha == 1.0:
            return average
        moved = old + alpha * (average - old)
        return moved if self.params.zeros == "missing" else cp.unit_columns(moved, old)

    def _alpha(self, sites: int) -> float:
        p = self.params
        return p.server_step if p.variant == "corrected" else rate_at(p.learning_rate, 1, p.zeros) * p.elastic * sites

    def _check(self, sites: int) -> None:
        super()._check(sites)
        alpha = self._alpha(sites)
        if not 0 < alpha < 2:
            p = self.params
            eta: Any = rate_at(p.learning_rate, 1, p.zeros)
            raise ConfigError(
                f"the server step eta gamma T = {eta:g} x {p.elastic:g} x {sites} = {alpha:g} is not stable (ERRATA E0.7)",
                faults=["eq. 19 converges only for 0 < eta gamma T < 2"],
                hint=f"use learning_rate below {2 / max(p.elastic * sites, 1e-12):.3g}, e.g. {1 / max(p.elastic * sites, 1e-12):.3g}",
            )
