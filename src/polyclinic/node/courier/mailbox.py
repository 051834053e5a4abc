"""Inbox and outbox of one party. Whatever the carrier does to files, a message is taken once, whole and authentic, or not at all."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.node.courier.exchange_folder import ExchangeFolder, HalfFile
from polyclinic.node.courier.sealed_file import (
    LIMIT,
    HalfParcel,
    SealedFile,
    card_of,
    is_half,
    open_parcel,
    read_card,
    seal_parcel,
)
from polyclinic.node.enrolment.folders import private
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.util.atomic_files import write_whole

NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.([0-9a-f]{32})\.pcf")
CARD: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.card")
KEPT: Final = 4096  # names that are remembered
HALF: Final = 7 * 86_400.0  # seconds after which a half-written file is removed
LONGEST_CARD: Final = 4096  # bytes
REFUSED: Final = 1024  # names that are told in the log and left lying; further ones are removed
EACH, BYTES = 64, LIMIT  # files, and bytes, that are taken from one sender at a time; the others wait
LOOKED: Final = 4096  # files of one sender that are looked at at a time
SENT, KEEP = 4096, 2 * 2**30  # the owner's copies of what was sent: how many, and how many bytes


@dataclass
class Mailbox:
    """Files of one party.

    Parameters
    ----------
    me, identity, key
        Who, with which signing key and which key for files.
    inbox, outbox
        Folders that somebody synchronises; nothing readable is ever in them.
    home
        The party's own folder: copies of what was sent, for its owner's eyes.
    pinned
        Others' verification keys, as they were pinned.
    log
        Where events go.
    patience
        Seconds that a card which cannot be believed may take to become whole, before it is named in the log.
    """

    me: str
    identity: Identity
    key: X25519PrivateKey
    inbox: Path
    outbox: Path
    home: Path
    pinned: Mapping[str, bytes]
    log: Callable[..., None] = lambda **event: None
    patience: float = 60.0
    cards: dict[str, bytes] = field(default_factory=dict)
    _seen: dict[str, None] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _trouble: dict[str, str] = field(default_factory=dict)  # folder -> what was last wrong with it
    _copies: int = 0  # since the copies were last counted
    _doubtful: dict[str, tuple[bytes, float]] = field(default_factory=dict)  # cards not believed: as seen, since when

    def __post_init__(self) -> None:
        for place in (self.inbox, self.outbox):
            place.mkdir(parents=True, exist_ok=True)
        self._in, self._out = ExchangeFolder(self.inbox), ExchangeFolder(self.outbox)
        private(self.home / "sent")
        self.show_card()

    def show_card(self) -> None:
        """Lay the signed public key out, so that others can seal files for this party."""
        card = card_of(self.identity, self.key)
        if not self._out.holds(f"{self.me}.card", card):
            self._lay(f"{self.me}.card", card)

    def _lay(self, name: str, data: bytes) -> Path | None:
        """Lay a file out; None, and a line in the log, where the folder does not take it: it is tried again later."""
        try:
            path = self._out.lay(name, data)
        except OSError as e:
            self._fault(self.outbox, e.strerror or type(e).__name__)
            return None
        self._trouble.pop(str(self.outbox), None)
        return path

    def _fault(self, folder: Path, what: str) -> None:
        if self._trouble.get(str(folder)) != what:  # once, not at every look
            self._trouble[str(folder)] = what
            self.log(event="failed", error=f"{folder}: {what}")

    def knows(self, name: str) -> bool:
        """Whether files can be sealed for somebody: the card has come."""
        return name in self.cards

    def put(self, parcel: SealedFile) -> Path | None:
        """Write one file for somebody; None while the addressee's card has not come, or the outbox takes no file."""
        if parcel.to not in self.cards:
            return None
        data = seal_parcel(parcel, self.identity, self.cards[parcel.to])
        name = f"{parcel.to}.{self.me}.{hashlib.sha256(data).hexdigest()[:32]}.pcf"
        text = parcel.kind.encode() + b"\n" + parcel.study.encode() + b"\n" + parcel.data
        write_whole(self.home / "sent" / f"{name}.open", text)  # what its owner can look at
        self._copies += 1
        if self._copies >= EACH:
            self._copies = 0
            self._trim()
        return self._lay(name, data)

    def _trim(self) -> None:
        """The owner's copies do not fill the disk, however often somebody asks: the oldest go."""
        found = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in (self.home / "sent").glob("*.open"))
        total = sum(size for _, size, _ in found)
        for n, (_, size, path) in enumerate(found):
            if len(found) - n <= SENT and total <= KEEP:
                break
            total -= size
            path.unlink(missing_ok=True)

    def withdraw(self, path: Path | None) -> None:
        """A file need not be carried any more."""
        if path is not None:
            self._out.remove(path.name)

    def take(self) -> list[SealedFile]:
        """Everything new in the inbox; files that were taken are removed, changed ones are named in the log and set aside.

        Of each sender so many files, and so many bytes, at a time: whoever floods the folder delays nobody else.
        """
        self.look_for_cards()
        found: list[SealedFile] = []
        for sender, names in self._lying().items():
            count, size = 0, 0
            for name in names[:LOOKED]:
                if count >= EACH or size > BYTES:
                    break
                if (parcel := self._taken(name, sender)) is not None:
                    count, size = count + 1, size + len(parcel.data)
                    found.append(parcel)
        return found

    def _lying(self) -> dict[str, list[str]]:
        """Files for this party by the sender that their names say, in the order of their names."""
        found: dict[str, list[str]] = {}
        try:
            for m in self._in.names(NAME):
                if m[1] == self.me and m[0] not in self._refused:
                    found.setdefault(m[2] if m[2] in self.pinned else "", []).append(m[0])
            self._trouble.pop(str(self.inbox), None)
        except OSError as e:  # the folder is away; it may come back
            self._fault(self.inbox, e.strerror or type(e).__name__)
        return {s: sorted(names) for s, names in sorted(found.items())}

    def _taken(self, name: str, sender: str) -> SealedFile | None:
        """One file; None if there is nothing in it for us, or not yet."""
        if name in self._seen:  # doubled
            self._in.remove(name)
            return None
        try:
            found = self._opened(name, sender)
        except (HalfParcel, HalfFile):  # it may become whole; its sender sends it again otherwise
            if self._in.age(name, time.time()) > HALF:
                self._in.remove(name)
            return None
        except FileNotFoundError:
            return None
        except MessageRefused as e:
            self._refuse(name, e.what)
            return None
        self._remember(name)
        self._in.remove(name)
        return found

    def _refuse(self, name: str, what: str) -> None:
        """Name a file in the log and leave it lying; where very many lie there, remove it."""
        if len(self._refused) >= REFUSED:
            self._in.remove(name)
            self._fault(self.inbox, f"more than {REFUSED:,} files were refused; further ones are removed")
            return
        self._refused.add(name)
        self.log(event="message refused", file=name, what=f"{name}: {what}")

    def _opened(self, name: str, sender: str) -> SealedFile:
        if sender not in self.pinned:
            raise MessageRefused("its sender is not known here")
        data = self._in.read(name, LIMIT, is_half)
        found = open_parcel(data, sender, self.me, self.key, self.pinned[sender])
        if hashlib.sha256(data).hexdigest()[:32] != name.split(".")[2]:
            raise MessageRefused("its name does not fit what is inside")
        return found

    def look_for_cards(self) -> None:
        """Read the cards that came; takes nothing."""
        for name in self.pinned:
            if name not in self.cards and name != self.me:
                self._card(f"{name}.card", name)

    def _card(self, file: str, name: str) -> None:
        """Read a card. One that cannot be believed may be half-written: it is read again whenever it has changed, and named once it stays."""
        data = b""
        try:
            data = self._in.read(file, LONGEST_CARD)
            self.cards[name] = read_card(data, name, self.pinned[name])
            self._refused.discard(file)
        except FileNotFoundError:
            return
        except MessageRefused as e:
            known, since = self._doubtful.get(name, (None, 0.0))
            if known != data:
                self._doubtful[name] = data, time.monotonic()
            elif file not in self._refused and time.monotonic() - since >= self.patience:
                self._refused.add(file)
                self.log(event="message refused", file=file, what=e.what)

    def _remember(self, name: str) -> None:
        self._seen[name] = None
        while len(self._seen) > KEPT:
            self._seen.pop(next(iter(self._seen)))

    def forget_sent(self, older: float) -> int:
        """Remove the owner's copies of what was sent longer ago than ``older`` seconds."""
        gone = 0
        for p in (self.home / "sent").glob("*.open"):
            if time.time() - p.stat().st_mtime > older:
                p.unlink(missing_ok=True)
                gone += 1
        return gone

    def waiting(self) -> dict[str, object]:
        """What lies in the two folders."""
        ours, mine = [], 0
        try:
            ours = [m[0] for m in self._out.names(NAME)]
            mine = sum(m[1] == self.me for m in self._in.names(NAME))
        except OSError as e:
            self._fault(self.outbox, e.strerror or type(e).__name__)
        now = time.time()
        return {
            "to_be_carried": len(ours),
            "oldest_seconds": round(max((self._out.age(n, now) for n in ours), default=0.0), 1),
            "in_the_inbox": mine,
            "refused": sorted(self._refused),
            "cards": sorted(self.cards),
        }


