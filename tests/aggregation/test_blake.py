"""Many digests at a time are hashlib's, bit for bit; votes and pads do not depend on how many there are."""

import hashlib

import numpy as np
import pytest

from polyclinic.aggregation.secure.blake2 import BLOCK, MANY, Digests, blocks, headed, named
from polyclinic.aggregation.secure.prime_field import P, added
from polyclinic.aggregation.secure.survivor_votes import VOTE, SurvivorVotes
from polyclinic.aggregation.secure.total_check import TotalTag


@pytest.mark.parametrize(("size", "person"), [(16, b"vote"), (32, b""), (64, b"sixteen bytes ..")])
def test_every_digest_is_the_librarys(size: int, person: bytes) -> None:
    rng = np.random.default_rng(size)
    keys = [rng.bytes(32) for _ in range(129)]
    texts = [rng.bytes(k) for k in range(129)]  # 0 to a whole block
    texts[0] = b"x"
    made = Digests(keys, size, person).of(*blocks(texts))
    for k, t, d in zip(keys, texts, made):
        assert d.tobytes() == hashlib.blake2b(t, key=k, digest_size=size, person=person).digest()
    for t, d in zip(texts, Digests(keys[:1], size, person).of(*blocks(texts))):
        assert d.tobytes() == hashlib.blake2b(t, key=keys[0], digest_size=size, person=person).digest()


def test_names_behind_a_head_are_blocks_too() -> None:
    head, names = bytes(range(64)), ("a", "M\u00fcnster", "s0001")
    words, lengths = named(names, 64)
    expected = blocks([head + s.encode() for s in names])
    assert np.array_equal(headed(head, words), expected[0])
    assert np.array_equal(lengths, expected[1])


def test_a_text_longer_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="129 bytes"):
        blocks([bytes(BLOCK - 1)], b"ab")


@pytest.mark.parametrize("others", [MANY - 1, MANY, 3 * MANY])
@pytest.mark.parametrize("long", [False, True])
def test_votes_are_counted_one_by_one_or_together_alike(others: int, long: bool) -> None:
    rng = np.random.default_rng(others)
    tail = "x" * 70 if long else ""  # too long for one block: left to the library
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
    names = tuple(f"site {k}" for k in range(5 * MANY))
    tag, nothing = TotalTag(bytes(range(32)), names), np.zeros(1, np.uint64)
    pads = {s: tag.word(nothing, s) for s in names}
    assert len(set(pads.values())) == len(names)
    for some in (names, names[::3], names[:1]):
        assert tag.over(some).pads == sum(pads[s] for s in some) % P
    top = np.full((3, 4), 2**64 - 1, np.uint64)
    assert int(added(top)) == 3 * (2**256 - 1) % P
