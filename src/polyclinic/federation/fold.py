"""The fold: public' = combine(public, sum over sites of contribute(...)), round after round.

:class:`SiteParty` is a hospital's half and :class:`Fold` the whole loop in one process. An engine drives the same
parties over threads or between hosts; the algorithms never know.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from polyclinic.errors import ConfigError, DataError, Divergence, MessageRefused, PeerLost, ProtocolMismatch
from polyclinic.federation import wire
from polyclinic.federation.certificate import Link, Opened, grow, state_digest, within
from polyclinic.federation.protocol import (
    Arrays,
    Contribution,
    Exchange,
    Message,
    Method,
    Release,
    Roster,
    Setting,
    Step,
    Sum,
    Total,
    least_threshold,
    ordered,
    seeds,
)
from polyclinic.federation.sums import by_name
from polyclinic.federation.sums.narrow import width
from polyclinic.federation.traffic import Traffic
from polyclinic.privacy.accountant import gaussian_mu
from polyclinic.privacy.door import Door
from polyclinic.privacy.grid import on_grid
from polyclinic.privacy.happened import Certified
from polyclinic.privacy.head import Head
from polyclinic.privacy.lines import Entry
from polyclinic.privacy.studybook import StudyBook
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.blas import one_thread
from polyclinic.tensors.site import Site, one_order

__all__ = [
    "Conductor",
    "Fold",
    "Folding",
    "Outcome",
    "Progress",
    "SiteParty",
    "deliver",
    "roster_for",
    "run",
    "setting_from",
    "setting_of",
]

COORDINATOR = "coordinator"
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """A progress event: data that a command line, a page or a notebook renders."""

    kind: str  # "begin" | "round" | "end"
    method: str
    round: int
    rounds: int
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    public: Any
    privates: Mapping[str, Any]
    closed: Mapping[str, Arrays]  # stays at the sites
    history: list[dict[str, Any]]
    traffic: Traffic
    setting: Setting
    releases: tuple[Release, ...]  # every sum that was taken
    seconds: float
    noise: str = ""  # label of the source of privacy noise
    lines: tuple[
        Entry, ...
    ] = ()  # of the sites' books, for this run and what it builds on; between hosts they stay there
    heads: Mapping[str, Head] = field(default_factory=dict)  # of the sites' books when it had ended; between hosts
    books: tuple[StudyBook, ...] = ()  # between hosts: what each site signed of its book
    certified: Certified | None = None  # between hosts: who signed the end of the run


def setting_of(method: Method[Any, Any, Any], sites: Sequence[Site]) -> Setting:
    """What is public about the sites; refuses, by name, sites that do not speak of the same things."""
    strangers: list[Any] = [sites] if not isinstance(sites, Sequence) else [s for s in sites if not isinstance(s, Site)]
    if strangers:
        raise DataError(
            f"sites must be a list of pc.Site; this is a {type(strangers[0]).__name__}",
            hint='[pc.Site("north", tensor), ...]',
        )
    if not sites:
        raise DataError("no sites given", hint="pass a list of pc.Site")
    names = [s.name for s in sites]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError("site names must be unique", faults=[f"{n!r} appears {names.count(n)} times" for n in twice])
    sites = ordered(sites)
    faults, columns, hint = [], None, "call sites = pc.align(sites) first"
    if method.needs == "features":
        widths = {s.name: s.matrix().shape[1] for s in sites}
        d = max(set(widths.values()), key=list(widths.values()).count)
        if len(set(widths.values())) > 1 and any(s.columns is None for s in sites):
            faults = [f"{n!r} has {w} features" for n, w in widths.items()]
            hint = "give every site the same columns in the same order; data frames say which one is missing"
        else:
            columns = next((s.columns for s in one_order(sites) if s.columns is not None), None)
        shape: tuple[int, ...] = (d,)
        axes: tuple[Any, ...] = ()
    else:
        tensors = {s.name: s.counts() for s in sites}
        keys = {n: (t.shape[1:], tuple(a.digest() for a in t.axes[1:])) for n, t in tensors.items()}
        common = max(set(keys.values()), key=lambda k: (list(keys.values()).count(k), k))
        for n, (size, digests) in keys.items():
            if len(size) != len(common[0]):
                faults.append(f"{n!r} has {len(size)} feature modes, the others {len(common[0])}")
            elif size != common[0]:
                faults.append(f"{n!r} has feature modes of sizes {size}, the others {common[0]}")
            elif digests != common[1]:
                other = [a.name for a, x, y in zip(tensors[n].axes[1:], digests, common[1]) if x != y]
                faults.append(f"{n!r} has another vocabulary (or order of codes) in {', '.join(other)}")
        reference = next(t for n, t in tensors.items() if keys[n] == common)
        shape, axes = reference.shape[1:], reference.axes[1:]
    if faults:
        raise ProtocolMismatch("sites do not fit together", faults=faults, hint=hint)
    return Setting(shape, axes, tuple(s.name for s in sites), columns, together=True)


def setting_from(tree: Mapping[str, Any]) -> Setting:
    """The setting as it travels."""
    axes = tuple(Axis.from_json(a) for a in tree["axes"])
    return Setting(tuple(int(x) for x in tree["shape"]), axes, tuple(str(s) for s in tree["sites"]))


def roster_for(adder: Sum, names: Sequence[str], *, threshold: int | None = None, attempt: int = 0) -> Roster:
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


class SiteParty:
    """One hospital's half of the fold."""

    def __init__(self, method: Method[Any, Any, Any], site: Site, adder: Sum, door: Door) -> None:
        self.method, self.site, self.adder, self.door = method, site, adder, door
        door.facts = method.facts
        self.private: Any = None
        self._next: Any = None

    def open(self, public: Any) -> None:
        """Make the private start."""
        rng = seeds(self.method.params.seed, self.site.name, "open")
        self.private = wire.canonical(self.method.open(self.site, public, rng))

    def contribute(self, step: Step, public: Any, roster: Roster, number: int = -1) -> Contribution:
        """Compute the site's part of a sum and pass it through the door; kept once :meth:`commit` is called."""
        if self.private is None:
            self.open(public)
        rng = seeds(self.method.params.seed, self.site.name, step.round, step.name)
        after, mine = self.method.contribute(step, self.site, self.private, public, rng)
        self._next = wire.canonical(after)
        for name, a in mine.arrays.items():
            largest = float(np.abs(a).max(initial=0.0))
            if step.round == 0 and largest > step.bound:
                raise DataError(
                    f"site {self.site.name!r}: its values are too large for this method ({name!r} is {largest:.3g}, at most "
                    f"{step.bound:.3g} is allowed)",
                    hint="cap or scale the counts ([tensor] cap, or divide the values)",
                )
            if not largest <= step.bound:  # NaN too
                raise Divergence(
                    f"site {self.site.name!r}, round {step.round}: the fit diverged ({name!r} reached {largest:.3g}, "
                    f"announced was at most {step.bound:.3g})",
                    hint=self.method.remedy(self.site, public),
                )
        return self.door.release(
            step,
            mine,
            share=self.adder.share(roster),
            attempt=roster.attempt,
            number=number,
            by=self.adder.facts,
            also=self.adder.leak(roster, step),
        )

    def side(self, step: Step, public: Any, roster: Roster) -> Exchange:
        """The site's mailbox for one sum."""
        return self.adder.side(self.site.name, roster, step, self.contribute(step, public, roster))

    def commit(self) -> None:
        """The sum was taken: the new private state is the state."""
        self.private, self._next = self._next, None

    def close(self, public: Any) -> Arrays:
        """What stays at the site."""
        if self.private is None:
            self.open(public)
        return self.method.close(self.site, self.private, public)


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
            if m.to in sides:
                try:
                    queue.extend(sides[m.to].receive(m))
                except MessageRefused as e:
                    if refused is None:
                        raise
                    refused(m, e)
        if waited or all(x.result() != "pending" for x in sides.values()):
            return
        for _ in range(8):  # a secure sum has several phases, each with its own deadline
            for name in sorted(sides):
                queue.extend(sides[name].deadline())
            if queue:
                break
        else:
            waited = True