def shown(home: Path, name: str) -> dict[str, Any]:
    """The content of a file that was sent, from the owner's own copy: every value by its name, arrays by shape and kind."""
    fits = sorted(p for p in (home / "sent").glob("*.open") if p.name.startswith(name.removesuffix(".open")))
    if len(fits) != 1:
        raise ConfigError(
            f"{len(fits)} files that were sent begin with {name!r}",
            faults=[p.name.removesuffix(".open") for p in (fits or sorted((home / "sent").glob("*.open")))[-8:]],
            hint="give the name of one, as it is in the outbox",
        )
    kind, study, data = fits[0].read_bytes().split(b"\n", 2)
    content: dict[str, str] = {}
    _tree(wire.decode(data), "", content)
    named = fits[0].name.removesuffix(".open")
    return {"file": named, "kind": kind.decode(), "study": study.decode(), "bytes": len(data), "content": content}


def _tree(value: object, where: str, out: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        for k, v in value.items():
            _tree(v, f"{where}.{k}" if where else str(k), out)
    elif (
        isinstance(value, list | tuple)
        and len(value) <= 64
        and any(isinstance(v, Mapping | list | tuple) for v in value)
    ):
        for i, v in enumerate(value):
            _tree(v, f"{where}[{i}]", out)
    elif isinstance(value, np.ndarray):
        first = ", ".join(f"{x:.6g}" for x in value.ravel()[:4].tolist())
        out[where] = (
            f"array {'x'.join(map(str, value.shape))} of {value.dtype} ({first}{', ...' if value.size > 4 else ''})"
        )
    elif isinstance(value, bytes):
        out[where] = f"{len(value)} bytes {value[:8].hex()}{'...' if len(value) > 8 else ''}"
    else:
        out[where] = str(value)[:200]
