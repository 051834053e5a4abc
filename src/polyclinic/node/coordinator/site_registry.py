"""Who takes part in a study, as the coordinator sees it: one line for each site, with what it last said and what it is asked.

No clock: it is told the time. A site that is silent counts as lost until it answers again; an ask whose process is gone may
never be answered, and is asked again of the next one, under the same id.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from polyclinic import __version__
from polyclinic.errors import MessageRefused, PeerLost, ProtocolMismatch
from polyclinic.node.messages import (
    Answer,
    Ask,
    Busy,
    Letters,
    Ping,
    Status,
    SumRequest,
    read_answer,
    seal_ask,
    tree_of,
)
from polyclinic.node.refusals import Why, told
from polyclinic.node.signed_study import StudyOrder
from polyclinic.privacy.ledger.rollback_check import Relay
from polyclinic.privacy.ledger.signed_head import Witness
from polyclinic.protocol.schema import shown
from polyclinic.protocol.wire.sealed import Identity

TICK: Final = 0.05  # seconds after which a site that is busy is asked again
EVERY: Final = 1.0  # seconds between signs of life
SILENT: Final = 6.0  # seconds without one: the site counts as lost until it answers again
SLOWEST: Final = 5e5  # bytes a second (4 Mbit/s): a sign of life waits behind a message that is on its way
ANSWER: Final = 20.0  # seconds for one answer on the wire; a site that computes longer says "busy" in between
ODD: Final = 100  # messages of one site that cannot be read and are written down
GRACE: Final = 12.0  # seconds to wait at the start for sites that are absent although the quorum is there
T = TypeVar("T")
Script = Generator[None, None, T]  # waits at every ``yield`` for something to happen


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
        return isinstance(self.ask, Ping)


@dataclass
class SiteState:
    """What is known of one site."""

    here: Status | None = None
    heard: float = -math.inf
    looked: float = -math.inf
    looking: Sending | None = None
    flight: Sending | None = None
    queue: deque[Ask | Sending] = field(default_factory=deque)
    told: str = ""  # its state as it was last written down
    word: Why | None = None  # its reason for that state
    setting: Mapping[str, object] | None = None
    noise: str = ""
    fits: bool = False  # it speaks of the same codes and shapes
    largest: int = 0  # bytes of its largest answer
    at: int | None = None  # sums that it has folded
    differs: bool = False  # its last bits are not ours: another processor
    trouble: list[str] = field(default_factory=list)  # what it last said when it could not do its part
    rest: float = -math.inf  # not asked again before
    odd: int = 0  # messages of it that could not be read
    again: int = 0  # times in a row that it asked for more and came no further


class SiteRegistry:
    """The sites of one study.

    Parameters
    ----------
    order
        The signed study.
    identity
        The coordinator's signing key.
    folder
        The run folder; what is known of the sites' books is beside it.
    log
        Where events go.
    """

    def __init__(self, order: StudyOrder, identity: Identity, folder: Path, log: Callable[..., None]) -> None:
        self.order, self.identity, self.log = order, identity, log
        self.lines = {s: SiteState() for s in order.sites}
        self.refused: dict[str, list[str]] = {}
        self.keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
        self.books = Relay(order.digest, self.keys, Witness(folder.parent / "witness.json"))
        self.now = 0.0
        self.cancelling = False  # a site is told of that however it stands
        self.resume = "polyclinic coordinator resume"  # the engine's word for going on
        self._news: list[tuple[str, Ask, Answer]] = []
        self._serial, self._run_id = 0, secrets.token_hex(6)

    # ---- asks and answers

    def asks(self) -> list[Sending]:
        """What is to be carried now: signs of life, and one other ask for each site that is ready."""
        out: list[Sending] = []
        every = EVERY if self.books.complete(self.ready()) else EVERY / 5  # until all have told of all books
        for site, line in self.lines.items():
            if line.looking is None and self.now - line.looked >= every:
                line.looked, line.looking = self.now, self._seal(site, Ping(full=line.setting is None))
                out.append(line.looking)
            if (
                line.queue
                and line.flight is None
                and self.now >= line.rest
                and (self.cancelling or self.state(site) == "ready")
            ):
                first = line.queue.popleft()
                line.flight = self._seal(site, first) if not isinstance(first, Sending) else first
                line.flight = replace(line.flight, life=self._life(site))
                out.append(line.flight)
        return out

    def _seal(self, site: str, ask: Ask) -> Sending:
        self._serial += 1
        if isinstance(ask, Ping | SumRequest):
            ask = replace(ask, books=self.books.bundle(site))
        name = f"{self._run_id}-{self._serial}"
        data = seal_ask(self.identity, self.order.digest, site, name, tree_of(ask))
        size = 0 if isinstance(ask, Ping) else max(len(data), self.lines[site].largest)
        return Sending(site, ask, data, 3.0 if isinstance(ask, Ping) else ANSWER + 2 * size / SLOWEST, size=size)

    def hear(self, sent: Sending, data: bytes | None, now: float) -> bool:
        """What came back, None if nothing did; whether it was an answer to something else than a sign of life."""
        line, self.now = self.lines[sent.site], now
        if sent is not (line.looking if sent.look else line.flight):
            return False  # given up before
        line.looking, line.flight = (None, line.flight) if sent.look else (line.looking, None)
        try:
            answer = None if data is None else read_answer(data)
            if isinstance(answer, Status) and answer.setting is not None and not shown(answer.setting):
                raise MessageRefused("what it says of its codes and shapes cannot be read")
        except (MessageRefused, ProtocolMismatch) as e:
            self.refuse_message(sent.site, e.what)
            answer = None
        if answer is None or data is None:
            if not sent.look:
                line.queue.appendleft(sent)
            return False
        if sent.look or line.here is not None:
            line.heard = now
        if isinstance(answer, Status | Letters) and answer.books:
            self._of_books(sent.site, answer.books, later=isinstance(answer, Letters))
        if sent.look:
            self.books.waited(sent.site)
        if isinstance(answer, Status):
            if sent.look and answer.setting is not None:
                line.setting, line.noise = answer.setting, answer.noise
            line.here = answer
        if sent.look:
            return False
        line.largest = max(line.largest, len(data))
        if isinstance(answer, Busy) or (isinstance(answer, Status) and answer.stage != "refused"):
            line.queue.appendleft(sent)
            line.rest = now + TICK
        else:
            self._news.append((sent.site, sent.ask, answer))
        return True

    def _of_books(self, site: str, books: bytes, *, later: bool) -> None:
        try:
            self._wrong({site: self.books.heard(site, books, later=later)})
        except MessageRefused as e:  # as if it had said nothing about books
            self.refuse_message(site, e.what)

    def refuse_message(self, site: str, what: str) -> None:
        """Something of a site's that cannot be read; a hostile one must not fill the disk."""
        line = self.lines[site]
        line.odd += 1
        if line.odd <= ODD:
            self.log(event="message refused", site=site, what=what)

    def news(self) -> list[tuple[str, Ask, Answer]]:
        """Answers since this was last asked."""
        found, self._news = self._news, []
        return found

    def only(self, asks: Mapping[str, Ask]) -> None:
        """From now on these are asked, and nothing else: what is left of an exchange before is given up."""
        for site, line in self.lines.items():
            line.queue, line.flight = deque([asks[site]] if site in asks else []), None

    # ---- who is there

    def state(self, site: str) -> str:
        """What a site last said, or "lost", or "absent" if it never answered."""
        line = self.lines[site]
        if line.here is None:
            return "absent"
        way = 0 if line.flight is None else 2 * line.flight.size / SLOWEST  # the answer may be as large as the question
        return "lost" if self.now - line.heard > SILENT + way else line.here.stage

    def _life(self, site: str) -> str:
        here = self.lines[site].here
        return "" if here is None else here.life

    def watch(self) -> None:
        """Write down how the sites stand; what was asked of a process that is gone is asked again."""
        states = {site: self.state(site) for site in self.lines}
        awake = [s for s, line in self.lines.items() if line.told not in ("", "absent", "lost")]
        if len(awake) > 1 and all(states[s] == "lost" for s in awake):
            self.log(event="stalled", reasons=["all sites fell silent at once: look at this machine and its network"])
        for site, line in self.lines.items():
            state = states[site]
            if line.flight is not None and (state == "lost" or line.flight.life != self._life(site)):
                line.queue.appendleft(line.flight)
                line.flight = None
            word = None if line.here is None else line.here.why
            if (state, word) != (line.told, line.word):
                line.told, line.word = state, word
                self.changed(site, state, told(word))

    def settle(self) -> None:
        """Heads of books that came with contributions are kept, once for all sites."""
        self._wrong(self.books.settle())

    def _wrong(self, books: Mapping[str, list[str]]) -> None:
        for site, found in books.items():
            if found:
                self.changed(site, "refused", found)

    def changed(self, site: str, state: str, reasons: list[str]) -> None:
        self.log(event=state, site=site, reasons=reasons)
        if state == "refused":
            self.refused[site] = reasons

    def ready(self) -> tuple[str, ...]:
        return tuple(s for s in self.order.sites if s not in self.refused and self.state(s) == "ready")

    def standing(self) -> list[str]:
        """How every site stands, and what it last said."""
        states = []
        for s in self.order.sites:
            said = self.refused.get(s) or self.lines[s].trouble
            state = "refused" if s in self.refused else self.state(s)
            states.append(f"{s!r}: {state}{': ' if said else ''}{'; '.join(said)}")
        return states

    def lost(self, why: str) -> PeerLost:
        hint = f"wait for them and resume: {self.resume}"
        if others := [s for s, words in self.refused.items() if words == told("version")]:
            hint = (
                f"install Polyclinic {__version__} at {', '.join(others)} (site doctor shows both), then submit again"
            )
        return PeerLost(
            f"study {self.order.id!r}: {why}; {self.order.least} sites are needed", faults=self.standing(), hint=hint
        )

    def idle(self, site: str) -> bool:
        line = self.lines[site]
        return line.flight is None and not line.queue and self.now >= line.rest

    def trouble(self, site: str, event: str, reasons: list[str], **more: object) -> None:
        self.lines[site].trouble = reasons
        self.log(event=event, site=site, reasons=reasons, **more)

    def slept(self, now: float) -> None:
        """Count no silence of the time in which this process itself did not run."""
        gap = now - self.now
        if self.now and gap > SILENT / 2:
            self.log(event="stalled", reasons=[f"the coordinator itself did not run for {gap:.0f} s"])
            for line in self.lines.values():
                line.heard += gap

    # ---- before the first sum

    def gather(self) -> Script[tuple[str, ...]]:
        """Wait for the sites; go on without those who refuse, or who are absent although the quorum is there."""
        order, begin = self.order, self.now
        quorum: float | None = None
        refusal: float | None = None
        grace = min(GRACE, order.deadline)
        while True:
            ready, now = self.ready(), self.now
            open_ = [s for s in order.sites if s not in self.refused and s not in ready]
            states = {self.state(s) for s in open_}
            if len(order.sites) - len(self.refused) < max(1, order.least):
                refusal = refusal or now  # the others may have reasons, too: all of them at once
                if not states & {"absent", "loading", "refused"} or now - refusal > grace:
                    raise self.lost("too many sites refused")
            if not open_:
                break
            if len(ready) >= max(1, order.least):
                quorum = quorum or now
                if now - quorum > (order.deadline + order.reading if states & {"loading", "waiting"} else grace):
                    break
            elif now - begin > order.deadline + order.reading:
                raise self.lost(f"{len(ready)} sites are ready after {order.deadline + order.reading:g} s")
            yield
        yield from self.settings(ready)
        begin = self.now
        while not self.books.complete(self.ready()) and self.now - begin < min(5 * EVERY, order.deadline):
            yield  # what is not told by then comes with later signs of life
        return ready

    def fresh(self, sites: Iterable[str], at_most: float = math.inf) -> Script[None]:
        """What these sites last said is out of date: hear them anew."""
        for site in sites:
            self.lines[site].setting, self.lines[site].looked = None, -math.inf
        yield from self.settings(sites, at_most)

    def settings(self, sites: Iterable[str], at_most: float = math.inf) -> Script[None]:
        begin = self.now
        while any(self.lines[s].setting is None for s in sites) and self.now - begin < at_most:
            if self.now - begin > self.order.deadline:
                raise self.lost("sites do not say what is public about them")
            yield
