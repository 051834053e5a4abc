"""Votes for a list of survivors: a digest for each to check, keyed with the key of voter and checker.

A signature would convince everybody, at 50 microseconds for each of n (n / 2) checks a sum; a vote convinces the one it is for, and
1,000 of them take a fifth of a millisecond (``aggregation.secure.blake2``). Decision 9 says what is given up: nobody can show a false vote to a third.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyclinic.aggregation.secure.blake2 import BLOCK, LONGEST, MANY, Bytes, Digests, blocks, headed, named

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
        self._asked: list[tuple[tuple[str, ...], NDArray[np.int64]]] = []

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
        _, digests = self._keyed
        made = np.vstack([digests.of(*blocks([said])), np.zeros((1, VOTE), np.uint8)])
        return made[self._places(tuple(listed))].tobytes()

    def _places(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """Places of some sites, -1 for myself; the lists of a run are mostly the same two."""
        for known, places in self._asked:
            if known == names:
                return places
        made = np.array([self._keyed[0].get(s, -1) for s in names], np.int64)
        self._asked = [(names, made), *self._asked[:1]]
        return made

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
        _, digests = self._keyed
        names = tuple(voters)
        words, lengths = named(names, len(what))
        which = self._places(names)
        if np.count_nonzero(which < 0) > (self.me in names):
            raise KeyError("a voter that has no key with me")
        # Every byte is looked at, wherever the first difference is.
        differs = np.asarray((digests.of(headed(what, words), lengths, np.maximum(which, 0)) ^ given).any(axis=1))
        return len(voters) - int(np.count_nonzero(differs & (which >= 0)))
