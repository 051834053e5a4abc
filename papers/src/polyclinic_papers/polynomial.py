"""TRIP's own alignment by polynomials (its section 4.3), for reproduction only: IT IS BROKEN (ERRATA E2.9).

Hospital k sends f_k(y) = (y - alpha) prod_{c in Y_k} (y - c) mod P to the server, which forwards pairwise sums. Whoever has
f_k evaluates it at every public code; whoever gets f_k + f_k' subtracts its own. The attack is in
``polyclinic_papers.attacks.polynomials`` and recovers every vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError

__all__ = ["Transcript", "evaluate", "legacy_insecure", "polynomial"]

Coefficients = NDArray[np.int64]
PRIME = 2_147_483_629  # the largest prime below 2^31 - 1 but one: products fit in 64 bits


@dataclass(frozen=True)
class Transcript:
    """What travelled: each hospital's polynomial (to the server), and the pairwise sums (to both hospitals)."""

    to_server: Mapping[str, Coefficients]
    to_hospital: Mapping[tuple[str, str], Coefficients]
    prime: int


def polynomial(roots: Sequence[int], prime: int = PRIME) -> Coefficients:
    """Coefficients of prod (y - root) mod prime, constant first.

    >>> polynomial([1, 2], 101).tolist()
    [2, 98, 1]
    """
    out = np.ones(1, np.int64)
    for r in roots:
        shifted = np.append(0, out)
        shifted[:-1] = (shifted[:-1] + out * ((-r) % prime)) % prime
        out = shifted
    return out


def evaluate(coefficients: Coefficients, points: NDArray[np.int64], prime: int = PRIME) -> NDArray[np.int64]:
    """The polynomial at many points, by Horner's rule."""
    out = np.zeros(len(points), np.int64)
    x = points % prime
    for c in coefficients[::-1]:
        out = (out * x + c) % prime
    return out


def legacy_insecure(
    codes: Mapping[str, Sequence[int]], *, rng: np.random.Generator, prime: int = PRIME, allow_insecure: bool = False
) -> tuple[dict[str, dict[int, int]], int, Transcript]:
    """TRIP's protocol on integer codes: site -> (code -> place), the union's size, and everything that travelled."""
    if not allow_insecure:
        raise ConfigError(
            "TRIP's polynomial alignment shows every hospital's codes to the server and to the other hospitals",
            faults=["ERRATA E2.9: all codes are recovered by evaluating the polynomial at a public list"],
            hint="use a public dictionary or the ring; to reproduce the paper pass allow_insecure=True",
        )
    names = sorted(codes)
    top = max((max(c, default=0) for c in codes.values()), default=0)
    if prime <= top:
        raise ConfigError(f"the prime {prime} is not above the largest code {top}")
    sent = {}
    for n in names:
        alpha = int(rng.integers(top + 1, prime))
        sent[n] = polynomial([*codes[n], alpha], prime)
    sums = {}
    for a, b in combinations(names, 2):
        size = max(len(sent[a]), len(sent[b]))
        sums[a, b] = (np.pad(sent[a], (0, size - len(sent[a]))) + np.pad(sent[b], (0, size - len(sent[b])))) % prime
    # every hospital finds, for each own code, the set of hospitals that share it
    patterns: dict[str, dict[int, frozenset[str]]] = {}
    for n in names:
        own = np.array(sorted(codes[n]), np.int64)
        shared = {int(c): {n} for c in own}
        for other in names:
            if other == n:
                continue
            zero = evaluate(sums[min(n, other), max(n, other)], own, prime) == 0
            for c in own[zero]:
                shared[int(c)].add(other)
        patterns[n] = {c: frozenset(w) for c, w in shared.items()}
    sizes: dict[frozenset[str], int] = {}
    for n in names:
        for who in set(patterns[n].values()):
            sizes[who] = max(sizes.get(who, 0), sum(w == who for w in patterns[n].values()))
    starts, at = {}, 0
    for who in sorted(sizes, key=sorted):
        starts[who], at = at, at + sizes[who]
    places = {
        n: {
            c: starts[who] + k
            for who in set(patterns[n].values())
            for k, c in enumerate(sorted(c for c, w in patterns[n].items() if w == who))
        }
        for n in names
    }
    return places, at, Transcript(sent, sums, prime)
