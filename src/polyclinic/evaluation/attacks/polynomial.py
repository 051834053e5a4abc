"""The dictionary attack on vocabulary alignment: whoever holds a hospital's polynomial tries every public code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.alignment.polynomial import evaluate, legacy_insecure
from polyclinic.alignment.ring import ring
from polyclinic.evaluation.attacks.tap import Attack
from polyclinic.federation.protocol import Message, seeds

__all__ = ["codes_in", "run", "scan"]


def codes_in(coefficients: Any, dictionary: Any, prime: int) -> set[int]:
    """Codes of the dictionary at which a polynomial is zero: the hospital's vocabulary."""
    points = np.asarray(dictionary, np.int64)
    return set(points[evaluate(coefficients, points, prime) == 0].tolist())


def scan(messages: Sequence[Message], dictionary: Sequence[str], mode: str) -> set[str]:
    """Codes that can be read from a transcript: as text, or as any unsalted hash or unmasked point of one."""
    import hashlib

    from polyclinic.alignment.ring import _hash
    from polyclinic.federation import wire

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


def run(seed: int = 0) -> list[Attack]:
    """Five hospitals over a dictionary of 2,000 codes: TRIP's polynomials show everything, the ring shows nothing."""
    rng = seeds(seed, "polynomial attack")
    dictionary = np.sort(rng.choice(90_000, 2000, replace=False) + 10_000)
    codes = {f"h{k}": sorted(rng.choice(dictionary, 300, replace=False).tolist()) for k in range(5)}
    _, _, seen = legacy_insecure(codes, rng=rng, allow_insecure=True)
    at_server = {h: codes_in(f, dictionary, seen.prime) for h, f in seen.to_server.items()}
    total = sum(len(c) for c in codes.values())
    hits = sum(len(at_server[h] & set(codes[h])) for h in codes)
    peer = (seen.to_hospital["h0", "h1"] - seen.to_server["h0"]) % seen.prime
    from_peer = codes_in(peer, dictionary, seen.prime)
    messages: list[Message] = []
    ring({h: [str(c) for c in codes[h][:40]] for h in codes}, "diagnosis", tap=messages.append)
    found = scan(messages, [str(c) for c in dictionary], "diagnosis")
    return [
        Attack(
            "polynomial dictionary (server)",
            "legacy_insecure",
            hits == total,
            True,
            f"{hits} of {total} codes recovered",
        ),
        Attack(
            "polynomial dictionary (other hospital)",
            "legacy_insecure",
            from_peer >= set(codes["h1"]),
            True,
            f"{len(from_peer & set(codes['h1']))} of {len(codes['h1'])} codes of the peer recovered",
        ),
        Attack(
            "dictionary scan of the transcript",
            "ring",
            bool(found),
            False,
            f"{len(found)} codes found in {len(messages)} messages",
        ),
    ]
