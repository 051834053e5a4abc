"""The end of a study between hosts: the last totals, votes for the end of the chain, the signed books, the outcome."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.errors import MessageRefused, ProtocolMismatch
from polyclinic.node.coordinator.site_registry import Script
from polyclinic.node.messages import Done, EndStudy, OutOfDate, Refused, StateMismatch, Status
from polyclinic.node.refusals import told
from polyclinic.privacy.card.release_history import Certified
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.signed_head import SignedHead, heads_of
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.wire.chain import count_votes
from polyclinic.util.atomic_files import atomic

if TYPE_CHECKING:
    from polyclinic.node.coordinator.coordinator import Coordinator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polyclinic.errors import PolyclinicError
from polyclinic.protocol.public_state import CoordinatorState
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import ChainLink, grow, state_digest, within
from polyclinic.protocol.wire.traffic import Traffic

OWN: Final = frozenset({"seconds", "bytes_up", "bytes_down"})  # of a round: each site has its own figures
ODD: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, PolyclinicError)


@dataclass(frozen=True)
class Handover:
    """A site's fold at the end, as it handed it over, and as it was checked.

    Attributes
    ----------
    site, chain
        Whose, and where it ends.
    state
        For :meth:`CoordinatorState.restore`.
    traffic
        Bytes that this site counted, its own only.
    told
        What it says besides the model, and others must say alike: history and releases.
    """

    site: str
    chain: bytes
    state: Mapping[str, Any]
    traffic: Traffic
    told: tuple[object, ...]

    @classmethod
    def read(cls, site: str, state: Mapping[str, Any], start: CoordinatorState, number: int) -> Handover:
        """What a site handed over after ``number`` sums, which began at ``start``; refuses what its chain does not hold."""
        try:
            trial = CoordinatorState(start.method, start.setting, start.adder, start.roster, chain=start.chain)
            trial.restore(state)
            link = None if state["link"] is None else wire.unpack(ChainLink, state["link"])
            if trial.number != number or (link is None) != (number == 0):
                raise MessageRefused(f"it ends after {trial.number} sums, the study after {number}")
            if link is None:
                right = trial.chain == start.chain and state_digest(trial.public) == state_digest(start.public)
            else:
                right = grow(trial.before, link) == trial.chain and state_digest(trial.public) == link.state
            if not right:
                raise MessageRefused("the model is not the one under the chain that it signed")
            traffic = _own(site, trial.traffic)
            rounds = [{k: v for k, v in h.items() if k not in OWN} for h in trial.history]
            seconds = [float(h["seconds"]) for h in trial.history]
            if any(not 0 <= s < float("inf") for s in seconds):
                raise MessageRefused("its clock is not one")
        except ODD as e:
            raise MessageRefused(f"{site!r} handed over no result ({str(e)[:200]})") from None
        return cls(site, trial.chain, state, traffic, (rounds, wire.pack(trial.releases)))

    def alike(self, other: Handover, slack: float) -> bool:
        """Whether two sites tell the same, but for the last bits of figures that each computed itself."""
        return self.chain == other.chain and within(self.told, other.told, slack)


def most_alike(found: Sequence[Handover], slack: float) -> Handover:
    """The one whom most others bear out; of several the first by name."""
    return min(found, key=lambda h: (-sum(h.alike(o, slack) for o in found), h.site))


def _own(site: str, traffic: Traffic) -> Traffic:
    """The rows of one site; whole numbers, not below zero."""
    made = Traffic(rounds=traffic.rounds)
    numbers = [traffic.rounds, *traffic.up.values(), *traffic.down.values(), *traffic.payloads.values()]
    if any(type(v) is not int or not 0 <= v < 2**62 for v in numbers):
        raise MessageRefused("bytes are counted")
    for (name, round_), size in traffic.up.items():
        if name == site:
            made.sent(name, round_, size)
    for (name, round_), size in traffic.down.items():
        if name == site:
            made.received(name, round_, size)
    if site in traffic.payloads:
        made.payload(site, traffic.payloads[site])
    return made


class Finish:
    """Every site that is there folds the last total, keeps what stays, and votes for the end of the chain."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator, self.order = coordinator, coordinator.order
        self.done: dict[str, Done] = {}
        self.heads: dict[str, SignedHead] = {}  # of the books of sites that have ended the study
        self.signed: tuple[StudyExtract, ...] = ()  # what sites signed of their books
        self.certified: Certified | None = None  # who signed the end

    def run(self) -> Script[None]:
        """Ask all who are there; nobody is waited for beyond the deadline."""
        d, gone, begin = self.coordinator, set[str](), self.coordinator.now
        sites = d.ready()
        d.only({s: EndStudy(**d.relayed(s)) for s in sites})
        while set(sites) - set(self.done) - gone and d.now - begin <= self.order.deadline:
            yield
            for site, ask, answer in d.news():
                if isinstance(ask, EndStudy) and not self._heard(site, answer):
                    gone.add(site)
                    d.trouble(site, "bad", told(answer.why if isinstance(answer, Status | Refused) else None))
            gone |= {s for s in sites if s not in self.done and d.state(s) in ("lost", "refused")}
        if self.order.peers:
            self._merge({s: x.result for s, x in self.done.items() if x.result is not None})
        self._certify()
        d.totals.end()

    def _heard(self, site: str, answer: object) -> bool:
        """Whether a site has ended, or will when it has what it needs."""
        if isinstance(answer, Done):
            self.done[site] = answer
            self.heads |= {n: h for n, h in heads_of(answer.heads).items() if n == site}
            return True
        more = isinstance(answer, OutOfDate | StateMismatch) and self.coordinator.needs_more(site, answer)
        if more:
            self.coordinator.lines[site].queue.appendleft(EndStudy(**self.coordinator.relayed(site)))
        return more

    def _certify(self) -> None:
        order, c = self.order, self.coordinator.conductor
        keys = {s: self.coordinator.keys[s] for s in order.sites}
        found = {s: x.vote for s, x in self.done.items()}
        right = {s for s, v in found.items() if count_votes({s: v}, keys, order.digest, c.number, c.chain) == 1}
        end = {"order": order.digest, "sums": c.number, "chain": c.chain.hex(), "needed": order.least}
        end |= {"sites": len(order.sites)}
        self.certified = Certified(tuple(sorted(right)), len(order.sites), order.least)
        self._write("certificate.json", {**end, "votes": {s: found[s].hex() for s in sorted(right)}})
        books = {s: x.book for s, x in sorted(self.done.items()) if x.book}  # the card is made from them
        self.signed = StudyExtract.several(books, keys, order.digest)
        packed = {s: b64encode(b).decode() for s, b in books.items()}
        self._write("books.json", {"order": order.digest, "keys": {s: order.keys[s] for s in keys}, "books": packed})
        self.coordinator.log(event="certified" if len(right) >= order.least else "uncertified", sites=sorted(right))

    def _write(self, name: str, value: Mapping[str, object]) -> None:
        with atomic(self.coordinator.folder / name) as temporary:
            temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            temporary.chmod(0o600)

    def _merge(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Peers: the model from the sites: the one under the chain that they signed, whoever handed over another."""
        d, c = self.coordinator, self.coordinator.conductor
        found: dict[str, Handover] = {}
        for site, state in states.items():
            try:
                found[site] = Handover.read(site, state, c, d.number)
            except MessageRefused as e:
                d.trouble(site, "bad", [e.what])
        if not found:
            raise d.lost("no site handed over the result")
        chains = {h.chain for h in found.values()}
        votes = {s: x.vote for s, x in self.done.items()}
        chosen = max(sorted(chains), key=lambda chain: self._signed(votes, chain))
        if len(chains) > 1 and self._signed(votes, chosen) < self.order.least:
            ends = [f"{s!r}: {h.chain.hex()[:16]}" for s, h in sorted(found.items())]
            raise ProtocolMismatch(f"study {self.order.id!r}: nodes disagree", faults=ends)
        right = [h for h in found.values() if h.chain == chosen]
        best = most_alike(right, c.method.slack)
        c.restore(best.state)
        c.traffic = best.traffic
        for h in right:
            if h is not best:
                c.traffic.add(h.traffic)

    def _signed(self, votes: Mapping[str, bytes], chain: bytes) -> int:
        """How many sites signed that the study ends there."""
        keys = {s: self.coordinator.keys[s] for s in self.order.sites}
        return count_votes(votes, keys, self.order.digest, self.coordinator.number, chain)

    def outcome(self) -> Outcome:
        """What the run leaves behind."""
        c = self.coordinator.conductor
        seconds = float(c.history[-1]["seconds"]) if c.history else 0.0
        noise = "; ".join(sorted(self.coordinator.noise))
        known = (c.history, c.traffic, c.setting, tuple(c.releases), seconds, noise)
        heads = dict(sorted(self.heads.items()))
        return Outcome(c.public, {}, {}, *known, heads=heads, books=self.signed, certified=self.certified)
