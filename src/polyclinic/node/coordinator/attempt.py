"""One attempt at one sum: carry messages between the sites and the coordinator's side until there is a result.

Sums that only the sites see (``subspace``, ``cycle``) count when ALL sites reached one chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polyclinic.errors import MessageRefused, PolyclinicError, ProtocolMismatch
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
from polyclinic.protocol.interfaces import Exchange, Message, Step, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened

if TYPE_CHECKING:
    from polyclinic.node.coordinator.coordinator import Coordinator

ENDED: Final = b"ended"  # in the place of a chain: there is no sum left


class Attempt:
    """Carry messages until the coordinator's side has a result.

    Where the sites learn the result themselves (peers; agreeing on codes) they are asked for news until all know it.

    Parameters
    ----------
    coordinator
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
        coordinator: Coordinator,
        sites: tuple[str, ...],
        side: Exchange | None,
        step: Step | None,
        key: Key | None = None,
    ) -> None:
        self.coordinator, self.sites, self.side, self.step = coordinator, sites, side, step
        self.key = key or (coordinator.number, coordinator.attempt)
        self.round = 0 if step is None else step.round
        self.gone: set[str] = set()  # out of this attempt: refused, or lost its keys
        self.broken: set[str] = set()  # who could not read what it was sent: a crash between, or a program that fails
        self.known: dict[str, bytes] = {}  # the chains that sites reached, among peers
        self._began = self._phase = coordinator.now
        self._asked = dict.fromkeys(sites, coordinator.now)
        self._warned = 0
        self._protocol = f"{coordinator.method.name}/{coordinator.method.version}"

    def run(self) -> Script[set[bytes]]:
        """Run the attempt to its end. Among peers, return the chains that the sites reached, none if it was aborted."""
        self.coordinator.only({s: self._opening(s) for s in self.sites})
        while self.step is None or (self.side is not None and self.side.result() == "pending"):
            yield
            for site, ask, answer in self.coordinator.news():
                if isinstance(ask, SumRequest | Deliver) and (ask.number, ask.attempt) == self.key:
                    self._heard(site, ask, answer)
            if self.step is None and (chains := self._reached()) is not None:
                return chains
            if self.step is None or self._still():
                self._ask_for_news()
            if (self._vain() or self._phase_is_over()) and not self._overdue():
                return set()
        return set()

    def _reached(self) -> set[bytes] | None:
        """Among peers: the chains once all sites have one, none if the attempt was aborted, None while it runs."""
        if set(self.known) >= set(self.sites):
            return set(self.known.values())
        aborted = self.gone or any(self.coordinator.state(s) in ("lost", "refused") for s in self.sites)
        return set() if aborted else None

    def _phase_is_over(self) -> bool:
        return self.coordinator.now - self._phase > self.coordinator.order.deadline

    def _opening(self, site: str) -> SumRequest:
        return SumRequest(*self.key, self.sites, **self.coordinator.relayed(site), round=self.round)

    def _heard(self, site: str, ask: SumRequest | Deliver, answer: Answer) -> None:
        d, line = self.coordinator, self.coordinator.lines[site]
        if isinstance(answer, Letters):
            self._letters(site, ask, answer)
        elif (
            isinstance(ask, SumRequest) and isinstance(answer, OutOfDate | StateMismatch) and d.needs_more(site, answer)
        ):
            line.queue.appendleft(self._opening(site))
        else:
            self.gone.add(site)
            self.broken |= {site} if isinstance(answer, Refused) and answer.why == "malformed" else set()
            d.trouble(
                site, "bad", told(answer.why if isinstance(answer, Status | Refused) else None), number=self.key[0]
            )

    def _letters(self, site: str, ask: SumRequest | Deliver, answer: Letters) -> None:
        d, line = self.coordinator, self.coordinator.lines[site]
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
            if self._deliver(site, answer):
                self._phase = d.now
        except Exception as e:  # whatever a site wrote into a message must never end the run
            foreseen = isinstance(e, PolyclinicError)
            what = str(e)[:200] if foreseen else f"a letter that no reader foresaw: {type(e).__name__}"
            d.trouble(site, "message refused", [what], what=what)
            if not d.order.secure:  # its one letter of this sum: without it, it is not waited for
                self.gone.add(site)
        if answer.standing == "aborted":
            self.gone.add(site)

    def _deliver(self, site: str, answer: Letters) -> bool:
        """Hand a site's letters to the coordinator's side; a letter under another's name is refused."""
        out: list[Message] = []
        for raw in answer.letters:
            letter = wire.decode_message(raw, self._protocol)
            if letter.sender != site:
                raise MessageRefused(f"{site!r} sent a message under the name of {letter.sender!r}")
            if self.side is not None:
                out += self.side.receive(letter)
        self._post(out)
        return bool(out)

    def _post(self, out: list[Message]) -> None:
        by_site: dict[str, list[bytes]] = {}
        for m in out:
            by_site.setdefault(m.to, []).append(wire.encode_message(m, self._protocol))
        for site, letters in by_site.items():
            self.coordinator.lines[site].queue.append(Deliver(*self.key, tuple(letters), round=self.round))

    def _ask_for_news(self) -> None:
        d = self.coordinator
        for site in (s for s in self.sites if s not in self.known and d.idle(s)):
            if d.now - self._asked[site] > min(0.5, 0.1 * (d.now - self._began)):
                self._asked[site] = d.now
                d.lines[site].queue.append(Deliver(*self.key))

    def _still(self) -> bool:
        """Star: nothing is on its way and nobody is out, and there is no total yet.

        Then sites write to each other, and what one of them has for the coordinator since lies there until it is asked.
        """
        d = self.coordinator
        return all(s not in self.gone and d.state(s) == "ready" and d.idle(s) for s in self.sites)

    def _vain(self) -> bool:
        """Whether waiting is pointless: everybody else has answered, and those who have not are gone.

        With the quorum still reachable a lost site is not waited for; without it, it is, until the deadline.
        """
        d = self.coordinator
        if self.step is None or any(
            x.flight is not None or (x.queue and d.state(s) == "ready") for s, x in d.lines.items()
        ):
            return False
        out = {s for s in self.sites if s in self.gone or d.state(s) == "lost"}
        if not out or len(self.sites) - len(out) >= d.order.least:
            return bool(out)
        # a secure attempt cannot be rescued: burn it, then wait for the sites
        return d.order.secure or out <= self.gone

    def _overdue(self) -> bool:
        """Time is up for this phase: who has not written is late. False if there is no use in going on."""
        d = self.coordinator
        self._phase, self._warned = d.now, self._warned + 1
        if self.step is not None and self.side is not None:
            self._post(self.side.deadline())
        elif self._warned > 2:
            return False
        else:
            for site in self.sites:
                d.lines[site].queue.append(Deliver(*self.key, late=True))
        return True


