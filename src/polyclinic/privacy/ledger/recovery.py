"""Recover a ledger that lost lines: what is left, what a head kept elsewhere says was spent, and the line that says so."""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import Gap, opened
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.reader import LedgerReader
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead, read_head


@dataclass(frozen=True)
class Recovery:
    """What can be said of a damaged ledger.

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
    marks: tuple[str, ...] = ()  # hashes of every head that this ledger does not have

    @property
    def events(self) -> tuple[Event, ...]:
        """The charge for the lost lines; without a bound where nothing tells what they were."""
        if self.spent is None:
            return (Unbounded(),)
        return (Gaussian(self.spent**-0.5),) if self.spent > 0 else ()


def what_is_left(ledger: Ledger, heads: Iterable[SignedHead] = ()) -> Recovery:
    """Read a ledger as far as it holds, and compare it with every head that was kept: its own, its anchor's, yours.

    Lines that were written after the known head was made are not part of what it adds up: they are kept, and what was lost
    is the head's sum without the lines that are older than it.
    """
    assert ledger.path is not None
    faults: list[str] = []
    heads_known = [*_own_heads(ledger, faults), *heads]
    read, line_faults = _prefix(ledger.path)
    faults += line_faults
    key = LedgerKey.of(ledger.file(".key"), make=False)
    if key is None:
        faults.append("the ledger's key is missing: sealed heads cannot be read, and new lines cannot be signed")
    missing = [h for h in heads_known if h.valid and not read.has(h)]
    if missing:
        return _lost_lines(ledger.path, read, key, missing, faults)
    longest = _longest(h for h in heads_known if read.has(h))
    # lines after the good ones are lost, and only a head that counts them tells what they were
    mu2 = 0.0 if longest is not None and not line_faults else None
    return Recovery(read.count, read.offset, tuple(faults), longest, mu2)


def _own_heads(ledger: Ledger, faults: list[str]) -> list[SignedHead]:
    """The heads beside the ledger and at its anchor."""
    files = (ledger.file(".head"), ledger.anchor)
    heads = (read_head(f, faults) for f in files if f is not None)
    return [h for h in heads if h is not None]


def _lost_lines(
    path: Path, read: LedgerReader, key: LedgerKey | None, missing: Sequence[SignedHead], faults: Sequence[str]
) -> Recovery:
    """What heads say that are not of the good lines."""
    public = read.key or ("" if key is None else key.public)
    of_this_key = [h for h in missing if h.key == public]
    longest = _longest(of_this_key or missing)
    assert longest is not None
    fault = (
        f"{read.count} line(s) verify, but a signed head that was kept counts {longest.count}"
        if longest.count > read.count
        else f"line {longest.count} does not match a signed head that was kept: the ledger was restored from a backup, or rewritten"
    )
    mu2 = None
    if key is not None and len(of_this_key) == len(missing):  # nobody reads what the ledger of another key spent
        sealed = next((h.sealed for h in of_this_key if h.sealed and h.count == longest.count), "")
        mu2 = _spent_in_lost_lines(path, read, key.unseal(sealed))
    marks = tuple(sorted({h.hash for h in missing}))
    return Recovery(read.count, read.offset, (*faults, fault), longest, mu2, marks)


def _longest(heads: Iterable[SignedHead]) -> SignedHead | None:
    return max(heads, key=lambda h: h.count, default=None)


def _spent_in_lost_lines(path: Path, read: LedgerReader, summary: Mapping[str, Any] | None) -> float | None:
    """``mu^2`` that a sealed summary has beyond the good lines; None if it cannot be read, or has no bound."""
    if summary is None:
        return None
    good = _before(path, read, float(summary.get("time", math.inf)))
    mu2, beyond, reserved = (float(x) for x in summary["all"])
    excess = mu2 + reserved - good.all.mu2
    return max(excess, 0.0) if not beyond > good.all.beyond and math.isfinite(excess) else None


def _before(path: Path, read: LedgerReader, moment: float) -> Balance:
    """What the lines add up to that are not newer than a moment (by this site's own clock)."""
    balance = Balance()
    for line in path.read_bytes()[: read.offset].splitlines(keepends=True) if path.exists() else ():
        entry, _ = opened(line.removesuffix(b"\n"))
        if calendar.timegm(time.strptime(entry.time, "%Y-%m-%dT%H:%M:%SZ")) <= moment:
            balance.add(entry.body)
    return balance


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
        ledger.file(suffix).unlink(missing_ok=True)
    if ledger.anchor is not None:
        ledger.anchor.unlink(missing_ok=True)
    lost_key = not ledger.file(".key").exists()
    if found.bytes and not lost_key:
        ledger.path.write_bytes(data[: found.bytes])
        ledger.path.chmod(0o600)
    repaired = Ledger(ledger.path, site=ledger.site, anchor=ledger.anchor)
    repaired.repair()
    head = found.known or SignedHead(found.good, "")
    # without its key no line can follow the old ones: another ledger begins, with everything counted as spent
    events = (Unbounded(),) if lost_key else found.events
    lines = max(head.count, repaired.count or 1)  # the line that carries a new key comes first
    gap = Gap(lines, head.hash, by, why, events=events, book=head.book, heads=found.marks)
    repaired.write(gap)
    return gap


def _prefix(path: Path) -> tuple[LedgerReader, list[str]]:
    """As many lines from the start as hold, and the faults of the rest."""
    reader = LedgerReader()
    faults = reader.all(path)[1]
    if not faults:
        return reader, []
    good = LedgerReader()
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n") or good.take(line):
            break
    return good, faults
