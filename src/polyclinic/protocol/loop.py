"""The fold: public' = combine(public, sum over sites of contribute(...)), round after round, in one process.

``protocol.site_party`` is a hospital's half, ``protocol.public_state`` the public one. Between hosts ``node.coordinator.coordinator`` and
``node.site.worker`` drive the same two; the algorithms never know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

from polyclinic.errors import ConfigError, MessageRefused, PeerLost, ProtocolMismatch
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import (
    Aggregator,
    Checking,
    Collecting,
    Contribution,
    Exchange,
    Message,
    Method,
    Opening,
    Roster,
    Step,
    Total,
    least_threshold,
    ordered,
)
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.public_state import CoordinatorState
from polyclinic.protocol.schema import schema_of
from polyclinic.protocol.site_party import SiteParty
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site, one_order
from polyclinic.util.json_types import JsonMap
from polyclinic.util.threads import one_thread

COORDINATOR = "coordinator"


def roster_for(adder: Aggregator, names: Sequence[str], *, threshold: int | None = None, attempt: int = 0) -> Roster:
    """Who takes part. ``threshold``: how many must survive; a secure sum raises it to the least safe one."""
    n = len(names)
    secure = adder.reveals == "total"
    if secure and n < 3:
        raise ConfigError(
            f"aggregation {adder.name!r} refuses {n} site(s): with fewer than 3 a sum shows the other's contribution",
            hint="use at least 3 sites, or aggregation='plain'",
        )
    need = n if threshold is None else max(threshold, least_threshold(n)) if secure else threshold
    if need > n:
        raise ConfigError(f"a sum needs {need} sites, and there are {n}", hint="lower the quorum, or add sites")
    return adder.enrol(Roster(tuple(sorted(names)), COORDINATOR, threshold=need, attempt=attempt))


def deliver(
    sides: Mapping[str, Exchange],
    sent: Callable[[Message], None] | None = None,
    refused: Callable[[Message, MessageRefused], None] | None = None,
) -> None:
    """Carry messages between mailboxes until all are done; when nothing moves, the deadline passes for everybody.

    A message that its receiver refuses is told to ``refused`` and dropped, as between hosts: its sender is then missing at
    the deadline, and the quorum decides. Without ``refused`` it is an error.
    """
    queue: deque[Message] = deque(m for name in sorted(sides) for m in sides[name].start())
    waited = False
    while True:
        while queue:
            m = queue.popleft()
            if sent is not None:
                sent(m)
            queue.extend(_received(sides, m, refused))
        if waited or all(x.result() != "pending" for x in sides.values()):
            return
        for _ in range(8):  # a secure sum has several phases, each with its own deadline
            for name in sorted(sides):
                queue.extend(sides[name].deadline())
            if queue:
                break
        else:
            waited = True


def _received(
    sides: Mapping[str, Exchange], message: Message, refused: Callable[[Message, MessageRefused], None] | None
) -> list[Message]:
    """What a message is answered with; nothing where its receiver refuses it."""
    try:
        return sides[message.to].receive(message) if message.to in sides else []
    except MessageRefused as e:
        if refused is None:
            raise
        refused(message, e)
        return []


class SimulationOptions(TypedDict, total=False):
    """What a run in one process may be given beside its sites: another sum, doors, how many sites must answer."""

    adder: Aggregator | None
    doors: Mapping[str, ReleaseGate] | None
    quorum: int | None
    silent: Callable[[Step, str], bool] | None
    each: Callable[[Callable[[SiteParty], object], Iterable[SiteParty]], Iterable[object]]
    tap: Callable[[Message], None] | None


class RunOptions(SimulationOptions, total=False):
    """The same, and who is told of every round."""

    progress: Callable[[Progress], None] | None


class Simulation(CoordinatorState):
    """A run in one process, one sum at a time: :meth:`advance` until it returns False."""

    def __init__(
        self,
        method: Method,
        sites: Sequence[Site],
        *,
        adder: Aggregator | None = None,
        doors: Mapping[str, ReleaseGate] | None = None,
        quorum: int | None = None,
        silent: Callable[[Step, str], bool] | None = None,
        each: Callable[[Callable[[SiteParty], object], Iterable[SiteParty]], Iterable[Any]] = map,
        progress: Callable[[Progress], None] | None = None,
        tap: Callable[[Message], None] | None = None,
    ) -> None:
        setting = schema_of(method, sites)
        adder = adder if adder is not None else by_name(method.params.aggregation)
        doors = doors or {}
        if quorum is not None and adder.reveals == "total":  # every owner's floor holds for every sum
            quorum = max([quorum, *(d.policy.min_sites for d in doors.values() if d.policy is not None)])
        setting = replace(setting, adds=adder.adds)
        super().__init__(method, setting, adder, roster_for(adder, setting.sites, threshold=quorum), progress)
        arranged = one_order(sites) if method.needs == "features" else ordered(sites)
        self.parties = {
            s.name: SiteParty(method, s, self.adder, doors.get(s.name) or ReleaseGate(s.name)) for s in arranged
        }
        self.silent, self.each, self.tap = silent, each, tap
        self._since: dict[str, int] = {}  # lines of each book before this run

    # ---- the loop

    def begin(self) -> None:
        """The public start, and every site's private one."""
        super().begin()
        for p in self.parties.values():
            self._since[p.site.name] = p.door.ledger.count
            p.door.begin()
        list(self.each(lambda p: p.open(self.public), self.parties.values()))

    def advance(self) -> bool:
        """Take one sum; False when the method is finished."""
        step = self.step()
        if step is None:
            return False
        total, members = self._sum(step)
        self.commit(step, total, members)
        for name in members:
            self.parties[name].commit()
        return True

    def _sum(self, step: Step) -> tuple[Total, tuple[str, ...]]:
        present = [n for n in self.parties if self.silent is None or not self.silent(step, n)]
        if step.counts:
            for name in present:
                self.traffic.payload(name, self.payload(step))
        number, parties = len(self.releases), [self.parties[n] for n in present]
        parts = dict(zip(present, self.each(lambda p: p.contribute(step, self.public, self.roster, number), parties)))
        if len(present) == len(self.parties) and (total := self._at_once(step, parts)) is not None:
            return total, tuple(present)
        sides: dict[str, Exchange] = {n: self.adder.exchange(n, self.roster, step, mine) for n, mine in parts.items()}
        if self.roster.coordinator is not None:
            sides[COORDINATOR] = self.adder.exchange(COORDINATOR, self.roster, step, None)
        refusals: list[str] = []
        deliver(sides, partial(self._count, step), lambda m, e: refusals.append(f"refused: {m.sender!r}: {e.what}"))
        results = [r for r in (x.result() for x in sides.values()) if isinstance(r, Total)]
        if not results:
            raise self._short(step, present, refusals)
        return results[0], self._opened(step, results[0], present, sides)

    def _count(self, step: Step, m: Message) -> None:
        if self.tap is not None:
            self.tap(m)
        size = self._size(m)
        if m.sender != COORDINATOR:
            self.traffic.sent(m.sender, step.round, size)
        if m.to != COORDINATOR:
            self.traffic.received(m.to, step.round, size)

    def _opened(
        self, step: Step, total: Total, present: Sequence[str], sides: Mapping[str, Exchange]
    ) -> tuple[str, ...]:
        """Show the total to every site, which checks it; whose contributions are in it."""
        office = sides.get(COORDINATOR)
        members = tuple(office.members if isinstance(office, Collecting) else present)
        words = office.opened if isinstance(office, Opening) else None
        if words is not None:
            for name in members:
                site = sides[name]
                assert isinstance(site, Checking)
                site.check(words, members)
        if self.roster.coordinator is not None:  # without one every node combines for itself, nothing is sent down
            down = self.down(step, total, members, words)
            for name in present:
                self.traffic.received(name, step.round, down)
        return members

    def _size(self, m: Message) -> int:
        return wire.size_message(m, self.protocol)

    def _at_once(self, step: Step, parts: Mapping[str, Contribution]) -> Total | None:
        """Many nodes at once: same bits, same letters; None where the way to add has no short cut."""
        total = self.adder.aggregate_local(self.roster, step, parts)
        for sender, to, size in () if total is None else self.adder.message_sizes(self.roster, step, self._size):
            self.traffic.sent(sender, step.round, size)
            self.traffic.received(to, step.round, size)
        return total

    def _short(self, step: Step, present: Sequence[str], refusals: Sequence[str]) -> PeerLost:
        missing, n = sorted(set(self.parties) - set(present)), len(self.parties)
        return PeerLost(
            f"round {step.round}, step {step.name!r}: {len(present)} of {n} sites answered, {self.roster.threshold} are needed",
            faults=[*(f"silent: {name!r}" for name in missing), *refusals],
            hint="wait for them and resume; a quorum lets a sum go on without some (a secure one never below "
            f"{least_threshold(n)} of {n})",
        )

    def run(self) -> Outcome:
        """All rounds, then what stays at the sites."""
        with one_thread():
            while self.advance():
                pass
            return self.outcome()

    def outcome(self) -> Outcome:
        """The result so far."""
        closed = dict(zip(self.parties, self.each(lambda p: p.close(self.public), self.parties.values())))
        return Outcome(
            self.public,
            {n: p.private for n, p in self.parties.items()},
            closed,
            self.history,
            self.traffic,
            self.setting,
            tuple(self.releases),
            self._spent,
            ", ".join(sorted({p.door.noise.label for p in self.parties.values()})),
            tuple(e for p in self.parties.values() for e in (*p.site.builds_on, *self._lines(p))),
        )

    def _lines(self, party: SiteParty) -> list[Entry]:
        """The lines that this run wrote into a site's book."""
        new = party.door.ledger.entries[self._since.get(party.site.name, 0) :]
        return [e for e in new if e.charge is not None and party.door.wrote(e.charge)]

    # ---- the checkpoint: public and private states are plain values

    def state(self) -> dict[str, object]:
        """Everything needed to go on later; patient-level loadings are in it, so it stays where the sites are."""
        return {
            **super().state(),
            "privates": {n: wire.pack(p.private) for n, p in self.parties.items()},
            "since": self._since,
            "sessions": {n: p.door.session for n, p in self.parties.items()},
        }

    def restore(self, state: JsonMap) -> None:
        """Go on from :meth:`state`; the result is the same as without the interruption."""
        if set(state["privates"]) != set(self.parties):
            raise ProtocolMismatch(
                f"checkpoint of sites {sorted(state['privates'])}, this run has {sorted(self.parties)}"
            )
        super().restore(state)
        self._since = {n: int(k) for n, k in state["since"].items()}
        for name, session in state["sessions"].items():
            self.parties[name].door.begin(str(session))
        for name, tree in state["privates"].items():
            self.parties[name].private = wire.unpack(self.method.Private, tree)


def run(method: Method, sites: Sequence[Site], **options: Unpack[RunOptions]) -> Outcome:
    """Run a method over sites in this process; see :class:`Simulation` for the options."""
    return Simulation(method, sites, **options).run()
