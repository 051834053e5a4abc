"""Letters from one site to another, in one signed batch: whose they are is known before any of them is kept or read.

A letter carries its own signature, but that is checked only when its sum is open. What waits until then is limited for each
neighbour (``node.site.inbox``), and a limit by a name that anybody can write would be filled in another's name::

    bytes    length of the sender's name (1), name, Ed25519 signature (64), body in the wire format: the letters
    signed   H("polyclinic/batch/1", order, sender, addressee, SHA-256 of the body)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.errors import MessageRefused
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import digest

__all__ = ["open_batch", "seal_batch"]

SIGNATURE: Final = 64


def _signed(order: str, sender: str, to: str, body: bytes | memoryview) -> bytes:
    return digest(["polyclinic/batch/1", order, sender, to, hashlib.sha256(body).digest()])


def seal_batch(sign: Callable[[bytes], bytes], order: str, sender: str, to: str, letters: Sequence[bytes]) -> bytes:
    """Letters to one site, signed by the sender for it and for this order."""
    body, name = wire.encode(list(letters)), sender.encode()
    return b"".join([bytes([len(name)]), name, sign(_signed(order, sender, to, body)), body])


def open_batch(data: bytes, keys: Mapping[str, str], order: str, me: str) -> tuple[str, memoryview]:
    """Who signed a batch for this site and order, and its body, not read yet; refused where nobody of the order did.

    Parameters
    ----------
    keys
        Verification keys of the order's parties, hexadecimal.
    """
    if len(data) > wire.LIMIT + 512:
        raise MessageRefused(f"letters of {len(data):,} bytes exceed the limit of {wire.LIMIT:,}")
    end = 1 + (data[0] if data else 0)
    body = memoryview(data)[end + SIGNATURE :]
    try:
        sender = data[1:end].decode()
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys[sender]))
        key.verify(data[end : end + SIGNATURE], _signed(order, sender, me, body))
    except (InvalidSignature, KeyError, ValueError):
        raise MessageRefused("letters that no site of this study signed for this one") from None
    return sender, body
