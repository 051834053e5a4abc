"""A federated fit as a row of phases: sizes of the data, a start, the method's own rounds, the score.

A phase is ONE kind of sum: what is asked (:meth:`Phase.step`), what a hospital answers (:meth:`Phase.contribute`) and what
follows from the total (:meth:`Phase.combine`). ``public.stage`` names the phase that comes next; when it names none, the fit is
over. A method writes the phase that is its paper and takes the others from here, from :mod:`.starts.choice` and from :mod:`.rounds.warmup`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.factorization import FederatedFactorization, WeightedParams
from polyclinic.methods.rounds.setup import Sizes, own_sizes, setup, sizes_of
from polyclinic.protocol.interfaces import Arrays, Contribution, Pri, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

__all__ = ["HEADROOM", "Exact", "FitPublic", "Phase", "Phased", "Rounds", "Score", "Setup", "Transport", "modes"]

Array = NDArray[np.float64]
Factors = tuple[Array, ...]
HEADROOM = 1e5  # how far above its unit, or its present largest entry, a site's number may go before the site refuses


@dataclass(frozen=True, kw_only=True)
class FitPublic:
    """What everybody knows of a fit, whatever its method."""

    stage: str = "setup"
    round: int = 0
    factors: Factors
    norm: float = 1.0  # ||O||^2 over all sites, rounded to a power of two: the unit of scores on the wire
    cells: float = 0.0
    nonzeros: float = 0.0
    saturation: float | None = None
    objective: float | None = None
    energy: Array | None = None

    @property
    def rank(self) -> int:
        return int(self.factors[0].shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the feature modes."""
        return tuple(len(f) for f in self.factors)


WP = TypeVar("WP", bound=WeightedParams)
Pub = TypeVar("Pub", bound=FitPublic)


class Phase(ABC, Generic[Pub, Pri]):
    """One kind of sum of a fit."""

    def __init__(self, fit: Any) -> None:
        self.fit = fit

    def due(self, public: Pub) -> bool:
        """Whether the phase has anything to ask, when its turn comes."""
        return True

    def enter(self, public: Pub) -> Pub:
        """The state to begin the phase with."""
        return public

    @abstractmethod
    def step(self, public: Pub) -> Step:
        """The coming sum."""

    @abstractmethod
    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> tuple[Pri, Contribution]:
        """x_k = one hospital's part of it."""

    @abstractmethod
    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """public' = f(public, sum_k x_k)."""


class Phased(FederatedFactorization[WP, Pub, Pri]):
    """A method that is a row of phases."""

    @property
    def phases(self) -> Mapping[str, Phase[Pub, Pri]]:
        """By the stage that they are, in their order."""
        raise NotImplementedError

    def next_step(self, public: Pub) -> Step | None:
        """The coming sum is that of the phase named by ``public.stage``."""
        phase = self.phases.get(public.stage)
        return None if phase is None else phase.step(public)

    def contribute(
        self, step: Step, site: Site, private: Pri, public: Pub, rng: np.random.Generator
    ) -> tuple[Pri, Contribution]:
        """x_k = the phase's part of the sum, from the site's records and the public state."""
        return self.phases[public.stage].contribute(step, site, private, public)

    def update_public(self, step: Step, public: Pub, total: Total) -> Pub:
        """public' = the phase's f(public, sum_k x_k)."""
        return self.phases[public.stage].combine(step, public, total)

    def onward(self, public: Pub) -> Pub:
        """To the next phase in the row that is due; after the last one the fit is over."""
        row = list(self.phases.items())
        at = [name for name, _ in row].index(public.stage)
        for name, phase in row[at + 1 :]:
            if phase.due(public):
                return phase.enter(replace(public, stage=name))
        return replace(public, stage="end")

    # ---- what most methods do alike

    def sized(self, public: Pub, size: Sizes, members: int) -> Pub:
        """The sizes are known: what a method makes of them."""
        return public

    def records(self, site: Site, public: Pub) -> SparseTensor:
        """The site's cells as the fit weighs them."""
        return weighted(site.counts(), public.saturation)

    def placed(self, site: Site, private: Pri, public: Pub) -> tuple[Array, float]:
        """The patients' memberships for the final factors, and the squared error that they leave."""
        raise NotImplementedError

    def round_metrics(self, public: Pub) -> Mapping[str, float | None]:
        full = None
        if public.objective is not None and public.cells:
            full = float(np.sqrt(2 * public.objective / public.cells))
        return {"objective": public.objective, "rmse_full": full}

    def finalize_site(self, site: Site, private: Pri, public: Pub) -> Arrays:
        solved = cp.solve_memberships(self.records(site, public), public.factors, nonnegative=self.params.nonnegative)
        return {"memberships": solved}


