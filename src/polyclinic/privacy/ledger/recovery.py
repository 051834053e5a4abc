"""A book that lost lines: what is left, what a head kept elsewhere says was spent, and the line that owns up to it."""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import Gap, opened
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.reader import LedgerReader, read_head
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead

__all__ = ["Recovery", "recover", "what_is_left"]


@dataclass(frozen=True)
class Recovery:
    """What can be said of a damaged book.

    Attributes
    ----------
    good
        How many lines hold from the start, and how many bytes they are.
    faults
        What is wrong.
    known
        The longest head that anybody kept, and what it says was spent beyond the good lines (None: it cannot be read).
    """

    good: int
    bytes: int
    faults: tuple[str, ...]
    known: SignedHead | None
    spent: float | None
    marks: tuple[str, ...] = ()  # hashes of every head that this book does not have

    @property
    def events(self) -> tuple[Event, ...]:
        """The charge for the lost lines; without a bound where nothing tells what they were."""
        if self.spent is None:
            return (Unbounded(),)
        return (Gaussian(self.spent**-0.5),) if self.spent > 0 else ()


def what_is_left(ledger: Ledger, heads: Iterable[SignedHead] = ()) -> Recovery:
    """Read a book as far as it holds, and compare it with every head that was kept: its own, its anchor's, yours.

    Lines that were written after the known head was made are not part of what it adds up: they are kept, and what was lost
    is the head's sum without the lines that are older than it.
    """
    assert ledger.path is not None
    told: list[str] = []
    files = [p for p in (_file(ledger, ".head"), ledger.anchor) if p is not None]
    kept = [h for p in files if (h := read_head(p, told)) is not None] + list(heads)
    read, faults = _prefix(ledger.path)
    damaged = bool(faults)  # lines after the good ones are lost, and only a head that counts them tells what they were
    key = LedgerKey.of(_file(ledger, ".key"), make=False)
    if key is None:
        faults.append("the book's key is gone: no sealed head can be read, and nothing more can be signed with it")
    whose = read.key or ("" if key is None else key.public)
    unknown = [h for h in kept if (h.valid or not h.signature) and not _has(read, h)]
    own = [h for h in unknown if not h.signature or h.key == whose]
    other = [h for h in unknown if h.signature and h.key != whose]
    known = max(own or other, key=lambda h: h.count, default=None)
    marks = tuple(sorted({h.hash for h in unknown}))
    if known is None:
        known = max((h for h in kept if _has(read, h)), key=lambda h: h.count, default=None)
        nothing = known is not None and not damaged
        return Recovery(read.count, read.offset, (*told, *faults), known, 0.0 if nothing else None)
    faults += [
        f"{read.count} line(s) hold, and a head that was kept knows of {h.count}"
        if h.count > read.count
        else f"line {h.count} is not the one of a head that was kept: the book was put back or rewritten"
        for h in (known,)
    ]
    spent = None
    sealed = [h for h in own if h.sealed and h.count == known.count]
    summary = key.unseal(sealed[0].sealed) if key is not None and sealed and not other else None
    if summary is not None:
        before = _before(ledger.path, read, float(summary.get("time", math.inf)))
        mu2, beyond, held = (float(x) for x in summary["all"])
        lost = mu2 + held - before.all.mu2
        spent = max(lost, 0.0) if not beyond > before.all.beyond and math.isfinite(lost) else None
    return Recovery(read.count, read.offset, (*told, *faults), known, spent, marks)


def _has(read: LedgerReader, head: SignedHead) -> bool:
    """Whether a head is one of this book, or one that a gap owns up to."""
    if read.tally.owned_up(head.book, head.count, head.hash):
        return True
    return not head.count or (head.count <= read.count and read.hashes.get(head.count) == head.hash)


def _before(path: Path, read: LedgerReader, moment: float) -> Balance:
    """What the lines add up to that are not newer than a moment (by this site's own clock)."""
    made = Balance()
    for line in path.read_bytes()[: read.offset].splitlines(keepends=True) if path.exists() else ():
        entry, _ = opened(line.removesuffix(b"\n"))
        if calendar.timegm(time.strptime(entry.time, "%Y-%m-%dT%H:%M:%SZ")) <= moment:
            made.add(entry.body)
    return made


def recover(ledger: Ledger, found: Recovery, *, by: str, why: str) -> Gap:
    """Go on with the lines that hold: the damaged file is set aside, the lost lines are charged in a ``gap``."""
    assert ledger.path is not None
    if not by.strip() or not why.strip():
        raise ConfigError("a gap needs who answers for it, and why", hint="--by NAME --why TEXT")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    data = ledger.path.read_bytes() if ledger.path.exists() else b""
    if data:
        ledger.path.rename(ledger.path.with_name(f"{ledger.path.name}.damaged-{stamp}"))
    for suffix in (".head", ".state"):
        _file(ledger, suffix).unlink(missing_ok=True)
    if ledger.anchor is not None:
        ledger.anchor.unlink(missing_ok=True)
    lost_key = not _file(ledger, ".key").exists()
    if found.bytes and not lost_key:
        ledger.path.write_bytes(data[: found.bytes])
        ledger.path.chmod(0o600)
    fresh = Ledger(ledger.path, site=ledger.site, anchor=ledger.anchor)
    fresh.repair()
    known = found.known
    count, mark, book = (found.good, "", "") if known is None else (known.count, known.hash, known.book)
    # without its key no line can follow the old ones: another book begins, with everything counted as spent
    events = (Unbounded(),) if lost_key else found.events
    with_key = fresh.count + (1 if not fresh.count else 0)  # the line that carries a new key comes first
    gap = Gap(max(count, with_key), mark, by, why, events=events, book=book, heads=found.marks)
    fresh.write(gap)
    return gap


def _prefix(path: Path) -> tuple[LedgerReader, list[str]]:
    """As many lines from the start as hold, and the faults of the rest."""
    whole = LedgerReader()
    faults = whole.all(path)[1]
    if not faults:
        return whole, []
    good = LedgerReader()
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n") or good.take(line):
            break
    return good, faults


def _file(ledger: Ledger, suffix: str) -> Path:
    assert ledger.path is not None
    return ledger.path.with_name(ledger.path.name + suffix)
