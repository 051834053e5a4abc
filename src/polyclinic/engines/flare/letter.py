"""Asks of the coordinator: signed, addressed to one site, and size-limited; nobody else can ask a site for anything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.engines.flare.order import COORDINATOR, Order
from polyclinic.errors import MessageRefused
from polyclinic.federation import wire
from polyclinic.federation.envelope import Identity, digest

__all__ = ["open_ask", "seal_ask"]


def _digest(order: str, to: str, body: bytes) -> bytes:
    return digest(["polyclinic/ask/2", order, to, hashlib.sha256(body).digest()])


def seal_ask(identity: Identity, order: str, to: str, value: Mapping[str, Any]) -> bytes:
    """Bytes of an ask: 64 of signature, then the wire format. ``order``: the digest of the order that it belongs to."""
    body = wire.encode(value)
    return identity.sign(_digest(order, to, body)) + body


def open_ask(data: bytes, order: Order, me: str) -> dict[str, Any]:
    """The ask, if the coordinator of this order signed it for this site."""
    if len(data) > wire.LIMIT + 64:
        raise MessageRefused(f"an ask of {len(data):,} bytes exceeds the limit of {wire.LIMIT:,}")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(order.keys[COORDINATOR]))
        key.verify(data[:64], _digest(order.digest, me, data[64:]))
    except (InvalidSignature, ValueError, KeyError):
        raise MessageRefused("an ask that the coordinator did not sign for this site and study") from None
    value = wire.decode(data[64:])
    if not isinstance(value, dict) or not isinstance(value.get("what"), str):
        raise MessageRefused("an ask without a subject")
    return value
