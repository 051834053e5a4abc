"""Every site checks the total that it is shown: what a coordinator may try, and is refused (TRUST A1, A16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyclinic.aggregation.fixed_point import BITS, FixedPoint
from polyclinic.aggregation.promise import Promises
from polyclinic.aggregation.secure.masked import Masked, read
from polyclinic.aggregation.secure.prime_field import P, accumulate, evaluate, weighed
from polyclinic.aggregation.secure.total_check import TotalTag
from polyclinic.errors import MessageRefused
from polyclinic.protocol.interfaces import Contribution, Roster, Step

Make = Callable[..., Any]


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 16, 26, 257])
def test_the_polynomial_is_that_of_exact_integers(d: int) -> None:
    rng = np.random.default_rng(d)
    words = rng.integers(-(2**63), 2**63 - 1, d)
    words[0] = [-(2**63), 2**63 - 1, P, -P, 0, -1, 1][d % 7]
    words[8:16] = -(2**63) if d % 2 else 2**63 - 1  # a block whose sum is the largest there can be
    for at in (1, 2, P - 1, int(rng.integers(1, P))):
        exact = sum(int(x) * pow(at, i, P) for i, x in enumerate(words, start=1)) % P
        assert int(evaluate(words, np.uint64(at))) == exact
        sent = words.view(np.uint64)
        sent.flags.writeable = False  # as it comes from the wire
        most = int(max(abs(int(x)) for x in words))
        assert weighed(sent, at, -1) == exact
        assert most > 2**63 - 1 or (weighed(sent, at, most), weighed(sent, at, most - 1)) == (exact, P)


def opened(network: Make, add_: Make, *, lost: int = 0) -> tuple[Any, Any, tuple[str, ...], dict[str, Promises]]:
    """A finished masked sum of five sites: the coordinator's words, the sites, who is in it, what they signed."""
    roster, step, parts = network(5, 40)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=4))
    promises = {s: Promises() for s in roster.sites}
    gone = roster.sites[5 - lost :]
    office = add_(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind == "masked")
    for s in roster.sites:
        office.sides[s] = adder.exchange(s, roster, step, parts[s], promises=promises[s])
    office.run()
    c = office.sides["coordinator"]
    return c, {s: office.sides[s] for s in c.members}, c.members, promises


@pytest.mark.parametrize("lost", [0, 1])
def test_every_member_accepts_the_true_total_and_reads_the_coordinators_numbers(
    network: Make, add: Make, lost: int
) -> None:
    c, sites, members, _ = opened(network, add, lost=lost)
    assert len(members) == 5 - lost
    for site in sites.values():
        total = site.check(c.opened, members)
        assert total.members == 5 - lost
        assert total.weight == c.result().weight
        for k, a in total.arrays.items():
            np.testing.assert_array_equal(a, c.result().arrays[k])


def test_whatever_else_is_shown_is_refused(network: Make, add: Make) -> None:
    c, sites, members, _ = opened(network, add)
    true = c.opened
    wrong = []
    for i in range(true.size - 1):
        for by in (1, -1, 2**30):
            w = true.copy()
            w[i] = np.uint64((int(w[i]) + by) % 2**64)
            wrong.append(w)
            both = w.copy()  # the word and the tag by the same amount: an exponent 0 would let it pass
            both[-1] = (int(both[-1]) + by) % P
            wrong.append(both)
    for i, j in [(0, 1), (3, 17), (0, true.size - 2)]:  # permuted
        w = true.copy()
        w[i], w[j] = w[j], w[i]
        wrong.append(w)
    wrong += [np.zeros_like(true), [*np.roll(true[:-1], 1).tolist(), int(true[-1])]]
    large = true.copy()
    large[0] = np.uint64((int(large[0]) + P) % 2**64)  # vanishes mod p, and is beyond 59 bits
    wrong.append(large)
    tag = true.copy()
    tag[-1] = (int(tag[-1]) + 1) % P
    wrong.append(tag)
    for w in wrong:
        for site in sites.values():
            with pytest.raises(MessageRefused, match="tag is wrong"):
                site.check(np.asarray(w, np.uint64), members)
    for bad in (true[:-1], true.astype(np.float64), np.append(true, true[:1])):
        with pytest.raises(MessageRefused, match="expected"):
            next(iter(sites.values())).check(bad, members)
    with pytest.raises(MessageRefused, match="not signed"):
        next(iter(sites.values())).check(true, members[:-1])


