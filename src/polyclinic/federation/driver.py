"""The coordinator's half of a study: who takes part, deadlines, quorum, attempts, checkpoints. ONE loop for all ways to add.

No thread, no clock, no socket: :meth:`Driver.due` says which asks are to be carried now, :meth:`Driver.heard` takes what came
back, and both are told the time. An engine carries them over a network, a test by function calls. The loop is a script that
waits at every ``yield`` for something to happen::

    gather -> agree on codes -> [roster -> exchange -> commit] for every sum -> close

    star     the coordinator's own side of the sum has the total; it is relayed with the next ask, and every site folds it
    peers    every site knows the total itself; the sum counts when ALL of them say so, by the chain that they reached
    late     asynchronous: the sum is closed as soon as the quorum of contributions is there, slow sites stay in flight

After every sum the public state, the attempt and the totals that somebody may still need are on disk, so a killed coordinator
resumes at the same sum: it is asked again, a secure one in a new attempt with new keys, and the sites send the stored bytes.
"""

from __future__ import annotations

import json
import math
import secrets
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from polyclinic.errors import MessageRefused, PeerLost, ProtocolMismatch, SumBurnt
from polyclinic.federation import certificate, wire
from polyclinic.federation.certificate import Opened, count_votes
from polyclinic.federation.envelope import Identity
from polyclinic.federation.fold import Conductor, Outcome, Progress, setting_from
from polyclinic.federation.messages import (
    ALIGN,
    Answer,
    Ask,
    Behind,
    Busy,
    Close,
    Differs,
    Done,
    Here,
    Key,
    Letters,
    Look,
    Mail,
    Take,
    read_answer,
    seal_ask,
    tree_of,
)
from polyclinic.federation.order import COORDINATOR, Order, host
from polyclinic.federation.protocol import Contribution, Exchange, Message, Method, Roster, Step, Total
from polyclinic.federation.refusals import told
from polyclinic.federation.sums import by_name
from polyclinic.federation.sums.plain import Plain, contribution_of
from polyclinic.federation.totals import Totals
from polyclinic.federation.traffic import Traffic
from polyclinic.privacy.happened import Certified
from polyclinic.privacy.head import Head, heads_of
from polyclinic.privacy.studybook import StudyBook
from polyclinic.privacy.watch import Relay
from polyclinic.privacy.witness import Witness
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.files import atomic

__all__ = ["Driver", "Sending", "drive"]

TICK: Final = 0.05  # seconds after which a site that is busy is asked again
EVERY: Final = 1.0  # seconds between signs of life
SILENT: Final = 6.0  # seconds without one: the site counts as lost until it answers again
SLOWEST: Final = 5e5  # bytes a second (4 Mbit/s): a sign of life waits behind a message that is on its way
ANSWER: Final = 20.0  # seconds for one answer on the wire; a site that computes longer says "busy" in between
GRACE: Final = 12.0  # seconds to wait at the start for sites that are absent although the quorum is there
ATTEMPTS: Final = 50  # of one secure sum, before the run stops (it can be resumed)
ALIGNING: Final = 5  # attempts to agree on codes
Office = Callable[[Order, Roster, Identity], Exchange]  # the coordinator's side of agreeing on codes
ENDED: Final = b"ended"  # in the place of a chain: there is no sum left
T = TypeVar("T")
Script = Generator[None, None, T]


@dataclass(frozen=True)
class Sending:
    """One ask on its way."""

    site: str
    ask: Ask
    data: bytes
    seconds: float  # how long its answer may take
    life: str = ""  # the process that it was sent to
    size: int = 0  # bytes on the way, both ways, as far as can be told

    @property
    def look(self) -> bool:
        """A sign of life goes beside the other asks."""
        return isinstance(self.ask, Look)


@dataclass
class Line:
    """What is known of one site."""

    here: Here | None = None
    heard: float = -math.inf
    looked: float = -math.inf
    looking: Sending | None = None
    flight: Sending | None = None
    queue: deque[Ask | Sending] = field(default_factory=deque)
    told: str = ""  # its state as it was last written down
    setting: Mapping[str, Any] | None = None
    noise: str = ""
    fits: bool = False  # it speaks of the same codes and shapes
    largest: int = 0  # bytes of its largest answer
    at: int | None = None  # sums that it has folded
    differs: bool = False  # its last bits are not ours: another processor
    trouble: list[str] = field(default_factory=list)  # what it last said when it could not do its part
    rest: float = -math.inf  # not asked again before


