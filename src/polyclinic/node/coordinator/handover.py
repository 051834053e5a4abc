"""What a site hands over at the end of a study of peers: the model, checked against the chain that the sites signed.

The coordinator saw no total, so the model comes from the sites, and one of them may lie. The last link of the chain holds the
digest of the public state, and the chain is under every site's vote::

    chain = H(before, link),    link.state = H(public)

so what is handed over is what was voted for, or it is refused, whoever sent it. History and releases are under no vote: those
are taken that most sites tell alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polyclinic.errors import MessageRefused, PolyclinicError
from polyclinic.protocol.public_state import CoordinatorState
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import ChainLink, grow, state_digest, within
from polyclinic.protocol.wire.traffic import Traffic

__all__ = ["Handover", "most_alike"]

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
