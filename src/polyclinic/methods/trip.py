"""TRIP: federated phenotyping by consensus ADMM (Kim et al. 2017), both halves.

Minimises, over feature factors A that all hospitals share and patient factors P_k that never leave,

    sum_k 1/2 ||O_k - [[P_k, A, ...]]||^2  +  lambda/2 ||I - B'A||^2   subject to A_k = A at every hospital k, B = A.

The factor 1/2 makes eq. 9 exact (ERRATA E2.1). One round, for every feature mode n:

    hospital k     P_k = argmin ||O_k - [[P_k, A, ...]]||^2                                          eq. 7
                   H_k = H_k + omega (A - A_k)                    with the A that came back          E2.4
                   A_k = (M_k + omega A + H_k) (G_k + omega I)^-1                                    eq. 9
    coordinator    A   = max(0, sum_k (omega A_k - H_k)) / (K omega)                                 eq. 10
                   B, Y: the twin and its multiplier, with ``distinct`` only                         eq. 11, 12

with M_k = MTTKRP and G_k = the Hadamard product of the other modes' Grams. Only A_k - H_k / omega crosses the wire (E2.6: half
the paper's uplink). Where the fit starts is :mod:`.starts.choice`, how the first rounds after a random start go
:mod:`.rounds.warmup`, when it ends :mod:`.rounds.stopping`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.errors import ConfigError, Divergence
from polyclinic.methods.rounds.distinct import distinct_step
from polyclinic.methods.rounds.facts import FACTORS, GRAM, RARE, SCORE, SETUP, START
from polyclinic.methods.rounds.phases import HEADROOM, Exact, Phase, Rounds, Score, Setup, modes
from polyclinic.methods.rounds.setup import Sizes
from polyclinic.methods.rounds.warmup import WarmUp
from polyclinic.methods.starts.choice import WEAK, Started, StartedParams, StartedPublic, Starter, StartPhase
from polyclinic.methods.starts.state import StartPublic
from polyclinic.methods.starts.wide import WideStart
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Answer, Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.device import mttkrp

Array = NDArray[np.float64]
Factors = tuple[Array, ...]
SWEEPS = 3  # of HALS: docs/benchmarks/constants.md
FACTS = MethodFacts(
    paper="Kim et al. 2017 (TRIP)",
    attacks=(
        KnownAttack("each", "the coordinator recovers each site's Gram matrix and statistics from its normal messages"),
        KnownAttack(
            "each", "a code that a single patient carries is seen, and the record of such a patient can be rebuilt"
        ),
        KnownAttack(
            "sum",
            "exact totals show whether the only patient with a code took part (tested with 3 and 6 sites of 150 patients)",
        ),
        GRAM,
    ),
    steps={
        "setup": SETUP,
        **START,
        "scale": StepMeaning("how large your factors are, one number a mode"),
        "warm": StepMeaning(FACTORS, RARE),
        "sweep": StepMeaning(FACTORS, RARE),
        "score": SCORE,
    },
)


class TRIPParams(StartedParams):
    """Parameters of TRIP."""

    penalty: float | None = Field(
        None,
        gt=0,
        description="Consensus penalty omega at the start, in units of mean tr(Gram)/R; None: 0.03 after a "
        "Gram start or warm-up, 3 after a wide start (few patients), 1 without. Paper variant: omega itself, 1.",
    )
    penalty_growth: float = Field(1.05, ge=1, le=1.5, description="Factor of omega per round (1 leaves a gap of 2 %).")
    warmup: int = Field(
        10, ge=0, description="First rounds after a random start by averaged gradient passes (paper variant: none)."
    )
    distinct: float = Field(0.0, ge=0, description="lambda of eq. 1: phenotypes share no codes, in tr(Gram)/R.")
    packed: bool = Field(
        True,
        description="Rounds after a Gram or wide start carry 32 bits a number, else 64.",
    )

    @model_validator(mode="after")
    def _algorithm_1(self) -> Self:
        if self.variant == "paper":  # no signs (E2.11), one omega in absolute units (E2.5)
            for name, value in {"nonnegative": False, "penalty": self.penalty or 1.0, "penalty_growth": 1.0}.items():
                object.__setattr__(self, name, value)
        return self


@dataclass(frozen=True, kw_only=True)
class TRIPPublic(StartedPublic):
    """What everybody sees: A per feature mode, and for ``distinct`` the auxiliary B and its multiplier Y."""

    twins: Factors = ()  # B of eq. 10-12, empty without `distinct`
    multipliers: Factors = ()  # Y
    omega: tuple[float, ...] = ()  # consensus penalty per mode, of the coming round
    base: tuple[float, ...] = ()  # summed tr(Gram)/R: the unit of `distinct`
    primal: float | None = None
    dual: float | None = None


@dataclass(frozen=True)
class TRIPPrivate:
    """What stays at the hospital: patients, its own copy A_k, and the multipliers H_k of A_k = A."""

    patients: Array
    locals: Factors = ()
    duals: Factors = ()
    omega: tuple[float, ...] = ()  # the penalty of the last round it took part in; empty before
    first: bool = True
    aside: Array | None = None  # of the last round: squared error, squared gap to the shared factors, squared norm


class TRIP(Started[TRIPParams, TRIPPublic, TRIPPrivate]):
    """Consensus ADMM: every hospital has its own copy of the factors, and the sums pull the copies together."""

    name = "trip"
    version = 3  # 3: a search may follow the first rounds
    facts = FACTS
    Params = TRIPParams
    Public = TRIPPublic
    Private = TRIPPrivate
    params: TRIPParams

    @property
    def phases(self) -> Mapping[str, Phase[TRIPPublic, TRIPPrivate]]:
        return {
            "setup": Setup(self),
            "start": StartPhase(self),
            "warm": WarmUp(self),
            "scale": Scale(self),
            "sweep": Consensus(self),
            "score": Score(self),
        }

    @property
    def starter(self) -> Starter:  # type: ignore[override]
        return Starter(self.params, leaps=True)

    def init_public(self, setting: Schema, rng: np.random.Generator) -> TRIPPublic:
        """Factors public and random, or from the Gram of hashed codes (E2.10); multipliers 0."""
        if self.params.privacy is not None:
            raise ConfigError("TRIP adds no noise: it has no private version", hint="use DPEM, or leave out privacy")
        start, factors = self.starter.begin(setting)
        public = self.begun_from(TRIPPublic(factors=factors, start=start, saturation=self.params.public_saturation))
        if self.params.variant == "corrected":
            return public
        return replace(public, omega=(self.penalty_from(start),) * len(factors), base=(1.0,) * len(factors))

    def begun_from(self, public: TRIPPublic) -> TRIPPublic:
        """B = A, Y = 0: what eq. 10 to 12 begin with."""
        twins = public.factors if self.params.distinct or self.params.variant == "paper" else ()
        return replace(public, twins=twins, multipliers=tuple(np.zeros_like(f) for f in twins))

    def begun(self, public: TRIPPublic) -> TRIPPublic:
        start = public.start
        if start.stage != "over":
            return public
        if start.lifted:
            public = replace(public, factors=start.lifted, start=replace(start.put_away(), rows=start.rows))
        return self.onward(self.begun_from(public))

    def searched_again(self, before: TRIPPublic, after: TRIPPublic) -> TRIPPublic | None:
        """Where the first gain shows that the Gram saw little of the structure: a wide start, and the rounds anew."""
        weak_structure = before.gain is None and after.gain is not None and after.gain > WEAK
        if not weak_structure or after.start.kind != "gram" or after.start.sweep or not self.starter.roomy:
            return None
        start = WideStart(self.starter.gram(after.shape)).again(after.start)
        return replace(after, stage="start", round=after.round + 1, start=start, objective=None, gain=None, still=0)

    def sized(self, public: TRIPPublic, size: Sizes, members: int) -> TRIPPublic:
        p, codes, per_site = self.params, sum(public.shape), size.patients / max(members, 1)
        if p.weighting == "none" and p.variant == "corrected" and p.penalty is None and per_site < codes:
            warnings.warn(
                f"TRIP: {per_site:,.0f} patients a site for {codes:,} codes, unweighted: the sites' own factors drift apart, and "
                "the fit may end far below the pooled one; use pc.SumALS (pooled least squares by sums), weighting='saturating', "
                "or give a penalty",
                stacklevel=2,
            )
        return super().sized(public, size, members)

    def init_site(self, site: Site, public: TRIPPublic, rng: np.random.Generator) -> TRIPPrivate:
        return TRIPPrivate(np.zeros((site.counts().patients, public.rank)))

    def solve_patients(self, site: Site, private: TRIPPrivate, public: TRIPPublic) -> tuple[Array, float]:
        """Eq. 7, with ridge (E2.7): the patients' rows against the shared factors, and the squared error that they leave."""
        tensor, memberships = self.records(site, public), private.patients
        if memberships.shape[1] != public.rank:  # the start found another rank than was known before
            memberships = np.zeros((tensor.patients, public.rank))
        everyone = [memberships, *public.factors]
        g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
        if self.params.nonnegative:
            solved = cp.hals(memberships, g, m, sweeps=10 if private.first else SWEEPS)
        else:
            solved = cp.least_squares(g, m)
        sse = cp.squared_error(tensor.norm_squared(), solved, g, m)
        if not np.isfinite(sse):
            raise Divergence(f"patient factors left the finite numbers ({sse})", hint="raise penalty")
        return solved, sse

    placed = solve_patients

    def penalty_from(self, begun: StartPublic) -> float:
        """omega to begin with: small where the start is good, large where few patients make a site's own factors drift."""
        if self.params.penalty is not None:
            return self.params.penalty
        if begun.kind == "random" and not begun.blind:
            return 3.0
        return 0.03 if not begun.blind or self.warms(begun) else 1.0

    def warms(self, begun: StartPublic) -> bool:
        """Whether averaged passes come first: after a random start."""
        corrected = self.params.nonnegative and self.params.variant == "corrected"
        return begun.blind and corrected and self.params.warmup > 0

    def short(self, public: TRIPPublic) -> bool:
        """Whether rounds carry 32 bits a number: sums from a start that is known to add."""
        return self.params.packed and not public.start.blind and public.start.kind != "model"

    def tolerance(self, begun: StartPublic) -> float:
        if self.params.tol is None and self.params.distinct:  # the explained energy is not all that is asked for
            return 0.0
        return super().tolerance(begun)

    def round_metrics(self, public: TRIPPublic) -> Mapping[str, float | None]:
        return {**super().round_metrics(public), "primal": public.primal, "dual": public.dual}

    def divergence_hint(self, site: Site, public: TRIPPublic) -> str:
        penalty = self.penalty_from(public.start)
        return f"raise penalty (now {penalty:g}) to {10 * penalty:g}, or lower penalty_growth"


