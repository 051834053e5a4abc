"""Keep signed lines in a file: written and on disk under one lock, read on from where they were last read.

``.head`` keeps the end of the ledger, signed, so that lines removed from the end are noticed. ``.state`` keeps what the lines
up to some point add up to, signed, so that a ledger of 100,000 lines is opened by reading on from there. ``.key`` is the
ledger's own key.
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
from polyclinic.privacy.ledger.reader import LedgerReader
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead, read_head
from polyclinic.util.atomic_files import locked, write_whole

EVERY: Final = 256  # lines between two snapshots
Unless = Callable[[Balance], Sequence[str]]


class LedgerFile:
    """Signed lines in a file (or in memory), and what they add up to."""

    def __init__(
        self, path: Path | str | None = None, *, site: str = "", anchor: Path | str | None = None, syslog: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.site = site
        self.anchor = None if anchor is None else Path(anchor)
        self.syslog = syslog
        start = START if path is not None else secrets.token_hex(32)  # no two ledgers in memory are one
        self._reading = LedgerReader(start)
        self._entries: list[Entry] = []  # in memory, or as last read from the file
        self._entries_at = 0
        self._key: LedgerKey | None = None
        self._mutex = threading.RLock()
        self._holder = 0
        self._headed = -1  # lines of the head that this process wrote last

    def write(self, body: Body, *, unless: Unless | None = None, what: str = "not written") -> Entry:
        """Write any line, unless there are reasons not to."""
        with self._opened():
            if faults := [] if unless is None else list(unless(self._reading.tally)):
                raise PolicyRefusal(what, faults=faults, hint="ask the owner of the data, or ask for less")
            return self._append(body)

    def _append(self, body: Body) -> Entry:
        if self.path is not None:
            self._begin()
            return self._write(body)
        entry, line = sealed(self._reading.count, body, self._reading.hash, self.site)
        self._reading.add(entry, line)
        self._entries.append(entry)
        return entry

    def _begin(self) -> None:
        """Make a key with the first signed line."""
        if self.path is None or self._reading.key:
            return
        self._key = LedgerKey.of(self.file(".key"), make=True)
        assert self._key is not None
        self._write(Began(self._key.public))

    def _write(self, body: Body) -> Entry:
        assert self.path is not None
        key, read = self._own_key(), self._reading
        number = body.count if isinstance(body, Gap) else read.count  # the lost lines keep their numbers
        entry, line = sealed(number, body, read.hash, self.site, key.sign)
        try:
            if read.count and self._headed != read.count and self._behind():
                self._write_head()  # a crash came between a line and its head; a second one must not leave two lines
                for stray in self.path.parent.glob(f".{self.file('.head').name}.*"):
                    stray.unlink(missing_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = 0
                while written < len(line):
                    written += os.write(handle, line[written:])
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
        head = read_head(self.file(".head"), [])
        return head is None or head.count < self._reading.count

    def _own_key(self) -> LedgerKey:
        self._key = self._key or LedgerKey.of(self.file(".key"), make=False)
        if self._key is None or (self._reading.key and self._key.public != self._reading.key):
            raise LedgerError(
                f"ledger {self.path}: its key is missing or another one; no release may leave",
                hint="restore the .key file from a backup; `polyclinic ledger recover` shows what can be done without",
            )
        return self._key

    def _write_head(self) -> None:
        value = json.dumps(vars(self._signed()))
        for file in (self.file(".head"), self.anchor):
            if file is not None:
                write_whole(file, value)
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
        write_whole(self.file(".state"), self._reading.snapshot(self._own_key()))

    def file(self, suffix: str) -> Path:
        """The file beside the ledger with this suffix."""
        assert self.path is not None
        return self.path.with_name(self.path.name + suffix)

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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let in one at a time: threads of this process, then processes."""
        with self._mutex:
            if self.path is None:
                yield
                return
            with locked(self.file(".lock")):
                try:
                    self._holder = threading.get_ident()
                    yield
                finally:
                    self._holder = 0

    def repair(self) -> None:
        """Give a head to a damaged ledger that was cut to the lines that hold."""
        with self._locked():
            self._reading = LedgerReader(START)
            if self.path is not None and self.path.exists():
                self._reading.all(self.path)
                self._write_head()
                self._reading.looked(self.path)

    # ---- reading

    def _refresh(self) -> None:
        """Read on from the last line that was seen; refuse a ledger that does not hold together."""
        assert self.path is not None
        if self._reading.count and self._reading.unchanged(self.path):
            return
        if not self._reading.count:
            self._reading = LedgerReader.from_snapshot(self.path, self.file(".state")) or self._reading
        read = self._reading
        first = not read.looked_at
        faults, tail = read.on(self.path, self.file(".head"))
        if not faults and first and self.anchor is not None and self.anchor.exists():
            faults = self._against(read_head(self.anchor, faults), f"the anchor {self.anchor}")
        if faults:
            self._reading = LedgerReader(START)  # nothing of it is believed
            raise LedgerError(
                f"ledger {self.path} failed its check; releases are blocked",
                faults=faults,
                hint="restore the file from a backup; `polyclinic ledger verify` shows where it was changed, "
                "`polyclinic ledger recover` what can be done without one",
            )
        if tail:
            # The process died while it wrote: that charge was never complete, so its release never left.
            os.truncate(self.path, read.offset)
            self._append(Note(f"a line of {tail} bytes was cut by a crash before its release; removed"))
        read.looked(self.path)

    def against(self, head: SignedHead, name: str) -> list[str]:
        """Return what speaks against this ledger, given a head of this site's that ``name`` kept.

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
        read = self._reading
        if head is None:
            return [f"{name} is not readable"]
        if read.tally.owned_up(head.book, head.count, head.hash):
            return []
        if head.key and read.key and head.key != read.key:
            return [f"{name} knows another book of this site, of {head.count} lines: it was lost with its key"]
        if head.count > read.count:
            return [f"{read.count} line(s), and {name} knows of {head.count}: the book was cut or put back"]
        if read.has(head) or head.hash == read.hash:
            return []
        if head.count not in read.hashes:  # before the snapshot: look it up
            assert self.path is not None
            read = LedgerReader(START, trusted=read.count)
            read.all(self.path)
        return [] if read.has(head) else [_not_here(head, name)]

    def verify(self, *, anchor: SignedHead | None = None) -> tuple[str, ...]:
        """Read every line, check every signature, and return every place where the file was edited, cut or put back.

        Parameters
        ----------
        anchor
            A head exported earlier and kept elsewhere.
        """
        if self.path is None:
            return ()
        with self._locked():
            if not self.path.exists() and not self.file(".head").exists():
                return (f"{self.path}: no such ledger",)
            read = LedgerReader(START)
            faults, tail = read.on(self.path, self.file(".head"))
        if tail and not faults:  # beside other faults it is named already
            faults.append(f"the last line is not complete ({tail} bytes, left by a crash before its release)")
        heads = {"the head that was exported": anchor}
        if self.anchor is not None:
            heads[f"the anchor {self.anchor}"] = read_head(self.anchor, faults)
        faults += [_not_here(head, name) for name, head in heads.items() if head is not None and not read.has(head)]
        return tuple(faults)

    @property
    def head(self) -> SignedHead:
        """The end of the ledger, signed: for witnesses."""
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
        if self.path is None or self.path.exists() or self.file(".head").exists():
            with self._opened():
                return self._reading.tally
        return self._reading.tally

    @property
    def count(self) -> int:
        """How many lines there are."""
        _ = self.tally
        return self._reading.count


def _not_here(head: SignedHead, name: str) -> str:
    return f"line {head.count} is not the one that {name} names: the ledger was put back or rewritten"
