"""The book of a site: what has left, what it cost, who decided what; written and on disk before anything leaves.

One JSON line per entry (``privacy.ledger.entries``), each with the hash of the line before it and the signature of the book's own
key. ``.head`` keeps the end of the book, signed, so that lines removed from the end are found; ``.state`` what the lines up
to some point add up to, signed, so that a book of 100,000 lines is opened by reading on from there. Nothing is ever deleted
or changed. Whoever may write all these files AND the key can put an older book in their place: an anchor (a head kept
elsewhere by every write) or a witness (a peer that saw a head) finds that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from polyclinic.errors import LedgerError
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.privacy.accounting.charge import Charge, events_for
from polyclinic.privacy.ledger.balance import POLICY, Balance
from polyclinic.privacy.ledger.data_source import Claim
from polyclinic.privacy.ledger.entries import START, Body, CloseLine, Entry, Gap, Key, Refuse, Reserve
from polyclinic.privacy.ledger.ledger_file import LedgerFile, Unless
from polyclinic.privacy.ledger.reader import LedgerReader
from polyclinic.privacy.ledger.signed_head import SignedHead
from polyclinic.privacy.release import Adjacency

__all__ = ["Charge", "Entry", "Ledger", "SignedHead"]


class Ledger(LedgerFile):
    """What a site has spent, over all studies.

    Parameters
    ----------
    path
        The ``.jsonl`` file; made on the first charge. None: in memory only (simulation), not signed.
    site
        Name of the site, written in every line.
    anchor
        A file elsewhere that is given every head, and that the book is compared with when it is opened.
    syslog
        Whether every head goes to the system's log, too.

    Examples
    --------
    >>> ledger = Ledger()
    >>> _ = ledger.charge(Charge("icu", "dpem", 1, "statistics", 0, accountant.Gaussian(10.0, 8)))
    >>> round(ledger.epsilon(1e-6), 3)
    1.212
    """

    claim: Callable[[], Claim] | None = None  # of which records it is the one book; None: of none that has an owner

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

        where = f"study {charge.study!r}, round {charge.round}, step {charge.step!r}"
        return self.write(charge, unless=faults, what=f"site {charge.site!r}, {where}: not released")

    def reserve(self, body: Reserve, *, unless: Unless | None = None) -> list[str]:
        """Set aside what an order may charge, or say why not; checked and written under one lock.

        An order that has a reservation keeps it. One whose time is over is given back by a line of its own: a clock that is put
        back later would otherwise find it open beside what was set aside meanwhile.
        """
        with self._opened():
            tally, now = self._reading.tally, time.time()
            for order in [o for o, r in tally.open.items() if r.until and now > r.until]:
                self._append(Refuse(order, POLICY, ("the time of what was set aside for it is over",)), None)
            if body.order in tally.closed:
                return [tally.over(body.order)]
            faults = [] if unless is None or body.order in tally.open else list(unless(tally))
            if not faults and body.order not in tally.open:
                self._append(body, None)
            return faults

    def close(self, order: str, reason: str, *, sums: int = 0) -> Entry | None:
        """An order is over: the rest of its reservation is free. None if it was closed before."""
        with self._opened():
            if order in self._reading.tally.closed:
                return None
            return self._append(CloseLine(order, reason, sums), None)

    def tie(self, identity: bytes, sign: Callable[[bytes], bytes]) -> None:
        """Tie the book to an identity of the site: it signs the book's public key, once."""
        with self._opened():
            if self.path is None or identity.hex() in self._reading.tally.identities:
                return
            self._begin()
            proof = sign(b"polyclinic/book/2" + bytes.fromhex(self._own_key().public))
            self._append(Key(identity.hex(), proof.hex()), None)

    def keyed(self, words: bytes) -> str:
        """A digest that only this book's key makes; without a file the key is none."""
        import hashlib
        import hmac

        if self.path is None:
            return hashlib.sha256(words).hexdigest()
        with self._opened():
            self._begin()
            return hmac.digest(self._own_key().own(b"polyclinic/people/1"), words, "sha256").hex()

    def write(self, body: Body, *, unless: Unless | None = None, what: str = "not written") -> Entry:
        """Write any line, unless there are reasons not to."""
        with self._opened():
            return self._append(body, unless, what)

    # ---- questions

    def paid(self, run: str, release: str, attempt: int | None = None, *, bytes: str | None = None) -> bool:
        """Whether a release of a run is in the book (in that attempt, with those bytes)."""
        found = self.tally.releases.get(run, {}).get(release, ())
        return any((attempt is None or a == attempt) and (bytes is None or b == bytes) for a, b in found)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All lines, oldest first; a ledger that does not hold together is refused."""
        if self.path is not None:
            _ = self.tally
            if self._reading.offset != self._entries_at:
                whole = LedgerReader(
                    START, trusted=self._reading.count
                )  # signatures were checked when they were first read
                with self._opened():
                    found, faults = whole.all(self.path)
                if faults:
                    raise LedgerError(f"ledger {self.path} does not hold together; no release may leave", faults=faults)
                self._entries, self._entries_at = found, self._reading.offset
        return tuple(self._entries)

    def charges(
        self, *, study: str | None = None, cohort: str | None = None, adjacency: Adjacency | None = None
    ) -> tuple[Charge, ...]:
        """The charges of one study, cohort or adjacency; None = of all."""
        return tuple(
            c
            for e in self.entries
            if (c := e.charge) is not None
            and study in (None, c.study)
            and cohort in (None, c.cohort)
            and adjacency in (None, c.adjacency)
        )

    def events(
        self,
        *,
        study: str | None = None,
        cohort: str | None = None,
        adjacency: Adjacency | None = "patient",
        bounded: bool = False,
    ) -> list[Event]:
        """What those charges cost whom ``adjacency`` speaks of; ``bounded`` leaves out releases that had no bound."""
        charges = self.charges(study=study, cohort=cohort)
        found = [c.event for c in charges] if adjacency is None else events_for(charges, adjacency)
        return [e for e in found if not (bounded and isinstance(e, accountant.Unbounded))]

    def epsilon(
        self,
        delta: float,
        *,
        study: str | None = None,
        cohort: str | None = None,
        adjacency: Adjacency = "patient",
        more: Sequence[Event] = (),
        bounded: bool = False,
    ) -> float:
        """What has been spent (infinite after a release without bound), with ``more`` added to it."""
        events = self.events(study=study, cohort=cohort, adjacency=adjacency, bounded=bounded)
        if study is None and adjacency == "patient":
            events += _gaps(self.entries, cohort)
        return accountant.epsilon([*events, *more], delta)

    def export(self) -> dict[str, object]:
        """Everything as plain values, with the head to keep elsewhere and the lines as they stand (the audit trail)."""
        entries = self.entries
        lines = [] if self.path is None else self.path.read_text().splitlines()
        return {
            "site": self.site or next((e.site for e in entries if e.site), ""),
            "key": self._reading.key,
            "head": asdict(self.head),
            "entries": [e.plain() for e in entries],
            "lines": lines,
        }


def _gaps(entries: Sequence[Entry], cohort: str | None) -> list[Event]:
    """What was spent in lines that are lost, or by a newer version."""
    from polyclinic.privacy.ledger.entries import Unknown

    lost = [e for x in entries if isinstance(b := x.body, Gap) and cohort in (None, b.cohort) for e in b.events]
    newer = any(isinstance(x.body, Unknown) and x.body.costs for x in entries)
    return [*lost, *([accountant.Unbounded()] if newer else [])]
