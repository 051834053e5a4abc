"""Votes for a list of survivors: a digest for each site to check, keyed with the key that voter and checker share.

A signature would convince everybody, at 50 microseconds for each of n (n / 2) checks a sum. A vote convinces the one site that it is
for, at a microsecond. Decision 9 says what is given up: nobody can show a false vote to a third party.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

VOTE = 16  # bytes
PERSON = b"vote"


def _vote(key: bytes, said: bytes) -> bytes:
    return hashlib.blake2b(said, key=key, digest_size=VOTE, person=PERSON).digest()


class SurvivorVotes:
    """One site's votes, and its check of the others'.

    Parameters
    ----------
    me
        The site.
    pairs
        Its key with every other site.
    """

    def __init__(self, me: str, pairs: Mapping[str, bytes]) -> None:
        self.me, self._pairs = me, pairs

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("keys of a masked sum are never serialised")

    def votes(self, what: bytes, listed: Sequence[str]) -> bytes:
        """Return my votes for ``what`` (64 bytes), in the order of ``listed``; zeros for a site without a key with me (myself)."""
        text, pairs, blank = what + self.me.encode(), self._pairs, bytes(VOTE)
        return b"".join([_vote(pairs[s], text) if s in pairs else blank for s in listed])

    def count(self, what: bytes, voters: Sequence[str], votes: bytes, enough: int) -> int:
        """Return how many votes for me are right, mine included; counting stops at ``enough``."""
        right = 0
        for i, voter in enumerate(voters):
            if right == enough:
                break
            vote = votes[i * VOTE : (i + 1) * VOTE]
            right += voter == self.me or hmac.compare_digest(_vote(self._pairs[voter], what + voter.encode()), vote)
        return right
