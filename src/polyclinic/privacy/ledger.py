"""The ledger of a site: what has left, what it cost; written and on disk before anything leaves.

One JSON line per entry, each with the hash of the line before it. A second file keeps the number and hash of the last
line, so that lines removed from the end are found too. Nothing is ever deleted or changed; every re-run, restart and
trial is another line. Both files together could be put back to an older state by somebody who may write them: an
exported head (number and hash), kept elsewhere, finds that as well (``verify(anchor=...)``).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyclinic.errors import LedgerError, PolicyRefusal
from polyclinic.privacy import accountant
from polyclinic.privacy.accountant import Event
from polyclinic.privacy.chain import START, Charge, Entry, Head, line_hash, opened, plain, sealed
from polyclinic.privacy.release import Adjacency

__all__ = ["Charge", "Entry", "Head", "Ledger"]


class Ledger:
    """What a site has spent, over all studies.

    Parameters
    ----------
    path
        The ``.jsonl`` file; made on the first charge. None: in memory only (simulation).
    site
        Name of the site, written in every line.

    Examples
    --------
    >>> ledger = Ledger()
    >>> _ = ledger.charge(Charge("icu", "dpem", 1, "statistics", 0, accountant.Gaussian(10.0, 8)))
    >>> round(ledger.epsilon(1e-6), 3)
    1.212
    """

    def __init__(self, path: Path | str | None = None, *, site: str = "") -> None:
        self.path = None if path is None else Path(path)
        self.site = site
        self._entries: list[Entry] = []
        self._releases: dict[str, list[Charge]] = {}
        self._mutex = threading.RLock()
        self._holder = 0
        self._start = START if path is not None else secrets.token_hex(32)  # no two books in memory are one
        self._seen: tuple[int, int] | None = None  # size and time of the file when it was last read whole

    # ---- writing

    def charge(self, charge: Charge, *, unless: Callable[[], Sequence[str]] | None = None) -> Entry:
        """Write a charge and wait until it is on disk. Only then may the release leave.

        Parameters
        ----------
        charge
            What is released.
        unless
            Reasons not to, asked under the same lock: nothing can be written between the answer and the line.
        """
        return self._append("charge", charge, "", unless)

    def paid(self, release: str, attempt: int | None = None, *, bytes: str | None = None) -> bool:
        """Whether a release is in the book (in that attempt, with those bytes)."""
        self._look()
        return any(
            (attempt is None or c.attempt == attempt) and (bytes is None or c.bytes == bytes)
            for c in self._releases.get(release, ())
        )

    def _append(
        self, kind: str, charge: Charge | None, text: str, unless: Callable[[], Sequence[str]] | None = None
    ) -> Entry:
        if self.path is None:
            _refuse(charge, unless)
            entry = sealed(len(self._entries), kind, charge, text, self._last.hash, self.site)[0]
            self._add(entry)
            return entry
        with self._locked():
            self._refresh()
            _refuse(charge, unless)
            return self._write(kind, charge, text)

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        if entry.charge is not None and entry.charge.release:
            self._releases.setdefault(entry.charge.release, []).append(entry.charge)

    def _write(self, kind: str, charge: Charge | None, text: str) -> Entry:
        assert self.path is not None
        entry, line = sealed(len(self._entries), kind, charge, text, self._last.hash, self.site)
        try:
            head = self._read_head([])
            if self._entries and (head is None or head.count < len(self._entries)):
                self._write_head()  # a crash came between a line and its head; a second one must not leave two lines
                for stray in self.path.parent.glob(f".{self._head_path.name}.*"):
                    stray.unlink(missing_ok=True)
            new = not self.path.exists()
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                done = 0
                while done < len(line):
                    done += os.write(handle, line[done:])
                os.fsync(handle)
            finally:
                os.close(handle)
            if new:
                _sync_folder(self.path.parent)
            self._add(entry)
            self._write_head()
        except OSError as e:
            raise LedgerError(
                f"ledger {self.path}: the charge could not be written ({e.strerror})",
                hint="nothing was released; make the file writable, or free space on the disk",
            ) from e
        stat = self.path.stat()
        self._seen = (stat.st_size, stat.st_mtime_ns)
        return entry

    def _write_head(self) -> None:
        from polyclinic.tensors.files import atomic

        with atomic(self._head_path) as temporary:
            temporary.write_text(json.dumps(asdict(self._last)))

    @property
    def _head_path(self) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + ".head")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time."""
        import fcntl

        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._mutex:  # threads of this process first: the lock of the file is the process's
            handle = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = 0
                os.close(handle)

    # ---- reading

    def _refresh(self) -> None:
        """Take in what other processes wrote; refuse a ledger that does not hold together."""
        assert self.path is not None
        stat = self.path.stat() if self.path.exists() else None
        now = None if stat is None else (stat.st_size, stat.st_mtime_ns)
        if now is not None and now == self._seen:
            return
        entries, faults, torn = self._read()
        if faults:
            raise LedgerError(
                f"ledger {self.path} does not hold together; no release may leave",
                faults=faults,
                hint="restore the file from a backup; `polyclinic ledger verify` shows where it was changed",
            )
        self._entries, self._releases = [], {}
        for e in entries:
            self._add(e)
        if torn:
            # The process died while it wrote: that charge was never complete, so its release never left.
            os.truncate(self.path, stat.st_size - torn if stat else 0)
            self._write("note", None, f"a line of {torn} bytes was cut by a crash before its release; removed")
        self._seen = now if not torn else self._seen

    def _read(self) -> tuple[list[Entry], list[str], int]:
        """Entries, faults, and how many bytes of an unfinished last line were left by a crash."""
        assert self.path is not None
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data.split(b"\n")
        tail = lines.pop()
        entries: list[Entry] = []
        faults: list[str] = []
        previous = START
        for n, line in enumerate(lines):
            try:
                entry = opened(line)
            except (ValueError, KeyError, TypeError, LedgerError) as e:
                faults.append(f"line {n + 1}: not an entry of a ledger ({str(e).splitlines()[0]})")
                previous = ""
                continue
            if line_hash(line) != entry.hash:
                faults.append(f"line {n + 1}: was edited (its hash does not fit)")
            if entry.number != n:
                faults.append(f"line {n + 1}: is entry {entry.number}; lines were removed or reordered")
            elif previous and entry.previous != previous:
                faults.append(f"line {n + 1}: does not follow the line before it")
            previous = entry.hash
            entries.append(entry)
        head = self._read_head(faults)
        if head is None and entries and not (len(entries) == 1 and not faults):
            faults.append(f"{self._head_path.name} is missing")
        if head is not None and not faults:
            if head.count > len(entries):
                faults.append(f"{head.count - len(entries)} line(s) were removed from the end")
            elif head.count and entries[head.count - 1].hash != head.hash:
                faults.append(f"line {head.count}: is not the line the head file names")
            elif len(entries) > head.count + 1:
                faults.append(f"{len(entries) - head.count} lines are newer than the head file (a crash leaves one)")
        if tail and faults:
            faults.append("the last line is not complete")
        return entries, faults, len(tail)

    def _read_head(self, faults: list[str]) -> Head | None:
        if not self._head_path.exists():
            return None
        try:
            value = json.loads(self._head_path.read_text())
            return Head(int(value["count"]), str(value["hash"]))
        except (ValueError, KeyError, TypeError):
            faults.append(f"{self._head_path.name} is not readable")
            return None

    def verify(self, *, anchor: Head | None = None) -> tuple[str, ...]:
        """Every place where the file was edited, cut, reordered or put back; empty if it is whole.

        Parameters
        ----------
        anchor
            A head exported earlier and kept elsewhere.
        """
        if self.path is None:
            return ()
        with self._locked():
            if not self.path.exists() and not self._head_path.exists():
                return (f"{self.path}: no such ledger",)
            entries, faults, torn = self._read()
        if torn and not any("not complete" in f for f in faults):
            faults.append(f"the last line is not complete ({torn} bytes, left by a crash before its release)")
        if anchor is not None and (
            len(entries) < anchor.count or (anchor.count and entries[anchor.count - 1].hash != anchor.hash)
        ):
            faults.append(
                f"entry {anchor.count} is not the one that was exported: the ledger was put back or rewritten"
            )
        return tuple(faults)

    @property
    def _last(self) -> Head:
        return Head(len(self._entries), self._entries[-1].hash if self._entries else self._start)

    @property
    def head(self) -> Head:
        """Number and hash of the last entry."""
        self._look()
        return self._last

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All lines, oldest first; a ledger that does not hold together is refused."""
        self._look()
        return tuple(self._entries)

    def _look(self) -> None:
        if self.path is None or self._holder == threading.get_ident():  # the holder of the lock has looked already
            return
        if self.path.exists() or self._head_path.exists():
            with self._locked():
                self._refresh()

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
        """The events of those charges; ``bounded`` leaves out releases that had no bound."""
        charges = self.charges(study=study, cohort=cohort, adjacency=adjacency)
        return [c.event for c in charges if not (bounded and isinstance(c.event, accountant.Unbounded))]

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
        return accountant.epsilon([*events, *more], delta)

    def export(self) -> dict[str, Any]:
        """Everything as plain values, with the head to keep elsewhere."""
        return {
            "site": self.site,
            "head": asdict(self.head),
            "entries": [
                {
                    "number": e.number,
                    "time": e.time,
                    "kind": e.kind,
                    **({} if e.charge is None else plain(e.charge)),
                    **({"text": e.text} if e.text else {}),
                    "previous": e.previous,
                    "hash": e.hash,
                }
                for e in self.entries
            ],
        }


def _refuse(charge: Charge | None, unless: Callable[[], Sequence[str]] | None) -> None:
    faults = [] if unless is None or charge is None else list(unless())
    if faults and charge is not None:
        raise PolicyRefusal(
            f"site {charge.site!r}, study {charge.study!r}, round {charge.round}, step {charge.step!r}: not released",
            faults=faults,
            hint="ask the owner of the data, or ask for less",
        )


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
