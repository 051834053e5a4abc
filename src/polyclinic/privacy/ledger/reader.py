"""Read a ledger line after line, from the start or from where it was last read, and name every fault."""

from __future__ import annotations

import json
from pathlib import Path

from polyclinic.errors import LedgerError
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import START, Began, Entry, Gap, opened, to_sign
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead, read_head, signed_by


class LedgerReader:
    """How far a ledger was read, and what its lines add up to.

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
        self.key = ""  # the ledger's public key, once a line of version 2 was read
        self.book = ""
        self.tally = Balance()
        self.hashes: dict[int, str] = {}  # how many lines -> hash of the last of them, for the lines read in this go
        self.looked_at: tuple[int, int] | None = None
        self._last = b""
        self._before = start
        self._trusted = trusted

    def add(self, entry: Entry, line: bytes) -> None:
        """Take in a line that holds."""
        if isinstance(entry.body, Gap):
            body = entry.body
            heads = [h for h in (*body.heads, body.hash) if h]
            self.tally.gaps.append([body.book or self.book, self.count, body.count, heads])
            self.hashes[body.count] = body.hash  # the end of the lost lines, as the party that kept it says
        self._before, self.hash = self.hash, entry.hash
        self.count = entry.number + 1
        self.offset += len(line)
        self._last = line
        if isinstance(entry.body, Began):
            self.key, self.book = entry.body.key, entry.hash
        self.tally.add(entry.body, entry.time)
        self.hashes[self.count] = entry.hash

    def looked(self, path: Path) -> None:
        """Remember the file as it is now."""
        self.looked_at = _size_and_time(path)

    def unchanged(self, path: Path) -> bool:
        """Whether the file is as it was when last looked at."""
        return path.exists() and self.looked_at == _size_and_time(path)

    def has(self, head: SignedHead) -> bool:
        """Whether a head is of the lines that were read in this go, or one that a ``gap`` owns up to."""
        owned_up = self.tally.owned_up(head.book, head.count, head.hash)
        return owned_up or not head.count or self.hashes.get(head.count) == head.hash

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
        begins = isinstance(entry.body, Began)
        key = entry.body.key if isinstance(entry.body, Began) else self.key
        if begins and self.key and key != self.key:
            return [f"line {n + 1}: begins with another key; the book was rewritten"]
        if not begins and not key:
            return [f"line {n + 1}: no line before it has the book's key"]
        try:
            signed = signed_by(key, entry.signature, to_sign(entry.hash))
        except (ValueError, TypeError):  # its hash is no hash
            signed = False
        return [] if signed else [f"line {n + 1}: was not signed by the book's key"]

    def _lines(self, data: bytes) -> tuple[list[Entry], list[str], int]:
        lines = data.split(b"\n")
        tail = lines.pop()
        entries, faults = [], []
        for line in lines:
            n = self.count
            entry, line_faults = self._line(line, n)
            faults += line_faults
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
        """Read on to the end. Return faults, and how many bytes of an unfinished last line a crash left."""
        faults, tail = self._new_lines(path)
        head = read_head(head_path, faults)
        if not faults and head is not None:
            faults += self._head_faults(head)
        elif not faults and self.count > 1:
            faults.append(f"{head_path.name} is missing")
        if tail and faults:
            faults.append("the last line is not complete")
        return faults, tail

    def _new_lines(self, path: Path) -> tuple[list[str], int]:
        size = path.stat().st_size if path.exists() else 0
        if size < self.offset:
            return [f"{path.name} is shorter than when it was last read: lines were removed from the end"], 0
        if not size:
            return [], 0
        with open(path, "rb") as f:
            f.seek(self.offset - len(self._last))
            data = f.read()
        if data[: len(self._last)] != self._last:
            return [f"line {self.count}: is not the line that was last read"], 0
        return self._lines(data[len(self._last) :])[1:]

    def _head_faults(self, head: SignedHead) -> list[str]:
        if head.count > self.count:
            return [f"{head.count - self.count} line(s) were removed from the end"]
        if self.count > head.count + 1:
            return [f"{self.count - head.count} lines are newer than the head file (a crash leaves one)"]
        if head.count and (self.hash if head.count == self.count else self._before) != head.hash:
            return [f"line {head.count}: is not the line the head file names"]
        if self.key and (head.key != self.key or not head.valid):
            return ["the head file was not signed by the book's key"]
        return []

    def all(self, path: Path) -> tuple[list[Entry], list[str]]:
        """Every line of a file, and what is wrong with them."""
        return self._lines(path.read_bytes() if path.exists() else b"")[:2]

    # ---- snapshot

    def snapshot(self, key: LedgerKey) -> bytes:
        """What was read so far, signed."""
        value = {name: getattr(self, name) for name in ("count", "hash", "offset", "key", "book")}
        value |= {"before": self._before, "last": self._last.decode(), "tally": self.tally.state()}
        words = json.dumps(value)
        signature = key.sign(b"polyclinic/state/2" + words.encode()).hex()
        return json.dumps({"signature": signature, "state": words}).encode()

    @classmethod
    def from_snapshot(cls, path: Path, file: Path) -> LedgerReader | None:
        """Go on from a snapshot; None if there is none that this ledger's key signed and that the file bears out."""
        if not file.exists() or not path.exists():
            return None
        try:
            value = json.loads(file.read_text())
            state = json.loads(value["state"])
            key = LedgerKey.of(path.with_name(path.name + ".key"), make=False)
            words = b"polyclinic/state/2" + value["state"].encode()
            # a snapshot is a shortcut for the ledger's owner only
            if key is None or key.public != state["key"] or not signed_by(key.public, value["signature"], words):
                return None
            reader = cls(state["hash"])
            reader._before, reader.key, reader.book = state["before"], state["key"], state["book"]
            reader.count, reader.offset = int(state["count"]), int(state["offset"])
            reader._last, reader.tally = state["last"].encode(), Balance.restore(state["tally"])
        except (ValueError, KeyError, TypeError, LedgerError):
            return None
        return reader if path.stat().st_size >= reader.offset else None


def _size_and_time(path: Path) -> tuple[int, int]:
    stat = path.stat() if path.exists() else None
    return (0, 0) if stat is None else (stat.st_size, stat.st_mtime_ns)


def verify_lines(lines: list[str], key: str | None = None) -> list[str]:
    """Check an exported audit trail offline; ``key``: the ledger's public key as it was given to you.

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
        faults.append("no line has the book's key")
    return faults
