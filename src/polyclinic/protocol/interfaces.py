"""The one interface of every federated method, and of every way to add.

All methods are a fold over sums::

    private', x_k, w_k = contribute(step, private_k, public)                      at every site k
    public'            = combine(step, public, SUM_k w_k x_k, SUM_k w_k, members)  once, or at every node

A method is ONE file with both halves side by side: a subclass of :class:`Method`. It never adds noise, opens no
socket or file, reads no clock and no global random state. How the sum is taken (plain, masked, subspace, robust)
is a :class:`Aggregator`, and no method knows which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.release import Arrays, Contribution, Release, Step, Total
from polyclinic.protocol.params import P, Params
from polyclinic.protocol.wire.message import COORDINATOR, Message, Roster
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis

if TYPE_CHECKING:
    from polyclinic.aggregation.promise import Promises
    from polyclinic.privacy.accounting.accountant import Event
    from polyclinic.protocol.estimator import Estimator

__all__ = [
    "COORDINATOR",
    "Aggregator",
    "AggregatorFacts",
    "Answer",
    "Arrays",
    "Checking",
    "Collecting",
    "Contribution",
    "Exchange",
    "Message",
    "Method",
    "MethodFacts",
    "Opening",
    "P",
    "Release",
    "Roster",
    "Schema",
    "Step",
    "Total",
    "least_threshold",
]

# Without its three, ``Method`` is a method whose parameters and states are its own affair: an engine only passes them on.
Pub = TypeVar("Pub", default=Any)
Pri = TypeVar("Pri", default=Any)
Answer: TypeAlias = tuple[Pri, Contribution]  # what a hospital keeps from now on, and its part of the sum


@dataclass(frozen=True)
class Schema:
    """What everybody knows before round 1: the feature modes (not the patients) and the sites' names."""

    shape: tuple[int, ...]  # sizes of the feature modes, or (d,) for feature matrices
    axes: tuple[Axis, ...]
    sites: tuple[str, ...]  # sorted by name
    columns: tuple[str, ...] | None = None  # names of the features, where the sites have them
    together: bool = False  # all sites are in one process: nothing is shown to another party
    overlap: str = ""  # how it is known at how many sites a patient is, for the card; empty: assumed
    adds: bool = True  # totals are sums of what the sites sent; False under a robust rule, whose totals are none


class Method(ABC, Generic[P, Pub, Pri]):
    """A federated method: six pure functions. ``Pub`` and ``Pri`` are frozen dataclasses of arrays, tuples of arrays
    and scalars, so they are the checkpoint (see ``protocol.wire.encoding``)."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[Literal["tensor", "features"]] = "tensor"
    exact: ClassVar[float | None] = None
    """Relative tolerance to which several sites give the model of one site with all patients; None: they do not."""
    facts: ClassVar[MethodFacts] = MethodFacts()
    """What is known about it, for cards and reviews; without facts they say that no attack was studied."""
    additive: ClassVar[bool] = False
    """Whether a contribution with noise is a sum over patients, bit for bit, and remembers none: then one bad record costs one patient."""
    slack: ClassVar[float] = 2.0**-30
    """By how much one ``combine`` may differ between unlike processors, relative to an array's largest entry."""
    Params: ClassVar[type[Params]]
    Public: ClassVar[type[Any]]
    Private: ClassVar[type[Any]]
    params: P

    @property
    def unsettled(self) -> str:
        """Why what it asks to pay for follows from what was released before: two halves might then plan differently after they
        paid. Empty: the plan is settled at the beginning."""
        return ""

    @property
    def joins(self) -> bool:
        """Whether columns of a fit that are one phenotype may be joined where it is replicated: patients are placed by least squares."""
        return False

    @property
    def model_(self) -> Estimator[P, Pub, Pri]:
        """The fitted model itself: what a method that holds another (starts, a floor, what follows the fit) has inside."""
        return cast("Estimator[P, Pub, Pri]", self)

    # ---- at the coordinator, or at every node under `subspace`

    @abstractmethod
    def init_public(self, setting: Schema, rng: np.random.Generator) -> Pub:
        """The public start; depends on public values only."""

    @abstractmethod
    def next_step(self, public: Pub) -> Step | None:
        """The next sum to take; None = finished. A function of the public state only (stopping included)."""

    @abstractmethod
    def update_public(self, step: Step, public: Pub, total: Total) -> Pub:
        """The next public state from the sum."""

    def round_metrics(self, public: Pub) -> Mapping[str, float | None]:
        """Figures of merit of the round just finished, for history and progress (objective, residuals, ...)."""
        return {}

    def settled(self, public: Pub) -> bool:
        """Whether another start would be of no use, after one that ended like this."""
        return False

    # ---- at a site

    @abstractmethod
    def init_site(self, site: Site, public: Pub, rng: np.random.Generator) -> Pri:
        """The site's private start."""

    @abstractmethod
    def contribute(self, step: Step, site: Site, private: Pri, public: Pub, rng: np.random.Generator) -> Answer[Pri]:
        """One site's part of one sum. Pure: the new private state is kept once the total commits."""

    def divergence_hint(self, site: Site, public: Pub) -> str:
        """What to try when a fit leaves the finite numbers."""
        if "learning_rate" in type(self.params).model_fields:
            return "lower the learning rate"
        return "look for values that are no numbers or far too large at that site; or the step's bound is too small"

    @abstractmethod
    def finalize_site(self, site: Site, private: Pri, public: Pub) -> Arrays:
        """What the site keeps of the result (memberships ...); never leaves."""


