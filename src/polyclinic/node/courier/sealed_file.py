"""A sealed file: signed by its sender, readable by its addressee only, and known to be whole.

Layout: ``PCF1`` | length of the file (8 bytes) | a new X25519 key of the sender (32) | nonce and ChaCha20-Poly1305 text. The key
is HKDF of the two X25519 secrets (``envelope.agree``). Inside: a tree (``wire``) with sender, addressee, kind, study, id, data and
the sender's Ed25519 signature over all of it and over the outer key, so that nothing can be cut out and sealed again for
somebody else. A file shorter than it says is half-written and may become whole; one that does not open was changed.

An addressee's X25519 key is known by its *card*: the public key, signed by the identity that everybody pinned before.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.errors import MessageRefused
from polyclinic.node.enrolment.folders import write_key
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Channel, Identity, agree, digest

MARK: Final = b"PCF1"
HEAD: Final = 12 + 32
LIMIT: Final = wire.LIMIT + 16 * 2**20  # bytes of one file
Kind = Literal["order", "ask", "answer", "post", "receipt"]
KINDS: Final = ("order", "ask", "answer", "post", "receipt")
CARD: Final = "polyclinic courier card 1"
SIGNED: Final = "polyclinic courier 1"


class HalfParcel(Exception):
    """The file is shorter than it says: half-written, or cut."""


@dataclass(frozen=True)
class SealedFile:
    """One message.

    Attributes
    ----------
    study
        Digest of the order.
    id
        Ties an answer to its ask.
    """

    sender: str
    to: str
    kind: Kind
    study: str
    id: str
    data: bytes


def own_key(path: Path) -> X25519PrivateKey:
    """The party's own key for files, made when it is first needed; it never leaves."""
    if not path.exists():
        write_key(path, X25519PrivateKey.generate().private_bytes_raw())
    return X25519PrivateKey.from_private_bytes(path.read_bytes())


def card_of(identity: Identity, key: X25519PrivateKey) -> bytes:
    """The public half, signed by the identity that others have pinned."""
    public = key.public_key().public_bytes_raw()
    signature = identity.sign(digest([CARD, identity.name, public]))
    return wire.encode({"card": 1, "name": identity.name, "key": public, "signature": signature})


def read_card(data: bytes, name: str, identity: bytes) -> bytes:
    """The X25519 key on a card, if the pinned identity signed it; :class:`MessageRefused` otherwise."""
    try:
        value = wire.decode(data, limit=4096)
        if value["name"] != name:
            raise ValueError("another name")
        public = bytes(value["key"])
        Ed25519PublicKey.from_public_bytes(identity).verify(bytes(value["signature"]), digest([CARD, name, public]))
    except (InvalidSignature, ValueError, TypeError, KeyError, MessageRefused):
        raise MessageRefused(f"the card of {name!r} is not signed by the key that was pinned") from None
    return public


def seal_parcel(parcel: SealedFile, identity: Identity, to_key: bytes) -> bytes:
    """The bytes of a file."""
    fresh = X25519PrivateKey.generate()
    outer = fresh.public_key().public_bytes_raw()
    value: dict[str, object] = {**vars(parcel)}
    value["signature"] = identity.sign(digest([SIGNED, outer, to_key, *_signed(parcel)]))
    key = agree(fresh, to_key, digest([SIGNED, outer]), "courier", parcel.sender, parcel.to)
    body = Channel(key, parcel.sender, parcel.to).seal(wire.encode(value, limit=LIMIT), "file")
    return MARK + struct.pack("<Q", HEAD + len(body)) + outer + body


def is_half(head: bytes, size: int) -> bool:
    """Whether a file that begins so is not as long as it says: its content need not be read."""
    if len(head) < HEAD:
        return MARK.startswith(head[:4])
    return head[:4] == MARK and size < struct.unpack("<Q", head[4:12])[0] <= LIMIT


def open_parcel(data: bytes, sender: str, me: str, key: X25519PrivateKey, identity: bytes) -> SealedFile:
    """The message in a file.

    Parameters
    ----------
    data
        The file.
    sender, me
        As the file's name has them; both are checked.
    key
        Our own.
    identity
        The sender's pinned verification key.

    Raises
    ------
    Half
        The file is not whole yet.
    MessageRefused
        It was changed, or is not from whom it says.
    """
    if len(data) < HEAD and MARK.startswith(data[:4]):
        raise HalfParcel
    if data[:4] != MARK or len(data) > LIMIT:
        raise MessageRefused("not a file of this courier")
    (length,) = struct.unpack("<Q", data[4:12])
    if len(data) < length <= LIMIT:
        raise HalfParcel
    if len(data) != length:
        raise MessageRefused("its length was changed")
    outer = data[12:HEAD]
    try:
        shared = agree(key, outer, digest([SIGNED, outer]), "courier", sender, me)
        value = wire.decode(Channel(shared, me, sender).open(data[HEAD:], "file"), limit=LIMIT)
        found = SealedFile(*(value[k] for k in ("sender", "to", "kind", "study", "id", "data")))
        own = key.public_key().public_bytes_raw()
        Ed25519PublicKey.from_public_bytes(identity).verify(
            bytes(value["signature"]), digest([SIGNED, outer, own, *_signed(found)])
        )
    except (InvalidSignature, MessageRefused, ValueError, TypeError, KeyError):
        raise MessageRefused("it was changed, or is not from whom it says") from None
    if (found.sender, found.to) != (sender, me) or found.kind not in KINDS or not isinstance(found.data, bytes):
        raise MessageRefused("its name does not fit what is inside")
    return found


def _signed(p: SealedFile) -> list[object]:
    return [p.sender, p.to, p.kind, p.study, p.id, hashlib.sha256(p.data).digest()]


def fresh_id() -> str:
    """A new id."""
    return os.urandom(12).hex()