class Late:
    """Asynchronous: the coordinator's side of a sum that is closed by the first ``least`` contributions.

    Each may be ``bound`` sums old; what comes later is dropped and its site asked anew. The order of arrival decides, so the
    model is not the same twice.
    """

    def __init__(self, adder: Plain, steps: Mapping[int, Step], number: int, least: int, bound: int) -> None:
        self.adder, self.steps, self.number, self.least, self.bound = adder, steps, number, least, bound
        self.parts: dict[str, Contribution] = {}
        self.entered: dict[str, tuple[int, int]] = {}

    def start(self) -> list[Message]:
        return []

    def put(self, letter: Message, asked: int) -> bool:
        """A contribution to sum ``asked``; False if it is too old."""
        if self.number - asked > self.bound:
            return False
        self.parts[letter.sender] = contribution_of(letter, self.steps[asked])
        self.entered[letter.sender] = (asked, 0)
        return True

    def receive(self, message: Message) -> list[Message]:
        self.put(message, self.number)
        return []

    def deadline(self) -> list[Message]:
        return []

    def result(self) -> Total | Literal["pending"]:
        if len(self.parts) < self.least:
            return "pending"
        step = self.steps[self.number]
        values, weight = self.adder.add(step, self.parts)
        return Total(values, weight, len(self.parts), step.noise_sd * math.sqrt(len(self.parts)))