def least_threshold(sites: int, colluders: int = 1, among: int = 2) -> int:
    """Fewest survivors of a secure sum: ``max((n + c) // 2 + 1, c + among)``.

    ``2 t > n + c``: a lying coordinator cannot get two lists of survivors signed. ``t >= c + among``: whoever pools ``c``
    contributions and subtracts them still faces the sum of ``among`` honest sites.

    >>> least_threshold(3), least_threshold(5), least_threshold(10), least_threshold(10, colluders=2)
    (3, 4, 6, 7)
    """
    return max((sites + colluders) // 2 + 1, colluders + among)


class Exchange(Protocol):
    """One party's side of one sum (or of an alignment, or a search): a mailbox, no I/O.

    ``Total`` once this party knows the outcome; ``"done"`` for a party whose work is over but which learns nothing
    (a site under ``plain`` or ``masked``); ``"aborted"`` if the attempt was aborted with nothing revealed.
    A letter that is not awaited raises :class:`~polyclinic.errors.MessageRefused` and changes nothing. Whoever still waits when
    ``deadline`` is called goes on without the others, or is aborted: in a star it is called at the coordinator, among peers at
    every site (docs/howto/new-sum.md).
    """

    def start(self) -> list[Message]: ...
    def receive(self, message: Message) -> list[Message]: ...
    def deadline(self) -> list[Message]: ...
    def result(self) -> Total | Literal["pending", "done", "aborted"]: ...


@runtime_checkable
class Collecting(Protocol):
    """A coordinator's mailbox that knows whose contributions are in its total."""

    @property
    def members(self) -> tuple[str, ...]: ...


@runtime_checkable
class Opening(Protocol):
    """A coordinator's mailbox whose total, as whole words with a tag, is shown to the sites: they check it."""

    opened: NDArray[np.uint64]


@runtime_checkable
class Checking(Protocol):
    """A site's mailbox that checks such a total."""

    def check(self, opened: NDArray[np.uint64], members: tuple[str, ...]) -> Total: ...


class Aggregator(ABC):
    """A way to add. ``side`` makes a party's mailbox: a site brings its contribution, the coordinator brings None."""

    facts: ClassVar[AggregatorFacts]
    adds: ClassVar[bool] = True
    """Whether a total is the sum of the contributions: packed words and Grams may only travel where it is."""
    margin: ClassVar[float] = 0.0
    """Part of a study's price (of ``mu^2``) that is set aside for :meth:`leak`, over all its sums and attempts."""

    @property
    def name(self) -> str:
        """As a study names it."""
        return self.facts.name

    @property
    def reveals(self) -> Literal["each", "total"]:
        """Whether somebody sees single contributions, or the total only."""
        return self.facts.reveals

    @abstractmethod
    def noise_share(self, roster: Roster) -> float:
        """Part of the total's noise VARIANCE that each site must add: plain 1, secure sums 1 / (threshold - colluders)."""

    @abstractmethod
    def exchange(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Exchange:
        """One party's mailbox. ``promises``: lists this site signed for this number; secure sums open one list of a number."""

    def enrol(self, roster: Roster) -> Roster:
        """For one process: keys of everybody, neighbours, thresholds; a sum that needs none returns the roster."""
        return roster

    def leakage(self, roster: Roster, step: Step) -> tuple[Event, ...]:
        """What one attempt leaks of a contribution beyond the sum; charged with the release."""
        return ()

    def aggregate_local(self, roster: Roster, step: Step, parts: Mapping[str, Contribution]) -> Total | None:
        """All sites in one process at once, with the bits of the messages; None: take the messages."""
        return None

    def message_sizes(
        self, roster: Roster, step: Step, size_of: Callable[[Message], int]
    ) -> Iterator[tuple[str, str, int]]:
        """Sender, receiver and bytes of all that :meth:`at_once` saves."""
        return iter(())


def seeds(seed: int, *words: str | int) -> np.random.Generator:
    """A generator that depends on the study's seed and on what it is for (site's name, round, step), and on nothing else.

    >>> float(seeds(0, "north", 1).random()) == float(seeds(0, "north", 1).random())
    True
    """
    import hashlib

    digest = hashlib.sha256("\0".join(str(w) for w in words).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, *np.frombuffer(digest[:16], np.uint32).tolist()]))


def ordered(sites: Sequence[Site]) -> list[Site]:
    """Sites by name: seeds and summation follow the name, so the order of a list never matters."""
    return sorted(sites, key=lambda s: s.name)
