"""Where a federated fit starts: from the Gram of hashed cells where it may, from a random start, or from a given model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from polyclinic.errors import ConfigError
from polyclinic.federation.estimator import Configured
from polyclinic.federation.outcome import Outcome
from polyclinic.federation.protocol import Contribution, Pri, Setting, Step, Total
from polyclinic.federation.sums import facts_of, kind_of
from polyclinic.phenotypes.factorization import FederatedFactorization, FPub, WeightedParams
from polyclinic.phenotypes.gramstart import STARTS, GramStart
from polyclinic.phenotypes.start import start as random_start
from polyclinic.phenotypes.startpublic import StartPublic
from polyclinic.phenotypes.widestart import ROUNDS, SEARCHED, VOCABULARY, WORTH, WideStart
from polyclinic.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["Start", "Started", "StartedParams"]

Array = NDArray[np.float64]
ARRIVED: Final = 0.002  # share of the explained energy that a round gains at the end of a fit ...
WANDERING: Final = 0.0005  # ... after a random start, which rests on plateaus on its way
WIDENING: Final = ("rows", "overlap", "wide")  # stages of a wide start
VAGUE: Final = 0.989  # of what the cells show, kept by the lift: less is of weak structure (records .935 to .986, planted laws from .9925)
WEAK: Final = 0.05  # a first sweep that gains more: the cells saw little of the structure


class StartedParams(WeightedParams):
    """Parameters of methods that can start from the Gram."""

    rank: int | Literal["auto"] = Field(  # type: ignore[assignment]
        10, description='Number of phenotypes (R); "auto": as many as two halves of the patients agree on.'
    )
    start: Literal["gram", "random"] | tuple[Any, ...] = Field(
        "gram",
        description='Where to start: "gram" (one small sum; where it may be taken), "random" with warm-up, or a fitted model.',
    )
    buckets: int | None = Field(
        None, ge=2, le=64, description="Buckets a mode of the Gram start; None: as many as make at most 64 cells."
    )
    tol: float | None = Field(  # type: ignore[assignment]
        None,
        ge=0,
        description="Stop when a round gains less than this share of the explained energy; None: 0.002, after a "
        "random start 0.0005 (paper variant: 0, run all rounds).",
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

    @field_validator("start", mode="before")
    @classmethod
    def _start(cls, value: Any) -> object:
        if isinstance(value, str):
            return value
        factors = vars(value).get("factors_", value) if isinstance(value, Configured) else value
        try:
            arrays = tuple(np.array(f, np.float64) for f in factors)
        except (TypeError, ValueError):
            raise ValueError('"gram", "random", or a fitted phenotype model (or its feature factors)') from None
        if not arrays or any(a.ndim != 2 or not np.isfinite(a).all() for a in arrays):
            raise ValueError("a model to start from has one finite (codes, R) array per feature mode")
        return arrays


@dataclass(frozen=True)
class Start:
    """How a fit started (``model.start_``).

    Parameters
    ----------
    kind
        ``"gram"``, ``"random"`` or ``"model"``.
    reason
        Why not the Gram, where it was asked for.
    cells
        Cells of the Gram whose second moments over all patients were shown; 0 without.
    proposed
        Rank at which two halves of the patients agreed over the cells (a proposal, no count of phenotypes); None: none, or
        not looked for.
    gain
        Share of the explained energy that the first sweep after the start gained.
    searched
        The Gram found little, and a search by a wide start followed.
    """

    kind: str
    reason: str = ""
    cells: int = 0
    proposed: int | None = None
    gain: float | None = None
    searched: bool = False

    @property
    def weak(self) -> bool | None:
        """Whether the structure is weak: the start found little of what the first sweep then explained, or of what the cells show."""
        return None if self.gain is None or self.kind != "gram" else self.searched or self.gain > WEAK


@lru_cache(maxsize=8)
def _gram(
    shape: tuple[int, ...], rank: int | Literal["auto"], seed: int, starts: int, buckets: int | None
) -> GramStart:
    return GramStart(shape, rank, seed, starts, buckets)


SP = TypeVar("SP", bound=StartedParams)


class Started(FederatedFactorization[SP, FPub, Pri]):
    """A federated phenotype model with a shared start; its Public state has ``start`` (a StartPublic) and ``gain``."""

    leaps: ClassVar[bool] = False  # a search follows the lift at once, where that lost much of what the cells show

    @property
    def joins(self) -> bool:
        """Without noise, and not of a paper's variant, which publishes what it found."""
        return self.params.variant != "paper" and self.params.privacy is None

    def _begin(self, setting: Setting) -> tuple[StartPublic, tuple[Array, ...]]:
        """How to start, as far as it is known before any sum, and the factors to start from."""
        p = self.params
        if isinstance(p.start, tuple):
            return StartPublic("model"), self._given(p.start, setting)
        reason = "asked for" if p.start == "random" else self._hindrance()
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
        apart = not setting.together
        shown = apart and facts_of(p.aggregation).reveals == "each"
        return StartPublic("gram", sites=setting.sites, shown=shown, apart=apart), factors

    def _hindrance(self) -> str:
        """Why a Gram may not be taken; empty if it may."""
        p = self.params
        if p.variant == "paper":
            return "the paper's variant starts at random"
        if p.zeros == "missing" or not p.nonnegative:
            return "the Gram start is for non-negative phenotypes that count every cell"
        if not kind_of(p.aggregation).adds:  # a median of Grams is not a Gram
            return f"aggregation {p.aggregation!r} is no sum, and a Gram is one"
        return ""

    def _given(self, factors: Sequence[Array], setting: Setting) -> tuple[Array, ...]:
        wanted = [(n, factors[0].shape[1] if self.params.rank == "auto" else self.params.rank) for n in setting.shape]
        found = [f.shape for f in factors]
        if found != wanted:
            raise ConfigError(
                f"the model to start from has factors of shapes {found}, this study needs {wanted}",
                hint="align the sites to the model's codes (pc.align), and give its rank",
            )
        if self.params.nonnegative and any((f < 0).any() for f in factors):
            raise ConfigError(
                "the model to start from has negative weights", hint="nonnegative=False, or another model"
            )
        return tuple(f / np.where(n > 0, n, 1.0) for f in factors for n in [np.linalg.norm(f, axis=0)])

    def _gram(self, factors: Sequence[Array]) -> GramStart:
        p = self.params
        shape = tuple(len(f) for f in factors)
        return _gram(shape, p.rank, p.seed, max(p.n_starts, STARTS), p.buckets)

    def _searches(self) -> bool:
        """Whether a wide start is taken where the cells saw little, or codes are very many."""
        return False

    def _packs(self) -> bool:
        """Whether sums may travel packed."""
        return False

    # ---- the start's sums

    def _sized(self, begun: StartPublic, factors: Sequence[Array], patients: float, unit: float) -> StartPublic:
        """After the set-up sum: the Gram's sums, or what is done without one."""
        if begun.kind != "gram":
            return begun
        codes = sum(len(f) for f in factors)
        if self._searches() and codes > VOCABULARY:
            many = f"of {codes:,} codes the {SEARCHED} with most energy are searched among first"
            wide = self._instead(begun, StartPublic("random", reason=many, patients_summed=patients), factors, unit)
            if wide.stage != "over":
                return wide
        return self._instead(begun, self._gram(factors).begin(begun, patients, unit), factors, unit)

    def _instead(self, begun: StartPublic, after: StartPublic, factors: Sequence[Array], unit: float) -> StartPublic:
        """Where the Gram turned out not to be allowed: a wide start, if that is worth its sums."""
        p = self.params
        if after.kind != "random" or not self._packs() or p.rank == "auto" or p.rounds < ROUNDS:
            return after
        if p.rank * sum(len(f) for f in factors) < WORTH:
            return after
        return WideStart(self._gram(factors)).begin(replace(after, sites=begun.sites), unit)

    def _vague(self, begun: StartPublic) -> bool:
        """Whether the lift lost so much of what the cells show that a wide start finds more, and may be taken at once."""
        p = self.params
        lifted = begun.kind == "gram" and begun.stage in ("audition", "over") and not begun.sweep and begun.kept < VAGUE
        return lifted and self.leaps and self._packs() and p.rank != "auto" and p.rounds >= ROUNDS

    def _coming(self, begun: StartPublic, factors: Sequence[Array]) -> Step:
        """The start's coming sum."""
        gram = self._gram(factors)
        return WideStart(gram).step(begun) if begun.stage in WIDENING else gram.step(begun)

    def _summed(
        self, step: Step, begun: StartPublic, factors: Sequence[Array], total: Total, unit: float
    ) -> StartPublic:
        """The start after one of its sums."""
        gram = self._gram(factors)
        if begun.stage in WIDENING:
            return WideStart(gram).combine(begun, total)
        after = gram.combine(step, begun, total)
        if self._vague(after):
            return WideStart(gram).again(after)
        return after if begun.kind == "random" else self._instead(begun, after, factors, unit)

    def _part(
        self, step: Step, site: Site, tensor: SparseTensor, begun: StartPublic, factors: Sequence[Array], unit: float
    ) -> Contribution:
        """A site's part of it; ``tensor``: its counts as fitted."""
        gram = self._gram(factors)
        if begun.stage in WIDENING:
            return WideStart(gram).contribute(tensor, begun, site.name)
        return gram.contribute(step, site, tensor, begun, unit)

    def _tol(self, begun: StartPublic) -> float:
        if self.params.tol is not None:
            return self.params.tol
        if self.params.variant == "paper":
            return 0.0
        return WANDERING if begun.blind else ARRIVED

    def settled(self, public: Any) -> bool:
        """From the Gram all starts were tried within it."""
        return bool(public.start.kind != "random")

    def _runs(self, sites: Sequence[Site]) -> int:
        """One, where the starts are tried on the Gram or a model is given; else as many as asked for."""
        p = self.params
        if isinstance(p.start, tuple):
            return 1
        if p.n_starts == 1 or p.start != "gram" or self._hindrance() or any(s.tensor is None for s in sites):
            return p.n_starts
        gram = self._gram([np.empty((n, 0)) for n in sites[0].counts().shape[1:]])
        return 1 if sum(s.patients for s in sites) >= gram.least else p.n_starts

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        begun: StartPublic = outcome.public.start
        gram = begun.kind == "gram"
        self.start_ = Start(
            begun.kind,
            "" if gram or begun.reason == "asked for" else begun.reason,
            self._gram(outcome.public.factors).cells if gram else 0,
            begun.proposed or None,
            outcome.public.gain,
            gram and begun.sweep > 0,
        )
