"""Votes for a list of survivors: a digest for each to check, keyed with the key of voter and checker.

A signature would convince everybody, at 50 microseconds for each of n (n / 2) checks a sum; a vote convinces the one it is for, and
1,000 of them take a fifth of a millisecond (``sums.blake``). Decision 9 says what is given up: nobody can show a false vote to a third.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from polyclinic.federation.sums.blake import BLOCK, LONGEST, MANY, Bytes, Digests, blocks, headed, named

__all__ = ["VOTE", "Ballot"]

VOTE = 16  # bytes
PERSON = b"vote"


def _vote(key: bytes, said: bytes) -> bytes:
    return hashlib.blake2b(said, key=key, digest_size=VOTE, person=PERSON).digest()


class Ballot:
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

    @cached_property
    def _keyed(self) -> tuple[dict[str, int], Digests]:
        """Place of every other site, and digests under its key."""
        return {s: i for i, s in enumerate(self._pairs)}, Digests(list(self._pairs.values()), VOTE, PERSON)

    def votes(self, what: bytes, listed: Sequence[str]) -> bytes:
        """My votes for ``what`` (64 bytes), in the order of ``listed``; zeros for who has no key with me (myself)."""
        said = what + self.me.encode()
        if len(self._pairs) < MANY or len(said) > BLOCK:
            pairs, none = self._pairs, bytes(VOTE)
            return b"".join([_vote(pairs[s], said) if s in pairs else none for s in listed])
        at, digests = self._keyed
        made = np.vstack([digests.of(*blocks([said])), np.zeros((1, VOTE), np.uint8)])
        return made[[at.get(s, -1) for s in listed]].tobytes()

    def count(self, what: bytes, voters: Sequence[str], votes: bytes, enough: int) -> int:
        """How many votes for me are right, mine included; counting stops at ``enough``."""
        right, parts = 0, [slice(0, enough), slice(enough, len(voters))]  # the others only if one of the first is wrong
        given = np.frombuffer(votes, np.uint8).reshape(-1, VOTE)
        for part in parts:
            if right < enough:
                right += self._right(what, voters[part], given[part])
        return min(right, enough)

    def _right(self, what: bytes, voters: Sequence[str], given: Bytes) -> int:
        if len(voters) < MANY or max(map(len, voters)) > LONGEST:
            pairs = self._pairs
            made = [_vote(pairs[s], what + s.encode()) if s != self.me else b"" for s in voters]
            return sum(not m or hmac.compare_digest(m, g.tobytes()) for m, g in zip(made, given))
        at, digests = self._keyed
        words, lengths = named(tuple(voters), len(what))
        mine = next((i for i, s in enumerate(voters) if s == self.me), -1)
        which = [at[s] if i != mine else 0 for i, s in enumerate(voters)]
        # Every byte is looked at, wherever the first difference is.
        differs = np.asarray((digests.of(headed(what, words), lengths, which) ^ given).any(axis=1))
        if mine >= 0:
            differs[mine] = False
        return len(voters) - int(np.count_nonzero(differs))
