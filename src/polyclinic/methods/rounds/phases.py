"""A federated fit as a row of phases: sizes of the data, a start, the method's own rounds, the score.

What a phase is, and how a method finds the one that comes next, is :mod:`polyclinic.protocol.phases`. A method writes the phase
that is its paper and takes the others from here, from :mod:`.starts.choice` and from :mod:`.rounds.warmup`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.rounds.factorization import FederatedFactorization, WeightedParams, power_of_two
from polyclinic.methods.rounds.setup import Sizes, own_sizes, setup, sizes_of
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Pri, Step, Total
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

__all__ = ["HEADROOM", "Exact", "FitPublic", "Phase", "Phased", "Rounds", "Score", "Setup", "modes"]

Array = NDArray[np.float64]
Factors = tuple[Array, ...]
HEADROOM = (
    1e5  # limit: how far above its unit, or its present largest entry, a site's number may go before the site refuses
)
SHORT_HEADROOM = 64.0  # limit: the same in 32 bits, where a number is cut instead


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


class Phased(PhaseDispatch[Pub, Pri], FederatedFactorization[WP, Pub, Pri], Generic[WP, Pub, Pri]):
    """A factorization that is a sequence of phases."""

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

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = (||O_k||^2, patients, nonzeros)."""
        return private, own_sizes(self.fit.params, site)

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """norm = the power of two above sum_k ||O_k||^2."""
        size = sizes_of(self.fit.params, total)
        cells = size.patients * float(np.prod([float(len(f)) for f in public.factors]))
        state = replace(
            public, round=1, norm=size.norm, cells=cells, nonzeros=size.nonzeros, saturation=size.saturation
        )
        return self.fit.onward(self.fit.sized(state, size, total.members))  # type: ignore[no-any-return]


class Score(Phase[Pub, Pri]):
    """The last sum: how much there is of every phenotype, and what is left unexplained."""

    def step(self, public: Pub) -> Step:
        return Step(public.round, "score", {"energy": (public.rank,), "sse": (1,)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = (sum over patients of P_k^2, ||O_k - [[P_k, A, ...]]||^2) / norm."""
        patients, sse = self.fit.placed(site, private, public)
        energy = np.square(patients).sum(0) / public.norm
        return private, Contribution({"energy": energy, "sse": np.array([sse / public.norm])})

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """objective = 1/2 sum_k ||O_k - [[P_k, A, ...]]||^2."""
        sse = max(float(total.arrays["sse"][0]), 0.0) * public.norm
        return replace(public, stage="end", energy=total.arrays["energy"] * public.norm, objective=sse / 2)


# ---- how the arrays of a round travel


@dataclass(frozen=True)
class Exact:
    """How the arrays of a round travel: 64 bits a number, or ``short``: 32.

    Short numbers are whole multiples of a public grid, cut at the bound. So a sum has the same bits whoever adds it.
    """

    shapes: Mapping[str, tuple[int, ...]]
    size: float  # of the largest number that is expected
    asides: tuple[str, ...] = ()
    short: bool = False
    sites: int = 1

    @property
    def bound(self) -> float:
        return SHORT_HEADROOM * power_of_two(self.size) if self.short else HEADROOM * self.size

    @property
    def grid(self) -> float | None:
        """The finest power of two with which a sum of all sites fits in 32 bits."""
        return self.bound * power_of_two(max(self.sites, 1)) * 2.0**-30 if self.short else None

    def step(self, round_: int, name: str) -> Step:
        return Step(round_, name, self.shapes, bound=self.bound, asides=self.asides, grid=self.grid)

    def contribution(self, arrays: Mapping[str, Array]) -> Contribution:
        if self.grid is None:
            return Contribution(arrays)
        most = self.bound
        return Contribution({k: np.rint(np.clip(a, -most, most) / self.grid) * self.grid for k, a in arrays.items()})


def modes(factors: Factors, *, also: str = "") -> dict[str, tuple[int, ...]]:
    """Shapes of one array a feature mode: mode1, mode2, ..."""
    return {f"{also or 'mode'}{n}": f.shape for n, f in enumerate(factors, start=1)}


class Rounds(Phase[Pub, Pri]):
    """The rounds of a method: every hospital updates its own, the shared factors follow from the sum."""

    name = "sweep"

    @abstractmethod
    def transport(self, public: Pub) -> Exact:
        """How the round's arrays travel."""

    @abstractmethod
    def update_local(self, site: Site, private: Pri, public: Pub) -> Pri:
        """What a hospital does in a round; nothing of it leaves."""

    @abstractmethod
    def message(self, private: Pri, public: Pub) -> dict[str, Array]:
        """What it says of it."""

    @abstractmethod
    def update_shared(self, public: Pub, sums: Mapping[str, Array], members: int) -> Pub:
        """What follows from the sum of all messages."""

    def step(self, public: Pub) -> Step:
        return self.transport(public).step(public.round, self.name)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = message(update_local(private_k, public))."""
        private = self.update_local(site, private, public)
        return private, self.transport(public).contribution(self.message(private, public))

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """public' = update_shared(public, sum_k x_k)."""
        return self.update_shared(public, total.arrays, total.members)