class DecentralisedRound:
    """One sum after the other, of a coordinator that sees no total."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    def sum(self) -> Script[bool]:
        """One sum; False when there is none left to take."""
        d = self.coordinator
        found = self._held()  # after a crash: every site holds the finished sum, so it counts, and nobody pays twice
        while not found:
            sites = yield from d.roster(None)
            d.save()
            attempt = Attempt(d, sites, None, None)
            found = yield from attempt.run()
            if not found:
                d.log(event="aborted", number=d.number, attempt=d.attempt)
                d.again(attempt, f"sum {d.number}")
        if found == {ENDED}:
            return False
        if len(found) > 1:
            raise ProtocolMismatch(
                f"study {d.order.id!r}: the sites disagree about sum {d.number}", faults=d.standing()
            )
        entered = dict.fromkeys(d.counted, (d.number, d.attempt))
        d.reached = found.pop()
        d.taken(Opened(d.number, d.attempt, entered, Total({}, 0.0, 0, 0.0), d.reached))
        return True

    def _held(self) -> set[bytes]:
        """The chain of a sum that was finished when this coordinator was not there; empty if there is none.

        The sites' votes for the sums before it may be lost with the coordinator that had them, so they say them again.
        """
        d = self.coordinator
        here = {s: h for s in d.counted if (h := d.lines[s].here) is not None and h.prepared and h.chain}
        keys = {h.prepared for h in here.values()}
        key = keys.pop() if len(keys) == 1 and len(here) == len(d.counted) else None
        if key is None or key[0] != d.number or not all(d.voted(s, d.number, h.vote) for s, h in here.items()):
            return set()
        d.attempt = key[1]
        d.ballots |= {s: h.vote for s, h in here.items()}
        return {h.chain for h in here.values()}
