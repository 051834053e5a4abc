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
from polyclinic.phenotypes.deviance import LossParams, SumLikelihood
from polyclinic.phenotypes.losses import Climb
from polyclinic.phenotypes.packedsweeps import AUDITIONED, SWEEPS, UNKNOWN, PackedSweeps
from polyclinic.phenotypes.sizes import own_sizes, setup, sizes_of
from polyclinic.phenotypes.started import Started, StartedParams
from polyclinic.phenotypes.startpublic import Far, StartPublic
from polyclinic.phenotypes.widestart import ROUNDS
from polyclinic.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.device import mttkrp
from polyclinic.tensors.weighting import weighted

__all__ = ["SumALS"]

Array = NDArray[np.float64]
HEADROOM = 1e5
KEPT = 3  # sweeps of a half that keeps all phenotypes of its search (docs/decisions/0012)


class SumALSParams(StartedParams, LossParams):
    """Parameters of SumALS."""

    rounds: int = Field(60, ge=1, le=100_000, description="Pooled sweeps at most.")
    warmup: int = Field(10, ge=0, description="First sweeps by projected gradient (random start, non-negative).")
    packed: bool = Field(
        True, description="After a Gram or wide start sums carry a few bits a number, enough for the fit; else 64 bits."
    )
    half: bool = Field(
        False,
        description="To be compared with a fit on other patients: where the cells saw little, 1.8 times the phenotypes stay.",
    )


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
    patients: Array | None = None  # packed sums: (R, R) A'A as last summed, before `scale`
    explained: float = 0.0
    far: tuple[Far, ...] = ()  # per mode: how far packed sums may lie from what the model predicts
    wider: int = 0  # how often the coming sum was repeated, because a part of it lay outside its window
    nonzeros: float = 0.0
    climb: Climb | None = None  # with another loss than squares: the ascent of the likelihood
    deviance_explained: float | None = None
    careful: bool = False  # weak structure: the first sweeps take gradient steps
    base: int = 0  # rounds before the present sweeps began: a search, and what follows it, begin anew
    searched: bool = False  # a wide start came first: what the model explains is known
    everything: float = 0.0  # ||O||^2 as weighted, once it was summed
    end: float | None = None  # packed sums: squared error after the last whole sweep, as its rounded sums tell it
    before: float | None = None  # ... after the sweep before
    last: tuple[Array, ...] = ()  # packed sums, weak structure: factors at the end of the last sweep
    gained: float = 0.0  # share of explained energy that the last packed sweep gained
    beside: int = 0  # packed sums: columns at the right that the first sweep tries beside those that the Gram found
    whole: bool = False  # the last sweep of very many codes: those that were left out enter


@dataclass(frozen=True)
class SumPrivate:
    """Patients stay."""

    patients: Array
    first: bool = True