class Folding:
    """The fold itself: the public state, the number of the next sum and its step, and the chain of sums that led there.

    Every site has one and believes no other: step, number and public state are derived here, from the order and the totals.

    Parameters
    ----------
    method, setting
        What is computed, of what; from the order and the site's own data.
    share
        Part of the noise variance that each site adds; of the order, the same in all attempts.
    chain
        :func:`polyclinic.federation.certificate.root`; empty in one process, where nobody has to be convinced.
    """

    def __init__(self, method: Method[Any, Any, Any], setting: Setting, share: float, chain: bytes = b"") -> None:
        self.method, self.setting, self.share = method, setting, share
        self.public: Any = None
        self.number = 0
        self.chain, self.before = chain, b""  # now, and before the last sum: what others have voted for

    def begin(self) -> None:
        """The public start."""
        self.public = wire.canonical(self.method.begin(self.setting, seeds(self.method.params.seed, "begin")))

    def step(self) -> Step | None:
        """The next sum to take; None when the method is finished."""
        if self.public is None:
            self.begin()
        return self._known(self.method.next(self.public))

    def _known(self, step: Step | None) -> Step | None:
        """The ONE place where a step learns at how many sites a patient may be, and the grid of its noise."""
        if step is None:
            return None
        privacy = self.method.params.privacy
        if privacy is not None:
            step = replace(step, sites_per_patient=max(step.sites_per_patient, privacy.max_sites_per_patient))
        return on_grid(step, self.share)

    def fold(self, step: Step, total: Total) -> Any:
        """The public state after a sum; not taken yet."""
        return wire.canonical(self.method.combine(step, self.public, total))

    def take(self, public: Any, link: Link | None = None) -> None:
        """Go on to the next sum."""
        self.public, self.number = public, self.number + 1
        if link is not None:
            self.chain, self.before = grow(self.chain, link), self.chain

    def follow(self, opened: Opened, step: Step, agreed: Any = None) -> bool:
        """Fold a total that another party relayed, already checked against ``step``; False if the bits are not the sender's.

        ``agreed`` are then the sender's bits (a packed state): taken over where they are this party's own within the method's
        slack and lead to the same next step (its floats within the slack, too), and refused otherwise.
        """
        if (
            opened.public is not None
        ):  # only the coordinator saw the parts; what it made of them must at least be a state
            mine = wire.canonical(wire.unpack(self.method.Public, opened.public))
            if not alike(wire.pack(self.public), wire.pack(mine)):
                raise MessageRefused(f"sum {opened.number}: a public state of other shapes than before")
        else:
            mine = self.fold(step, opened.total)
        digest = state_digest(mine)
        if digest != opened.state:
            if agreed is None:
                return False
            theirs = wire.canonical(wire.unpack(self.method.Public, agreed))
            same = within(wire.pack(mine), wire.pack(theirs), self.method.slack)
            if same:  # only then is it a state at all; a step's bound may be a float of its own
                steps = (wire.pack(self.method.next(mine)), wire.pack(self.method.next(theirs)))
                same = within(*steps, self.method.slack)
            if not same or state_digest(theirs) != opened.state:
                raise ProtocolMismatch(
                    f"sum {opened.number}: the public state that was sent does not follow from the total"
                )
            mine, digest = theirs, opened.state
        self.take(mine, opened.link(step, digest))
        return True

    def state(self) -> dict[str, Any]:
        """Everything public that is needed to go on later."""
        return {"public": wire.pack(self.public), "number": self.number, "chain": self.chain, "before": self.before}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.public = wire.unpack(self.method.Public, state["public"])
        self.number, self.chain, self.before = int(state["number"]), bytes(state["chain"]), bytes(state["before"])


