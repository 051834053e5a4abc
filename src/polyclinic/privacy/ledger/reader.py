"""Reading a book: line after line, from the start or from where it was last read; every fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.errors import LedgerError
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import START, Began, Entry, Gap, opened, to_sign
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead, verifier

__all__ = ["LedgerReader", "read_head", "verify_lines"]


class LedgerReader:
    """How far a book was read, and what its lines add up to.

    Parameters
    ----------
    start
        What stands for the hash before the first line.
    trusted
        So many lines were read before: their signatures are not checked again.
    """

    def __init__(self, start: str = START, *, trusted: int = 0) -> None:
        self.hash = start
        self.count = self.offset = 0
        self.key = ""  # the book's public key, once a line of version 2 was read
        self.book = ""
        self.tally = Balance()
        self.hashes: dict[int, str] = {}  # how many lines -> hash of the last of them, for the lines read in this go
        self.looked_at: tuple[int, int] | None = None
        self._last = b""
        self._before = start
        self._trusted = trusted
        self._verifier: Any = None

    def add(self, entry: Entry, line: bytes) -> None:
        """Take in a line that holds."""
        if isinstance(entry.body, Gap):
            body = entry.body
            kept = [*body.heads, *([body.hash] if body.hash else [])]
            self.tally.gaps.append([body.book or self.book, self.count, body.count, kept])
        self._before, self.hash = self.hash, entry.hash
        self.count = entry.number + 1
        self.offset += len(line)
        self._last = line
        if isinstance(entry.body, Began):
            self.key, self.book = entry.body.key, entry.hash
            self._verifier = verifier(self.key)
        if isinstance(entry.body, Gap):
            self.hashes[entry.body.count] = entry.body.hash  # the end of the lost lines, told by who kept it
        self.tally.add(entry.body)
        self.hashes[self.count] = entry.hash

    def looked(self, path: Path) -> None:
        """Remember the file as it is now."""
        stat = path.stat() if path.exists() else None
        self.looked_at = (0, 0) if stat is None else (stat.st_size, stat.st_mtime_ns)

    def unchanged(self, path: Path) -> bool:
        """Whether the file is as it was when last looked at."""
        stat = path.stat() if path.exists() else None
        return stat is not None and self.looked_at == (stat.st_size, stat.st_mtime_ns)

    # ---- lines

    def _line(self, line: bytes, n: int) -> tuple[Entry | None, list[str]]:
        try:
            entry, fits = opened(line)
        except (ValueError, KeyError, TypeError, AttributeError, LedgerError) as e:
            return None, [f"line {n + 1}: not an entry of a ledger ({(str(e).splitlines() or [''])[0]})"]
        faults = [] if fits else [f"line {n + 1}: was edited (its hash does not fit)"]
        if entry.number != n and not (isinstance(entry.body, Gap) and entry.number == entry.body.count > n):
            faults.append(f"line {n + 1}: is entry {entry.number}; lines were removed or reordered")
        elif self.hash and entry.previous != self.hash:
            faults.append(f"line {n + 1}: does not follow the line before it")
        if n >= self._trusted:
            faults += self._signature(entry, n)
        return entry, faults

    def _signature(self, entry: Entry, n: int) -> list[str]:
        from cryptography.exceptions import InvalidSignature

        if entry.v == 1:
            return [f"line {n + 1}: is not signed, and the book is"] if self.key else []
        if isinstance(entry.body, Began) and self.key and entry.body.key != self.key:
            return [f"line {n + 1}: begins with another key; the book was rewritten"]
        try:
            key = verifier(entry.body.key) if isinstance(entry.body, Began) else self._verifier
            if key is None:
                return [f"line {n + 1}: no line before it has the book's key"]
            key.verify(bytes.fromhex(entry.signature), to_sign(entry.hash))
        except (InvalidSignature, ValueError, TypeError):
            return [f"line {n + 1}: was not signed by the book's key"]
        return []

    def _lines(self, data: bytes) -> tuple[list[Entry], list[str], int]:
        lines = data.split(b"\n")
        tail = lines.pop()
        entries, faults = [], []
        for line in lines:
            n = self.count
            entry, wrong = self._line(line, n)
            faults += wrong
            if entry is None:
                self.count, self.hash, self.offset = n + 1, "", self.offset + len(line) + 1
                continue
            try:
                self.add(entry, line + b"\n")
            except (ValueError, TypeError, KeyError) as e:
                faults.append(f"line {n + 1}: not an entry of a ledger ({e})")
                self.count = n + 1
            entries.append(entry)
        return entries, faults, len(tail)

    def take(self, line: bytes) -> list[str]:
        """Take in one line if it holds; else what is wrong with it."""
        entry, faults = self._line(line.removesuffix(b"\n"), self.count)
        if entry is not None and not faults:
            self.add(entry, line)
        return faults

    def on(self, path: Path, head_path: Path) -> tuple[list[str], int]:
        """Read on to the end. Faults, and how many bytes of an unfinished last line were left by a crash."""
        size = path.stat().st_size if path.exists() else 0
        faults: list[str] = []
        torn = 0
        if size < self.offset:
            faults.append(f"{path.name} is shorter than when it was last read: lines were removed from the end")
        elif size:
            with open(path, "rb") as f:
                f.seek(self.offset - len(self._last))
                data = f.read()
            if data[: len(self._last)] != self._last:
                faults.append(f"line {self.count}: is not the line that was last read")
            else:
                _, faults, torn = self._lines(data[len(self._last) :])
        head = read_head(head_path, faults)
        if head is None and self.count > 1 and not faults:
            faults.append(f"{head_path.name} is missing")
        if head is not None and not faults:
            faults += self._head_faults(head)
        if torn and faults:
            faults.append("the last line is not complete")
        return faults, torn

    def _head_faults(self, head: SignedHead) -> list[str]:
        if head.count > self.count:
            return [f"{head.count - self.count} line(s) were removed from the end"]
        if self.count > head.count + 1:
            return [f"{self.count - head.count} lines are newer than the head file (a crash leaves one)"]
        if head.count and (self.hash if head.count == self.count else self._before) != head.hash:
            return [f"line {head.count}: is not the line the head file names"]
        if head.signature and self.key and (head.key != self.key or not head.valid):
            return ["the head file was not signed by the book's key"]
        return []

    def all(self, path: Path) -> tuple[list[Entry], list[str]]:
        """Every line of a file, and what is wrong with them."""
        entries, faults, _ = self._lines(path.read_bytes() if path.exists() else b"")
        return entries, faults

    # ---- snapshot

    def snapshot(self, key: LedgerKey) -> bytes:
        """What was read so far, signed."""
        value = {
            "count": self.count,
            "hash": self.hash,
            "before": self._before,
            "offset": self.offset,
            "last": self._last.decode(),
            "key": self.key,
            "book": self.book,
            "tally": self.tally.state(),
        }
        words = json.dumps(value)
        return json.dumps(
            {"signature": key.sign(b"polyclinic/state/2" + words.encode()).hex(), "state": words}
        ).encode()

    @classmethod
    def from_snapshot(cls, path: Path, file: Path) -> LedgerReader | None:
        """A reading that goes on from a snapshot; None if there is none that this book's key signed and the file bears out."""
        from cryptography.exceptions import InvalidSignature

        if not file.exists() or not path.exists():
            return None
        try:
            value = json.loads(file.read_text())
            words = value["state"]
            state = json.loads(words)
            own = LedgerKey.of(path.with_name(path.name + ".key"), make=False)
            if own is None or own.public != state["key"]:  # a snapshot is a shortcut for the book's owner only
                return None
            verifier(state["key"]).verify(bytes.fromhex(value["signature"]), b"polyclinic/state/2" + words.encode())
            made = cls()
            made.hash, made._before, made.key, made.book = state["hash"], state["before"], state["key"], state["book"]
            made.count, made.offset, made._last = int(state["count"]), int(state["offset"]), state["last"].encode()
            made.tally = Balance.restore(state["tally"])
            made._verifier = verifier(made.key)
        except (InvalidSignature, ValueError, KeyError, TypeError, LedgerError):
            return None
        return made if path.stat().st_size >= made.offset else None


def read_head(path: Path, faults: list[str]) -> SignedHead | None:
    """The head in a file; what is wrong with it goes to ``faults``."""
    if not path.exists():
        return None
    try:
        return SignedHead.from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError):
        faults.append(f"{path.name} is not readable")
        return None


def verify_lines(lines: list[str], key: str | None = None) -> list[str]:
    """Check an exported audit trail offline; ``key``: the book's public key as it was given to you.

    Parameters
    ----------
    lines
        The lines of ``ledger export``.
    key
        None: the key that the lines themselves carry, which shows only that they belong together.
    """
    read = LedgerReader()
    _, faults, _ = read._lines("".join(f"{x}\n" for x in lines).encode())
    if key is not None and read.key != key:
        faults.append("the lines are signed by another key than the one that was given")
    if not read.key:
        faults.append("no line is signed: they were written by version 1")
    return faults
