"""The coordinator's half of a study: who takes part, deadlines, quorum, attempts, checkpoints. ONE loop for all ways to add.

No thread, no clock, no socket: :meth:`Coordinator.due` says which asks are to be carried now, :meth:`Coordinator.heard` takes what came
back, and both are told the time. An engine carries them over a network, a test by function calls. The loop is a script that
waits at every ``yield`` for something to happen::

    gather -> agree on codes -> [roster -> exchange -> commit] for every sum -> close

    star     the coordinator's own side of the sum has the total; it is relayed with the next ask, and every site folds it
    peers    every site knows the total itself; the sum counts when ALL of them say so, by the chain that they reached

After every sum the public state, the attempt and the totals that somebody may still need are on disk, so a killed coordinator
resumes at the same sum: it is asked again, a secure one in a new attempt with new keys, and the sites send the stored bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import PeerLost, SumAborted
from polyclinic.node.coordinator.attempt import Attempt, DecentralisedRound
from polyclinic.node.coordinator.finish import Finish
from polyclinic.node.coordinator.site_registry import Script, Sending, SiteRegistry
from polyclinic.node.coordinator.totals import Totals
from polyclinic.node.messages import ALIGN, EndStudy, OutOfDate, StateMismatch
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Collecting, Exchange, Method, Opening, Roster, Step, Total
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.public_state import CoordinatorState
from polyclinic.protocol.schema import common, fits, schema_from
from polyclinic.protocol.wire import chain as certificate
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened
from polyclinic.protocol.wire.sealed import Identity

ATTEMPTS: Final = 50  # of one secure sum, before the run stops (it can be resumed)
BROKEN: Final = 20  # of these in a row that one and the same site could not read: more than crashes do
CANCELLING: Final = 20.0  # seconds to tell the sites that a study is cancelled
ALIGNING: Final = 5  # attempts to agree on codes
Office = Callable[[StudyOrder, Roster, Identity], Exchange]  # the coordinator's side of agreeing on codes


class Coordinator(SiteRegistry):
    """Runs one study from its order to its outcome.

    Parameters
    ----------
    order, method
        The signed study, and its method.
    identity
        The coordinator's signing key.
    folder
        The run folder: checkpoint, totals, certificate.
    log, progress
        Where events and figures go.
    office
        Makes the coordinator's side of agreeing on codes.
    """

    def __init__(
        self,
        order: StudyOrder,
        method: Method,
        identity: Identity,
        folder: Path,
        *,
        log: Callable[..., None] = lambda **event: None,
        progress: Callable[[Progress], None] = lambda p: None,
        office: Office | None = None,
    ) -> None:
        super().__init__(order, identity, folder, log)
        self.method, self.folder, self.progress, self.office = method, folder, progress, office
        self.adder = by_name(order.aggregation, identities={COORDINATOR: identity})
        self.number, self.attempt = 0, 0  # of the sum now taken
        self.counted: tuple[str, ...] = ()  # sites of the last exact sum
        self.votes: dict[str, bytes] = {}  # sites' signatures under the chain before the last sum
        self.ballots: dict[str, bytes] = {}  # votes that came with the contributions to this sum
        self.ahead: dict[
            str, int
        ] = {}  # sites that say they have folded more sums than this run: one may lie, most do not
        self.noise: set[str] = set()  # kinds of noise at the sites; one that is not private is enough for the card
        self.totals = Totals(folder / "totals")
        self.outcome: Outcome | None = None
        self.told: list[str] | None = None  # sites that know that the study is cancelled, once it is
        self._setting: dict[str, Any] = {}
        self._aborted = 0  # attempts of the sum now taken
        self._broken: dict[str, int] = {}  # of these in a row, by the site that could not read what it was sent
        self._shown = 0  # peers: the round that was told last
        self._quiet: frozenset[str] = frozenset()  # sites that say nothing of others' books
        self.reached = b""  # peers: the chain that all sites have
        self._saved: object = None  # what the checkpoint on disk is of
        self._packed = b""  # the setting as the checkpoint holds it
        self._conductor: CoordinatorState | None = None
        self._script = self._run()

    # ---- the two calls of an engine

    def due(self, now: float) -> list[Sending]:
        """What is to be carried now; raises :class:`PeerLost` for a clean stop that can be resumed."""
        self.slept(now)
        self.now = now
        self.watch()
        if self.outcome is None:
            next(self._script, None)
        return self.asks()

    def cancel(self) -> None:
        """From now on only tell every site that the study is cancelled; ``told`` is set when that has ended."""
        if not self.cancelling:
            self.cancelling, self._script = True, self._cancel()

    def _cancel(self) -> Script[None]:
        begin, heard = self.now, set[str]()
        self.only(dict.fromkeys(self.lines, EndStudy(cancelled=True)))
        while heard < set(self.lines) and self.now - begin < CANCELLING:
            yield
            heard |= {site for site, ask, _ in self.news() if isinstance(ask, EndStudy)}
        self.log(event="cancelled", sites=sorted(heard))
        self.told = sorted(heard)

    def heard(self, sent: Sending, data: bytes | None, now: float) -> None:
        """What came back; None if nothing did."""
        if self.hear(sent, data, now) and data is not None and self._conductor is not None:
            round_ = vars(sent.ask).get("round", 0)
            self._conductor.traffic.received(sent.site, round_, len(sent.data))
            self._conductor.traffic.sent(sent.site, round_, len(data))

    # ---- the script

    def _run(self) -> Script[None]:
        started = self.now
        ready = yield from self.gather()
        if self.order.alignment is not None and not (self.folder / "state.ckpt").exists():
            yield from self._agree_on_codes(ready)
        self._setting = common(self.order, {s: self.lines[s].setting or {} for s in ready})
        self._restore()
        if self.order.peers:
            yield from self.fresh(self.counted)
            while (yield from DecentralisedRound(self).sum()):
                pass
        else:
            while (step := self.conductor.step()) is not None:
                yield from self._sum(step)
        end = Finish(self)
        yield from end.run()
        for _ in range(2):  # the ends of all books, and then everybody has them
            yield from self.fresh(self.ready(), at_most=5.0)
            self.books.pass_on()
        self.outcome = end.outcome()
        self.log(event="finished", seconds=round(self.now - started, 3))

    def fits(self, site: str) -> bool:
        """Whether a site, perhaps one that came later, speaks of the same things."""
        line = self.lines[site]
        if line.fits or line.setting is None:
            return line.fits
        line.fits = fits(self._setting, line.setting)
        if line.fits:
            self.noise.add(line.noise)
        else:
            self.changed(site, "refused", ["another vocabulary or shape than the other sites"])
        return line.fits

    @property
    def conductor(self) -> CoordinatorState:
        """The coordinator's own fold; without a sum of its own it stays at the start."""
        assert self._conductor is not None
        return self._conductor

    def _restore(self) -> None:
        found = self.folder / "state.ckpt"
        state = wire.load(found) if found.exists() else None
        if state is not None:
            self.votes = dict(state["votes"])
            self._setting = wire.decode(state["setting"], limit=wire.KEPT)
            self.number, self.attempt = int(state["number"]), int(state["attempt"])
            self.counted, self.noise = tuple(state["counted"]), set(state["noise"])
            self._shown, self.reached = int(state["shown"]), bytes(state["reached"])
        setting = schema_from({**self._setting, "columns": None if self._setting["axes"] else self.order.columns})
        self.counted = self.counted or tuple(sorted(setting.sites))
        self._packed = wire.encode(self._setting, limit=wire.KEPT)  # once: it may list all codes, and never changes
        digests = [a.digest() for a in setting.axes]
        names = self._setting.get("alignment")
        chain = certificate.root(self.order.digest, setting.shape, digests, names, setting.sites)
        roster = self.order.roster(setting.sites, 0)
        self._conductor = CoordinatorState(self.method, setting, self.adder, roster, self.progress, chain)
        if state is None:
            self.reached = chain
            self.conductor.begin()
            return
        self.conductor.restore(state["conductor"])
        if self.order.secure:
            self.attempt += 1  # keys of the interrupted attempt are gone: a new one
        self.log(event="resumed", number=self.number, attempt=self.attempt)

    def save(self) -> None:
        now = (self.number, self.attempt, self.counted, sorted(self.noise), self._shown)
        if now == self._saved:  # as the sum before left it
            return
        value = {
            "setting": self._packed,
            "number": self.number,
            "attempt": self.attempt,
            "counted": self.counted,
            "noise": sorted(self.noise),
            "votes": self.votes,
            "shown": self._shown,
            "reached": self.reached,
            "conductor": self.conductor.state(),
        }
        wire.save(self.folder / "state.ckpt", value)
        self._saved = now

    # ---- one sum

    def _sum(self, step: Step) -> Script[None]:
        """One sum that the coordinator sees, in as many attempts as it needs."""
        c = self.conductor
        while True:
            sites = yield from self.roster(step)
            self.save()  # the attempt is on disk before the first message: a crash never reuses it
            roster = self.order.roster(sites, self.attempt, paid=self.order.hides(step))
            roster = c.roster = replace(roster, chain=c.chain)
            side = self.adder.exchange(COORDINATOR, roster, step, None)
            attempt = Attempt(self, sites, side, step)
            yield from attempt.run()
            total = side.result()
            if isinstance(total, Total):
                break
            self.log(event="aborted", number=self.number, attempt=self.attempt, step=step.name)
            if not self.order.secure:
                raise self.lost(f"round {step.round}, step {step.name!r}: too few sites answered in time")
            self.again(attempt, f"round {step.round}, step {step.name!r}")
        members = side.members if isinstance(side, Collecting) else tuple(sites)
        entered = dict.fromkeys(members, (self.number, self.attempt))
        opened = c.commit(step, total, entered=entered, words=side.opened if isinstance(side, Opening) else None)
        assert opened is not None
        if step.counts:
            for site in entered:
                c.traffic.payload(site, c.payload(step))
        if self.order.secure and not self.order.hides(step):
            self.counted = tuple(sorted(entered))
        self.taken(opened, c.public)

    def again(self, attempt: Attempt, what: str) -> None:
        """Another attempt, unless there were too many, or a site's program fails at every one."""
        self.attempt, self._aborted = self.attempt + 1, self._aborted + 1
        self._broken = {site: self._broken.get(site, 0) + 1 for site in attempt.broken}
        if self._aborted >= ATTEMPTS or max(self._broken.values(), default=0) >= BROKEN:
            raise SumAborted(
                f"{what}: {self._aborted} attempts were aborted",
                faults=self.standing(),
                hint=f"the sites' own logs (events.jsonl) say why; then: {self.resume}",
            )

    def taken(self, opened: Opened, public: object = None) -> None:
        """A sum counts: what others need for it is on disk before the next one begins."""
        self.settle()
        self.totals.put(opened, public)
        self.number, self.attempt, self._aborted, self._broken = self.number + 1, 0, 0, {}
        self.votes, self.ballots = self.ballots, {}
        self.save()
        known = [line.at or 0 for s, line in self.lines.items() if s not in self.refused]
        self.totals.prune(min(known, default=0))

    def roster(self, step: Step | None) -> Script[tuple[str, ...]]:
        """Wait for the sites of the next attempt and return them. A site that came back joins here.

        An exact secure sum and a sum of peers need every site of the sum before: near convergence a contribution hardly
        changes, so that of a site that left would be the difference of two totals, to three digits.
        """
        begin = self.now
        same = step is None or (self.order.secure and not self.order.hides(step))
        choose = self._everyone if same else self._quorum
        while (sites := choose(over=self.now - begin > self.order.deadline)) is None:
            yield
        return sites

    def _ready_to_sum(self) -> tuple[str, ...]:
        return self._telling(tuple(s for s in self.ready() if self.fits(s)))

    def _everyone(self, *, over: bool) -> tuple[str, ...] | None:
        """Return the sites of the sum before once all of them are ready. Stop the run if one refused or time is up."""
        missing = set(self.counted) - set(self._ready_to_sum())
        if not missing:
            return tuple(sorted(self.counted))
        if over or missing & set(self.refused):
            names = ", ".join(repr(s) for s in sorted(missing))
            raise self.lost(f"sum {self.number}: a sum of this kind waits for all who began, and for {names}")
        return None

    def _quorum(self, *, over: bool) -> tuple[str, ...] | None:
        """Return the sites that are ready once they are enough. Stop the run if time is up."""
        order, ready, least = self.order, self._ready_to_sum(), max(1, self.order.least)
        # A site that is merely silent for a moment stays on a plain roster: it is asked again when it answers.
        silent = {s for s, x in self.lines.items() if x.fits and self.state(s) == "lost"} - set(self.refused)
        listed = ready if order.secure else tuple(s for s in order.sites if s in ready or s in silent)
        loading = any(self.state(s) == "loading" for s in order.sites if s not in self.refused)
        if len(ready) >= least and (over or not loading):
            return listed
        if not order.secure and len(listed) >= least:
            return listed
        if over:
            raise self.lost(f"{len(ready)} sites are there after {order.deadline:g} s")
        return None

    def _telling(self, ready: tuple[str, ...]) -> tuple[str, ...]:
        """Without those who do not say what they know of the others' books, where enough are left: nobody sums with them."""
        mute = self.books.mute(ready)
        for site in mute - self._quiet:
            self.trouble(site, "bad", ["it does not say what it knows of the other sites' books"])
        self._quiet = mute
        rest = tuple(s for s in ready if s not in mute)
        return rest if len(rest) >= max(1, self.order.least) else ready

    def tell(self, round_: int) -> None:
        """Peers: which round it is the sites say; its figures are theirs until the end."""
        if round_ > self._shown and self.order.peers:
            self._shown = round_
            self.progress(Progress("round", self.method.name, round_, self.method.params.rounds or 0, {}))

    def relayed(self, site: str) -> dict[str, Any]:
        """What a site needs to be where we are: who began, the totals that it has not folded, and the others' votes."""
        line = self.lines[site]
        at = line.at if line.at is not None else 0 if line.here is None else line.here.number
        opened = self.totals.since(at, self.number)
        out: dict[str, object] = {"begin": tuple(self._setting.get("sites", ())), "opened": opened, "votes": self.votes}
        if line.differs:
            states = {str(o.number): self._state_after(o.number) for o in opened}
            out["agreed"] = {k: v for k, v in states.items() if v is not None}
        return out

    def _state_after(self, number: int) -> object | None:
        return wire.pack(self.conductor.public) if number == self.number - 1 else self.totals.state(number)

    def voted(self, site: str, number: int, vote: bytes) -> bool:
        """Whether a site's vote is one for the sums that led here. An agreement on codes has none."""
        chain = self.reached if self.order.peers else self.conductor.chain if number != ALIGN else b""
        if number == ALIGN or not chain:
            return True
        keys = {site: self.keys[site]}
        return certificate.count_votes({site: vote}, keys, self.order.digest, number, chain) == 1

    def needs_more(self, site: str, answer: OutOfDate | StateMismatch) -> bool:
        """A site that is behind gets the totals from there on; one whose bits differ, ours, to compare with its own.

        False where there is nothing to give: what it says is not possible, or it comes no further with what it got.
        """
        line = self.lines[site]
        if answer.number > self.number:
            self.ahead[site] = answer.number
            if len(self.order.sites) - len(self.ahead) < self.order.least:
                raise PeerLost(
                    f"study {self.order.id!r}: {site!r} has applied {answer.number} sums and this run {self.number}",
                    hint="the run folder is older than the sites': put the newer one back",
                )
            return False
        if answer.number < self.number and not self.totals.has(answer.number):
            return False  # nobody needed them any more: its records are older than it said
        again = isinstance(answer, StateMismatch) and line.differs and line.at == answer.number
        line.again = line.again + 1 if line.at is not None and answer.number <= line.at else 0
        again = again or line.again > BROKEN
        line.at = answer.number
        if isinstance(answer, StateMismatch):
            line.differs = self.totals.states = True
            self.log(event="differs", site=site, number=answer.number)
        return not again

    def _agree_on_codes(self, sites: tuple[str, ...]) -> Script[None]:
        """Bring all sites that are ready onto common codes, unless they are; on the ring the coordinator sees no code."""
        order, office = self.order, self.office
        marks = {(self.lines[s].setting or {}).get("alignment") for s in sites}
        if len(marks) == 1 and None not in marks:
            return  # a run before this one agreed
        if len(sites) < 2 or office is None:
            raise PeerLost(f"study {order.id!r}: {len(sites)} site is ready; agreeing on codes needs two")
        first = secrets.randbelow(2**40)  # never used before, also after a restart
        keys = {n: bytes.fromhex(order.keys[n]) for n in (*sites, COORDINATOR)}
        for n in range(ALIGNING):
            roster = Roster(sites, threshold=len(sites), attempt=first + n, keys=keys)
            side = office(order, roster, self.identity)
            done = yield from Attempt(self, sites, side, None, (ALIGN, first + n)).run()
            if done:
                self.log(event="aligned", how=order.alignment, sites=list(sites))
                yield from self.fresh(sites)
                return
            self.log(event="alignment failed", attempt=n, sites=[s for s in sites if self.lines[s].trouble])
        raise PeerLost(
            f"study {order.id!r}: the sites could not agree on codes in {ALIGNING} attempts",
            faults=[f"{s!r}: {'; '.join(self.lines[s].trouble) or self.state(s)}" for s in sites],
            hint=f"wait for them and resume: {self.resume}",
        )
