"""The letter by which the coordinator shows every site everybody's key: a few long texts, whatever the number of sites.

Each key carries its owner's signature, so the coordinator can show no other key. A list of maps with a thousand entries would be walked
through by everybody who seals, opens and checks it: a million entries where a thousand sites live in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from polyclinic.aggregation.secure.bitset import from_bits, to_bits
from polyclinic.protocol.wire.sealed import SealedMessage, digest, octets

__all__ = ["KeyBroadcast", "introduction", "read_introduction"]

KEY: Final = 32  # bytes of a key
SIGNATURE: Final = 64  # bytes of its owner's signature


@dataclass(frozen=True)
class KeyBroadcast:
    """Keys by site, each checked against its owner's signature, and the digest of all of them."""

    keys: Mapping[str, bytes]
    id: bytes


def introduction(entries: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, object]:
    """The body from what the sites advertised: ``line`` (key), ``bound`` (a list, mostly empty), ``own`` (signature)."""
    here = [s for s in sites if s in entries]
    return {
        "sites": to_bits(here, sites),
        "keys": b"".join(entries[s]["line"] for s in here),
        "owns": b"".join(entries[s]["own"] for s in here),
        "bound": msgpack.packb([[s, entries[s]["bound"]] for s in here if entries[s]["bound"]]),
    }


def read_introduction(
    body: Mapping[str, Any], envelope: SealedMessage, known: dict[bytes, KeyBroadcast]
) -> KeyBroadcast:
    """Keys of the sites that take part, refused unless each owner signed its own for this sum.

    ``known`` is what others in this process have checked already, of the same letter under the same context; it is kept short.
    """
    bits, keys, owns, raw = (octets(body[k]) for k in ("sites", "keys", "owns", "bound"))
    same = digest([envelope.context, bits, keys, owns, raw])
    if same in known:
        return known[same]
    here = from_bits(bits, envelope.roster.sites)
    if len(keys) != KEY * len(here) or len(owns) != SIGNATURE * len(here):
        raise ValueError("a key and a signature for each site are expected")
    bound = {str(s): [str(x) for x in listed] for s, listed in msgpack.unpackb(raw)}
    found = {}
    for i, s in enumerate(here):
        found[s] = keys[KEY * i : KEY * (i + 1)]
        entry = {"line": found[s], "bound": bound.get(s, [])}
        envelope.verify(s, "keys", entry, owns[SIGNATURE * i : SIGNATURE * (i + 1)])
    made = KeyBroadcast(found, digest([envelope.context, found]))
    known.clear()
    known[same] = made
    return made
