"""TRIP: federated phenotyping by consensus ADMM (Kim et al. 2017), both halves.

Minimises, over feature factors A that all hospitals share and patient factors that never leave,

    sum_k 1/2 ||O_k - [[P_k, A, ...]]||^2  +  lambda/2 ||I - B'A||^2   subject to A_k = A at every hospital k, B = A.

The factor 1/2 makes eq. 9 exact (ERRATA E2.1). Only ``omega A_k - H_k`` crosses the wire (E2.6: half the paper's
uplink), its sum is all the coordinator needs, and one round trip serves all feature modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError, Divergence
from polyclinic.federation.keywords import TRIPTyped
from polyclinic.federation.packing import Packing
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total
from polyclinic.phenotypes import facts as known
from polyclinic.phenotypes.distinct import distinct_step
from polyclinic.phenotypes.local_pass import local_pass
from polyclinic.phenotypes.packedrounds import first_spread, opened_round, round_packing
from polyclinic.phenotypes.sizes import own_sizes, setup, sizes_of
from polyclinic.phenotypes.started import Started, StartedParams
from polyclinic.phenotypes.startpublic import Far, StartPublic
from polyclinic.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.device import mttkrp
from polyclinic.tensors.weighting import weighted

__all__ = ["TRIP"]

TripStage = Literal["setup", "start", "warm", "scale", "sweep", "score", "end"]
Array = NDArray[np.float64]
Factors = tuple[Array, ...]
SWEEPS = 3
HEADROOM = 1e5  # how far above its present largest entry a local factor may go before the site refuses


class TRIPParams(StartedParams):
    """Parameters of TRIP."""

    penalty: float | None = Field(
        None,
        gt=0,
        description="Consensus penalty omega at the start, in units of mean tr(Gram)/R; None: 0.03 after a "
        "Gram start or warm-up, 3 after a wide start (few patients), 1 without.",
    )
    penalty_growth: float = Field(1.05, ge=1, le=1.5, description="Factor of omega per round (1 leaves a gap of 2 %).")
    warmup: int = Field(
        10, ge=0, description="First rounds after a random start by averaged gradient passes (paper variant: none)."
    )
    distinct: float = Field(0.0, ge=0, description="lambda of eq. 1: phenotypes share no codes, in tr(Gram)/R.")
    packed: bool = Field(
        True,
        description="After a Gram or wide start (without `distinct`) rounds carry a few bits a number; else 64 bits.",
    )


@dataclass(frozen=True)
class TRIPPublic:
    """What everybody sees: A per feature mode, and for ``distinct`` the auxiliary B and its multiplier Y."""

    stage: TripStage
    round: int
    factors: Factors
    twins: Factors  # B of eq. 10-12, empty without `distinct`
    multipliers: Factors  # Y
    omega: tuple[float, ...]  # consensus penalty per mode, of the coming round
    base: tuple[float, ...]  # summed tr(Gram)/R: the unit of `distinct`
    start: StartPublic
    objective: float | None = None
    primal: float | None = None
    dual: float | None = None
    norm: float = 1.0  # ||O||^2 over all sites, rounded to a power of two: the unit of scores on the wire
    cells: float = 0.0
    gain: float | None = None  # of explained energy in the first round of ADMM
    still: int = 0  # rounds in a row that gained less than `tol`
    energy: Array | None = None
    saturation: float | None = None
    spread: tuple[Far, ...] = ()  # packed rounds, per mode: how far a sum may lie from sites x A; empty: not packed
    wider: int = 0  # how often the coming sum was repeated, because a part of it lay outside its window


@dataclass(frozen=True)
class TRIPPrivate:
    """What stays at the hospital: patients, its own copy A_k, and the multipliers H_k of A_k = A."""

    patients: Array
    locals: Factors
    duals: Factors
    omega: tuple[float, ...]  # the penalty of the last round it took part in; empty before
    first: bool = True
    round: int = 0  # whose part it has computed: a repeated sum sends it again
    aside: Array | None = None


class TRIP(TRIPTyped, Started[TRIPParams, TRIPPublic, TRIPPrivate]):
    """Phenotypes that all hospitals agree on, by consensus ADMM; close to pooling the data, without pooling it.

    It starts from the Gram of hashed cells where that may be taken (``start_`` says so), with few patients from more random
    columns than are asked for, else at random with a warm-up, and
    ends when two rounds in a row (three after a random start) change the explained energy by less than ``tol`` (known one round late).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> m = pc.TRIP(rank=4, rounds=5, seed=0).fit(sites)
    >>> len(m.factors_), m.traffic_.rounds
    (2, 5)
    """

    name = "trip"
    facts = known.TRIP
    leaps = True
    Params = TRIPParams
    Public = TRIPPublic
    Private = TRIPPrivate
    params: TRIPParams

    # ---- coordinator

    def begin(self, setting: Setting, rng: np.random.Generator) -> TRIPPublic:
        """Factors public and random, or from the Gram of hashed codes; multipliers 0."""
        if self.params.privacy is not None:
            raise ConfigError("TRIP adds no noise: it has no private version", hint="use pc.DPEM, or privacy=None")
        begun, factors = self._begin(setting)
        twins = factors if self.params.distinct else ()
        zeros = tuple(np.zeros_like(f) for f in twins)
        none, n0 = (0.0,) * len(factors), self.params.public_saturation
        return TRIPPublic("setup", 0, factors, twins, zeros, none, none, begun, saturation=n0)

    def next(self, public: TRIPPublic) -> Step | None:
        """Sizes, the start's sums, one Gram scale a mode, ADMM rounds of all modes, the score."""
        modes, rank = len(public.factors), public.factors[0].shape[1]
        if public.stage == "setup":
            return setup(self.params)
        if public.stage == "start":
            return self._coming(public.start, public.factors)
        if public.stage == "scale":
            return Step(public.round, "scale", {"gram": (modes,)}, bound=HEADROOM, counts=False)
        if public.stage == "sweep" and public.spread:
            return self._packing(public).step(public.round, "sweep" + (f"+{public.wider}" if public.wider else ""))
        if public.stage in ("warm", "sweep"):
            size = max(float(np.abs(f).max(initial=0.0)) for f in public.factors)
            shapes = {f"mode{n}": f.shape for n, f in enumerate(public.factors, start=1)}
            if self.params.variant == "paper":  # as printed, A_k and H_k both travel: twice the uplink (E2.6)
                shapes |= {f"dual{n}": f.shape for n, f in enumerate(public.factors, start=1)}
            return Step(
                public.round,
                public.stage,
                {**shapes, "aside": (3,)},
                bound=HEADROOM * max(size, 1.0),
                asides=("aside",),
            )
        if public.stage == "score":
            return Step(public.round, "score", {"energy": (rank,), "sse": (1,)}, bound=HEADROOM, counts=False)
        return None

    def _started(self, step: Step, public: TRIPPublic, total: Total) -> TRIPPublic:
        """After a sum of the start: on with it, on without it (random), or the factors that it found."""
        p = self.params
        begun = self._summed(step, public.start, public.factors, total, public.norm)
        if begun.stage != "over":
            return replace(public, start=begun)
        if not begun.lifted:
            return replace(public, stage="warm" if self._warm(begun) else "scale", start=begun)
        packs = self._packs()
        names = begun.sites if packs else ()
        lifted, begun = (
            begun.lifted,
            replace(begun, lifted=(), diagonal=None, rows=None, floors=(), patients=None, sites=names),
        )
        if packs:
            public = replace(public, spread=first_spread(lifted, len(names)))
        twins = lifted if p.distinct else ()
        zeros = tuple(np.zeros_like(f) for f in twins)
        return replace(public, stage="scale", factors=lifted, twins=twins, multipliers=zeros, start=begun)

    def combine(self, step: Step, public: TRIPPublic, total: Total) -> TRIPPublic:
        """A_n' = max(0, sum_k (omega A_kn - H_kn)) / (K omega) (eq. 10), with distinct: the twin's proximal step."""
        p = self.params
        k = total.members
        if step.name == "setup":
            size = sizes_of(self.params, total)
            cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
            self._warn(size.patients / max(k, 1), public.factors)
            begun = self._sized(public.start, public.factors, size.patients, size.norm)
            first: TripStage = "start" if begun.stage != "over" else "warm" if self._warm(begun) else "scale"
            sized = replace(public, norm=size.norm, cells=cells, saturation=size.saturation)
            return replace(sized, stage=first, round=1, start=begun)
        if public.stage == "start":
            return self._started(step, public, total)
        if step.name == "scale":  # omega must scale with the Gram (E2.5); one scalar per mode
            base = tuple(max(float(g) * public.norm, 1e-12) for g in total.arrays["gram"])
            if public.spread:  # twelve bits are enough for a penalty, and the same however the sum was added
                base = tuple(float(np.ldexp(np.rint(np.ldexp(m, 12)), e - 12)) for m, e in map(np.frexp, base))
            penalty = self._penalty(public.start)
            return replace(public, stage="sweep", omega=tuple(penalty * b / k for b in base), base=base)
        if step.name == "score":
            sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
            return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)
        arrays, noise = total.arrays, (0.0,) * len(public.factors)
        if public.spread:
            code = self._packing(public)
            opened = code.opened(total)
            if opened is None:
                return replace(public, wider=public.wider + 1)
            away, noise = opened_round(code, public, opened, k)
            arrays, public = opened, replace(public, spread=away, wider=0)
        sse, gap, everything = (float(x) for x in arrays["aside"])
        objective = max(sse, 0.0) * public.norm / 2
        gained = None
        if public.objective is not None:
            gained = 2 * (public.objective - objective) / max(everything * public.norm - 2 * objective, 1e-300)
        quiet = gained is not None and public.stage == "sweep" and abs(gained) <= self._tol(public.start)
        still = public.still + 1 if quiet else 0
        rest = 3 if public.start.blind else 2
        ended = public.round >= p.rounds or (self._tol(public.start) > 0 and still >= rest)
        gain = public.gain if public.gain is not None or step.name == "warm" else gained
        after = replace(
            public, round=public.round if ended else public.round + 1, objective=objective, still=still, gain=gain
        )
        if step.name == "warm":
            shared = tuple(cp.unit_columns(total.arrays[f"mode{n}"], f) for n, f in enumerate(public.factors, start=1))
            stage: TripStage = "score" if ended else "scale" if public.round >= p.warmup else "warm"
            return replace(after, stage=stage, factors=shared, twins=shared if p.distinct else ())
        factors, new_twins, multipliers, dual = [], [], [], 0.0
        for n, old in enumerate(public.factors):
            omega = public.omega[n]
            summed = omega * arrays[f"mode{n + 1}"]  # sum_k (omega A_k - H_k)
            if p.variant == "paper":
                summed = summed - omega * total.arrays[f"dual{n + 1}"]
            if p.distinct:
                new, twin, y = distinct_step(
                    summed,
                    k * omega,
                    p.distinct * public.base[n],
                    public.twins[n],
                    public.multipliers[n],
                    p.nonnegative,
                    p.variant,
                )
                new_twins.append(twin)
                multipliers.append(y)
            else:
                new = summed / (k * omega)  # eq. 10 without lambda
                if p.nonnegative:
                    new = np.where(new > 1.5 * noise[n], new, 0.0)  # no more than the rounding: 0
            dual += k * omega**2 * float(np.square(new - old).sum())
            factors.append(new)
        return replace(
            after,
            stage="score" if ended else "sweep",
            factors=tuple(factors),
            twins=tuple(new_twins),
            multipliers=tuple(multipliers),
            omega=tuple(w * p.penalty_growth for w in public.omega),
            primal=float(np.sqrt(max(gap, 0.0))),
            dual=float(np.sqrt(dual)),
        )

    def _packing(self, public: TRIPPublic) -> Packing:
        return round_packing(public, self.params.seed)

    def figures(self, public: TRIPPublic) -> Mapping[str, float | None]:
        full = None
        if public.objective is not None and public.cells:
            full = float(np.sqrt(2 * public.objective / public.cells))
        return {"objective": public.objective, "rmse_full": full, "primal": public.primal, "dual": public.dual}

    # ---- hospital k

    def open(self, site: Site, public: TRIPPublic, rng: np.random.Generator) -> TRIPPrivate:
        zeros = tuple(np.zeros_like(f) for f in public.factors)
        patients = np.zeros((site.counts().patients, public.factors[0].shape[1]))
        return TRIPPrivate(patients, public.factors, zeros, ())

    def contribute(
        self, step: Step, site: Site, private: TRIPPrivate, public: TRIPPublic, rng: np.random.Generator
    ) -> tuple[TRIPPrivate, Contribution]:
        """A_kn - H_kn / omega, with H_kn += omega (A_n - A_kn) and A_kn = (M_kn + omega A_n + H_kn)(G + omega I)^-1 (eq. 9)."""
        if step.name == "setup":
            return private, own_sizes(self.params, site)
        tensor, p = weighted(site.counts(), public.saturation), self.params
        if public.stage == "start":
            return private, self._part(step, site, tensor, public.start, public.factors, public.norm)
        rank = public.factors[0].shape[1]
        if not private.omega:  # no round of ADMM yet: copies and multipliers have the rank that the start found
            zeros = tuple(np.zeros_like(f) for f in public.factors)
            own = private.patients if private.patients.shape[1] == rank else np.zeros((tensor.patients, rank))
            private = replace(private, patients=own, locals=public.factors, duals=zeros)
        if step.name == "warm":
            passed = local_pass(tensor, private.patients, public.factors, number=public.round, seed=p.seed)
            energy = np.square(passed.patients).sum(0) / public.norm
            warm = {f"mode{n}": f * energy for n, f in enumerate(passed.factors, start=1)}
            warm["aside"] = np.array([passed.squared_error, 0.0, tensor.norm_squared()]) / public.norm
            return replace(private, patients=passed.patients, first=False), Contribution(warm)
        if public.spread and step.name.startswith("sweep") and private.round == public.round:
            return private, self._sent(site, private, public)  # the same part again, in wider fields
        patients, sse = self._patients(tensor, private.patients, public.factors, 10 if private.first else SWEEPS)
        if step.name == "scale":
            own_grams = [cp.gram([patients, *public.factors], n) for n in range(1, tensor.ndim)]
            gram = np.array([np.trace(g) / rank for g in own_grams]) / public.norm
            return replace(private, patients=patients, first=False), Contribution({"gram": gram})
        if step.name == "score":
            return replace(private, patients=patients, first=False), Contribution(
                {"energy": np.square(patients).sum(0) / public.norm, "sse": np.array([sse / public.norm])}
            )
        gap = 0.0
        duals, own_factors, arrays = list(private.duals), list(private.locals), {}
        if private.omega:  # H_k += omega (A - A_k), with the A that came back (E2.4)
            for n, shared in enumerate(public.factors):
                difference = shared - private.locals[n]
                gap += float(np.square(difference).sum())
                duals[n] = private.duals[n] + private.omega[n] * difference
        current = [patients, *public.factors]
        for n, shared in enumerate(public.factors, start=1):
            omega = public.omega[n - 1]
            g = cp.gram(current, n) + omega * np.eye(rank)  # eq. 9: Pi'Pi + omega I
            target = mttkrp(tensor, current, n) + omega * shared + duals[n - 1]
            own = cp.hals(shared, g, target, sweeps=SWEEPS) if p.nonnegative else cp.least_squares(g, target)
            current[n] = own
            own_factors[n - 1] = own
            if p.variant == "paper":
                arrays[f"mode{n}"], arrays[f"dual{n}"] = own, duals[n - 1] / omega
            else:
                arrays[f"mode{n}"] = own - duals[n - 1] / omega  # (omega A_k - H_k) / omega
        arrays["aside"] = np.array([sse / public.norm, gap, tensor.norm_squared() / public.norm])
        after = TRIPPrivate(patients, tuple(own_factors), tuple(duals), public.omega, False)
        if public.spread:
            after = replace(after, round=public.round, aside=arrays["aside"])
            return after, self._sent(site, after, public)
        return after, Contribution(arrays)

    def _sent(self, site: Site, private: TRIPPrivate, public: TRIPPublic) -> Contribution:
        """A hospital's part of a packed round, from what it has computed."""
        assert private.aside is not None
        arrays = {f"mode{n}": a for n, a in enumerate(private.locals, start=1)}
        for n, (h, omega) in enumerate(zip(private.duals, private.omega), start=1):
            arrays[f"mode{n}"] = arrays[f"mode{n}"] - h / omega
        arrays |= {"aside": private.aside[[0, 2]], "gap": private.aside[1:2]}
        return self._packing(public).contribution(arrays, site.name)

    def close(self, site: Site, private: TRIPPrivate, public: TRIPPublic) -> Arrays:
        tensor = weighted(site.counts(), public.saturation)
        return {"memberships": cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)}

    def remedy(self, site: Site, public: TRIPPublic) -> str:
        penalty = self._penalty(public.start)
        return f"raise penalty (now {penalty:g}) to {10 * penalty:g}, or lower penalty_growth"

    def _packs(self) -> bool:
        return self.params.packed and not self.params.distinct

    def _tol(self, begun: StartPublic) -> float:
        if self.params.tol is None and self.params.distinct:  # the explained energy is not all that is asked for
            return 0.0
        return super()._tol(begun)

    def _warn(self, patients: float, factors: Factors) -> None:
        """Few patients a site, as counted: each one's own factors follow its few heavy patients, and a small penalty lets them."""
        p, codes = self.params, sum(len(f) for f in factors)
        if p.weighting == "none" and p.variant == "corrected" and p.penalty is None and patients < codes:
            warnings.warn(
                f"TRIP: {patients:,.0f} patients a site for {codes:,} codes, unweighted: the sites' own factors drift apart, and "
                "the fit may end far below the pooled one; use pc.SumALS (pooled least squares by sums), weighting='saturating', "
                "or give a penalty",
                stacklevel=2,
            )

    def _warm(self, begun: StartPublic) -> bool:
        corrected = self.params.nonnegative and self.params.variant == "corrected"
        return begun.blind and corrected and self.params.warmup > 0

    def _penalty(self, begun: StartPublic) -> float:
        if self.params.penalty is not None:
            return self.params.penalty
        if begun.kind == "random" and not begun.blind:  # few patients: each site's own factors would follow its few
            return 3.0
        return 0.03 if not begun.blind or self._warm(begun) else 1.0

    def _patients(self, tensor: Any, patients: Array, factors: Factors, sweeps: int) -> tuple[Array, float]:
        """Solve the patients' rows against the shared factors (eq. 7 with ridge, E2.7) and score what they explain."""
        everyone = [patients, *factors]
        g = cp.gram(everyone, 0)
        m = mttkrp(tensor, everyone, 0)
        solved = cp.hals(patients, g, m, sweeps=sweeps) if self.params.nonnegative else cp.least_squares(g, m)
        sse = cp.squared_error(tensor.norm_squared(), solved, g, m)
        if not np.isfinite(sse):
            raise Divergence(f"patient factors left the finite numbers ({sse})", hint="raise penalty")
        return solved, sse