def test_the_total_of_another_attempt_is_refused(network: Make, add: Make) -> None:
    a, _, members, _ = opened(network, add)
    b, sites, _, _ = opened(network, add)
    np.testing.assert_array_equal(a.opened[:-1], b.opened[:-1])  # the same sum ...
    assert a.opened[-1] != b.opened[-1]  # ... under another key
    with pytest.raises(MessageRefused, match="tag is wrong"):
        next(iter(sites.values())).check(a.opened, members)


def test_a_signer_that_was_restarted_checks_with_the_key_in_its_promise(network: Make, add: Make) -> None:
    c, sites, members, promises = opened(network, add)
    name = members[0]
    (made,) = promises[name].signed
    assert made.members == members
    assert made.sites == 5
    total = read(c.step, 1 / 3, c.opened, made)
    np.testing.assert_array_equal(total.arrays["B"], sites[name].check(c.opened, members).arrays["B"])


def test_a_coordinator_that_sees_total_and_tag_cannot_solve_for_rho() -> None:
    """In a field of 13: for every rho there is a sum of pads that fits what it sees, so no rho is likelier than another."""
    p, x = 13, [4, 9, 1]
    seen = set()
    for rho in range(1, p):
        for pad in range(p):
            seen.add((rho, (sum(v * rho**i for i, v in enumerate(x, start=1)) + pad) % p))
    for tag in range(p):
        assert sum((rho, tag) in seen for rho in range(1, p)) == p - 1


def test_tags_tell_nothing_of_single_entries_over_twenty_openings() -> None:
    """With rho known the tag of a SUM is a function of the sum: opened twenty times it says the same, whatever the parts were."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        tag = TotalTag(rng.bytes(32), "abc")
        total = rng.integers(-(2**50), 2**50, 8)
        first = rng.integers(-(2**50), 2**50, (2, 8))
        other = rng.integers(-(2**50), 2**50, (2, 8))
        words = []
        for two in (first, other):
            parts = [*two, total - two.sum(axis=0)]
            words.append(sum(tag.word(np.ascontiguousarray(q).view(np.uint64), s) for q, s in zip(parts, "abc")) % P)
        assert words[0] == words[1]


def test_masked_tags_are_uniform_and_cancel() -> None:
    rng = np.random.default_rng(1)
    draws = np.empty(20_000)
    for k in range(draws.size):
        vector, random = np.array([5, 7], np.uint64), rng.integers(0, 2**64, 3, np.uint64)
        accumulate(vector, random, 1)
        assert int(vector[1]) == (7 + int(random[1]) + (int(random[2]) << 64)) % P
        draws[k] = int(vector[1]) / P
        accumulate(vector, random, -1)
        assert vector.tolist() == [5, 7]
    assert abs(draws.mean() - 0.5) < 5 / np.sqrt(12 * draws.size)


@pytest.mark.parametrize("n", [3, 64, 1000])
def test_no_sum_leaves_59_bits(n: int) -> None:
    step = Step(1, "s", {"x": (1,)}, bound=0.3, weight_bound=7.0)
    code = FixedPoint.of(step, n)
    one = int(code.encode(np.array([0.3 * 7.0, 7.0]), "a").view(np.int64).max())
    assert n * one <= 2**BITS + n
    assert n * one > 2 ** (BITS - 1)


def test_noise_beyond_twenty_standard_deviations_is_clipped_not_refused(add: Make) -> None:
    step = Step(1, "s", {"x": (2,)}, bound=1.0, sensitivity=1.0, multiplier=0.1, grid=2.0**-10)
    adder = Masked()
    roster = adder.enrol(Roster(tuple("abc")))
    parts = {s: Contribution({"x": np.array([1.0 + 2.5, 0.5])}) for s in "abc"}
    total = add(adder, roster, step, parts).run()["coordinator"]
    np.testing.assert_array_equal(total.arrays["x"], [9.0, 1.5])
