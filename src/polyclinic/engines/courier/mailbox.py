"""Inbox and outbox of one party. Whatever the carrier does to files, a message is taken once, whole and authentic, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.engines.courier.parcel import HalfParcel, Parcel, card_of, open_parcel, read_card, seal_parcel
from polyclinic.engines.flare.folders import private
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.federation import wire
from polyclinic.federation.envelope import Identity
from polyclinic.tensors.files import atomic

__all__ = ["Mailbox", "shown"]

NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.([0-9a-f]{32})\.pcf")
CARD: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})\.card")
KEPT: Final = 4096  # names that are remembered
HALF: Final = 7 * 86_400.0  # seconds after which a half-written file is removed


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
    _doubtful: dict[str, tuple[bytes, float]] = field(default_factory=dict)  # cards not believed: as seen, since when

    def __post_init__(self) -> None:
        for place in (self.inbox, self.outbox):
            place.mkdir(parents=True, exist_ok=True)
        private(self.home / "sent")
        self.show_card()

    def show_card(self) -> None:
        """Lay the signed public key out, so that others can seal files for this party."""
        path = self.outbox / f"{self.me}.card"
        if not path.exists():
            with atomic(path) as temporary:
                temporary.write_bytes(card_of(self.identity, self.key))

    def knows(self, name: str) -> bool:
        """Whether files can be sealed for somebody: the card has come."""
        return name in self.cards

    def put(self, parcel: Parcel) -> Path | None:
        """Write one file for somebody; None while the addressee's card has not come."""
        if parcel.to not in self.cards:
            return None
        data = seal_parcel(parcel, self.identity, self.cards[parcel.to])
        name = f"{parcel.to}.{self.me}.{hashlib.sha256(data).hexdigest()[:32]}.pcf"
        with atomic(self.home / "sent" / f"{name}.open") as temporary:  # what its owner can look at
            temporary.write_bytes(parcel.kind.encode() + b"\n" + parcel.study.encode() + b"\n" + parcel.data)
            temporary.chmod(0o600)
        with atomic(self.outbox / name) as temporary:
            temporary.write_bytes(data)
        return self.outbox / name

    def withdraw(self, path: Path | None) -> None:
        """A file need not be carried any more."""
        if path is not None:
            path.unlink(missing_ok=True)

    def take(self) -> list[Parcel]:
        """Everything new in the inbox; files that were taken are removed, changed ones are named in the log and set aside."""
        found: list[Parcel] = []
        for path in sorted(self.inbox.iterdir()):
            card, named = CARD.fullmatch(path.name), NAME.fullmatch(path.name)
            if card is not None:
                self._card(path, card[1])
            if named is None or named[1] != self.me or path.name in self._refused:
                continue
            if path.name in self._seen:  # doubled
                path.unlink(missing_ok=True)
                continue
            try:
                found.append(self._opened(path, named[2], named[3]))
            except HalfParcel:  # it may become whole; its sender sends it again otherwise
                self._clear(path)
                continue
            except FileNotFoundError:
                continue
            except MessageRefused as e:
                self._refused.add(path.name)
                self.log(event="message refused", file=path.name, what=f"{path.name}: {e.what}")
                continue
            self._remember(path.name)
            path.unlink(missing_ok=True)
        return found

    def _opened(self, path: Path, sender: str, mark: str) -> Parcel:
        data = path.read_bytes()
        if sender not in self.pinned:
            raise MessageRefused(f"{sender!r} is not known here")
        found = open_parcel(data, sender, self.me, self.key, self.pinned[sender])
        if hashlib.sha256(data).hexdigest()[:32] != mark:
            raise MessageRefused("its name does not fit what is inside")
        return found

    def _clear(self, path: Path) -> None:
        """A file that stayed half for so long was sent again under another name."""
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > HALF:
                path.unlink()

    def look_for_cards(self) -> None:
        """Read the cards that came; takes nothing."""
        for path in sorted(self.inbox.glob("*.card")):
            if (card := CARD.fullmatch(path.name)) is not None:
                self._card(path, card[1])

    def _card(self, path: Path, name: str) -> None:
        """Read a card. One that cannot be believed may be half-written: it is read again whenever it has changed, and named once it stays."""
        if name in self.cards or name == self.me or name not in self.pinned:
            return
        try:
            data = path.read_bytes()
            self.cards[name] = read_card(data, name, self.pinned[name])
            self._refused.discard(path.name)
        except FileNotFoundError:
            return
        except MessageRefused as e:
            known, since = self._doubtful.get(name, (None, 0.0))
            if known != data[:4096]:
                self._doubtful[name] = data[:4096], time.monotonic()
            elif path.name not in self._refused and time.monotonic() - since >= self.patience:
                self._refused.add(path.name)
                self.log(event="message refused", file=path.name, what=e.what)

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
        ours = [p for p in self.outbox.iterdir() if NAME.fullmatch(p.name)]
        mine = [p for p in self.inbox.iterdir() if (m := NAME.fullmatch(p.name)) and m[1] == self.me]
        return {
            "to_be_carried": len(ours),
            "oldest_seconds": round(max((time.time() - os.stat(p).st_mtime for p in ours), default=0.0), 1),
            "in_the_inbox": len(mine),
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


def _tree(value: Any, where: str, out: dict[str, str]) -> None:
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
