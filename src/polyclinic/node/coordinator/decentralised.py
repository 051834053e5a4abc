"""Sums that only the sites see (``subspace``, ``cycle``), as the coordinator leads them: it counts a sum when ALL sites reached one chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyclinic.errors import ProtocolMismatch
from polyclinic.node.coordinator.attempt import ENDED, Attempt
from polyclinic.node.coordinator.site_registry import Script
from polyclinic.protocol.interfaces import Total
from polyclinic.protocol.wire.chain import Opened

if TYPE_CHECKING:
    from polyclinic.node.coordinator.coordinator import Coordinator


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