class Scale(Phase[TRIPPublic, TRIPPrivate]):
    """One number a mode before the rounds: omega must scale with the Gram (E2.5)."""

    fit: TRIP

    def due(self, public: TRIPPublic) -> bool:
        return self.fit.params.variant == "corrected"

    def step(self, public: TRIPPublic) -> Step:
        return Step(public.round, "scale", {"gram": (len(public.factors),)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: TRIPPrivate, public: TRIPPublic) -> Answer[TRIPPrivate]:
        """x_kn = tr(G_kn) / R."""
        patients, _ = self.fit.solve_patients(site, private, public)
        everyone = [patients, *public.factors]
        gram = np.array([np.trace(cp.gram(everyone, n)) / public.rank for n in range(1, len(everyone))])
        return TRIPPrivate(patients, first=False), Contribution({"gram": gram / public.norm})

    def combine(self, step: Step, public: TRIPPublic, total: Total) -> TRIPPublic:
        """omega_n = penalty / K sum_k tr(G_kn) / R."""
        base = tuple(max(float(g) * public.norm, 1e-12) for g in total.arrays["gram"])
        if self.fit.short(public):  # twelve bits are enough for a penalty, and the same however the sum was added
            base = tuple(float(np.ldexp(np.rint(np.ldexp(m, 12)), e - 12)) for m, e in map(np.frexp, base))
        penalty = self.fit.penalty_from(public.start)
        return self.fit.onward(replace(public, omega=tuple(penalty * b / total.members for b in base), base=base))


class Consensus(Rounds[TRIPPublic, TRIPPrivate]):
    """The rounds of ADMM."""

    fit: TRIP

    def transport(self, public: TRIPPublic) -> Exact:
        shapes = {**modes(public.factors), "aside": (3,)}
        if self.fit.params.variant == "paper":  # as printed, A_k and H_k both travel: twice the uplink (E2.6)
            shapes |= modes(public.factors, also="dual")
        size = max(float(np.abs(f).max(initial=0.0)) for f in public.factors)
        return Exact(shapes, max(size, 1.0), ("aside",), self.fit.short(public), len(public.start.sites))

    # ---- hospital k

    def update_local(self, site: Site, private: TRIPPrivate, public: TRIPPublic) -> TRIPPrivate:
        """P_k (eq. 7), H_k, then A_k of one mode after the other (eq. 9)."""
        tensor, gap = self.fit.records(site, public), 0.0
        patients, sse = self.fit.solve_patients(site, private, public)
        duals = list(private.duals) or [np.zeros_like(a) for a in public.factors]
        for n, (shared, own, omega) in enumerate(zip(public.factors, private.locals, private.omega)):
            gap += float(np.square(shared - own).sum())
            duals[n] = duals[n] + omega * (shared - own)  # E2.4
        printed = self.fit.params.variant == "paper"  # Pi_k has the hospital's own other modes (E2.12)
        current = [patients, *(private.locals if printed and private.locals else public.factors)]
        for n, (shared, omega) in enumerate(zip(public.factors, public.omega), start=1):
            g = cp.gram(current, n) + omega * np.eye(public.rank)  # eq. 9: Pi'Pi + omega I
            target = mttkrp(tensor, current, n) + omega * shared + duals[n - 1]
            nonnegative = self.fit.params.nonnegative
            current[n] = cp.hals(shared, g, target, sweeps=SWEEPS) if nonnegative else cp.least_squares(g, target)
        scores = np.array([sse / public.norm, gap, tensor.norm_squared() / public.norm])
        return TRIPPrivate(patients, tuple(current[1:]), tuple(duals), public.omega, first=False, aside=scores)

    def message(self, private: TRIPPrivate, public: TRIPPublic) -> dict[str, Array]:
        """A_k - H_k / omega."""
        assert private.aside is not None
        arrays = {"aside": private.aside}
        for n, (a, h, omega) in enumerate(zip(private.locals, private.duals, private.omega), start=1):
            paper = self.fit.params.variant == "paper"
            arrays |= {f"mode{n}": a, f"dual{n}": h / omega} if paper else {f"mode{n}": a - h / omega}
        return arrays

    # ---- coordinator

    def update_shared(self, public: TRIPPublic, sums: Mapping[str, Array], members: int) -> TRIPPublic:
        """A (eq. 10), with ``distinct`` B and Y (eq. 11, 12); omega grows; the fit ends on a plateau."""
        p = self.fit.params
        factors, twins, multipliers, dual = [], [], [], 0.0
        for n, old in enumerate(public.factors):
            omega = public.omega[n]
            summed = omega * sums[f"mode{n + 1}"]  # sum_k (omega A_k - H_k)
            if p.variant == "paper":
                summed = summed - omega * sums[f"dual{n + 1}"]
            if public.twins:
                lam, twin, y = p.distinct * public.base[n], public.twins[n], public.multipliers[n]
                mu = omega if p.variant == "paper" else members * omega
                new, twin, y = distinct_step(summed, members * omega, mu, lam, twin, y, p.nonnegative, p.variant)
                twins.append(twin)
                multipliers.append(y)
            else:
                new = summed / (members * omega)
                if p.nonnegative:
                    new = np.where(new > 0.0, new, 0.0)
            dual += members * omega**2 * float(np.square(new - old).sum())
            factors.append(new)
        sse, gap, total_energy = (float(x) for x in sums["aside"])
        plateau = self.fit.plateau(public)
        state: TRIPPublic = plateau.judged(public, max(sse, 0.0) * public.norm, total_energy * public.norm)
        restarted = self.fit.searched_again(public, state)
        if restarted is not None:
            return restarted
        last_round = public.round >= p.rounds or plateau.arrived(state)
        return replace(
            state,
            stage="score" if last_round else "sweep",
            round=public.round + (not last_round),
            factors=tuple(factors),
            twins=tuple(twins),
            multipliers=tuple(multipliers),
            omega=tuple(w * p.penalty_growth for w in public.omega),
            primal=float(np.sqrt(max(gap, 0.0))),
            dual=float(np.sqrt(dual)),
        )
