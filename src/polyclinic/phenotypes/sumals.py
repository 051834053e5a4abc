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
from polyclinic.federation.keywords import SumALSTyped
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total
from polyclinic.phenotypes import facts as known
from polyclinic.phenotypes.gramstart import StartPublic
from polyclinic.phenotypes.sizes import own_sizes, setup, sizes_of
from polyclinic.phenotypes.started import Started, StartedParams
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp
from polyclinic.tensors.site import Site
from polyclinic.tensors.weighting import weighted

__all__ = ["SumALS"]

Array = NDArray[np.float64]
SWEEPS = 3
HEADROOM = 1e5


class SumALSParams(StartedParams):
    """Parameters of SumALS."""

    rounds: int = Field(60, ge=1, le=100_000, description="Pooled sweeps at most.")
    warmup: int = Field(10, ge=0, description="First sweeps by projected gradient (random start, non-negative).")


@dataclass(frozen=True)
class SumPublic:
    """What everybody sees; ``mode`` is the feature mode that the coming step updates (0: the score)."""

    stage: Literal["setup", "start", "sweep", "score", "end"]
    round: int
    mode: int
    factors: tuple[Array, ...]
    scale: Array  # what a patient's column is multiplied by, because a feature column was brought to length 1
    start: StartPublic
    norm: float = 1.0
    cells: float = 0.0
    objective: float | None = None
    gain: float | None = None  # of explained energy in the first sweep
    still: int = 0  # sweeps in a row that gained less than `tol`
    energy: Array | None = None
    saturation: float | None = None


@dataclass(frozen=True)
class SumPrivate:
    """Patients stay."""

    patients: Array
    first: bool = True