class Driver:
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
        order: Order,
        method: Method[Any, Any, Any],
        identity: Identity,
        folder: Path,
        *,
        log: Callable[..., None] = lambda **event: None,
        progress: Callable[[Progress], None] = lambda p: None,
        office: Office | None = None,
    ) -> None:
        self.order, self.method, self.identity, self.folder = order, method, identity, folder
        self.log, self.progress, self.office = log, progress, office
        self.adder = by_name(order.aggregation, identities={COORDINATOR: identity})
        self.lines = {s: Line() for s in order.sites}
        self.refused: dict[str, list[str]] = {}
        self.number, self.attempt = 0, 0  # of the sum now taken
        self.commits: dict[str, tuple[int, int]] = {}  # site -> the last sum that its contribution entered
        self.counted: tuple[str, ...] = ()  # sites of the last exact sum
        self.votes: dict[str, bytes] = {}  # sites' signatures under the chain before the last sum
        self.totals = Totals(folder / "totals")
        keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
        self.books = Relay(order.digest, keys, Witness(folder.parent / "witness.json"))
        self.heads: dict[str, Head] = {}  # of the books of sites that have ended the study
        self.outcome: Outcome | None = None
        self._ballots: dict[str, bytes] = {}  # votes that came with the contributions to this sum
        self._setting: dict[str, Any] = {}
        self._noise: set[str] = set()  # kinds of noise at the sites; one that is not private is enough for the card
        self._steps: dict[int, Step] = {}  # asynchronous: of the sums that a contribution may still belong to
        self._news: list[tuple[str, Ask, Answer]] = []
        self._signed: tuple[StudyBook, ...] = ()  # what sites signed of their books
        self._certified: Certified | None = None  # who signed the end
        self._shown = 0  # peers: the round that was told last
        self._conductor: Conductor | None = None
        self._now, self._serial, self._run_id = 0.0, 0, secrets.token_hex(6)
        self._script = self._run()

    # ---- the two calls of an engine

    def due(self, now: float) -> list[Sending]:
        """What is to be carried now; raises :class:`PeerLost` for a clean stop that can be resumed."""
        self._now = now
        for site, line in self.lines.items():
            self._watch(site, line)
        if self.outcome is None:
            next(self._script, None)
        out: list[Sending] = []
        every = EVERY if self.books.complete(self._ready()) else EVERY / 5  # until all have told of all books
        for site, line in self.lines.items():
            if line.looking is None and now - line.looked >= every:
                line.looked, line.looking = now, self._seal(site, Look(full=line.setting is None))
                out.append(line.looking)
            if line.queue and line.flight is None and now >= line.rest and self.state(site) == "ready":
                first = line.queue.popleft()
                line.flight = self._seal(site, first) if not isinstance(first, Sending) else first
                line.flight = replace(line.flight, life=self._life(site))
                out.append(line.flight)
        return out

    def heard(self, sent: Sending, data: bytes | None, now: float) -> None:
        """What came back; None if nothing did."""
        line, self._now = self.lines[sent.site], now
        if sent is not (line.looking if sent.look else line.flight):
            return  # given up before
        line.looking, line.flight = (None, line.flight) if sent.look else (line.looking, None)
        try:
            answer = None if data is None else read_answer(data)
        except (MessageRefused, ProtocolMismatch) as e:
            self.log(event="message refused", site=sent.site, what=e.what)
            answer = None
        if answer is None or data is None:
            if not sent.look:
                line.queue.appendleft(sent)
            return
        if sent.look or line.here is not None:
            line.heard = now
        if isinstance(answer, Here | Letters) and answer.books and (found := self.books.heard(sent.site, answer.books)):
            self._changed(sent.site, "refused", found)
        if isinstance(answer, Here):
            if sent.look and answer.setting is not None:
                line.setting, line.noise = answer.setting, answer.noise
            line.here = answer
        if sent.look:
            return
        line.largest = max(line.largest, len(data))
        if self._conductor is not None:
            round_ = getattr(sent.ask, "round", 0)
            self._conductor.traffic.received(sent.site, round_, len(sent.data))
            self._conductor.traffic.sent(sent.site, round_, len(data))
        if isinstance(answer, Busy) or (isinstance(answer, Here) and answer.stage != "refused"):
            line.queue.appendleft(sent)
            line.rest = now + TICK
        else:
            self._news.append((sent.site, sent.ask, answer))

    def _seal(self, site: str, ask: Ask) -> Sending:
        self._serial += 1
        if isinstance(ask, Look | Take):
            ask = replace(ask, books=self.books.bundle(site))
        name = f"{self._run_id}-{self._serial}"
        data = seal_ask(self.identity, self.order.digest, site, name, tree_of(ask))
        size = 0 if isinstance(ask, Look) else max(len(data), self.lines[site].largest)
        return Sending(site, ask, data, 3.0 if isinstance(ask, Look) else ANSWER + 2 * size / SLOWEST, size=size)

    # ---- who is there

    def state(self, site: str) -> str:
        """What a site last said, or "lost", or "absent" if it never answered."""
        line = self.lines[site]
        if line.here is None:
            return "absent"
        way = 0 if line.flight is None else 2 * line.flight.size / SLOWEST  # the answer may be as large as the question
        return "lost" if self._now - line.heard > SILENT + way else line.here.stage

    def _life(self, site: str) -> str:
        here = self.lines[site].here
        return "" if here is None else here.life

    def _watch(self, site: str, line: Line) -> None:
        """Write down how a site stands; an ask whose process is gone may never be answered, and is asked again."""
        state = self.state(site)
        if line.flight is not None and (state == "lost" or line.flight.life != self._life(site)):
            line.queue.appendleft(line.flight)
            line.flight = None
        if state != line.told:
            line.told = state
            self._changed(site, state, told(None if line.here is None else line.here.why))

    def _changed(self, site: str, state: str, reasons: list[str]) -> None:
        self.log(event=state, site=site, reasons=reasons)
        if state == "refused":
            self.refused[site] = reasons

    def _ready(self) -> tuple[str, ...]:
        return tuple(s for s in self.order.sites if s not in self.refused and self.state(s) == "ready")

    def _lost(self, why: str) -> PeerLost:
        states = []
        for s in self.order.sites:
            said = self.refused.get(s) or self.lines[s].trouble
            state = "refused" if s in self.refused else self.state(s)
            states.append(f"{s!r}: {state}{': ' if said else ''}{'; '.join(said)}")
        return PeerLost(
            f"study {self.order.id!r}: {why}; {self.order.least} sites are needed",
            faults=states,
            hint="wait for them and resume: polyclinic coordinator resume",
        )

    # ---- the script

    def _run(self) -> Script[None]:
        started = self._now
        yield from self._gather()
        self._restore()
        if self.order.peers:
            yield from self._fresh(self.counted)
            while (yield from self._sum_of_peers()):
                pass
        else:
            while (step := self.conductor.step()) is not None:
                yield from self._sum(step)
        yield from self._close()
        for _ in range(2):  # the ends of all books, and then everybody has them
            yield from self._fresh(self._ready(), at_most=5.0)
            self.books.pass_on()
        self.outcome = self._result()
        self.log(event="finished", seconds=round(self._now - started, 3))

    def _gather(self) -> Script[None]:
        """Wait for the sites; go on without those who refuse, or who are absent although the quorum is there."""
        order, begin = self.order, self._now
        quorum: float | None = None
        refusal: float | None = None
        grace = min(GRACE, order.deadline)
        while True:
            ready, now = self._ready(), self._now
            open_ = [s for s in order.sites if s not in self.refused and s not in ready]
            states = {self.state(s) for s in open_}
            if len(order.sites) - len(self.refused) < max(1, order.least):
                refusal = refusal or now  # the others may have reasons, too: all of them at once
                if not states & {"absent", "loading", "refused"} or now - refusal > grace:
                    raise self._lost("too many sites refused")
            if not open_:
                break
            if len(ready) >= max(1, order.least):
                quorum = quorum or now
                if now - quorum > (order.deadline if states & {"loading", "waiting"} else grace):
                    break
            elif now - begin > order.deadline:
                raise self._lost(f"{len(ready)} sites are ready after {order.deadline:g} s")
            yield
        yield from self._settings(ready)
        begin = self._now
        while not self.books.complete(self._ready()) and self._now - begin < min(5 * EVERY, order.deadline):
            yield  # what is not told by then comes with later signs of life
        if order.alignment is not None and not (self.folder / "state.ckpt").exists():
            yield from self._agree_on_codes(ready)
        self._setting = self._agree(ready)

    def _fresh(self, sites: Iterable[str], at_most: float = math.inf) -> Script[None]:
        """What these sites last said is out of date: hear them anew."""
        for site in sites:
            self.lines[site].setting, self.lines[site].looked = None, -math.inf
        yield from self._settings(sites, at_most)

    def _settings(self, sites: Iterable[str], at_most: float = math.inf) -> Script[None]:
        begin = self._now
        while any(self.lines[s].setting is None for s in sites) and self._now - begin < at_most:
            if self._now - begin > self.order.deadline:
                raise self._lost("sites do not say what is public about them")
            yield

    def _agree(self, sites: tuple[str, ...]) -> dict[str, Any]:
        """One setting for all, or a refusal that names who differs."""
        known = {s: self.lines[s].setting or {} for s in sites}
        first = next(iter(known.values()))
        axes = [self.order.axis(a["name"]) if a["vocabulary"] == "public" else Axis.from_json(a) for a in first["axes"]]
        other = [
            s for s, v in known.items() if any(v.get(k) != first.get(k) for k in ("shape", "digests", "alignment"))
        ]
        if [a.digest() for a in axes] != first["digests"]:
            other = [next(iter(known)), *other]
        if other:
            raise ProtocolMismatch(
                f"study {self.order.id!r}: sites do not fit together",
                faults=[
                    f"{s!r} has another vocabulary, shape or other columns than {next(iter(known))!r}" for s in other
                ],
                hint=""
                if first["axes"]
                else "list what all sites have in [features] columns: a site that lacks one says so",
            )
        common = {k: first[k] for k in ("shape", "alignment") if k in first}
        return {**common, "axes": [a.to_json() for a in axes], "sites": list(self.order.nodes(sites))}

    def _fits(self, site: str) -> bool:
        """Whether a site, perhaps one that came later, speaks of the same things."""
        line, ours = self.lines[site], self._setting
        if line.fits or line.setting is None:
            return line.fits
        digests = [Axis.from_json(a).digest() for a in ours["axes"]]
        theirs = line.setting
        same = theirs.get("alignment") == ours.get("alignment") and theirs["digests"] == digests
        line.fits = same and list(theirs["shape"]) == list(ours["shape"])
        if line.fits:
            self._noise.add(line.noise)
        else:
            self._changed(site, "refused", ["another vocabulary or shape than the other sites"])
        return line.fits

    @property
    def conductor(self) -> Conductor:
        """The coordinator's own fold; without a sum of its own it stays at the start."""
        assert self._conductor is not None
        return self._conductor

    def _restore(self) -> None:
        found = self.folder / "state.ckpt"
        state = wire.load(found) if found.exists() else None
        if state is not None:
            self._setting, self.votes = state["setting"], dict(state["votes"])
            self.number, self.attempt = int(state["number"]), int(state["attempt"])
            self.commits = {s: (k[0], k[1]) for s, k in state["commits"].items()}
            self.counted, self._noise = tuple(state["counted"]), set(state["noise"])
            self._shown = int(state["shown"])
        setting = setting_from(self._setting)
        self.counted = self.counted or tuple(sorted({host(n) for n in setting.sites}))
        digests = [a.digest() for a in setting.axes]
        names = self._setting.get("alignment")
        chain = certificate.root(self.order.digest, setting.shape, digests, names, setting.sites)
        roster = self.order.roster(setting.sites, 0)
        self._conductor = Conductor(self.method, setting, self.adder, roster, self.progress, chain)
        if state is None:
            self.conductor.begin()
            return
        self.conductor.restore(state["conductor"])
        if self.order.secure:
            self.attempt += 1  # keys of the interrupted attempt are gone: a new one
        self.log(event="resumed", number=self.number, attempt=self.attempt)

    def _save(self) -> None:
        value = {
            "setting": self._setting,
            "number": self.number,
            "attempt": self.attempt,
            "commits": self.commits,
            "counted": self.counted,
            "noise": sorted(self._noise),
            "votes": self.votes,
            "shown": self._shown,
            "conductor": self.conductor.state(),
        }
        wire.save(self.folder / "state.ckpt", value)

    # ---- one sum

    def _sum(self, step: Step) -> Script[None]:
        """One sum that the coordinator sees, in as many attempts as it needs."""
        c = self.conductor
        late = self.order.staleness is not None and step.counts
        for _ in range(ATTEMPTS):
            sites = self.order.sites if late else (yield from self._roster(step))
            self._save()  # the attempt is on disk before the first message: a crash never reuses it
            roster = self.order.roster(sites, self.attempt, paid=bool(step.noise_sd))
            roster = c.roster = replace(roster, chain=c.chain)
            side = self._late(step) if late else self.adder.side(COORDINATOR, roster, step, None)
            yield from self._exchange(sites, side, step)
            total = side.result()
            if isinstance(total, Total):
                break
            self.log(event="burnt", number=self.number, attempt=self.attempt, step=step.name)
            if not self.order.secure:
                raise self._lost(f"round {step.round}, step {step.name!r}: too few sites answered in time")
            self.attempt += 1
        else:
            raise SumBurnt(f"round {step.round}, step {step.name!r}: {ATTEMPTS} attempts were burnt")
        members = getattr(side, "members", sites)
        entered = side.entered if isinstance(side, Late) else dict.fromkeys(members, (self.number, self.attempt))
        if isinstance(side, Late):
            ages = {s: self.number - number for s, (number, _) in sorted(entered.items())}
            self.log(event="added", number=self.number, age=ages)
        opened = c.commit(step, total, entered=entered, words=getattr(side, "opened", None))
        assert opened is not None
        if step.counts:
            for site in entered:
                c.traffic.payload(site, c.payload(step))
        if self.order.secure and not step.noise_sd:
            self.counted = tuple(sorted(entered))
        self._taken(opened, c.public)

    def _late(self, step: Step) -> Late:
        assert isinstance(self.adder, Plain)
        bound = self.order.staleness or 0
        self._steps = {n: s for n, s in self._steps.items() if n >= self.number - bound} | {self.number: step}
        return Late(self.adder, self._steps, self.number, max(1, self.order.least), bound)

    def _taken(self, opened: Opened, public: Any = None) -> None:
        """A sum counts: what others need for it is on disk before the next one begins."""
        self.totals.put(opened, public)
        self.commits |= opened.entered
        self.number, self.attempt = self.number + 1, 0
        self.votes, self._ballots = self._ballots, {}
        self._save()
        known = [line.at or 0 for s, line in self.lines.items() if s not in self.refused]
        self.totals.prune(min(known, default=0))

    def _sum_of_peers(self) -> Script[bool]:
        """One sum that only the sites see; False when there is none left to take."""
        found = self._held()  # after a crash: every site holds the finished sum, so it counts, and nobody pays twice
        for _ in range(ATTEMPTS):
            if found:
                break
            sites = yield from self._roster(None)
            self._save()
            found = yield from self._exchange(sites, None, None)
            if not found:
                self.log(event="burnt", number=self.number, attempt=self.attempt)
                self.attempt += 1
        else:
            raise SumBurnt(f"sum {self.number}: {ATTEMPTS} attempts were burnt")
        if found == {ENDED}:
            return False
        if len(found) > 1:
            raise ProtocolMismatch(f"study {self.order.id!r}: the sites disagree about sum {self.number}")
        entered = dict.fromkeys(self.counted, (self.number, self.attempt))
        self._taken(Opened(self.number, self.attempt, entered, Total({}, 0.0, 0, 0.0), found.pop()))
        return True

    def _held(self) -> set[bytes]:
        """The chain of a sum that was finished when this coordinator was not there; empty if there is none."""
        here = [h for s in self.counted if (h := self.lines[s].here) is not None and h.prepared and h.chain]
        keys = {h.prepared for h in here}
        key = keys.pop() if len(keys) == 1 and len(here) == len(self.counted) else None
        if key is None or key[0] != self.number:
            return set()
        self.attempt = key[1]
        return {h.chain for h in here}

    def _roster(self, step: Step | None) -> Script[tuple[str, ...]]:
        """Sites for the next attempt: whoever is ready; a site that came back joins here. Waits for the quorum.

        An exact secure sum is taken over the sites of the one before, see :meth:`Order.may_count`; so is one of peers.
        """
        order, begin, need = self.order, self._now, set(self.counted)
        frozen = step is None or (order.secure and not step.noise_sd and order.lost != "show")
        while True:
            ready = tuple(s for s in self._ready() if self._fits(s))
            over, gone = self._now - begin > order.deadline, need - set(ready)
            if frozen and not gone:
                return tuple(sorted(need))
            if frozen and (over or gone & set(self.refused)):
                rest = tuple(sorted(need - gone))
                if (over or gone <= set(self.refused)) and order.may_count(rest, need) and len(rest) >= order.least:
                    self.log(event="left", number=self.number, sites=sorted(gone))
                    return rest
                if over or order.lost == "wait":
                    names = ", ".join(repr(s) for s in sorted(gone))
                    raise self._lost(f"sum {self.number}: a sum of this kind waits for all who began, and for {names}")
            elif not frozen:
                # A site that is merely silent for a moment stays on a plain roster: it is asked again when it answers.
                silent = {s for s, x in self.lines.items() if x.fits and self.state(s) == "lost"} - set(self.refused)
                wanted = ready if order.secure else tuple(s for s in order.sites if s in ready or s in silent)
                loading = any(self.state(s) == "loading" for s in order.sites if s not in self.refused)
                if len(ready) >= max(1, order.least) and (over or not loading):
                    return wanted
                if not order.secure and len(wanted) >= max(1, order.least):
                    return wanted
                if over:
                    raise self._lost(f"{len(ready)} sites are there after {order.deadline:g} s")
            yield

    def _exchange(
        self, sites: tuple[str, ...], side: Exchange | None, step: Step | None, key: Key | None = None
    ) -> Script[set[bytes]]:
        """Carry letters between the sites and the coordinator's side until it has a result.

        Where the sites learn the result themselves (peers; agreeing on codes) they are asked for news until all know it: the
        chains that they reached, or nothing if the attempt was burnt.
        """
        number, attempt = now = key or (self.number, self.attempt)
        round_, late = 0 if step is None else step.round, side if isinstance(side, Late) else None
        gone: set[str] = set()  # out of this attempt: refused, or lost its keys
        known: dict[str, bytes] = {}
        asked = dict.fromkeys(sites, self._now)
        began = phase = self._now
        warned = 0

        def opening(site: str) -> Take:
            return Take(number, attempt, sites, **self._public(site), round=round_)

        for site, line in self.lines.items():
            if late is None:  # what is left of the exchange before is given up
                line.queue, line.flight = deque([opening(site)] if site in sites else []), None
        while step is None or (side is not None and side.result() == "pending"):
            idle = [s for s in sites if self._idle(s)]
            if late is not None:
                for site in (s for s in idle if s not in late.parts and s in self._ready() and self._fits(s)):
                    self.lines[site].queue.append(opening(site))
            yield
            news, self._news = self._news, []
            for site, ask, answer in news:
                line = self.lines[site]
                mine = isinstance(ask, Take | Mail) and (late is not None or (ask.number, ask.attempt) == now)
                if not mine or not isinstance(ask, Take | Mail):
                    continue
                if isinstance(answer, Letters):
                    line.trouble, line.at = [], max(0, ask.number)
                    if answer.vote:
                        self._ballots[site] = answer.vote
                    if answer.standing in ("known", "ended"):
                        known[site] = ENDED if answer.standing == "ended" else answer.chain
                        self._tell(answer.round)
                    try:
                        if self._deliver(site, ask, answer, side, now, round_):
                            phase = self._now
                    except (MessageRefused, ProtocolMismatch, IndexError) as e:
                        self._trouble(site, "message refused", [str(e)[:200]], what=str(e)[:200])
                        if not self.order.secure:  # its one letter of this sum: without it, it is not waited for
                            gone.add(site)
                    if answer.standing == "burnt":
                        gone.add(site)
                elif isinstance(ask, Take) and isinstance(answer, Behind | Differs) and self._needs_more(site, answer):
                    if late is None:
                        line.queue.appendleft(opening(site))
                else:
                    gone.add(site)
                    line.rest = self._now + 1.0 if late is not None else line.rest
                    self._trouble(site, "bad", told(getattr(answer, "why", None)), number=number)
            if step is None:
                if set(known) >= set(sites):
                    return set(known.values())
                if gone or any(self.state(s) in ("lost", "refused") for s in sites):
                    return set()
                for site in (s for s in sites if s not in known and self._idle(s)):
                    if self._now - asked[site] > min(0.5, 0.1 * (self._now - began)):
                        asked[site] = self._now
                        self.lines[site].queue.append(Mail(number, attempt))
            if self._now - phase > self.order.deadline or (
                late is None and step is not None and self._vain(sites, gone)
            ):
                phase, warned = self._now, warned + 1
                if late is not None:
                    raise self._lost(f"round {round_}: {len(late.parts)} sites answered in time")
                if step is not None and side is not None:
                    self._post(side.deadline(), now, round_)
                elif warned > 2:
                    return set()
                else:
                    for site in sites:
                        self.lines[site].queue.append(Mail(number, attempt, late=True))
        return set()

    def _idle(self, site: str) -> bool:
        line = self.lines[site]
        return line.flight is None and not line.queue and self._now >= line.rest

    def _trouble(self, site: str, event: str, reasons: list[str], **more: Any) -> None:
        self.lines[site].trouble = reasons
        self.log(event=event, site=site, reasons=reasons, **more)

    def _tell(self, round_: int) -> None:
        """Peers: which round it is the sites say; its figures are theirs until the end."""
        if round_ > self._shown and self.order.peers:
            self._shown = round_
            self.progress(Progress("round", self.method.name, round_, self.method.params.rounds or 0, {}))

    def _vain(self, sites: tuple[str, ...], gone: set[str]) -> bool:
        """Whether waiting is pointless: everybody else has answered, and those who have not are gone.

        With the quorum still reachable a lost site is not waited for; without it, it is, until the deadline.
        """
        if any(x.flight is not None or (x.queue and self.state(s) == "ready") for s, x in self.lines.items()):
            return False
        out = {s for s in sites if s in gone or self.state(s) == "lost"}
        if not out or len(sites) - len(out) >= self.order.least:
            return bool(out)
        return self.order.secure or out <= gone  # a secure attempt cannot be rescued: burn it, then wait for the sites

    def _deliver(
        self, site: str, ask: Take | Mail, answer: Letters, side: Exchange | None, now: Key, round_: int
    ) -> bool:
        """Hand a site's letters to the coordinator's side; a letter under another's name is refused."""
        out: list[Message] = []
        for raw in answer.letters:
            letter = wire.decode_message(raw, self._protocol)
            if host(letter.sender) != site:
                raise MessageRefused(f"{site!r} sent a letter under the name of {letter.sender!r}")
            if isinstance(side, Late):
                if not side.put(letter, ask.number):
                    self.log(event="stale", site=site, number=ask.number, now=self.number)
            elif side is not None:
                out += side.receive(letter)
        self._post(out, now, round_)
        return bool(out)

    def _post(self, out: list[Message], now: Key, round_: int) -> None:
        by_site: dict[str, list[bytes]] = {}
        for m in out:
            by_site.setdefault(m.to, []).append(wire.encode_message(m, self._protocol))
        for site, letters in by_site.items():
            self.lines[site].queue.append(Mail(*now, tuple(letters), round=round_))

    @property
    def _protocol(self) -> str:
        return f"{self.method.name}/{self.method.version}"

    def _public(self, site: str) -> dict[str, Any]:
        """What a site needs to be where we are: who began, the totals that it has not folded, and the others' votes."""
        line = self.lines[site]
        at = line.at if line.at is not None else 0 if line.here is None else line.here.number
        opened = self.totals.since(at, self.number)
        out: dict[str, Any] = {"begin": tuple(self._setting.get("sites", ())), "opened": opened, "votes": self.votes}
        if line.differs:
            states = {str(o.number): self._state_after(o.number) for o in opened}
            out["agreed"] = {k: v for k, v in states.items() if v is not None}
        return out

    def _state_after(self, number: int) -> Any | None:
        return wire.pack(self.conductor.public) if number == self.number - 1 else self.totals.state(number)

    def _needs_more(self, site: str, answer: Behind | Differs) -> bool:
        """A site that is behind gets the totals from there on; one whose bits differ, ours, to compare with its own."""
        line = self.lines[site]
        if answer.number > self.number:
            raise PeerLost(
                f"study {self.order.id!r}: {site!r} has folded {answer.number} sums and this run {self.number}",
                hint="the run folder is older than the sites': put the newer one back",
            )
        again = isinstance(answer, Differs) and line.differs and line.at == answer.number
        line.at = answer.number
        if isinstance(answer, Differs):
            line.differs = self.totals.states = True
            self.log(event="differs", site=site, number=answer.number)
        return not again

    # ---- before the first sum, and after the last

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
            done = yield from self._exchange(sites, office(order, roster, self.identity), None, (ALIGN, first + n))
            if done:
                self.log(event="aligned", how=order.alignment, sites=list(sites))
                yield from self._fresh(sites)
                return
            self.log(event="alignment failed", attempt=n, sites=[s for s in sites if self.lines[s].trouble])
        raise PeerLost(
            f"study {order.id!r}: the sites could not agree on codes in {ALIGNING} attempts",
            faults=[f"{s!r}: {'; '.join(self.lines[s].trouble) or self.state(s)}" for s in sites],
            hint="wait for them and resume: polyclinic coordinator resume",
        )

    def _close(self) -> Script[None]:
        """Every site that is there folds the last total, keeps what stays, and votes for the end of the chain."""
        order, done, gone, begin = self.order, dict[str, Done](), set[str](), self._now
        sites = self._ready()
        for site in sites:
            self.lines[site].queue, self.lines[site].flight = deque([Close(**self._public(site))]), None
        while set(sites) - set(done) - gone and self._now - begin <= order.deadline:
            yield
            news, self._news = self._news, []
            for site, ask, answer in news:
                if isinstance(ask, Close) and isinstance(answer, Done):
                    done[site] = answer
                    self.heads |= {n: h for n, h in heads_of(answer.heads).items() if host(n) == site}
                elif isinstance(ask, Close):
                    more = isinstance(answer, Behind | Differs) and self._needs_more(site, answer)
                    if more:
                        self.lines[site].queue.appendleft(Close(**self._public(site)))
                    else:
                        gone.add(site)
                        self._trouble(site, "bad", told(getattr(answer, "why", None)))
            gone |= {s for s in sites if s not in done and self.state(s) in ("lost", "refused")}
        if order.peers:
            self._merge({s: d.result for s, d in done.items() if d.result is not None})
        c, keys = self.conductor, {s: bytes.fromhex(order.keys[s]) for s in order.sites}
        votes = {
            s: d.vote.hex()
            for s, d in done.items()
            if count_votes({s: d.vote}, keys, order.digest, c.number, c.chain) == 1
        }
        end = {"order": order.digest, "sums": c.number, "chain": c.chain.hex(), "votes": votes, "needed": order.least}
        end |= {"sites": len(order.sites), "staleness": order.staleness}
        self._certified = Certified(tuple(sorted(votes)), len(order.sites), order.least, order.staleness)
        self._write("certificate.json", end)
        books = {s: d.book for s, d in sorted(done.items()) if d.book}  # the card is made from them
        self._signed = StudyBook.several(books, keys, order.digest)
        packed = {s: b64encode(b).decode() for s, b in books.items()}
        self._write("books.json", {"order": order.digest, "keys": {s: order.keys[s] for s in keys}, "books": packed})
        self.log(event="certified" if len(votes) >= order.least else "uncertified", sites=sorted(votes))
        self.totals.end()

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        with atomic(self.folder / name) as temporary:
            temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            temporary.chmod(0o600)

    def _merge(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Peers: the model from the sites, who must all have the same, bit for bit."""
        if not states:
            raise self._lost("no site handed over the result")
        first = min(states)
        other = [s for s, v in states.items() if v["chain"] != states[first]["chain"]]
        if other:
            raise ProtocolMismatch(
                f"study {self.order.id!r}: nodes disagree", faults=[f"{s!r} != {first!r}" for s in other]
            )
        self.conductor.restore(states[first])
        for s, v in states.items():
            if s != first:
                self.conductor.traffic.add(Traffic.restore(dict(v["traffic"])))

    def _result(self) -> Outcome:
        c = self.conductor
        seconds = float(c.history[-1]["seconds"]) if c.history else 0.0
        noise, heads = "; ".join(sorted(self._noise)), dict(sorted(self.heads.items()))
        known = (c.history, c.traffic, c.setting, tuple(c.releases), seconds, noise)
        return Outcome(c.public, {}, {}, *known, heads=heads, books=self._signed, certified=self._certified)


def drive(driver: Driver, ask: Callable[[str, bytes], bytes | None], now: float = 0.0) -> Outcome:
    """Run a study whose sites are in this process: asks are function calls, one after another, and time goes by ticks."""
    while driver.outcome is None:
        for sent in driver.due(now):
            driver.heard(sent, ask(sent.site, sent.data), now)
        now += TICK
    return driver.outcome
