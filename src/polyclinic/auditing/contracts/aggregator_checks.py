"""The contract checks of an aggregator (``pc.check_sum``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.auditing.contracts.relay_view import likeness, read_by_relay, readable
from polyclinic.auditing.contracts.result import Battery, Skip, checks_of, example_sites, run_checks
from polyclinic.errors import ConfigError, MessageRefused, PeerLost
from polyclinic.methods.moments.standardizing import Standardizer
from polyclinic.node.coordinator.rehearsal import Rehearsal
from polyclinic.protocol.aggregators import NAMES, by_name, kind_of
from polyclinic.protocol.interfaces import (
    Aggregator,
    AggregatorFacts,
    Contribution,
    Exchange,
    Message,
    Method,
    Roster,
    Step,
    Total,
    least_threshold,
)
from polyclinic.protocol.loop import Simulation, deliver, roster_for
from polyclinic.protocol.wire import encoding as wire

SITES: Final = tuple(f"site{k}" for k in range(5))
NEAR: Final = 1e-6  # of the bound, times sites: a sum by consensus is no more exact than this
LIKE: Final = 0.5  # correlation of a message with what its sender contributed


@dataclass(frozen=True)
class SumTaken:
    """One sum that was taken: what every party ended with, and all that was sent."""

    results: Mapping[str, object]
    messages: tuple[Message, ...]

    @property
    def total(self) -> Total | None:
        """The total, if a party has one."""
        return next((r for r in self.results.values() if isinstance(r, Total)), None)


class SumChecks:
    """The contract checks of one aggregator."""

    def __init__(self, adder: Aggregator, method: Method) -> None:
        self.adder, self.method = adder, method
        self.step = Step(3, "factors", {"A": (40,), "B": (2, 3)}, bound=5.0)

    def parts(self, seed: int = 0, *, step: Step | None = None, weighted: bool = False) -> dict[str, Contribution]:
        """Random contributions within the step's bound."""
        step, rng = step or self.step, np.random.default_rng([seed, 5])
        out = {}
        for k, s in enumerate(SITES):
            arrays = {n: rng.uniform(-step.bound, step.bound, shape) for n, shape in step.shapes.items()}
            if step.grid is not None:
                arrays = {n: np.rint(a / step.grid) * step.grid for n, a in arrays.items()}
            out[s] = Contribution(arrays, 1.0 + k if weighted else 1.0)
        return out

    def sides(self, roster: Roster, step: Step, parts: Mapping[str, Contribution]) -> dict[str, Exchange]:
        """The exchange of every party."""
        made = {s: self.adder.exchange(s, roster, step, parts[s]) for s in roster.sites if s in parts}
        if roster.coordinator is not None:
            made[roster.coordinator] = self.adder.exchange(roster.coordinator, roster, step, None)
        return made

    def take(
        self,
        parts: Mapping[str, Contribution],
        *,
        step: Step | None = None,
        threshold: int | None = None,
        without: Sequence[str] = (),
        forged: Callable[[Message], Sequence[Message]] = lambda m: (),
    ) -> SumTaken:
        """Take a sum by messages; ``without`` are silent, ``forged`` are further messages that arrive before one."""
        step = step or self.step
        roster = roster_for(self.adder, SITES, threshold=threshold)
        sides = self.sides(roster, step, {s: c for s, c in parts.items() if s not in without})
        messages: list[Message] = []

        def sent(m: Message) -> None:
            for f in forged(m):
                if f.to in sides:
                    try:
                        sides[f.to].receive(f)
                    except MessageRefused:
                        continue
                    raise AssertionError(
                        f"a {f.kind!r} of {f.sender!r}, round {f.round}, attempt {f.attempt} was taken"
                    )
            messages.append(m)

        deliver(sides, sent)
        return SumTaken({n: x.result() for n, x in sides.items()}, tuple(messages))

    def whole(self, parts: Mapping[str, Contribution], **options: Any) -> Total:
        """The total of a sum that must come about."""
        outcome = self.take(parts, **options)
        assert outcome.total is not None, (
            f"no total; the parties ended with {sorted(map(str, outcome.results.values()))}"
        )
        return outcome.total

    def near(self, total: Total, parts: Mapping[str, Contribution], step: Step) -> None:
        """A sum is the sum; a robust rule lies within what was contributed."""
        assert total.members == len(parts), f"{total.members} members of {len(parts)}"
        for n in step.shapes:
            values = np.stack([c.arrays[n] for c in parts.values()])
            if self.adder.adds:
                weights = np.array([c.weight for c in parts.values()])
                gap = float(np.abs(total.arrays[n] - np.tensordot(weights, values, 1)).max(initial=0.0))
                assert gap <= NEAR * step.bound * weights.sum(), f"{n} is off the sum by {gap:.3g}"
            else:
                mean, room = total.mean(n), NEAR * step.bound
                assert (mean >= values.min(0) - room).all() and (mean <= values.max(0) + room).all(), (
                    f"{n} lies outside of the contributions"
                )

    # ---- parts

    def facts_part(self) -> None:
        """the aggregator has a name and states who sees what and whether it tolerates dropout"""
        facts = _facts(self.adder)
        assert facts is not None, "facts: ClassVar[AggregatorFacts] is missing"
        faults = []
        if not facts.name or facts.name != facts.name.lower():
            faults.append(f"name {facts.name!r} must be lower-case and not empty")
        if facts.name in NAMES and kind_of(facts.name) is not type(self.adder):
            faults.append(f"name {facts.name!r} is taken by an aggregator of Polyclinic: choose another")
        faults += [] if facts.saw else ["saw is empty: every privacy card prints what each party saw"]
        assert not faults, "; ".join(faults)

    def total_part(self) -> None:
        """the total is the weighted sum (of a robust rule: within the values) and counts the contributors"""
        parts = self.parts(1)
        self.near(self.whole(parts), parts, self.step)
        step, heavy = replace(self.step, weight_bound=10.0), self.parts(2, weighted=True)
        total = self.whole(heavy, step=step)
        self.near(total, heavy, step)
        if self.adder.adds:
            assert abs(total.weight - sum(c.weight for c in heavy.values())) < 1e-6, f"weight {total.weight}"

    def edges_part(self) -> None:
        """zeros and values at the bound are added without overflow, and whole numbers stay whole"""
        for value in (0.0, 5.0, -5.0):
            parts = {s: Contribution({n: np.full(k, value) for n, k in self.step.shapes.items()}) for s in SITES}
            self.near(self.whole(parts), parts, self.step)
        if self.adder.adds:
            step = replace(self.step, bound=1000.0, grid=1.0)
            total = self.whole(parts := self.parts(3, step=step), step=step)
            for n in step.shapes:
                exact = sum(c.arrays[n] for c in parts.values())
                assert np.array_equal(np.rint(total.arrays[n]), exact), f"{n}: counts are not added as counts"

    def order_part(self) -> None:
        """the same contributions give the same bits, whatever the order of the sites"""
        parts = self.parts(4)
        first, second = self.whole(parts), self.whole(dict(reversed(parts.items())))
        room = 0.0 if self.adder.facts.topology == "star" else NEAR * self.step.bound
        for n in self.step.shapes:
            gap = float(np.abs(first.arrays[n] - second.arrays[n]).max())
            assert gap <= room, f"{n} differs by {gap:.3g}"

    def once_part(self) -> None:
        """the shortcut of one process gives the bits of the messages"""
        parts = self.parts(5)
        roster = roster_for(self.adder, SITES)
        total = self.adder.aggregate_local(roster, self.step, parts)
        if total is None:
            raise Skip("the aggregator has no shortcut for one process")
        by_messages = self.whole(parts)
        room = 0.0 if self.adder.facts.topology == "star" else NEAR * self.step.bound
        assert all(np.abs(total.arrays[n] - by_messages.arrays[n]).max() <= room for n in self.step.shapes), (
            "other bits"
        )

    def wire_part(self) -> None:
        """every message can be encoded and decoded"""
        for m in self.take(self.parts(6)).messages:
            decoded = wire.decode(wire.encode(dict(m.body)))
            assert wire.encode(decoded) == wire.encode(dict(m.body)), f"{m.kind!r} changes when it is decoded"

    def strangers_part(self) -> None:
        """messages of unknown senders, other rounds or attempts are refused and change nothing"""

        def forged(m: Message) -> list[Message]:
            return [
                replace(m, sender="stranger"),
                replace(m, round=m.round + 1),
                replace(m, step="another"),
                replace(m, attempt=m.attempt + 1),
            ]

        parts = self.parts(7)
        logging.disable(logging.ERROR)  # every refusal is a line in a log
        try:
            outcome = self.take(parts, forged=forged)
        finally:
            logging.disable(logging.NOTSET)
        assert outcome.total is not None, "no total after forged messages"
        self.near(outcome.total, parts, self.step)

    def lost_part(self) -> None:
        """a silent site is left out if the aggregator tolerates it and enough sites remain, else there is no total"""
        parts = self.parts(8)
        present = {s: c for s, c in parts.items() if s != SITES[2]}
        outcome = self.take(parts, without=[SITES[2]])
        assert outcome.total is None, "a total of four where five are needed"
        waiting = sorted(n for n, r in outcome.results.items() if r == "pending")
        assert not waiting, (
            f"after the deadline {', '.join(waiting)} still wait: deadline() must end the sum there (result 'aborted')"
        )
        if not self.adder.facts.tolerates_loss:
            raise Skip("the aggregator tolerates no dropout, and gave no total")
        total = self.whole(parts, threshold=least_threshold(len(SITES)), without=[SITES[2]])
        self.near(total, present, self.step)

    def hidden_part(self) -> None:
        """if only the total is revealed, no message or sum of a site's messages resembles a contribution, and masks are fresh"""
        if self.adder.reveals == "each":
            raise Skip("the aggregator states that it reveals contributions")
        step = Step(3, "factors", {"A": (400,)}, bound=5.0)
        parts = self.parts(9, step=step)
        runs = [self.take(parts, step=step) for _ in range(2)]
        for m in (m for run in runs for m in run.messages if m.sender in parts):
            self.unlike(m, parts[m.sender].arrays["A"])
        for site in SITES if self.adder.facts.topology == "star" else ():
            letters = read_by_relay(runs[0].messages, site, parts[site].arrays["A"])
            assert not letters, (
                f"{letters} of {site!r} together are its contribution, and a coordinator may carry both: seal what goes from site to "
                "site (polyclinic.protocol.wire.sealed), or say reveals='each'"
            )
        bodies = [{wire.encode(dict(m.body)) for m in run.messages if readable(m.body)} for run in runs]
        assert not bodies[0] & bodies[1] or not all(bodies), "two sums sent the same messages: masks are not fresh"

    def unlike(self, message: Message, mine: NDArray[np.float64]) -> None:
        """No array of a message resembles what its sender contributed."""
        like = max((likeness(a, mine) for a in readable(message.body)), default=0.0)
        assert like < LIKE, f"{message.kind!r} of {message.sender!r} is like its contribution (r {like:.2f})"

    def noise_part(self) -> None:
        """the noise shares of the honest sites are enough for the total"""
        roster = roster_for(self.adder, SITES)
        share = self.adder.noise_share(roster)
        assert 0 < share <= 1, f"share {share}"
        honest = 1 if self.adder.reveals == "each" else roster.threshold - roster.colluders
        assert share * honest >= 1 - 1e-12, f"{honest} honest sites add {share * honest:.3g} of the noise's variance"

    def model_part(self) -> None:
        """a method gives the model of plain sums (with a robust rule: a finite model)"""
        sites = example_sites(self.method.needs)
        state = wire.pack(Simulation(self.method, sites, adder=self.adder).run().public)
        plain = wire.pack(Simulation(self.method, sites, adder=by_name("plain")).run().public)
        for a, b in zip(readable(state), readable(plain)):
            assert np.isfinite(a).all(), "numbers that are not finite"
            if self.adder.adds:
                room = 1e-5 * max(float(np.abs(b).max(initial=0.0)), 1.0)
                assert np.abs(a - b).max(initial=0.0) <= room, "another model than that of plain sums"

    def between_part(self) -> None:
        """between hosts it gives the same model, and it ends with an error when a site is lost"""
        sites = example_sites(self.method.needs)
        state = wire.pack(Rehearsal(self.adder, self.method, sites).fit().public)
        local = wire.pack(Simulation(self.method, sites, adder=self.adder).run().public)
        room = NEAR if self.adder.facts.topology == "star" else 1e-5
        for a, b in zip(readable(state), readable(local)):
            gap = float(np.abs(a - b).max(initial=0.0))
            assert gap <= room * max(float(np.abs(b).max(initial=0.0)), 1.0), f"another model than here, by {gap:.3g}"
        with suppress(PeerLost):
            Rehearsal(self.adder, self.method, sites).run(silent=sites[2].name)


