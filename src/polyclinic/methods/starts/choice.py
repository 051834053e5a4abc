"""Where a federated fit starts: from the Gram of hashed cells where it may, from a random start, or from a given model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from polyclinic.errors import ConfigError
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.rounds.phases import FitPublic, Phase, Phased
from polyclinic.methods.rounds.setup import Sizes
from polyclinic.methods.rounds.stopping import Plateau
from polyclinic.methods.starts.gram import STARTS, GramStart
from polyclinic.methods.starts.random import start as random_start
from polyclinic.methods.starts.saved import Saved, StartModel
from polyclinic.methods.starts.state import StartPublic
from polyclinic.methods.starts.wide import ROUNDS, SEARCHED, VOCABULARY, WideStart
from polyclinic.protocol.aggregators import facts_of, kind_of
from polyclinic.protocol.interfaces import Answer, Pri, Schema, Step, Total
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
ARRIVED: Final = 0.002  # share of the explained energy that a round gains at the end of a fit ...
WANDERING: Final = 0.0005  # ... after a random start, which rests on plateaus on its way
WIDENING: Final = ("rows", "overlap", "wide")  # stages of a wide start
VAGUE: Final = 0.989  # of what the cells show, kept by the lift: less is of weak structure (records .935 to .986, planted laws from .9925)
WEAK: Final = 0.05  # a first sweep that gains more: the cells saw little of the structure


class StartedParams(WeightedParams):
    """Parameters of methods that can start from the Gram."""

    rank: int | Literal["auto"] = Field(  # type: ignore[assignment]
        10, description='Number of phenotypes (R); "auto": what two halves of the patients confirm, plus one.'
    )
    start: Literal["gram", "random"] | Saved = Field(
        "gram",
        description='Where to start: "gram" (one small sum; where it may be taken), "random" with warm-up, or a fitted model.',
    )
    buckets: int | None = Field(
        None, ge=2, le=64, description="Buckets a mode of the Gram start; None: as many as make at most 64 cells."
    )
    tol: float | None = Field(  # type: ignore[assignment]
        None,
        ge=0,
        description="Stop when a round adds less than this share of the explained sum of squares. None: 0.002, and 0.0005 after "
        "a random start. The paper's variant uses 0 and runs all rounds.",
    )
    n_starts: int = Field(
        1,
        ge=1,
        le=1000,
        description="Starts; the best one is kept. From the Gram they cost no byte (at least six are tried).",
    )

    @field_validator("rank")
    @classmethod
    def _rank(cls, value: Any) -> Any:
        if value != "auto" and not 1 <= value <= 10_000:
            raise ValueError("at least 1 and at most 10,000 phenotypes, or 'auto'")
        return value


@lru_cache(maxsize=8)
def _gram(
    shape: tuple[int, ...], rank: int | Literal["auto"], seed: int, starts: int, buckets: int | None
) -> GramStart:
    return GramStart(shape, rank, seed, starts, buckets)


@dataclass(frozen=True, kw_only=True)
class StartedPublic(FitPublic):
    """What everybody knows of a fit that has a start of its own, and rests at the end."""

    start: StartPublic
    gain: float | None = None  # of explained energy in the first round after the start
    still: int = 0  # rounds in a row that gained less than `tol`


@dataclass(frozen=True)
class Starter:
    """Where a fit starts, and the sums that tell: random, from the Gram of hashed cells, wide (:mod:`.starts.wide`), or a model.

    Parameters
    ----------
    params
        Of the fit.
    widens
        A wide start may be taken.
    searches
        ... also where codes are very many.
    leaps
        ... and at once where the lift lost much of what the cells show.
    """

    params: StartedParams
    searches: bool = False
    leaps: bool = False

    def begin(self, setting: Schema) -> tuple[StartPublic, tuple[Array, ...]]:
        """How to start, as far as it is known before any sum, and the factors to start from."""
        p = self.params
        if isinstance(p.start, StartModel):
            return StartPublic("model"), p.start.on(setting.axes, setting.shape, p.rank, p.nonnegative)
        reason = "asked for" if p.start == "random" else self.hindrance()
        if not reason and not setting.adds:  # an adder that was given to the fold itself
            reason = "the adder's rule is no sum, and a Gram is one"
        if reason and p.rank == "auto":
            raise ConfigError(
                f"rank='auto' needs the Gram start, and the start is random: {reason}", hint="give a rank"
            )
        rank = 1 if p.rank == "auto" else p.rank
        factors = tuple(random_start(setting.shape, rank, p.seed))
        if reason:
            return StartPublic("random", reason=reason), factors
        hosted_apart = not setting.together
        visible = hosted_apart and facts_of(p.aggregation).reveals == "each"
        return StartPublic("gram", sites=setting.sites, shown=visible, apart=hosted_apart), factors

    def hindrance(self) -> str:
        """Why a Gram may not be taken; empty if it may."""
        p = self.params
        if p.variant == "paper":
            return "the paper's variant starts at random"
        if p.zeros == "missing" or not p.nonnegative:
            return "the Gram start is for non-negative phenotypes that count every cell"
        if not kind_of(p.aggregation).adds:  # a median of Grams is not a Gram
            return f"aggregation {p.aggregation!r} is no sum, and a Gram is one"
        return ""

    def gram(self, shape: Sequence[int]) -> GramStart:
        p = self.params
        return _gram(tuple(shape), p.rank, p.seed, max(p.n_starts, STARTS), p.buckets)

    def searching(self, begun: StartPublic, shape: Sequence[int]) -> GramStart | WideStart:
        """Who asks the coming sum."""
        gram = self.gram(shape)
        return WideStart(gram) if begun.stage in WIDENING else gram

    # ---- its sums

    def sized(self, begun: StartPublic, shape: Sequence[int], patients: float, unit: float) -> StartPublic:
        """After the set-up sum: the Gram's sums, or what is done without one."""
        if begun.kind != "gram":
            return begun
        if self.searches and sum(shape) > VOCABULARY:
            why = f"of {sum(shape):,} codes the {SEARCHED} with most energy are searched among first"
            widened = self._instead(begun, StartPublic("random", reason=why, patients_summed=patients), shape, unit)
            if widened.stage != "over":
                return widened
        return self._instead(begun, self.gram(shape).begin(begun, patients, unit), shape, unit)

    def combine(self, step: Step, begun: StartPublic, shape: Sequence[int], total: Total, unit: float) -> StartPublic:
        """The start after one of its sums."""
        searcher = self.searching(begun, shape)
        if isinstance(searcher, WideStart):
            return searcher.combine(begun, total)
        state = searcher.combine(step, begun, total)
        if self._vague(state):
            return WideStart(searcher).again(state)
        return state if begun.kind == "random" else self._instead(begun, state, shape, unit)

    @property
    def roomy(self) -> bool:
        """Whether a wide start may be taken: rank known, rounds enough."""
        p = self.params
        return p.rank != "auto" and p.rounds >= ROUNDS

    def _instead(self, begun: StartPublic, after: StartPublic, shape: Sequence[int], unit: float) -> StartPublic:
        """Where the Gram turned out not to be allowed: a wide start, also for small vocabularies."""
        rank = self.params.rank
        if after.kind != "random" or not self.roomy or rank == "auto":
            return after
        return WideStart(self.gram(shape)).begin(replace(after, sites=begun.sites), unit)

    def _vague(self, begun: StartPublic) -> bool:
        """Whether the lift lost so much of what the cells show that a wide start finds more, and may be taken at once."""
        after_lift = (
            begun.kind == "gram" and begun.stage in ("audition", "over") and not begun.sweep and begun.kept < VAGUE
        )
        return after_lift and self.leaps and self.roomy


