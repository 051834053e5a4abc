"""SumALS: pooled alternating least squares, federated exactly, because what it needs of the data are sums.

A feature factor's update needs the data only through M = sum_k MTTKRP_k and G = sum_k A_k'A_k (times the other modes'
public Grams). The hospitals send both; the coordinator sweeps. One step per feature mode, so a round is one pooled sweep.

The sweep itself is :mod:`.rounds.sweeps`. Its sums in a few bits a number are :mod:`.methods.packed_sumals`. Where it starts is
:mod:`.starts.choice`, when it ends :mod:`.rounds.stopping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.methods.packed_sumals import KEPT, PackedSweeps, weak
from polyclinic.methods.packing.packed_sums import Packing
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.rounds.facts import FACTORS, GRAM, RARE, SCORE, SETUP, START
from polyclinic.methods.rounds.phases import Phase, Score, Setup
from polyclinic.methods.rounds.stopping import Plateau
from polyclinic.methods.rounds.sweeps import Sweeps
from polyclinic.methods.starts.choice import Started, StartedParams, StartedPublic, Starter, StartPhase
from polyclinic.methods.starts.state import Far
from polyclinic.methods.starts.wide import ROUNDS
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Schema
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.device import mttkrp

Array = NDArray[np.float64]
FACTS = MethodFacts(
    paper="alternating least squares by sums (this program)",
    attacks=(
        KnownAttack(
            "sum",
            "exact totals show whether the only patient with a code took part: right 12 of 12 times (3 and 6 sites of 150 patients)",
        ),
        KnownAttack(
            "sum",
            "the whole record of a patient who alone has a code comes out of exact totals: 6 of 6 without non-negativity "
            "(3 and 6 sites of 150 patients, rank 8, 12 rounds)",
        ),
        GRAM,
    ),
    steps={
        "setup": SETUP,
        **START,
        "mode*": StepMeaning(f"{FACTORS}; and how phenotypes overlap among them", RARE),
        "likelihood": StepMeaning("for each code and phenotype, how many of your patients' events belong to it", RARE),
        "score": SCORE,
    },
)


class SumALSParams(StartedParams, WeightedParams):
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


@dataclass(frozen=True, kw_only=True)
class SumPublic(StartedPublic):
    """What everybody sees; ``mode`` is the feature mode that the coming step updates."""

    mode: int = 1
    scale: Array  # what a patient's column is multiplied by, because a feature column was brought to length 1
    # ---- packed sums only
    spread: tuple[Far, ...] = ()  # per mode: how far a sum may lie from what is expected
    wider: int = 0  # how often the coming sum was repeated, because a part of it lay outside its window
    patients: Array | None = None  # (R, R) A'A as last summed, before `scale`
    explained: float = 0.0
    careful: bool = False  # weak structure: the first sweeps take gradient steps
    base: int = 0  # rounds before the present sweeps began: a search, and what follows it, begin anew
    searched: bool = False  # a wide start came first: what the model explains is known
    everything: float = 0.0  # ||O||^2 as weighted, once it was summed
    end: float | None = None  # squared error after the last whole sweep, as its rounded sums tell it
    before: float | None = None  # ... after the sweep before
    last: tuple[Array, ...] = ()  # weak structure: factors at the end of the last sweep
    gained: float = 0.0  # share of explained energy that the last packed sweep gained
    beside: int = 0  # columns at the right that the first sweep tries beside those that the Gram found
    whole: bool = False  # the last sweep of very many codes: those that were left out enter


@dataclass(frozen=True)
class SumPrivate:
    """Patients stay."""

    patients: Array
    first: bool = True


class SumALS(Started[SumALSParams, SumPublic, SumPrivate]):
    """Pooled alternating least squares, by sums."""

    name = "sumals"
    version = 2
    facts = FACTS
    exact = 1e-6
    Params = SumALSParams
    Public = SumPublic
    Private = SumPrivate
    params: SumALSParams

    @property
    def phases(self) -> Mapping[str, Phase[SumPublic, SumPrivate]]:
        return {
            "setup": Setup(self),
            "start": StartPhase(self),
            "sweep": Sweeps(self),
            "packed": PackedSweeps(self),
            "score": Score(self),
        }

    @property
    def packs(self) -> bool:
        return self.params.packed

    @property
    def starter(self) -> Starter:  # type: ignore[override]
        return Starter(self.params, searches=self.params.rounds >= ROUNDS, leaps=not self.params.packed)

    def init_public(self, setting: Schema, rng: np.random.Generator) -> SumPublic:
        """A_n random and public, or from the Gram of hashed codes."""
        p = self.params
        if p.zeros == "missing" or p.privacy is not None:
            raise ConfigError("SumALS counts every cell and adds no noise", hint="use zeros='observed', privacy=None")
        start, factors = self.starter.begin(setting)
        scale = np.ones(factors[0].shape[1])
        return SumPublic(factors=factors, scale=scale, start=start, saturation=p.public_saturation)

    def begun(self, public: SumPublic) -> SumPublic:
        start = public.start
        if start.stage == "audition" and self.keeps_all(public):
            start = replace(start, stage="over")
        public = replace(public, start=start)
        if start.stage != "over":
            return public
        if start.lifted:
            public = replace(public, factors=start.lifted, scale=np.ones(start.lifted[0].shape[1]))
        return self.onward(public)

    def init_site(self, site: Site, public: SumPublic, rng: np.random.Generator) -> SumPrivate:
        return SumPrivate(np.zeros((site.counts().patients, public.rank)))

    # ---- when it ends

    def keeps_all(self, public: SumPublic) -> bool:
        """Whether a half keeps all phenotypes of its search: of two tight fits of weak structure each makes its own compromises."""
        return self.params.half and public.start.sweep > 0 and weak(public)

    def most(self, public: SumPublic) -> int:
        """Sweeps at most: what two halves agree on is there early, and further sweeps lead each to an optimum of its own."""
        return min(self.params.rounds, public.base + KEPT) if self.keeps_all(public) else self.params.rounds

    def plateau(self, public: SumPublic) -> Plateau:
        """A random start, and one that saw little of the structure, rest on plateaus on their way."""
        return Plateau(self.tolerance(public.start), 2 if public.start.blind or weak(public) else 1)

    # ---- what it leaves

    def placed(self, site: Site, private: SumPrivate, public: SumPublic) -> tuple[Array, float]:
        tensor = self.records(site, public)
        a = cp.solve_memberships(tensor, public.factors, nonnegative=self.params.nonnegative)
        everyone = [a, *public.factors]
        return a, cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))

    def round_metrics(self, public: SumPublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        return {
            "objective": public.objective,
            "rmse_full": float(np.sqrt(2 * public.objective / max(public.cells, 1.0))),
        }

    def _packing(self, public: SumPublic) -> Packing:
        """How a packed sweep's coming sum travels."""
        return PackedSweeps(self).packing(public)
