"""What a book adds up to: spent and reserved, per study, per cohort and over all, kept while lines are read or written.

Gaussian releases add up in one number, ``mu^2 = sum 1 / multiplier^2``; so a charge against a reservation is one addition
and one comparison. Events of other kinds (lines of earlier versions) are kept as they are.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.accounting.charge import Charge, event_from
from polyclinic.privacy.ledger.entries import Accept, Body, CloseLine, Gap, Refuse, Reserve, Unknown, Withdraw

__all__ = ["Account", "Balance", "Reserved", "cost", "part_label"]

POLICY: Final = "policy"  # who refuses where no person does


RUN: Final = 33  # a run's name of 32 hexadecimal digits, and the stroke behind it
_PART: Final = re.compile(r"[0-9a-f]{32}/")


def part_label(run: str, site: str) -> str:
    """The cohort of one part of a node that a run divides: parts of one run have no patient in common.

    >>> part_label("00ff" * 8, "ward 7")
    '00ff00ff00ff00ff00ff00ff00ff00ff/ward 7'
    """
    label = f"{run}/{site}"
    if not _PART.match(label):
        raise ValueError(f"{run!r} is no name of a run")
    return label


def cost(events: Iterable[Event]) -> float:
    """``mu^2`` of Gaussian events; infinite if one is of another kind.

    >>> round(cost([Gaussian(10.0, 4)]), 12)
    0.04
    """
    mu = accountant.gaussian_mu(events)
    return math.inf if mu is None else mu * mu


@dataclass
class Account:
    """What one scope has spent: ``mu^2`` of Gaussian releases, old events of other kinds, how many had no bound."""

    mu2: float = 0.0
    others: list[Event] = field(default_factory=list)
    unbounded: int = 0

    def add(self, event: Event) -> None:
        """Spend."""
        if isinstance(event, Unbounded):
            self.unbounded += 1
        elif accountant.gaussian_mu([event]) is not None:
            self.mu2 += cost([event])
        else:
            self.others.append(event)

    def without(self, parts: Sequence[float]) -> Account:
        """The same without some of its ``mu^2``; never less than nothing."""
        mu2 = math.fsum(parts)
        return Account(max(self.mu2 - mu2, 0.0) if mu2 < math.inf else self.mu2, self.others, self.unbounded)

    @property
    def beyond(self) -> int:
        """How many releases ``mu^2`` does not speak of: without a bound, or of another kind."""
        return self.unbounded + len(self.others)

    def epsilon(self, delta: float, more: float = 0.0) -> float:
        """Patient-level epsilon of everything that has a bound, with ``more`` (of ``mu^2``) added."""
        mu2 = self.mu2 + more
        if self.others:
            return accountant.epsilon([*self.others, *([Gaussian(mu2**-0.5)] if mu2 > 0 else [])], delta)
        return accountant.gaussian_epsilon(math.sqrt(mu2), delta)


@dataclass
class Reserved:
    """What an open order may still charge."""

    study: str
    cohort: str
    mu2: float
    until: float
    charged: float = 0.0

    def left(self, now: float) -> float:
        """Not charged yet; nothing once its time is over."""
        return max(self.mu2 - self.charged, 0.0) if not self.until or now <= self.until else 0.0


class Balance:
    """The sums of a book."""

    def __init__(self) -> None:
        self.studies: dict[str, Account] = {}
        self.cohorts: dict[str, Account] = {}
        self.all = Account()
        self.open: dict[str, Reserved] = {}
        self.closed: set[str] = set()
        self.withdrawn: set[str] = set()  # by their owner; an acceptance takes that back
        self.accepted: set[str] = set()  # by their owner; a refusal or withdrawal takes that back
        self.releases: dict[str, dict[str, list[list[Any]]]] = {}  # run -> release -> [attempt, digest of its bytes]
        self.identities: set[str] = set()
        self.policy = ""  # digest of the rules that were written last
        self.evaluated: dict[str, list[str]] = {}  # cohort -> digests of the sets of people that were evaluated exactly
        self.counted: list[list[Any]] = []  # order, cohort, sites and sketch of the patients of exact secure sums
        self.approved: set[str] = set()  # digests of facts or bytes that the owner let out
        self.gaps: list[list[Any]] = []  # book, first and last lost line, hashes of heads that were kept of it

    def add(self, body: Body) -> None:
        """Take in a line."""
        match body:
            case Charge():
                self._charge(body)
            case Reserve():
                self.open[body.order] = Reserved(body.study, body.cohort, cost(body.events), body.until)
            case CloseLine():
                self.open.pop(body.order, None)
                self.releases.pop(body.order, None)
                self.closed.add(body.order)
            case Withdraw() | Refuse():
                self.open.pop(body.order, None)
                if body.by != POLICY:  # a rule may be changed, and the order be asked again
                    self.withdrawn.add(body.order)
                    self.accepted.discard(body.order)
            case Accept():
                self.withdrawn.discard(body.order)
                self.accepted.add(body.order)
            case Gap():
                for e in body.events:
                    self.cohorts.setdefault(body.cohort, Account()).add(e)
                    self.all.add(e)
            case Unknown() if body.costs:
                self.all.mu2 = math.inf
            case _:
                self._other(body)

    def _other(self, body: Body) -> None:
        from polyclinic.privacy.ledger.entries import Approve, Counted, Evaluate, Key, Rules

        match body:
            case Key():
                self.identities.add(body.identity)
            case Rules():
                self.policy = body.digest
            case Evaluate():
                sets = self.evaluated.setdefault(body.cohort, [])
                if body.people not in sets:
                    sets.append(body.people)
            case Counted():
                self.counted.append([body.order, body.cohort, list(body.sites), body.people])
            case Approve():
                self.approved.add(f"{body.order}\0{body.step}\0{body.facts}")
            case _:
                pass

    def _charge(self, c: Charge) -> None:
        if c.release:
            self.releases.setdefault(c.run, {}).setdefault(c.release, []).append([c.attempt, c.bytes])
        if c.adjacency != "patient":
            return
        for account in (
            self.studies.setdefault(c.study, Account()),
            self.studies.setdefault(f"{c.study}\0{c.cohort}", Account()),
            self.cohorts.setdefault(c.cohort, Account()),
            self.all,
        ):
            account.add(c.event)
        held = self.open.get(c.run)
        if held is not None and not isinstance(c.event, Unbounded):
            held.charged += cost([c.event])

    # ---- questions

    def approves(self, order: str, step: str, facts: str) -> bool:
        """Whether the owner let out this step with these facts, or all steps of this name ahead."""
        if f"{order}\0{step}\0{facts}" in self.approved:
            return True
        ahead = (k.split("\0")[1] for k in self.approved if k.startswith(f"{order}\0") and k.endswith("\0ahead"))
        return any(n == step or (n.endswith("*") and step.startswith(n[:-1])) for n in ahead)

    def over(self, order: str) -> str:
        """Why nothing may leave under an order any more; empty if it may."""
        if order and order in self.closed:
            return f"the order {order[:16]} is closed in this book; nothing more leaves under it"
        return f"the owner withdrew from the order {order[:16]}" if order and order in self.withdrawn else ""

    def covers(self, charge: Charge, now: float | None = None) -> bool:
        """Whether an open reservation has room for a charge."""
        held = self.open.get(charge.run)
        if (
            held is None
            or isinstance(charge.event, Unbounded)
            or (held.study, held.cohort) != (charge.study, charge.cohort)
        ):
            return False
        return cost([charge.event]) <= held.left(time.time() if now is None else now) + 1e-12 * held.mu2

    def epsilon(
        self,
        delta: float,
        *,
        study: str | None = None,
        cohort: str | None = None,
        more: float = 0.0,
        apart: str = "",
        part: str = "",
        beside: tuple[str, ...] = (),
        now: float | None = None,
    ) -> float:
        """Spent and reserved in a scope, with ``more`` added.

        Parts of one run (:func:`part_label`) have no patient in common: of a run the dearest part counts. Where one of them asks
        (``part``), the others that it knows to be apart (``beside``) do not, and all others of that run do.

        Parameters
        ----------
        delta
            At which epsilon is told.
        study, cohort
            The scope; None: all.
        more
            Of ``mu^2``, added.
        apart
            An order whose reservation does not count.
        part, beside
            The part that asks, and those of its run whose patients are others.
        now
            Time, for reservations that end.
        """
        at = time.time() if now is None else now
        if study is not None:
            account = self.studies.get(study if cohort is None else f"{study}\0{cohort}", Account())
        else:
            account = self.all if cohort is None else self.cohorts.get(cohort, Account())
        held: dict[str, float] = {}
        for order, r in self.open.items():
            if order != apart and study in (None, r.study) and cohort in (None, r.cohort):
                held[r.cohort] = held.get(r.cohort, 0.0) + r.left(at)
        if cohort is not None:
            return account.epsilon(delta, sum(held.values()) + more)
        spent = {c: a.mu2 for c, a in self._by_cohort(study) if _PART.match(c)}
        runs: dict[str, list[float]] = {}
        for c in {*spent, *(c for c in held if _PART.match(c))} - set(beside):
            own = c[:RUN] == part[:RUN] != ""
            runs.setdefault(c if own else c[:RUN], []).append(spent.get(c, 0.0) + held.get(c, 0.0))
        whole = account.without(list(spent.values()))
        waits = sum(v for c, v in held.items() if not _PART.match(c))
        return whole.epsilon(delta, waits + sum(map(max, runs.values())) + more)

    def _by_cohort(self, study: str | None) -> Iterable[tuple[str, Account]]:
        if study is None:
            return self.cohorts.items()
        begins = f"{study}\0"
        return ((k[len(begins) :], a) for k, a in self.studies.items() if k.startswith(begins))

    def owned_up(self, book: str, count: int, digest: str) -> bool:
        """Whether a ``gap`` speaks of the book and the line that a head names."""
        return any(digest in heads or (b == book and first < count <= last) for b, first, last, heads in self.gaps)

    # ---- as plain values

    def summary(self) -> dict[str, Any]:
        """Spent and reserved per cohort and over all, short enough for a head."""
        at = time.time()
        held = {c: sum(r.left(at) for r in self.open.values() if r.cohort == c) for c in self.cohorts}
        return {
            "time": at,
            "all": [self.all.mu2, self.all.beyond, sum(r.left(at) for r in self.open.values())],
            **{f"cohort {c}": [a.mu2, a.beyond, held[c]] for c, a in self.cohorts.items()},
        }

    def state(self) -> dict[str, object]:
        """Everything, for a snapshot."""

        def account(a: Account) -> list[object]:
            return [a.mu2, [accountant.to_json(e) for e in a.others], a.unbounded]

        return {
            "studies": {k: account(a) for k, a in self.studies.items()},
            "cohorts": {k: account(a) for k, a in self.cohorts.items()},
            "all": account(self.all),
            "open": {k: vars(r) for k, r in self.open.items()},
            "closed": sorted(self.closed),
            "withdrawn": sorted(self.withdrawn),
            "accepted": sorted(self.accepted),
            "releases": self.releases,
            "identities": sorted(self.identities),
            "policy": self.policy,
            "approved": sorted(self.approved),
            "gaps": self.gaps,
            "evaluated": self.evaluated,
            "counted": self.counted,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Balance:
        """Inverse of :meth:`state`."""

        def account(v: Any) -> Account:
            return Account(float(v[0]), [event_from(e) for e in v[1]], int(v[2]))

        made = cls()
        made.studies = {k: account(v) for k, v in state["studies"].items()}
        made.cohorts = {k: account(v) for k, v in state["cohorts"].items()}
        made.all = account(state["all"])
        made.open = {k: Reserved(**v) for k, v in state["open"].items()}
        made.closed, made.withdrawn = set(state["closed"]), set(state["withdrawn"])
        made.accepted = set(state["accepted"])  # a snapshot of before has none, and the book is read anew
        made.releases = dict(state["releases"])
        made.identities, made.approved = set(state["identities"]), set(state["approved"])
        made.policy = str(state["policy"])
        made.gaps = [list(g) for g in state.get("gaps", ())]
        made.evaluated = {str(k): list(v) for k, v in state.get("evaluated", {}).items()}
        made.counted = [list(c) for c in state.get("counted", ())]
        return made
