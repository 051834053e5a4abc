"""Who masks with whom, and who keeps whose shares: everybody with everybody, or from some 40 sites on a ring of neighbours.

The sites stand in a circle, in an order that follows from their keys; a site's neighbours are the ``half`` before and the ``half``
behind it (a Harary graph, as in Bell et al. 2020). A site signs a list of survivors only if EVERY stretch of ``half`` places in a
row holds at least ``c + 1`` of them. Then, whatever ``c`` sites pool, every stretch still has an honest survivor, two honest
survivors in a row are never further apart than ``half``, and so all honest survivors hang together: no part of the sum can be
taken off. The rule is certain, not likely, and it does not matter who chose the order: a coordinator that calls a site's
neighbours lost, to cut it off, gets no signature. Decision 9 has the analysis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, log

import numpy as np

SPARE = 14  # one stretch in a row lost by accident: n (1/3)^(half - c) is below 1e-6 if a third of all sites is lost


@dataclass(frozen=True)
class MaskGraph:
    """An order of sites, and how far a neighbour may be away; ``half`` 0: everybody is everybody's neighbour."""

    order: tuple[str, ...]
    half: int
    keep: int  # shares that rebuild a secret

    @cached_property
    def at(self) -> dict[str, int]:
        """Place of every site; place + 1 is its point in Shamir's sharing."""
        return {s: i for i, s in enumerate(self.order)}

    def near(self, site: str) -> tuple[str, ...]:
        """Neighbours of a site, by place from its own onwards."""
        n, i = len(self.order), self.at[site]
        if not self.half:
            return self.order[i + 1 :] + self.order[:i]
        return tuple(self.order[(i + d) % n] for d in (*range(1, self.half + 1), *range(-self.half, 0)))

    def keepers(self, site: str) -> tuple[str, ...]:
        """Who keeps shares of a site's secrets: its neighbours and itself."""
        return (site, *self.near(site))

    def ahead(self, site: str) -> tuple[str, ...]:
        """Keepers whose shares follow from the key that they have in common with the site; nothing is sent to them."""
        return self.near(site)[: self.keep - 1]

    def told(self, site: str) -> tuple[str, ...]:
        """Keepers who have to be sent their shares."""
        return self.near(site)[self.keep - 1 :]

    def safe(self, listed: Collection[str], colluders: int) -> bool:
        """Whether the survivors hang together although any ``colluders`` of them pool what they know.

        >>> ring = MaskGraph(tuple("abcdefgh"), 2, 2)
        >>> ring.safe("abcdefgh", 1), ring.safe("abdefgh", 1), ring.safe("abcdefgh", 2)
        (True, False, False)
        """
        if not self.half or (len(listed) == len(self.order) and self.half > colluders):
            return True
        members = set(listed)
        present = np.array([s in members for s in self.order], np.int64)
        sums = np.cumsum(np.concatenate([[0], present, present[: self.half]]))
        return bool((sums[self.half :] - sums[: -self.half] > colluders).all())


@lru_cache(maxsize=64)
def circle(sites: tuple[str, ...], threshold: int, colluders: int, seed: bytes) -> MaskGraph:
    """The circle of some sites; small federations are complete graphs and keep the threshold of the sum.

    >>> circle(("a", "b", "c"), 3, 1, b"").half, circle(tuple(map(str, range(100))), 51, 1, b"0" * 32).half
    (0, 20)
    """
    n = len(sites)
    half = colluders + SPARE + ceil(log(n) / log(3)) if n > 1 else 0
    if 2 * half >= n - 1:
        return MaskGraph(sites, 0, threshold)
    order = np.random.default_rng(np.frombuffer(seed, np.uint32)).permutation(n)
    return MaskGraph(tuple(sites[i] for i in order), half, max(colluders + 1, half // 2))
