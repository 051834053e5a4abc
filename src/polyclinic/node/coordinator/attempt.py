"""One attempt at one sum: letters between the sites and the coordinator's side, until there is a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polyclinic.errors import MessageRefused, PolyclinicError
from polyclinic.node.coordinator.async_round import AsyncRound
from polyclinic.node.coordinator.site_registry import Script
from polyclinic.node.messages import (
    Answer,
    Deliver,
    Key,
    Letters,
    OutOfDate,
    Refused,
    StateMismatch,
    Status,
    SumRequest,
)
from polyclinic.node.refusals import told
from polyclinic.protocol.interfaces import Exchange, Message, Step
from polyclinic.protocol.wire import encoding as wire

if TYPE_CHECKING:
    from polyclinic.node.coordinator.coordinator import Coordinator

__all__ = ["ENDED", "Attempt"]

ENDED: Final = b"ended"  # in the place of a chain: there is no sum left


class Attempt:
    """Carries letters until the coordinator's side has a result.

    Where the sites learn the result themselves (peers; agreeing on codes) they are asked for news until all know it.

    Parameters
    ----------
    driver
        Whose study it is.
    sites
        Who takes part.
    side
        The coordinator's own; None among peers.
    step
        What is added; None where the coordinator does not know it.
    key
        Number and attempt, where they are not those of the driver's next sum.
    """

    def __init__(
        self,
        driver: Coordinator,
        sites: tuple[str, ...],
        side: Exchange | None,
        step: Step | None,
        key: Key | None = None,
    ) -> None:
        self.driver, self.sites, self.side, self.step = driver, sites, side, step
        self.key = key or (driver.number, driver.attempt)
        self.late = side if isinstance(side, AsyncRound) else None
        self.round = 0 if step is None else step.round
        self.gone: set[str] = set()  # out of this attempt: refused, or lost its keys
        self.broken: set[str] = set()  # who could not read what it was sent: a crash between, or a program that fails
        self.known: dict[str, bytes] = {}  # the chains that sites reached, among peers
        self._began = self._phase = driver.now
        self._asked = dict.fromkeys(sites, driver.now)
        self._warned = 0
        self._protocol = f"{driver.method.name}/{driver.method.version}"

    def run(self) -> Script[set[bytes]]:
        """To the end. Among peers: the chains that the sites reached, none if the attempt was burnt."""
        d = self.driver
        if self.late is None:
            d.only({s: self._opening(s) for s in self.sites})
        while self.step is None or (self.side is not None and self.side.result() == "pending"):
            if self.late is not None:
                for site in (s for s in self.sites if d.idle(s) and s not in self.late.parts):
                    if site in d.ready() and d.fits(site):
                        d.lines[site].queue.append(self._opening(site))
            yield
            for site, ask, answer in d.news():
                if isinstance(ask, SumRequest | Deliver) and (
                    self.late is not None or (ask.number, ask.attempt) == self.key
                ):
                    self._heard(site, ask, answer)
            if self.step is None:
                if set(self.known) >= set(self.sites):
                    return set(self.known.values())
                if self.gone or any(d.state(s) in ("lost", "refused") for s in self.sites):
                    return set()
                self._ask_for_news()
            elif self._still():
                self._ask_for_news()
            pointless = self.late is None and self.step is not None and self._vain()
            if (pointless or d.now - self._phase > d.order.deadline) and not self._overdue():
                return set()
        return set()

    def _opening(self, site: str) -> SumRequest:
        return SumRequest(*self.key, self.sites, **self.driver.relayed(site), round=self.round)

    def _heard(self, site: str, ask: SumRequest | Deliver, answer: Answer) -> None:
        d, line = self.driver, self.driver.lines[site]
        if isinstance(answer, Letters):
            self._letters(site, ask, answer)
        elif (
            isinstance(ask, SumRequest) and isinstance(answer, OutOfDate | StateMismatch) and d.needs_more(site, answer)
        ):
            if self.late is None:
                line.queue.appendleft(self._opening(site))
        else:
            self.gone.add(site)
            self.broken |= {site} if isinstance(answer, Refused) and answer.why == "malformed" else set()
            line.rest = d.now + 1.0 if self.late is not None else line.rest
            d.trouble(
                site, "bad", told(answer.why if isinstance(answer, Status | Refused) else None), number=self.key[0]
            )

    def _letters(self, site: str, ask: SumRequest | Deliver, answer: Letters) -> None:
        d, line = self.driver, self.driver.lines[site]
        if isinstance(ask, SumRequest) and not d.voted(site, ask.number, answer.vote):
            self.gone.add(site)
            self.broken.add(site)
            d.trouble(site, "bad", ["its vote is not one for the sums of this run"], number=self.key[0])
            return
        line.trouble, line.at, line.again = [], max(0, ask.number), 0
        if answer.vote:
            d.ballots[site] = answer.vote
        if answer.standing in ("known", "ended"):
            self.known[site] = ENDED if answer.standing == "ended" else answer.chain
            d.tell(answer.round)
        try:
            if self._deliver(site, ask, answer):
                self._phase = d.now
        except (
            Exception
        ) as e:  # whatever a stranger wrote into a letter is the letter's fault, never the end of the run
            what = (
                str(e)[:200]
                if isinstance(e, PolyclinicError)
                else f"a letter that no reader foresaw: {type(e).__name__}"
            )
            d.trouble(site, "message refused", [what], what=what)
            if not d.order.secure:  # its one letter of this sum: without it, it is not waited for
                self.gone.add(site)
        if answer.standing == "burnt":
            self.gone.add(site)

    def _deliver(self, site: str, ask: SumRequest | Deliver, answer: Letters) -> bool:
        """Hand a site's letters to the coordinator's side; a letter under another's name is refused."""
        out: list[Message] = []
        names = self.driver.order.nodes([site])
        for raw in answer.letters:
            letter = wire.decode_message(raw, self._protocol)
            if letter.sender not in names:
                raise MessageRefused(f"{site!r} sent a letter under the name of {letter.sender!r}")
            if self.late is not None:
                if not self.late.put(letter, ask.number):
                    self.driver.log(event="stale", site=site, number=ask.number, now=self.driver.number)
            elif self.side is not None:
                out += self.side.receive(letter)
        self._post(out)
        return bool(out)

    def _post(self, out: list[Message]) -> None:
        by_site: dict[str, list[bytes]] = {}
        for m in out:
            by_site.setdefault(m.to, []).append(wire.encode_message(m, self._protocol))
        for site, letters in by_site.items():
            self.driver.lines[site].queue.append(Deliver(*self.key, tuple(letters), round=self.round))

    def _ask_for_news(self) -> None:
        d = self.driver
        for site in (s for s in self.sites if s not in self.known and d.idle(s)):
            if d.now - self._asked[site] > min(0.5, 0.1 * (d.now - self._began)):
                self._asked[site] = d.now
                d.lines[site].queue.append(Deliver(*self.key))

    def _still(self) -> bool:
        """Star: nothing is on its way and nobody is out, and there is no total yet.

        Then sites write to each other, and what one of them has for the coordinator since lies there until it is asked.
        """
        d = self.driver
        here = (s not in self.gone and d.state(s) == "ready" and d.idle(s) for s in self.sites)
        return self.late is None and all(here)

    def _vain(self) -> bool:
        """Whether waiting is pointless: everybody else has answered, and those who have not are gone.

        With the quorum still reachable a lost site is not waited for; without it, it is, until the deadline.
        """
        d = self.driver
        if any(x.flight is not None or (x.queue and d.state(s) == "ready") for s, x in d.lines.items()):
            return False
        out = {s for s in self.sites if s in self.gone or d.state(s) == "lost"}
        if not out or len(self.sites) - len(out) >= d.order.least:
            return bool(out)
        return (
            d.order.secure or out <= self.gone
        )  # a secure attempt cannot be rescued: burn it, then wait for the sites

    def _overdue(self) -> bool:
        """Time is up for this phase: who has not written is late. False if there is no use in going on."""
        d = self.driver
        self._phase, self._warned = d.now, self._warned + 1
        if self.late is not None:
            raise d.lost(f"round {self.round}: {len(self.late.parts)} sites answered in time")
        if self.step is not None and self.side is not None:
            self._post(self.side.deadline())
        elif self._warned > 2:
            return False
        else:
            for site in self.sites:
                d.lines[site].queue.append(Deliver(*self.key, late=True))
        return True
