"""The dictionary attack on vocabulary alignment: whoever holds a transcript tries every public code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyclinic.alignment.ecdh_ring import ring
from polyclinic.auditing.attacks import Attack
from polyclinic.protocol.interfaces import Message, seeds


def scan(messages: Sequence[Message], dictionary: Sequence[str], mode: str) -> set[str]:
    """Codes that can be read from a transcript: as text, or as any unsalted hash or unmasked point of one."""
    import hashlib

    from polyclinic.alignment.ecdh_ring import _hash
    from polyclinic.protocol.wire import encoding as wire

    stream = b"".join(wire.encode_message(m) for m in messages)
    found = set()
    for code in dictionary:
        text = code.encode()
        marks = [_hash(mode, code), *(hashlib.new(h, text).digest() for h in ("md5", "sha1", "sha256", "sha512"))]
        if len(text) >= 4:
            marks.append(text)
        if any(mark in stream for mark in marks):
            found.add(code)
    return found


def vocabularies(seed: int) -> tuple[list[int], dict[str, list[int]]]:
    """A public dictionary of 2,000 codes, and five hospitals of 300 each."""
    rng = seeds(seed, "polynomial attack")
    dictionary = np.sort(rng.choice(90_000, 2000, replace=False) + 10_000)
    return dictionary.tolist(), {f"h{k}": sorted(rng.choice(dictionary, 300, replace=False).tolist()) for k in range(5)}


def run(seed: int = 0) -> list[Attack]:
    """Five hospitals over a dictionary of 2,000 codes: the ring shows nothing."""
    dictionary, codes = vocabularies(seed)
    messages: list[Message] = []
    ring({h: [str(c) for c in codes[h][:40]] for h in codes}, "diagnosis", tap=messages.append)
    found = scan(messages, [str(c) for c in dictionary], "diagnosis")
    return [
        Attack(
            "dictionary scan of the transcript",
            "ring",
            bool(found),
            False,
            f"{len(found)} codes found in {len(messages)} messages",
        )
    ]
