"""The dictionary attack on TRIP's alignment: whoever holds a hospital's polynomial tries every public code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyclinic.auditing.attacks import Attack
from polyclinic.protocol.interfaces import seeds
from polyclinic_papers.attacks.dictionary import vocabularies
from polyclinic_papers.polynomial import Coefficients, evaluate, legacy_insecure

__all__ = ["codes_in", "run"]


def codes_in(coefficients: Coefficients, dictionary: Sequence[int], prime: int) -> set[int]:
    """Codes of the dictionary at which a polynomial is zero: the hospital's vocabulary."""
    points = np.asarray(dictionary, np.int64)
    return set(points[evaluate(coefficients, points, prime) == 0].tolist())


def run(seed: int = 0) -> list[Attack]:
    """Five hospitals over a dictionary of 2,000 codes: TRIP's polynomials show everything."""
    dictionary, codes = vocabularies(seed)
    _, _, seen = legacy_insecure(codes, rng=seeds(seed, "polynomials"), allow_insecure=True)
    at_server = {h: codes_in(f, dictionary, seen.prime) for h, f in seen.to_server.items()}
    total = sum(len(c) for c in codes.values())
    hits = sum(len(at_server[h] & set(codes[h])) for h in codes)
    peer = (seen.to_hospital["h0", "h1"] - seen.to_server["h0"]) % seen.prime
    from_peer = codes_in(peer, dictionary, seen.prime)
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
    ]
