"""Show every site everybody's key: one message of the coordinator, a few long texts whatever the number of sites.

Each key carries its owner's signature, so the coordinator can show no other key. A list of maps with a thousand entries would be walked
through by everybody who seals, opens and checks it: a million entries where a thousand sites live in one process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np

from polyclinic.protocol.wire.sealed import SealedMessage, digest, octets

KEY: Final = 32  # bytes of a key
SIGNATURE: Final = 64  # bytes of its owner's signature


@dataclass(frozen=True)
class KeyBroadcast:
    """Keys by site, each checked against its owner's signature, and the digest of all of them."""

    keys: Mapping[str, bytes]
    id: bytes


def introduction(entries: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, object]:
    """The body from what the sites advertised: ``line`` (key), ``bound`` (a list, mostly empty), ``own`` (signature)."""
    present = [s for s in sites if s in entries]
    return {
        "sites": to_bits(present, sites),
        "keys": b"".join(entries[s]["line"] for s in present),
        "owns": b"".join(entries[s]["own"] for s in present),
        "bound": msgpack.packb([[s, entries[s]["bound"]] for s in present if entries[s]["bound"]]),
    }


def read_introduction(
    body: Mapping[str, Any], envelope: SealedMessage, checked: dict[bytes, KeyBroadcast]
) -> KeyBroadcast:
    """Keys of the sites that take part, refused unless each owner signed its own for this sum.

    ``checked`` is what others in this process have checked already, of the same message under the same context; it is kept short.
    """
    bits, keys, owns, raw = (octets(body[k]) for k in ("sites", "keys", "owns", "bound"))
    mark = digest([envelope.context, bits, keys, owns, raw])
    if mark in checked:
        return checked[mark]
    present = from_bits(bits, envelope.roster.sites)
    if len(keys) != KEY * len(present) or len(owns) != SIGNATURE * len(present):
        raise ValueError("a key and a signature for each site are expected")
    bound = {str(s): [str(x) for x in listed] for s, listed in msgpack.unpackb(raw)}
    key_of = {}
    for i, s in enumerate(present):
        key_of[s] = keys[KEY * i : KEY * (i + 1)]
        entry = {"line": key_of[s], "bound": bound.get(s, [])}
        envelope.verify(s, "keys", entry, owns[SIGNATURE * i : SIGNATURE * (i + 1)])
    broadcast = KeyBroadcast(key_of, digest([envelope.context, key_of]))
    checked.clear()
    checked[mark] = broadcast
    return broadcast


def to_bits(names: Collection[str], order: Sequence[str]) -> bytes:
    """Some of the sites that everybody knows, as bits.

    >>> from_bits(to_bits(["a", "c"], "abc"), "abc")
    ['a', 'c']
    """
    chosen_names = set(names)
    return np.packbits([s in chosen_names for s in order]).tobytes()


def from_bits(bits: bytes, order: Sequence[str]) -> list[str]:
    """Inverse of :func:`to_bits`; in the order of ``order``."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8))
    if len(bits) != (len(order) + 7) // 8 or flags[len(order) :].any():
        raise ValueError("a list of sites has the wrong length")
    return list(order) if flags[: len(order)].all() else [s for s, x in zip(order, flags) if x]
