"""Votes convince the site that they are for, and no wrong one is counted; pads of many sites are the sum of each."""

import hashlib

import numpy as np
import pytest

from polyclinic.aggregation.secure.prime_field import P, added
from polyclinic.aggregation.secure.survivor_votes import VOTE, SurvivorVotes
from polyclinic.aggregation.secure.total_check import TotalTag


@pytest.mark.parametrize("others", [4, 70])
@pytest.mark.parametrize("tail", ["", "x" * 70])
def test_only_right_votes_are_counted(others: int, tail: str) -> None:
    rng = np.random.default_rng(others)
    names = [f"s{k:03d}{tail}" for k in range(others + 1)]
    pairs = {frozenset((a, b)): rng.bytes(32) for i, a in enumerate(names) for b in names[:i]}
    ballots = {a: SurvivorVotes(a, {b: pairs[frozenset((a, b))] for b in names if b != a}) for a in names}
    what, me = rng.bytes(64), names[3]
    given = {a: ballots[a].votes(what, names) for a in names}
    expected = hashlib.blake2b(
        what + names[0].encode(), key=pairs[frozenset((names[0], me))], digest_size=VOTE, person=b"vote"
    )
    assert given[names[0]][3 * VOTE : 4 * VOTE] == expected.digest()
    assert given[me][3 * VOTE : 4 * VOTE] == bytes(VOTE)
    shown = bytearray(b"".join(given[a][3 * VOTE : 4 * VOTE] for a in names))
    enough = len(names) // 2 + 1
    assert ballots[me].count(what, names, bytes(shown), enough) == enough
    assert ballots[me].count(what, names, bytes(shown), len(names)) == len(names)
    wrong = [k for k in range(len(names)) if k % 2 and k != 3]
    for k in wrong:
        shown[VOTE * k + k % VOTE] ^= 1  # one bit
    assert ballots[me].count(what, names, bytes(shown), len(names)) == len(names) - len(wrong)
    right = len(names) - len(wrong)
    assert ballots[me].count(what, names, bytes(shown), right) == right
    assert ballots[me].count(bytes(64), names, bytes(shown), enough) == 1  # votes for something else: only mine is left


def test_the_pads_of_many_are_the_sum_of_each() -> None:
    names = tuple(f"site {k}" for k in range(120))
    tag, nothing = TotalTag(bytes(range(32)), names), np.zeros(1, np.uint64)
    pads = {s: tag.word(nothing, s) for s in names}
    assert len(set(pads.values())) == len(names)
    for some in (names, names[::3], names[:1]):
        assert tag.over(some).pads == sum(pads[s] for s in some) % P
    top = np.full((3, 4), 2**64 - 1, np.uint64)
    assert int(added(top)) == 3 * (2**256 - 1) % P