class SumALS(SumALSTyped, Started):
    """Exactly pooled least squares by sums: the baseline to beat in rounds, at the price of R x R more numbers a mode.

    It starts from the Gram of hashed cells where that may be taken (``start_`` says so), else at random with a warm-up, and
    ends when a sweep (two after a random start) gains less than ``tol`` of the explained energy (known with the next sweep's first sum).

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
        begun, factors = self._begin(setting)
        return SumPublic("setup", 0, 1, factors, np.ones(factors[0].shape[1]), begun, saturation=p.public_saturation)

    def next(self, public: SumPublic) -> Step | None:
        rank = public.factors[0].shape[1]
        if public.stage == "setup":
            return setup(self.params)
        if public.stage == "start":
            return self._gram(public.factors).step(public.start)
        if public.stage == "sweep":
            shapes = {"mttkrp": public.factors[public.mode - 1].shape, "gram": (rank, rank), "aside": (2,)}
            return Step(public.round, f"mode{public.mode}", shapes, bound=HEADROOM, asides=("aside",))
        if public.stage == "score":
            return Step(public.round, "score", {"energy": (rank,), "sse": (1,)}, bound=HEADROOM, counts=False)
        return None

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        if step.name == "setup":
            size = sizes_of(self.params, total)
            cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
            start = public.start
            if start.kind == "gram":
                start = self._gram(public.factors).begin(start, size.patients, size.norm)
            stage: Literal["start", "sweep"] = "start" if start.kind == "gram" else "sweep"
            sized = replace(public, norm=size.norm, cells=cells, saturation=size.saturation)
            return replace(sized, stage=stage, round=1, start=start)
        if public.stage == "start":
            start = self._gram(public.factors).combine(step, public.start, total)
            if start.kind == "random":
                return replace(public, stage="sweep", start=start)
            if start.stage != "over":
                return replace(public, start=start)
            factors, begun = start.lifted, replace(start, lifted=(), diagonal=None)
            return replace(public, stage="sweep", factors=factors, scale=np.ones(factors[0].shape[1]), start=begun)
        if step.name == "score":
            sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
            return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)
        return self._sweep(public, total)

    def _sweep(self, public: SumPublic, total: Total) -> SumPublic:
        p, n = self.params, public.mode - 1
        old = public.factors[n]
        g = total.arrays["gram"] * public.norm * cp.gram(public.factors, n)
        m = total.arrays["mttkrp"] * public.norm
        warm = public.start.kind == "random" and public.round <= p.warmup
        if not p.nonnegative:
            new = cp.least_squares(g, m)
        elif warm:
            new = np.maximum(old - (old @ g - m) / max(float(np.linalg.norm(g, 2)), 1e-300), 0.0)
        else:
            new = cp.hals(old, g, m, sweeps=SWEEPS)
        length = np.linalg.norm(new, axis=0)
        alive = length > 0
        new = np.where(alive, new / np.where(alive, length, 1.0), old)
        factors = (*public.factors[:n], new, *public.factors[n + 1 :])
        scale = np.where(alive, length, 0.0) * (public.scale if n else 1.0)  # patients are new since mode 1
        ended = public.round >= p.rounds and public.mode == len(factors)
        if public.mode == 1:
            sse, everything = (max(float(x), 0.0) * public.norm for x in total.arrays["aside"])
            objective = sse / 2
            gained, still, tol = None, 0, self._tol(public.start)
            settled = (
                public.start.kind != "random" or public.round > p.warmup + 1
            )  # the last sweep was no gradient step
            if public.objective is not None and settled:
                gained = 2 * (public.objective - objective) / max(everything - sse, 1e-300)
                still = public.still + 1 if gained <= tol else 0
                ended = ended or (tol > 0 and still >= (2 if public.start.kind == "random" else 1))
            gain = gained if public.gain is None else public.gain
            public = replace(public, objective=objective, gain=gain, still=still)
        over = ended or public.mode == len(factors)
        return replace(
            public,
            stage="score" if ended else "sweep",
            round=public.round + (over and not ended),
            mode=1 if over else public.mode + 1,
            factors=factors,
            scale=scale,
        )

    def figures(self, public: SumPublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        return {
            "objective": public.objective,
            "rmse_full": float(np.sqrt(2 * public.objective / max(public.cells, 1.0))),
        }

    # ---- hospital

    def open(self, site: Site, public: SumPublic, rng: np.random.Generator) -> SumPrivate:
        return SumPrivate(np.zeros((site.counts().patients, public.factors[0].shape[1])))

    def contribute(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic, rng: np.random.Generator
    ) -> tuple[SumPrivate, Contribution]:
        if step.name == "setup":
            return private, own_sizes(self.params, site)
        tensor = weighted(site.counts(), public.saturation)
        if public.stage == "start":
            return private, self._gram(public.factors).contribute(step, site, tensor, public.start, public.norm)
        if step.name == "score":
            a = cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)
            everyone = [a, *public.factors]
            sse = cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))
            return private, Contribution(
                {"energy": np.square(a).sum(0) / public.norm, "sse": np.array([sse / public.norm])}
            )
        error = np.zeros(2)
        if public.mode == 1:  # a new sweep begins with the patients
            own = np.zeros((tensor.patients, len(public.scale))) if private.first else private.patients * public.scale
            everyone = [own, *public.factors]
            g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
            if self.params.nonnegative:
                patients = cp.hals(everyone[0], g, m, sweeps=10 if private.first else SWEEPS)
            else:
                patients = cp.least_squares(g, m)
            norm = tensor.norm_squared()
            error = np.array([cp.squared_error(norm, patients, g, m), norm]) / public.norm
            private = SumPrivate(patients, False)
            own = patients
        else:
            own = private.patients * public.scale
        m = mttkrp(tensor, [own, *public.factors], public.mode)
        return private, Contribution({"mttkrp": m / public.norm, "gram": own.T @ own / public.norm, "aside": error})

    def close(self, site: Site, private: SumPrivate, public: SumPublic) -> Arrays:
        tensor = weighted(site.counts(), public.saturation)
        return {"memberships": cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)}