def alike(mine: Any, theirs: Any) -> bool:
    """Whether a packed state has the tree, the types and the shapes of another, and no NaN where there was none."""
    if isinstance(mine, np.ndarray):
        same = isinstance(theirs, np.ndarray) and theirs.dtype == mine.dtype and theirs.shape == mine.shape
        return same and (mine.dtype.kind != "f" or bool(np.isfinite(theirs).all()) or not np.isfinite(mine).all())
    if isinstance(mine, Mapping):
        return (
            isinstance(theirs, Mapping)
            and set(mine) == set(theirs)
            and all(alike(v, theirs[k]) for k, v in mine.items())
        )
    if isinstance(mine, list | tuple):
        return isinstance(theirs, list | tuple) and len(mine) == len(theirs) and all(map(alike, mine, theirs))
    return type(mine) is type(theirs)


class Conductor(Folding):
    """A fold with its history, its traffic and what was released: the coordinator's, and that of one process.

    Under a sum without a coordinator every site has its own, and all are bit-equal.
    """

    def __init__(
        self,
        method: Method[Any, Any, Any],
        setting: Setting,
        adder: Sum,
        roster: Roster,
        progress: Callable[[Progress], None] | None = None,
        chain: bytes = b"",
    ) -> None:
        super().__init__(method, setting, adder.share(roster), chain)
        self.adder, self.roster, self.progress = adder, roster, progress
        self.history: list[dict[str, Any]] = []
        self.traffic = Traffic()
        self.releases: list[Release] = []
        self.protocol = f"{method.name}/{method.version}"
        self._clock = time.perf_counter()
        self._spent = 0.0

    def begin(self) -> None:
        """The public start."""
        super().begin()
        self._tell("begin", 0, {})

    def step(self) -> Step | None:
        """The next sum to take; None when the method is finished."""
        step = super().step()
        if step is None:
            self._tell("end", self.traffic.rounds, {})
        return step

    def commit(
        self,
        step: Step,
        total: Total,
        members: Iterable[str] = (),
        entered: Mapping[str, tuple[int, int]] | None = None,
        words: Any = None,
    ) -> Opened | None:
        """A sum was taken: the next public state, and the round's figures if it was its last.

        ``entered``: whose contributions, where others are to follow; what they need for it is returned. ``words``: of a
        masked sum, as it was opened, with the tag by which the sites check it.
        """
        public, opened = self.fold(step, total), None
        if entered is not None:
            mine = None if step.how == "sum" else wire.pack(public)
            attempt = max(a for _, a in entered.values())
            sites = () if words is None else self.roster.sites
            opened = Opened(self.number, attempt, entered, total, state_digest(public), mine, words, sites)
            self.take(public, opened.link(step, opened.state))
        else:
            self.take(public)
        leak = gaussian_mu(self.adder.leak(self.roster, step))
        self.releases.append(
            Release(
                len(self.releases),
                step,
                self.share,
                self.roster.attempt,
                tuple(sorted(entered or members)),
                self.adder.facts,
                float("inf") if leak is None else leak,
            )
        )
        if step.counts:
            self.traffic.rounds = max(self.traffic.rounds, step.round)
        after = self.method.next(self.public)
        if step.round and (after is None or after.round != step.round):
            self._close_round(step.round)
        return opened

    def down(self, step: Step, total: Total, members: Sequence[str], words: Any = None) -> int:
        """Bytes of what every site is sent after a sum: the opened total, which it folds itself, as between hosts.

        The public state goes with it only where a site cannot compute it (a step that gathers).
        """
        entered = dict.fromkeys(members, (self.number, self.roster.attempt))
        public = wire.pack(self.public) if step.how == "gather" else None  # of the same shapes as the next one
        sites = () if words is None else self.roster.sites
        return wire.size(
            Opened(self.number, self.roster.attempt, entered, total, bytes(32), public, words, sites).pack()
        )

    @staticmethod
    def payload(step: Step) -> int:
        """Bytes of the arrays that each site contributes to the model; 0 for set-up and scores."""
        asides = sum(int(np.prod(step.shapes[a])) for a in step.asides)
        return width(step) * (step.size - asides) if step.counts else 0

    def _close_round(self, number: int) -> None:
        now = time.perf_counter()
        self._spent += now - self._clock
        self._clock = now
        up, down = self.traffic.in_round(number)
        figures = dict(self.method.figures(self.public))
        self.history.append({"round": number, "seconds": self._spent, **figures, "bytes_up": up, "bytes_down": down})
        self._tell("round", number, {**figures, "bytes_up": up, "bytes_down": down})

    def _tell(self, kind: str, number: int, figures: Figures) -> None:
        if self.progress is not None:
            self.progress(Progress(kind, self.method.name, number, self.method.params.rounds or 0, figures))

    # ---- the checkpoint: the public state is a plain value

    def state(self) -> dict[str, Any]:
        """Everything public that is needed to go on later."""
        return {
            **super().state(),
            "protocol": self.protocol,
            "history": self.history,
            "traffic": self.traffic.state(),
            "releases": [wire.pack(r) for r in self.releases],
            "spent": self._spent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`; the result is the same as without the interruption."""
        if state["protocol"] != self.protocol:
            raise ProtocolMismatch(f"checkpoint of {state['protocol']!r}, this run is {self.protocol!r}")
        counted = {"number": len(state["releases"]), "chain": self.chain, "before": b""}
        super().restore({**counted, **state})  # a checkpoint of an earlier version has no chain
        self.history = [dict(h) for h in state["history"]]
        self.traffic = Traffic.restore(dict(state["traffic"]))
        self.releases = [wire.unpack(Release, r) for r in state["releases"]]
        self._spent = float(state["spent"])
        self._clock = time.perf_counter()


class Fold(Conductor):
    """A run in one process, one sum at a time: :meth:`advance` until it returns False."""

    def __init__(
        self,
        method: Method[Any, Any, Any],
        sites: Sequence[Site],
        *,
        adder: Sum | None = None,
        doors: Mapping[str, Door] | None = None,
        quorum: int | None = None,
        silent: Callable[[Step, str], bool] | None = None,
        each: Callable[[Callable[[SiteParty], Any], Iterable[SiteParty]], Iterable[Any]] = map,
        progress: Callable[[Progress], None] | None = None,
        tap: Callable[[Message], None] | None = None,
    ) -> None:
        setting = setting_of(method, sites)
        adder = adder if adder is not None else by_name(method.params.aggregation)
        doors = doors or {}
        if quorum is not None and adder.reveals == "total":  # every owner's floor holds for every sum
            quorum = max([quorum, *(d.policy.min_sites for d in doors.values() if d.policy is not None)])
        setting = replace(setting, adds=adder.adds)
        super().__init__(method, setting, adder, roster_for(adder, setting.sites, threshold=quorum), progress)
        arranged = one_order(sites) if method.needs == "features" else ordered(sites)
        self.parties = {s.name: SiteParty(method, s, self.adder, doors.get(s.name) or Door(s.name)) for s in arranged}
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
        here = [self.parties[n] for n in present]
        if step.counts:
            for name in present:
                self.traffic.payload(name, self.payload(step))

        def size_of(m: Message) -> int:
            return wire.size_message(m, self.protocol)

        def count(m: Message) -> None:
            if self.tap is not None:
                self.tap(m)
            size = size_of(m)
            if m.sender != COORDINATOR:
                self.traffic.sent(m.sender, step.round, size)
            if m.to != COORDINATOR:
                self.traffic.received(m.to, step.round, size)

        number = len(self.releases)
        parts = dict(zip(present, self.each(lambda p: p.contribute(step, self.public, self.roster, number), here)))
        if len(present) == len(self.parties):  # many nodes at once: same bits, same letters
            total = self.adder.at_once(self.roster, step, parts)
            if total is not None:
                for sender, to, size in self.adder.letters(self.roster, step, size_of):
                    self.traffic.sent(sender, step.round, size)
                    self.traffic.received(to, step.round, size)
                return total, tuple(present)
        sides: dict[str, Exchange] = {n: self.adder.side(n, self.roster, step, mine) for n, mine in parts.items()}
        if self.roster.coordinator is not None:
            sides[COORDINATOR] = self.adder.side(COORDINATOR, self.roster, step, None)
        refusals: list[str] = []
        deliver(sides, count, lambda m, e: refusals.append(f"refused: {m.sender!r}: {e.what}"))
        results = [r for r in (x.result() for x in sides.values()) if isinstance(r, Total)]
        if not results:
            missing = sorted(set(self.parties) - set(present))
            raise PeerLost(
                f"round {step.round}, step {step.name!r}: {len(present)} of {len(self.parties)} sites answered, "
                f"{self.roster.threshold} are needed",
                faults=[*(f"silent: {n!r}" for n in missing), *refusals],
                hint="wait for them and resume; a quorum lets a sum go on without some (a secure one never below "
                f"{least_threshold(len(self.parties))} of {len(self.parties)})",
            )
        members = tuple(getattr(sides.get(COORDINATOR), "members", present))
        opened = getattr(sides.get(COORDINATOR), "opened", None)
        if opened is not None:  # every site checks the total that it is shown
            for name in members:
                cast(Any, sides[name]).check(opened, members)
        if self.roster.coordinator is not None:  # without one every node combines for itself, nothing is sent down
            down = self.down(step, results[0], members, opened)
            for name in present:
                self.traffic.received(name, step.round, down)
        return results[0], members

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

    def state(self) -> dict[str, Any]:
        """Everything needed to go on later; patient-level loadings are in it, so it stays where the sites are."""
        return {
            **super().state(),
            "privates": {n: wire.pack(p.private) for n, p in self.parties.items()},
            "since": self._since,
            "sessions": {n: p.door.session for n, p in self.parties.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
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


def run(method: Method[Any, Any, Any], sites: Sequence[Site], **options: Any) -> Outcome:
    """Run a method over sites in this process; see :class:`Fold` for the options."""
    return Fold(method, sites, **options).run()
