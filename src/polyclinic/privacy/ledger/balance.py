"""Add up a ledger: spent and reserved, per study, per cohort and over all, kept while lines are read or written.

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
from polyclinic.privacy.facts import is_step, step_names
from polyclinic.privacy.ledger.entries import (
    Accept,
    Approve,
    Body,
    CloseLine,
    Counted,
    Evaluate,
    Gap,
    Key,
    Refuse,
    Reserve,
    Rules,
    Unknown,
    Withdraw,
)

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

    def state(self) -> list[object]:
        """Plain values, for a snapshot."""
        return [self.mu2, [accountant.to_json(e) for e in self.others], self.unbounded]

    @classmethod
    def restore(cls, value: Any) -> Account:
        """Inverse of :meth:`state`."""
        return cls(float(value[0]), [event_from(e) for e in value[1]], int(value[2]))

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
    """The sums of a ledger."""

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
        self.exact: dict[str, str] = {}  # exact orders -> when they were first asked
        self.counted: list[
            list[Any]
        ] = []  # order, cohort and sites of exact secure sums, and what earlier versions wrote
        self.approved: set[str] = set()  # digests of facts or bytes that the owner let out
        self.gaps: list[list[Any]] = []  # book, first and last lost line, hashes of heads that were kept of it

    def add(self, body: Body, when: str = "") -> None:
        """Take in a line; ``when``: its time."""
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
                self._decision(body, when)

    def _decision(self, body: Body, when: str) -> None:
        match body:
            case Key():
                self.identities.add(body.identity)
            case Rules():
                self.policy = body.digest
            case Evaluate():
                self.exact.setdefault(body.order, when)
            case Counted():
                self.counted.append([body.order, body.cohort, list(body.sites), body.people])
            case Approve():
                self.approved.add(f"{body.order}\0{body.step}\0{body.facts}")

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
        reserved = self.open.get(c.run)
        if reserved is not None and not isinstance(c.event, Unbounded):
            reserved.charged += cost([c.event])

    # ---- questions

    def approves(self, order: str, step: str, facts: str) -> bool:
        """Whether the owner let out this step with these facts, or ahead every kind of step that is part of it."""
        if f"{order}\0{step}\0{facts}" in self.approved:
            return True
        names = [k.split("\0")[1] for k in self.approved if k.startswith(f"{order}\0") and k.endswith("\0ahead")]
        return all(any(is_step(part, name) for name in names) for part in step_names(step))

    def over(self, order: str) -> str:
        """Why nothing may leave under an order any more; empty if it may."""
        if order and order in self.closed:
            return f"the order {order[:16]} is closed in this book; nothing more leaves under it"
        return f"the owner withdrew from the order {order[:16]}" if order and order in self.withdrawn else ""

    def covers(self, charge: Charge, now: float | None = None) -> bool:
        """Whether an open reservation has room for a charge."""
        reserved = self.open.get(charge.run)
        if reserved is None or isinstance(charge.event, Unbounded):
            return False
        if (reserved.study, reserved.cohort) != (charge.study, charge.cohort):
            return False
        return cost([charge.event]) <= reserved.left(time.time() if now is None else now) + 1e-12 * reserved.mu2

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
        moment = time.time() if now is None else now
        account = self._account(study, cohort)
        reserved: dict[str, float] = {}
        for order, r in self.open.items():
            if order != apart and study in (None, r.study) and cohort in (None, r.cohort):
                reserved[r.cohort] = reserved.get(r.cohort, 0.0) + r.left(moment)
        if cohort is not None:
            return account.epsilon(delta, sum(reserved.values()) + more)
        spent_by_part = {c: a.mu2 for c, a in self._by_cohort(study) if _PART.match(c)}
        reserved_by_part = {c: reserved.pop(c) for c in list(reserved) if _PART.match(c)}
        dearest: dict[str, float] = {}  # a run, or a part of the run that asks -> mu^2
        for c in {*spent_by_part, *reserved_by_part} - set(beside):
            name = c if c[:RUN] == part[:RUN] != "" else c[:RUN]
            mu2 = spent_by_part.get(c, 0.0) + reserved_by_part.get(c, 0.0)
            dearest[name] = max(dearest.get(name, 0.0), mu2)
        rest = account.without(list(spent_by_part.values()))
        return rest.epsilon(delta, sum(reserved.values()) + sum(dearest.values()) + more)

    def _account(self, study: str | None, cohort: str | None) -> Account:
        if study is not None:
            return self.studies.get(study if cohort is None else f"{study}\0{cohort}", Account())
        return self.all if cohort is None else self.cohorts.get(cohort, Account())

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
        moment = time.time()
        reserved = {c: sum(r.left(moment) for r in self.open.values() if r.cohort == c) for c in self.cohorts}
        return {
            "time": moment,
            "all": [self.all.mu2, self.all.beyond, sum(r.left(moment) for r in self.open.values())],
            **{f"cohort {c}": [a.mu2, a.beyond, reserved[c]] for c, a in self.cohorts.items()},
        }

    def state(self) -> dict[str, object]:
        """Everything, for a snapshot."""
        return {
            "studies": {k: a.state() for k, a in self.studies.items()},
            "cohorts": {k: a.state() for k, a in self.cohorts.items()},
            "all": self.all.state(),
            "open": {k: vars(r) for k, r in self.open.items()},
            **{name: sorted(getattr(self, name)) for name in _SETS},
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Balance:
        """Inverse of :meth:`state`. A snapshot that lacks a part is no snapshot: the ledger is read anew."""
        balance = cls()
        balance.studies = {k: Account.restore(v) for k, v in state["studies"].items()}
        balance.cohorts = {k: Account.restore(v) for k, v in state["cohorts"].items()}
        balance.all = Account.restore(state["all"])
        balance.open = {k: Reserved(**v) for k, v in state["open"].items()}
        for name in _SETS:
            setattr(balance, name, set(state[name]))
        for name in _PLAIN:
            setattr(balance, name, state[name])
        return balance


_SETS: Final = ("closed", "withdrawn", "accepted", "identities", "approved")
_PLAIN: Final = ("releases", "policy", "gaps", "exact", "counted")