class SumALS(SumALSTyped, PackedSweeps, SumLikelihood, Started[SumALSParams, SumPublic, SumPrivate]):
    """Exactly pooled least squares by sums: the baseline to beat in rounds, at the price of R x R more numbers a mode.

    With ``loss="poisson"`` (counts) or ``"bernoulli"`` (yes/no) the likelihood is climbed instead, one sum a round
    (:mod:`polyclinic.phenotypes.losses`), and ``score`` is the share of the deviance that is explained.

    It starts from the Gram of hashed cells where that may be taken (``start_`` says so), with few patients from more random
    columns than are asked for, else at random with a warm-up, and
    ends when a sweep (two after a random start) gains less than ``tol`` of the explained energy. Packed sums tell at the end of a sweep
    what it gained; they end when the next one is expected to gain less than ``tol``.

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
        """A_n random and public, or from the Gram of hashed codes."""
        p = self.params
        if p.zeros == "missing" or p.privacy is not None:
            raise ConfigError("SumALS counts every cell and adds no noise", hint="use zeros='observed', privacy=None")
        begun, factors = self._begin(setting)
        return SumPublic("setup", 0, 1, factors, np.ones(factors[0].shape[1]), begun, saturation=p.public_saturation)

    def next(self, public: SumPublic) -> Step | None:
        """Sizes, the start's sums, then per mode M_n and A'A; the score at the end."""
        rank = public.factors[0].shape[1]
        if public.stage == "setup":
            return setup(self.params)
        if public.stage == "start":
            step = self._coming(public.start, public.factors)
            return replace(step, round=public.round) if public.round > 1 else step
        if public.climb is not None and public.stage in ("sweep", "score"):
            return self._likelihood_sum(public)
        if public.patients is not None and public.stage == "sweep":
            name = f"mode{public.mode}" + (f"+{public.wider}" if public.wider else "")
            return self._packing(public).step(public.round, name)
        if public.stage == "sweep":
            shapes = {"mttkrp": public.factors[public.mode - 1].shape, "gram": (rank, rank), "aside": (2,)}
            return Step(public.round, f"mode{public.mode}", shapes, bound=HEADROOM, asides=("aside",))
        if public.stage == "score":
            return Step(public.round, "score", {"energy": (rank,), "sse": (1,)}, bound=HEADROOM, counts=False)
        return None

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        """A_n' = argmin_{A >= 0} tr(A G A') - 2 tr(A'M), G = (sum_k A_k'A_k) * prod_{m != n} A_m'A_m, M = sum_k M_k."""
        if step.name == "setup":
            size = sizes_of(self.params, total)
            cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
            start = self._sized(public.start, public.factors, size.patients, size.norm)
            stage: Literal["start", "sweep"] = "sweep" if start.stage == "over" else "start"
            sized = replace(public, norm=size.norm, cells=cells, saturation=size.saturation)
            return self._climbing(replace(sized, stage=stage, round=1, start=start, nonzeros=size.nonzeros))
        if public.stage == "start":
            start = self._summed(step, public.start, public.factors, total, public.norm)
            if start.stage == "audition" and self._stays(public):
                start = replace(start, stage="over")
            if start.stage != "over":
                return replace(public, start=start)
            if not start.lifted:
                return self._climbing(replace(public, stage="sweep", start=start))
            factors, begun = start.lifted, replace(start, lifted=(), patients=None, diagonal=None)
            if not self.params.packed:
                begun = replace(begun, rows=None, sites=())
            public = replace(public, stage="sweep", factors=factors, scale=np.ones(factors[0].shape[1]), start=begun)
            if start.sweep:
                public = replace(public, searched=True, base=public.round - 1)
            if not self.params.packed or self.params.loss != "squares":
                return self._climbing(public)
            far = [UNKNOWN] * len(factors)
            if public.searched:
                codes = self._gram(factors).bounds(start, 0)
                far[0] = Far(AUDITIONED * codes, np.ones((1, factors[0].shape[1])))
            return self._beside(replace(public, patients=start.patients, explained=start.explained, far=tuple(far)))
        if public.climb is not None:
            return self._likelihood_combine(public, total)
        if step.name == "score":
            sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
            return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)
        return self._sweep(public, total)

    @property
    def joins(self) -> bool:
        """Of squares only: other losses place patients by their likelihood."""
        return super().joins and self.params.loss == "squares"

    def _searches(self) -> bool:
        return self._packs() and self.params.rounds >= ROUNDS

    def _packs(self) -> bool:
        return self.params.packed and self.params.loss == "squares"

    def _stays(self, public: SumPublic) -> bool:
        """Whether a half keeps all phenotypes of its search: of two tight fits of weak structure each makes its own compromises."""
        return self.params.half and public.start.sweep > 0 and self._weak(public)

    def _most(self, public: SumPublic) -> int:
        """Sweeps at most: what two halves agree on is there early, and further sweeps lead each to an optimum of its own."""
        return min(self.params.rounds, public.base + KEPT) if self._stays(public) else self.params.rounds

    def _sweep(self, public: SumPublic, total: Total) -> SumPublic:
        if public.patients is not None:
            return self._rounded(public, total)
        p, n = self.params, public.mode - 1
        old = public.factors[n]
        g = total.arrays["gram"] * public.norm * cp.gram(public.factors, n)
        m = total.arrays["mttkrp"] * public.norm
        warm = public.start.blind and public.round <= p.warmup
        if not p.nonnegative:
            new = cp.least_squares(g, m)
        elif warm:
            new = np.maximum(old - (old @ g - m) / max(float(np.linalg.norm(g, 2)), 1e-300), 0.0)
        else:
            new = cp.hals(old, g, m, sweeps=SWEEPS)
        length = np.linalg.norm(new, axis=0)
        unit = new / np.where(length > 0, length, 1.0)
        return self._turned(public, unit, length, total.arrays["aside"] * public.norm if not n else None)

    def _turned(self, public: SumPublic, new: Array, length: Array, aside: Array | None) -> SumPublic:
        """One mode's factor is new (columns of length 1; ``length`` goes to the patients); ``aside``: scores of a new sweep."""
        p, n = self.params, public.mode - 1
        alive = length > 0
        new = np.where(alive, new, public.factors[n])
        factors = (*public.factors[:n], new, *public.factors[n + 1 :])
        scale = np.where(alive, length, 0.0) * (public.scale if n else 1.0)  # patients are new since mode 1
        ended = public.round >= self._most(public) and public.mode == len(factors)
        if aside is not None:
            sse, everything = (max(float(x), 0.0) for x in aside)
            gained = None
            settled = not public.start.blind or public.round > p.warmup + 1  # the last sweep was no gradient step
            if public.objective is not None and settled:
                gained = (2 * public.objective - sse) / max(everything - sse, 1e-300)
            gain = gained if public.gain is None else public.gain
            public = replace(public, objective=sse / 2, gain=gain)
            if public.patients is None and gained is not None:
                public = self._rested(public, abs(gained) <= self._tol(public.start))
                ended = ended or self._arrived(public)
        elif public.patients is not None and public.mode == len(factors):
            public = self._expecting(public)
            ended = ended or self._arrived(public)
        if public.whole:
            ended = public.mode == len(factors)
        elif ended and public.start.floors:
            public, ended = replace(public, whole=True), False
        over = ended or public.mode == len(factors)
        if (
            ended and public.patients is not None and public.end is not None
        ):  # the last sums tell how much there is of what
            energy, left = np.diagonal(public.patients) * np.square(scale), max(public.end, 0.0)
            return replace(public, stage="end", factors=factors, scale=scale, energy=energy, objective=left / 2)
        last: tuple[Array, ...] = public.last
        if over and not ended and public.patients is not None:
            factors, last = self._further(public, factors)
        return replace(
            public,
            last=last,
            stage="score" if ended else "sweep",
            round=public.round + (over and not ended),
            mode=1 if over else public.mode + 1,
            factors=factors,
            scale=scale,
        )

    def _arrived(self, public: SumPublic) -> bool:
        """A random start, and one that saw little of the structure, rest on plateaus on their way."""
        rest = 2 if public.start.blind or self._weak(public) else 1
        return self._enough(public) > 0 and public.still >= rest

    def figures(self, public: SumPublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        if public.climb is not None:
            return {"objective": public.objective, "deviance_explained": public.deviance_explained}
        return {
            "objective": public.objective,
            "rmse_full": float(np.sqrt(2 * public.objective / max(public.cells, 1.0))),
        }

    # ---- hospital

    def open(self, site: Site, public: SumPublic, rng: np.random.Generator) -> SumPrivate:
        self._look_at_loss(site)
        return SumPrivate(np.zeros((site.counts().patients, public.factors[0].shape[1])))

    def contribute(
        self, step: Step, site: Site, private: SumPrivate, public: SumPublic, rng: np.random.Generator
    ) -> tuple[SumPrivate, Contribution]:
        """M_k = X_k(n) kr(A_k, A_m != A_n) and A_k'A_k, for its own patients A_k = argmin ||X_k - [A_k, A_1, ...]||^2."""
        if step.name == "setup":
            return private, own_sizes(self.params, site)
        tensor = weighted(site.counts(), public.saturation)
        if public.stage == "start":
            return private, self._part(step, site, tensor, public.start, public.factors, public.norm)
        if public.climb is not None:
            return self._likelihood_part(step, site, private, public)
        if step.name == "score":
            a = cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)
            everyone = [a, *public.factors]
            sse = cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))
            return private, Contribution(
                {"energy": np.square(a).sum(0) / public.norm, "sse": np.array([sse / public.norm])}
            )
        error = np.zeros(2)
        if public.mode == 1:  # a new sweep begins with the patients
            anew = private.first or private.patients.shape[1] != len(public.scale)
            own = np.zeros((tensor.patients, len(public.scale))) if anew else private.patients * public.scale
            everyone = [own, *public.factors]
            g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
            if self.params.nonnegative:
                patients = cp.hals(everyone[0], g, m, sweeps=10 if anew else SWEEPS)
            else:
                patients = cp.least_squares(g, m)
            norm = tensor.norm_squared()
            error = np.array([cp.squared_error(norm, patients, g, m), norm]) / public.norm
            private = SumPrivate(patients, False)
            own = patients
        else:
            own = private.patients * public.scale
        m = mttkrp(tensor, [own, *public.factors], public.mode)
        if public.patients is not None:
            arrays = {"mttkrp": m @ self._roots(public)[0]}
            arrays |= {"rare": arrays["mttkrp"]} if public.whole else {}
            if public.mode == 1:
                arrays |= {"gram": (own.T @ own)[np.triu_indices(own.shape[1])], "aside": error * public.norm}
            return private, self._packing(public).contribution(arrays, site.name)
        return private, Contribution({"mttkrp": m / public.norm, "gram": own.T @ own / public.norm, "aside": error})

    def close(self, site: Site, private: SumPrivate, public: SumPublic) -> Arrays:
        if public.climb is not None:
            return self._likelihood_close(site, public)
        tensor = weighted(site.counts(), public.saturation)
        return {"memberships": cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)}
