"""The file of a book: lines written and on disk under one lock, read on from where they were last read, never believed unread.

``.head`` keeps the end of the book, signed, so that lines removed from the end are found; ``.state`` what the lines up to some
point add up to, signed, so that a book of 100,000 lines is opened by reading on from there; ``.key`` is the book's own key.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from polyclinic.errors import LedgerError, PolicyRefusal
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import START, Began, Body, Entry, Gap, Note, sealed
from polyclinic.privacy.ledger.reader import LedgerReader, read_head
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead

__all__ = ["LedgerFile", "Unless"]

EVERY: Final = 256  # lines between two snapshots
Unless = Callable[[Balance], Sequence[str]]


class LedgerFile:
    """Signed lines in a file (or in memory), and what they add up to.

    Parameters
    ----------
    path
        The ``.jsonl`` file; made with the first line. None: in memory only (simulation), not signed.
    site
        Name of the site, written in every line.
    anchor
        A file elsewhere that is given every head, and that the book is compared with when it is opened.
    syslog
        Whether every head goes to the system's log, too.
    """

    def __init__(
        self, path: Path | str | None = None, *, site: str = "", anchor: Path | str | None = None, syslog: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.site = site
        self.anchor = None if anchor is None else Path(anchor)
        self.syslog = syslog
        self._reading = LedgerReader(
            START if path is not None else secrets.token_hex(32)
        )  # no two books in memory are one
        self._entries: list[Entry] = []  # in memory, or as last read from the file
        self._entries_at = 0
        self._key: LedgerKey | None = None
        self._mutex = threading.RLock()
        self._holder = 0
        self._headed = -1  # lines of the head that this process wrote last

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Hold the lock with everything read."""
        if self._holder == threading.get_ident():
            yield
            return
        with self._locked():
            if self.path is not None:
                self._refresh()
            yield

    def _append(self, body: Body, unless: Unless | None, what: str = "not written") -> Entry:
        faults = [] if unless is None else list(unless(self._reading.tally))
        if faults:
            raise PolicyRefusal(what, faults=faults, hint="ask the owner of the data, or ask for less")
        if self.path is None:
            entry, line = sealed(self._reading.count, body, self._reading.hash, self.site)
            self._reading.add(entry, line)
            self._entries.append(entry)
            return entry
        self._begin()
        return self._write(body)

    def _begin(self) -> None:
        """Signed lines need a key: made with the first of them."""
        if self.path is None or self._reading.key:
            return
        self._key = LedgerKey.of(self._file(".key"), make=True)
        assert self._key is not None
        self._write(Began(self._key.public))

    def _write(self, body: Body) -> Entry:
        assert self.path is not None
        key = self._own_key()
        read = self._reading
        number = body.count if isinstance(body, Gap) else read.count  # the lost lines keep their numbers
        entry, line = sealed(number, body, read.hash, self.site, key.sign)
        try:
            if read.count and self._headed != read.count and self._behind():
                self._write_head()  # a crash came between a line and its head; a second one must not leave two lines
                for stray in self.path.parent.glob(f".{self._file('.head').name}.*"):
                    stray.unlink(missing_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                done = 0
                while done < len(line):
                    done += os.write(handle, line[done:])
                os.fsync(handle)
            finally:
                os.close(handle)
            read.add(entry, line)
            self._write_head()  # waits for the folder, too: the name of a new file is on disk before anything leaves
            if read.count % EVERY == 0:
                self._write_state()
        except OSError as e:
            raise LedgerError(
                f"ledger {self.path}: the charge could not be written ({e.strerror})",
                hint="nothing was released; make the file writable, or free space on the disk",
            ) from e
        read.looked(self.path)
        return entry

    def _behind(self) -> bool:
        """Whether the head on disk is of fewer lines than were read."""
        head = read_head(self._file(".head"), [])
        return head is None or head.count < self._reading.count

    def _own_key(self) -> LedgerKey:
        if self._key is None:
            self._key = LedgerKey.of(self._file(".key"), make=False)
        if self._key is None or (self._reading.key and self._key.public != self._reading.key):
            raise LedgerError(
                f"ledger {self.path}: its key is missing or another one; no release may leave",
                hint="restore the .key file from a backup; `polyclinic ledger recover` tells what can be done without",
            )
        return self._key

    def _write_head(self) -> None:
        from polyclinic.tensors.io import atomic

        value = json.dumps(vars(self._signed()))
        with atomic(self._file(".head")) as temporary:
            temporary.write_text(value)
        if self.anchor is not None:
            with atomic(self.anchor) as temporary:
                temporary.write_text(value)
        if self.syslog:
            import syslog

            syslog.syslog(f"polyclinic book {self.site}: {self._reading.count} lines, head {self._reading.hash}")
        self._headed = self._reading.count

    def _signed(self, *, light: bool = False) -> SignedHead:
        read = self._reading
        if self.path is None or not read.key:
            return SignedHead(read.count, read.hash)
        key = self._own_key()
        seal = "" if light else key.seal(read.tally.summary())
        bare = SignedHead(read.count, read.hash, self.site, read.book, key.public, seal)
        return replace(bare, signature=key.sign(bare.signed_words()).hex())

    def _write_state(self) -> None:
        from polyclinic.tensors.io import atomic

        with atomic(self._file(".state")) as temporary:
            temporary.write_bytes(self._reading.snapshot(self._own_key()))

    def _file(self, suffix: str) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + suffix)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time: threads of this process, then processes."""
        with self._mutex:
            if self.path is None:
                yield
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = self._lock()
            try:
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = 0
                os.close(handle)

    def _lock(self) -> int:
        """A handle that holds the lock file which is there: one that was removed meanwhile keeps nobody out."""
        import fcntl

        while True:
            handle = os.open(self._file(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if os.fstat(handle).st_ino == self._file(".lock").stat().st_ino:
                    return handle
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def repair(self) -> None:
        """After a damaged book was cut to the lines that hold: give it a head again."""
        with self._locked():
            self._reading = LedgerReader(START)
            if self.path is not None and self.path.exists():
                self._reading.all(self.path)
                self._write_head()
                self._reading.looked(self.path)

    # ---- reading

    def _refresh(self) -> None:
        """Read on from the last line that was seen; refuse a book that does not hold together."""
        assert self.path is not None
        read = self._reading
        if not read.count:
            started = LedgerReader.from_snapshot(self.path, self._file(".state"))
            if started is not None:
                read = self._reading = started
        elif read.unchanged(self.path):
            return
        first = not read.looked_at
        faults, torn = read.on(self.path, self._file(".head"))
        if not faults and first and self.anchor is not None and self.anchor.exists():
            faults = self._against(read_head(self.anchor, faults), f"the anchor {self.anchor}")
        if faults:
            self._reading = LedgerReader(START)  # nothing of it is believed
            raise LedgerError(
                f"ledger {self.path} does not hold together; no release may leave",
                faults=faults,
                hint="restore the file from a backup; `polyclinic ledger verify` shows where it was changed, "
                "`polyclinic ledger recover` what can be done without one",
            )
        if torn:
            # The process died while it wrote: that charge was never complete, so its release never left.
            os.truncate(self.path, read.offset)
            self._begin()
            self._write(Note(f"a line of {torn} bytes was cut by a crash before its release; removed"))
        read.looked(self.path)

    def against(self, head: SignedHead, name: str) -> list[str]:
        """What speaks against this book, given a head of this site's that ``name`` kept; empty if it is one of this book.

        Parameters
        ----------
        head
            Signed by a key that this site vouched for (``witness.Known``).
        name
            Who kept it, for the words.
        """
        with self._opened():
            return self._against(head, name)

    def _against(self, head: SignedHead | None, name: str) -> list[str]:
        if head is None:
            return [f"{name} is not readable"]
        if self._reading.tally.owned_up(head.book, head.count, head.hash):
            return []
        if head.key and self._reading.key and head.key != self._reading.key:
            return [f"{name} knows another book of this site, of {head.count} lines: it was lost with its key"]
        told = f"line {head.count} is not the one that {name} names: the book was put back or rewritten"
        if head.count > self._reading.count:
            return [f"{self._reading.count} line(s), and {name} knows of {head.count}: the book was cut or put back"]
        if not head.count or head.hash == self._reading.hash:
            return []
        known = self._reading.hashes.get(head.count)
        if known is None:  # before the snapshot: look it up
            whole = LedgerReader(START, trusted=self._reading.count)
            assert self.path is not None
            whole.all(self.path)
            known = whole.hashes.get(head.count)
        return [] if known == head.hash else [told]

    def verify(self, *, anchor: SignedHead | None = None) -> tuple[str, ...]:
        """Every place where the file was edited, cut, reordered or put back; empty if it is whole.

        Every line is read and every signature checked.

        Parameters
        ----------
        anchor
            A head exported earlier and kept elsewhere.
        """
        if self.path is None:
            return ()
        with self._locked():
            if not self.path.exists() and not self._file(".head").exists():
                return (f"{self.path}: no such ledger",)
            whole = LedgerReader(START)
            faults, torn = whole.on(self.path, self._file(".head"))
        if torn and not faults:  # beside others it is told already
            faults.append(f"the last line is not complete ({torn} bytes, left by a crash before its release)")
        kept = [] if anchor is None else [(anchor, "the head that was exported")]
        if self.anchor is not None and self.anchor.exists():
            told: list[str] = []
            found = read_head(self.anchor, told)
            faults += told
            kept += [] if found is None else [(found, f"the anchor {self.anchor}")]
        for head, name in kept:
            lost = whole.tally.owned_up(head.book, head.count, head.hash)
            if head.count and not lost and whole.hashes.get(head.count) != head.hash:
                faults.append(
                    f"line {head.count} is not the one that {name} names: the ledger was put back or rewritten"
                )
        return tuple(faults)

    @property
    def head(self) -> SignedHead:
        """The end of the book, signed: for witnesses."""
        with self._opened():
            return self._signed()

    @property
    def light_head(self) -> SignedHead:
        """The same without what was spent: it travels with every release."""
        with self._opened():
            return self._signed(light=True)

    @property
    def tally(self) -> Balance:
        """What the lines add up to."""
        if self.path is None or self.path.exists() or self._file(".head").exists():
            with self._opened():
                return self._reading.tally
        return self._reading.tally

    @property
    def count(self) -> int:
        """How many lines there are."""
        _ = self.tally
        return self._reading.count