class StartPhase(Phase[Any, Any]):
    """The start's sums, one after the other."""

    def due(self, public: Any) -> bool:
        return bool(public.start.stage != "over")

    def step(self, public: Any) -> Step:
        step: Step = self.fit.starter.searching(public.start, public.shape).step(public.start)
        return replace(step, round=public.round) if public.round > 1 else step

    def contribute(self, step: Step, site: Site, private: Any, public: Any) -> Answer[Any]:
        """x_k = the hospital's part of a Gram, a lift, a wide sweep or an audition."""
        searcher, records = self.fit.starter.searching(public.start, public.shape), self.fit.records(site, public)
        if isinstance(searcher, WideStart):
            return private, searcher.contribute(records, public.start, site.name)
        return private, searcher.contribute(step, site, records, public.start, public.norm)

    def combine(self, step: Step, public: Any, total: Total) -> Any:
        """start' = f(start, sum_k x_k); at its end the fit goes on from what it found."""
        start = self.fit.starter.combine(step, public.start, public.shape, total, public.norm)
        return self.fit.begun(replace(public, start=start))


SP = TypeVar("SP", bound=StartedParams)
SPub = TypeVar("SPub", bound=StartedPublic)


class Started(Phased[SP, SPub, Pri]):
    """A federated phenotype model with a shared start and a plateau at its end."""

    starter: Starter

    @property
    def joins(self) -> bool:
        """Without noise, and not of a paper's variant, which publishes what it found."""
        return self.params.variant != "paper" and self.params.privacy is None

    def sized(self, public: SPub, size: Sizes, members: int) -> SPub:
        start = self.starter.sized(public.start, public.shape, size.patients, size.norm)
        return replace(public, start=start)

    def begun(self, public: SPub) -> SPub:
        """A sum of the start was taken: on with the start, on without it (random), or on from the factors that it found."""
        raise NotImplementedError

    def plateau(self, public: SPub) -> Plateau:
        """When the fit has arrived: a random start rests on plateaus on its way."""
        return Plateau(self.tolerance(public.start), 3 if public.start.blind else 2)

    def tolerance(self, begun: StartPublic) -> float:
        if self.params.tol is not None:
            return self.params.tol
        if self.params.variant == "paper":
            return 0.0
        return WANDERING if begun.blind else ARRIVED

    def settled(self, public: SPub) -> bool:
        """From the Gram all starts were tried within it."""
        return bool(public.start.kind != "random")