class Setup(Phase[Pub, Pri]):
    """The first sum: patients, nonzeros, squared norm."""

    def step(self, public: Pub) -> Step:
        return setup(self.fit.params)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> tuple[Pri, Contribution]:
        """x_k = (||O_k||^2, patients, nonzeros)."""
        return private, own_sizes(self.fit.params, site)

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """norm = the power of two above sum_k ||O_k||^2."""
        size = sizes_of(self.fit.params, total)
        cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
        known = replace(
            public, round=1, norm=size.norm, cells=cells, nonzeros=size.nonzeros, saturation=size.saturation
        )
        return self.fit.onward(self.fit.sized(known, size, total.members))  # type: ignore[no-any-return]


class Score(Phase[Pub, Pri]):
    """The last sum: how much there is of every phenotype, and what is left unexplained."""

    def step(self, public: Pub) -> Step:
        return Step(public.round, "score", {"energy": (public.rank,), "sse": (1,)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> tuple[Pri, Contribution]:
        """x_k = (sum over patients of P_k^2, ||O_k - [[P_k, A, ...]]||^2) / norm."""
        patients, sse = self.fit.placed(site, private, public)
        energy = np.square(patients).sum(0) / public.norm
        return private, Contribution({"energy": energy, "sse": np.array([sse / public.norm])})

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """objective = 1/2 sum_k ||O_k - [[P_k, A, ...]]||^2."""
        sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
        return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)


# ---- how the arrays of a round travel


class Transport(Protocol):
    """How the arrays of one sum travel; :class:`Exact`, or packed in a few bits (``methods.packing.packed_sums.Packing``)."""

    def step(self, round_: int, name: str) -> Step: ...
    def contribution(self, arrays: Mapping[str, Array], site: str) -> Contribution: ...
    def opened(self, total: Total) -> Mapping[str, Array] | None:
        """The summed arrays; None where they must be asked again."""

    def noise(self, name: str, members: int) -> float:
        """Standard deviation of a mean of ``members`` numbers, by rounding."""

    def learned(self, public: Any, sums: Mapping[str, Array]) -> Any:
        """The state with what these sums tell about how the next ones travel."""


@dataclass(frozen=True)
class Exact:
    """As they are, 64 bits a number."""

    shapes: Mapping[str, tuple[int, ...]]
    bound: float
    asides: tuple[str, ...] = ()

    def step(self, round_: int, name: str) -> Step:
        return Step(round_, name, self.shapes, bound=self.bound, asides=self.asides)

    def contribution(self, arrays: Mapping[str, Array], site: str) -> Contribution:
        return Contribution(arrays)

    def opened(self, total: Total) -> Mapping[str, Array]:
        return total.arrays

    def noise(self, name: str, members: int) -> float:
        return 0.0

    def learned(self, public: Any, sums: Mapping[str, Array]) -> Any:
        return public


def modes(factors: Factors, *, also: str = "") -> dict[str, tuple[int, ...]]:
    """Shapes of one array a feature mode: mode1, mode2, ..."""
    return {f"{also or 'mode'}{n}": f.shape for n, f in enumerate(factors, start=1)}


class Rounds(Phase[Pub, Pri]):
    """The rounds of a method: every hospital updates its own, the shared factors follow from the sum.

    A sum that has to be asked again (a packed one outside its window) is answered with the same update, not with another one.
    """

    name = "sweep"

    @abstractmethod
    def transport(self, public: Pub) -> Transport:
        """How the round's arrays travel."""

    @abstractmethod
    def update_local(self, site: Site, private: Pri, public: Pub) -> Pri:
        """What a hospital does in a round; nothing of it leaves."""

    @abstractmethod
    def message(self, private: Pri, public: Pub) -> dict[str, Array]:
        """What it says of it."""

    @abstractmethod
    def update_shared(self, public: Pub, sums: Mapping[str, Array], members: int, way: Transport) -> Pub:
        """What follows from the sum of all messages, and from how it travelled."""

    def again(self, public: Pub) -> int:
        """How often the coming sum was asked before."""
        return 0

    def step(self, public: Pub) -> Step:
        again = self.again(public)
        return self.transport(public).step(public.round, self.name + (f"+{again}" if again else ""))

    def contribute(self, step: Step, site: Site, private: Any, public: Pub) -> tuple[Any, Contribution]:
        """x_k = message(update_local(private_k, public))."""
        if private.round != public.round:
            updated: Any = self.update_local(site, private, public)
            private = replace(updated, round=public.round)
        return private, self.transport(public).contribution(self.message(private, public), site.name)

    def combine(self, step: Step, public: Any, total: Total) -> Any:
        """public' = update_shared(public, sum_k x_k); the same round again, in wider fields, where the sum cannot be read."""
        way = self.transport(public)
        sums = way.opened(total)
        if sums is None:
            return replace(public, wider=public.wider + 1)
        return self.update_shared(way.learned(public, sums), sums, total.members, way)