def _facts(adder: Aggregator) -> AggregatorFacts | None:
    try:
        facts: object = adder.facts
    except AttributeError:
        return None
    return facts if isinstance(facts, AggregatorFacts) else None


SUM_PARTS: Final = (
    *("facts", "total", "edges", "order", "once", "wire", "strangers", "lost", "hidden", "noise", "model", "between"),
)
SUM_CHECKS: Final = checks_of(SumChecks, SUM_PARTS)


def check_sum(adder: Aggregator, method: Method | None = None, *, parts: Sequence[str] | None = None) -> Battery:
    """Run the contract checks on an aggregator. Raises AssertionError with all results if a check fails.

    Parameters
    ----------
    adder
        An instance of a :class:`~polyclinic.protocol.interfaces.Aggregator`.
    method
        What is fitted with it in the part ``model``; the standardiser by default.
    parts
        Which parts to run, by name; all by default.

    Examples
    --------
    >>> from polyclinic.protocol.aggregators import by_name
    >>> check_sum(by_name("masked"), parts=["total", "lost"]).passed
    True
    """
    if not isinstance(adder, Aggregator):
        kind = f"the class {adder.__name__}" if isinstance(adder, type) else f"a {type(adder).__name__}"
        raise ConfigError(f"check_sum wants a way to add, got {kind}", hint='e.g. pc.check_sum(by_name("masked"))')
    checks, facts = SumChecks(adder, Standardizer() if method is None else method), _facts(adder)
    if facts is None:  # nothing else can be checked without them
        return run_checks(type(adder).__name__, checks, SUM_CHECKS, ["facts"])
    return run_checks(facts.name, checks, SUM_CHECKS, parts)
