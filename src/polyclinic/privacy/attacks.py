"""What is known to go wrong: attacks that were shown to work, and assumptions that do not hold (PRIVACY section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["E0_8", "POOLED", "SECURE", "known_attacks"]

SECURE: Final = ("masked", "subspace")  # sums that show nothing but the total

# What is known to work (PRIVACY section 2): on each site's exact contribution, on exact sums, or against the noise.
Against = Literal["each", "sum", "noise"]
ATTACKS: Final[Mapping[str, tuple[tuple[Against, str], ...]]] = {
    "trip": (
        ("each", "the coordinator recovers each site's Gram matrix and statistics from its normal messages"),
        ("each", "a code that a single patient carries is seen, and the record of such a patient can be rebuilt"),
    ),
    "dpfact": (("noise", "one entry decides whether a site leaves a saddle point: shifts up to 89 times the claim"),),
    "localtf": (
        ("noise", "one entry decides whether a site leaves a saddle point; the claim then fails in every run"),
    ),
    "unpsl": (
        ("each", "messages give the exact local gradient: with fewer patients than features membership is certain"),
    ),
    "gaussianmixture": (
        ("sum", "exact sums over several rounds give equations enough to solve for the records of small sites"),
    ),
}
ATTACKS_ALIAS: Final = {"mixture": "gaussianmixture", "distributedsgd": "localtf"}

POOLED: Final = (
    "two neighbours of a site in the cycle that pool what they see learn its contribution, with its own noise only"
)

E0_8: Final = (  # what the papers' theorem needs, and Algorithm 1 does not have (ERRATA E0.8, E0.10, E0.11)
    "ASSUMED by the papers and not true of their algorithm: the loss is convex in what moves (three factors move)",
    "ASSUMED: both runs restart from the same public state (patient loadings persist without noise)",
    "ASSUMED: the number of releases is fixed in advance; the site's patients are in no other site",
    "protects the value of one count, not whether a patient has the code, and not a patient",
)


def known_attacks(name: str, aggregation: str, *, noise: bool) -> tuple[str, ...]:
    """The attacks that apply to how contributions were added and whether noise was.

    >>> known_attacks("trip", "masked", noise=False)
    ()
    """
    works: set[Against] = {"noise"} if noise else {"sum"} if aggregation in (*SECURE, "cycle") else {"sum", "each"}
    return tuple(text for kind, text in ATTACKS.get(ATTACKS_ALIAS.get(name, name), ()) if kind in works)
