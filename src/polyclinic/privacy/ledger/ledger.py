"""Keep the ledger of a site: what has left, what it cost, who decided what, on disk before anything leaves.

One JSON line per entry (``privacy.ledger.entries``), each with the hash of the line before it and the signature of the
ledger's own key (``.key``). ``.head`` keeps the end of the ledger, signed, so that lines removed from the end are noticed.
``.state`` keeps what the lines up to some point add up to, signed, so that a ledger of 100,000 lines is opened by reading
on from there. Nothing is ever deleted or changed. A person who may write all these files AND the key can put an older
ledger in their place: an anchor (a head kept elsewhere by every write) or a witness (a peer that saw a head) shows that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from polyclinic.errors import LedgerError
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.privacy.accounting.charge import Charge, events_for
from polyclinic.privacy.ledger.balance import POLICY, Balance
from polyclinic.privacy.ledger.entries import START, CloseLine, Entry, Gap, Key, Refuse, Reserve, Unknown
from polyclinic.privacy.ledger.ledger_file import LedgerFile, Unless
from polyclinic.privacy.ledger.reader import LedgerReader
from polyclinic.privacy.ledger.signed_head import SignedHead, vouch_words
from polyclinic.privacy.release import Adjacency

if TYPE_CHECKING:
    from polyclinic.privacy.gate.data_source import Claim

__all__ = ["Charge", "Entry", "Ledger", "SignedHead"]


class Ledger(LedgerFile):
    """What a site has spent, over all studies.

    Parameters
    ----------
    path
        The ``.jsonl`` file; made with the first line. None: in memory only (simulation), not signed.
    site
        Name of the site, written in every line.
    anchor
        A file elsewhere that is given every head, and that the ledger is compared with when it is opened.
    syslog
        Whether every head goes to the system's log, too.

    Examples
    --------
    >>> ledger = Ledger()
    >>> _ = ledger.charge(Charge("icu", "dpem", 1, "statistics", 0, accountant.Gaussian(10.0, 8)))
    >>> round(ledger.epsilon(1e-6), 3)
    1.212
    """

    claim: Callable[[], Claim] | None = None  # the records that this ledger alone pays for; None: they have no owner

    # ---- writing

    def charge(self, charge: Charge, *, unless: Unless | None = None) -> Entry:
        """Write a charge and wait until it is on disk. Only then may the release leave.

        Parameters
        ----------
        charge
            What is released.
        unless
            Reasons not to, asked under the same lock: nothing can be written between the answer and the line. Not asked
            where an open reservation covers the charge.
        """

        def faults(tally: Balance) -> Sequence[str]:
            if over := tally.over(charge.run):
                return [over]
            return [] if unless is None else unless(tally)

        release = f"study {charge.study!r}, round {charge.round}, step {charge.step!r}"
        return self.write(charge, unless=faults, what=f"site {charge.site!r}, {release}: not released")

    def reserve(self, body: Reserve, *, unless: Unless | None = None) -> list[str]:
        """Set aside what an order may charge, or say why not; checked and written under one lock.

        An order that has a reservation keeps it. One whose time is over is given back by a line of its own: a clock that is put
        back later would otherwise find it open beside what was set aside meanwhile.
        """
        with self._opened():
            tally, moment = self._reading.tally, time.time()
            for order in [o for o, r in tally.open.items() if r.until and moment > r.until]:
                self._append(Refuse(order, POLICY, ("the time of what was set aside for it is over",)))
            if body.order in tally.closed:
                return [tally.over(body.order)]
            if body.order in tally.open:
                return []
            faults = [] if unless is None else list(unless(tally))
            if not faults:
                self._append(body)
            return faults

    def close(self, order: str, reason: str, *, sums: int = 0) -> Entry | None:
        """End an order: the rest of its reservation is free. None if it was closed before."""
        with self._opened():
            if order in self._reading.tally.closed:
                return None
            return self._append(CloseLine(order, reason, sums))

    def tie(self, identity: bytes, sign: Callable[[bytes], bytes]) -> None:
        """Tie the ledger to an identity of the site: it signs the ledger's public key, once."""
        with self._opened():
            if self.path is None or identity.hex() in self._reading.tally.identities:
                return
            self._begin()
            self._append(Key(identity.hex(), sign(vouch_words(self._own_key().public)).hex()))

    # ---- questions

    def paid(self, run: str, release: str, attempt: int | None = None, *, bytes: str | None = None) -> bool:
        """Whether a release of a run is in the ledger (in that attempt, with those bytes)."""
        lines = self.tally.releases.get(run, {}).get(release, ())
        return any((attempt is None or a == attempt) and (bytes is None or b == bytes) for a, b in lines)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All lines, oldest first; a ledger that does not hold together is refused."""
        if self.path is not None:
            _ = self.tally
            if self._reading.offset != self._entries_at:
                # signatures were checked when the lines were first read
                reader = LedgerReader(START, trusted=self._reading.count)
                with self._opened():
                    entries, faults = reader.all(self.path)
                if faults:
                    raise LedgerError(f"ledger {self.path} failed its check; releases are blocked", faults=faults)
                self._entries, self._entries_at = entries, self._reading.offset
        return tuple(self._entries)

    def charges(self, *, study: str | None = None, cohort: str | None = None) -> tuple[Charge, ...]:
        """The charges of one study or cohort; None = of all."""
        charges = (e.charge for e in self.entries if e.charge is not None)
        return tuple(c for c in charges if study in (None, c.study) and cohort in (None, c.cohort))

    def epsilon(
        self,
        delta: float,
        *,
        study: str | None = None,
        cohort: str | None = None,
        adjacency: Adjacency = "patient",
        bounded: bool = False,
    ) -> float:
        """What has been spent; ``bounded`` leaves out releases that had no bound, which make it infinite."""
        events = events_for(self.charges(study=study, cohort=cohort), adjacency)
        events = [e for e in events if not (bounded and isinstance(e, accountant.Unbounded))]
        if study is None and adjacency == "patient":
            events += _gaps(self.entries, cohort)
        return accountant.epsilon(events, delta)

    def export(self) -> dict[str, object]:
        """Everything as plain values, with the head to keep elsewhere and the lines as they stand (the audit trail)."""
        entries = self.entries
        return {
            "site": self.site or next((e.site for e in entries if e.site), ""),
            "key": self._reading.key,
            "head": asdict(self.head),
            "entries": [e.plain() for e in entries],
            "lines": [] if self.path is None else self.path.read_text().splitlines(),
        }


def _gaps(entries: Sequence[Entry], cohort: str | None) -> list[Event]:
    """What was spent in lines that are lost, or by a newer version."""
    events = [e for x in entries if isinstance(b := x.body, Gap) and cohort in (None, b.cohort) for e in b.events]
    newer = any(isinstance(x.body, Unknown) and x.body.costs for x in entries)
    return [*events, *([accountant.Unbounded()] if newer else [])]
