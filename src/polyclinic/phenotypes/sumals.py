"""SumALS: pooled alternating least squares, federated exactly, because what it needs of the data are sums.

A feature factor's update needs the data only through M = sum_k MTTKRP_k and G = sum_k A_k'A_k (times the other modes'
public Grams). The hospitals send both; the coordinator sweeps. One step per feature mode, so a round is one pooled sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total
from polyclinic.phenotypes import facts as known
from polyclinic.phenotypes.factorization import FederatedFactorization, WeightedParams
from polyclinic.phenotypes.sizes import own_sizes, setup, sizes_of
from polyclinic.phenotypes.start import start
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp
from polyclinic.tensors.site import Site
from polyclinic.tensors.weighting import weighted

__all__ = ["SumALS"]

Array = NDArray[np.float64]
SWEEPS = 3
HEADROOM = 1e5


class SumALSParams(WeightedParams):
    """Parameters of SumALS."""

    rounds: int = Field(60, ge=1, le=100_000, description="Pooled sweeps at most.")
    warmup: int = Field(10, ge=0, description="First sweeps by projected gradient (non-negative only), as in CPALS.")


@dataclass(frozen=True)
class SumPublic:
    """What everybody sees; ``mode`` is the feature mode that the coming step updates (0: the score)."""

    stage: Literal["setup", "sweep", "score", "end"]
    round: int
    mode: int
    factors: tuple[Array, ...]
    scale: Array  # what a patient's column is multiplied by, because a feature column was brought to length 1
    norm: float = 1.0
    cells: float = 0.0
    objective: float | None = None
    energy: Array | None = None
    saturation: float | None = None


@dataclass(frozen=True)
class SumPrivate:
    """Patients stay."""

    patients: Array
    first: bool = True


class SumALS(FederatedFactorization):
    """Exactly pooled least squares by sums: the baseline to beat in rounds, at the price of R x R more numbers a mode.

    ``tol`` is the relative change of the objective (known one step late).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.SumALS(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    name = "sumals"
    facts = known.SUMALS
    exact = 1e-6
    Params = SumALSParams
    Public = SumPublic
    Private = SumPrivate
    params: SumALSParams

    # ---- coordinator

    def begin(self, setting: Setting, rng: np.random.Generator) -> SumPublic:
        p = self.params
        if p.zeros == "missing" or p.privacy is not None:
            raise ConfigError("SumALS counts every cell and adds no noise", hint="use zeros='observed', privacy=None")
        factors = tuple(start(setting.shape, p.rank, p.seed))
        return SumPublic("setup", 0, 1, factors, np.ones(p.rank), saturation=p.public_saturation)

    def next(self, public: SumPublic) -> Step | None:
        rank = self.params.rank
        if public.stage == "setup":
            return setup(self.params)
        if public.stage == "sweep":
            shapes = {"mttkrp": public.factors[public.mode - 1].shape, "gram": (rank, rank), "aside": (1,)}
            return Step(public.round, f"mode{public.mode}", shapes, bound=HEADROOM, asides=("aside",))
        if public.stage == "score":
            return Step(public.round, "score", {"energy": (rank,), "sse": (1,)}, bound=HEADROOM, counts=False)
        return None

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        p = self.params
        if step.name == "setup":
            size = sizes_of(self.params, total)
            cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
            return replace(public, stage="sweep", round=1, norm=size.norm, cells=cells, saturation=size.saturation)
        if step.name == "score":
            sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
            return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)
        n = public.mode - 1
        old = public.factors[n]
        g = total.arrays["gram"] * public.norm * cp.gram(public.factors, n)
        m = total.arrays["mttkrp"] * public.norm
        if not p.nonnegative:
            new = cp.least_squares(g, m)
        elif public.round <= p.warmup:
            new = np.maximum(old - (old @ g - m) / max(float(np.linalg.norm(g, 2)), 1e-300), 0.0)
        else:
            new = cp.hals(old, g, m, sweeps=SWEEPS)
        length = np.linalg.norm(new, axis=0)
        alive = length > 0
        new = np.where(alive, new / np.where(alive, length, 1.0), old)
        factors = (*public.factors[:n], new, *public.factors[n + 1 :])
        scale = np.where(alive, length, 0.0) * (public.scale if n else 1.0)  # patients are new since mode 1
        if public.mode < len(factors):
            return replace(
                public, mode=public.mode + 1, factors=factors, scale=scale, objective=self._seen(public, total)
            )
        objective = self._seen(public, total) if len(factors) == 1 else public.objective
        ended = public.round >= p.rounds
        return replace(
            public,
            stage="score" if ended else "sweep",
            round=public.round + (not ended),
            mode=1,
            factors=factors,
            scale=scale,
            objective=objective,
        )

    def _seen(self, public: SumPublic, total: Total) -> float | None:
        if public.mode != 1:
            return public.objective
        return max(float(total.arrays["aside"][0]), 0.0) * public.norm / 2

    def figures(self, public: SumPublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        return {
            "objective": public.objective,
            "rmse_full": float(np.sqrt(2 * public.objective / max(public.cells, 1.0))),
        }

    # ---- hospital

    def open(self, site: Site, public: SumPublic, rng: np.random.Generator) -> SumPrivate:
        return SumPrivate(np.zeros((site.counts().patients, self.params.rank)))

    def contribute(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic, rng: np.random.Generator
    ) -> tuple[SumPrivate, Contribution]:
        if step.name == "setup":
            return private, own_sizes(self.params, site)
        tensor = weighted(site.counts(), public.saturation)
        if step.name == "score":
            a = cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)
            everyone = [a, *public.factors]
            sse = cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))
            return private, Contribution(
                {"energy": np.square(a).sum(0) / public.norm, "sse": np.array([sse / public.norm])}
            )
        error = np.zeros(1)
        if public.mode == 1:  # a new sweep begins with the patients
            everyone = [private.patients * public.scale, *public.factors]
            g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
            if self.params.nonnegative:
                patients = cp.hals(everyone[0], g, m, sweeps=10 if private.first else SWEEPS)
            else:
                patients = cp.least_squares(g, m)
            error[0] = cp.squared_error(tensor.norm_squared(), patients, g, m) / public.norm
            private = SumPrivate(patients, False)
            own = patients
        else:
            own = private.patients * public.scale
        m = mttkrp(tensor, [own, *public.factors], public.mode)
        return private, Contribution({"mttkrp": m / public.norm, "gram": own.T @ own / public.norm, "aside": error})

    def close(self, site: Site, private: SumPrivate, public: SumPublic) -> Arrays:
        tensor = weighted(site.counts(), public.saturation)
        return {"memberships": cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)}
