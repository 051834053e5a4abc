"""A book that lost lines: what is left, what a head kept elsewhere says was spent, and the line that owns up to it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polyclinic.errors import ConfigError
from polyclinic.privacy.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.head import BookKey, Head
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.lines import Gap
from polyclinic.privacy.reading import Reading, read_head

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
    known: Head | None
    spent: float | None

    @property
    def events(self) -> tuple[Event, ...]:
        """The charge for the lost lines; without a bound where nothing tells what they were."""
        if self.spent is None:
            return (Unbounded(),)
        return (Gaussian(self.spent**-0.5),) if self.spent > 0 else ()


def what_is_left(ledger: Ledger, heads: Iterable[Head] = ()) -> Recovery:
    """Read a book as far as it holds, and compare it with every head that was kept: its own, its anchor's, yours."""
    assert ledger.path is not None
    told: list[str] = []
    files = [p for p in (_file(ledger, ".head"), ledger.anchor) if p is not None]
    kept = [h for p in files if (h := read_head(p, told)) is not None] + list(heads)
    read, faults = _prefix(ledger.path)
    key = BookKey.of(_file(ledger, ".key"), make=False)
    if key is None:
        faults.append("the book's key is gone: no sealed head can be read, and nothing more can be signed with it")
    kept = [h for h in kept if key is not None and (not h.signature or (h.valid and h.key == key.public))]
    known = max(kept, key=lambda h: h.count, default=None)
    if known is not None and known.count <= read.count and read.hashes.get(known.count) == known.hash:
        return Recovery(read.count, read.offset, (*told, *faults), known, 0.0)
    spent = None
    summary = key.unseal(known.sealed) if key is not None and known is not None and known.sealed else None
    if summary is not None:
        mu2, unbounded, held = (float(x) for x in summary["all"])
        lost = mu2 + held - read.tally.all.mu2
        spent = max(lost, 0.0) if not unbounded > read.tally.all.unbounded and math.isfinite(lost) else None
    if known is not None and known.count > read.count:
        faults.append(f"{read.count} line(s) hold, and a head that was kept knows of {known.count}")
    return Recovery(read.count, read.offset, (*told, *faults), known, spent)


def recover(ledger: Ledger, found: Recovery, *, by: str, why: str) -> Gap:
    """Go on with the lines that hold: the damaged file is set aside, the lost lines are charged in a ``gap``."""
    assert ledger.path is not None
    if not by.strip() or not why.strip():
        raise ConfigError("a gap needs who answers for it, and why", hint="--by NAME --why TEXT")
    if _file(ledger, ".key").exists() is False:
        raise ConfigError(
            f"{ledger.path}: the book's key is gone", hint="restore it, or begin a new book under another [ledger] path"
        )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    data = ledger.path.read_bytes() if ledger.path.exists() else b""
    if data:
        ledger.path.rename(ledger.path.with_name(f"{ledger.path.name}.damaged-{stamp}"))
    for suffix in (".head", ".state"):
        _file(ledger, suffix).unlink(missing_ok=True)
    if ledger.anchor is not None:
        ledger.anchor.unlink(missing_ok=True)
    if found.bytes:
        ledger.path.write_bytes(data[: found.bytes])
        ledger.path.chmod(0o600)
    fresh = Ledger(ledger.path, site=ledger.site, anchor=ledger.anchor)
    fresh.repair()
    count, mark = (found.known.count, found.known.hash) if found.known is not None else (found.good, "")
    gap = Gap(max(count, fresh.count), mark, by, why, events=found.events)
    fresh.write(gap)
    return gap


def _prefix(path: Path) -> tuple[Reading, list[str]]:
    """As many lines from the start as hold, and the faults of the rest."""
    whole = Reading()
    faults = whole.all(path)[1]
    if not faults:
        return whole, []
    good = Reading()
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n") or good.take(line):
            break
    return good, faults


def _file(ledger: Ledger, suffix: str) -> Path:
    assert ledger.path is not None
    return ledger.path.with_name(ledger.path.name + suffix)
