"""Masked sums: the right total, nothing else, also when sites are lost."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgpack
import numpy as np
import pytest

from polyclinic.aggregation.fixed_point import FixedPoint
from polyclinic.aggregation.secure.key_broadcast import to_bits
from polyclinic.aggregation.secure.masked import Masked, MaskedCoordinator, MaskedSite, least_threshold, stream
from polyclinic.aggregation.secure.shamir import BYTES
from polyclinic.aggregation.vector import flatten
from polyclinic.errors import ConfigError, MessageRefused, ProtocolMismatch
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Message, Roster, Step, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Identity

Make = Callable[..., Any]


def close(got: Total, want: Total, step: Step, n: int) -> None:
    error = FixedPoint.of(step, n).error
    assert got.members == want.members
    assert got.weight == pytest.approx(want.weight, rel=1e-14)
    for k in want.arrays:
        np.testing.assert_allclose(got.arrays[k], want.arrays[k], rtol=1e-12, atol=error + 1e-12)


def test_nobody_lost_the_sum_is_the_plain_sum(add: Make, network: Make, truth: Make) -> None:
    roster, step, parts = network(5)
    adder = Masked()
    roster = adder.enrol(roster)
    results = add(adder, roster, step, parts).run()
    close(results["coordinator"], truth(step, parts), step, 5)
    assert all(results[s] == "done" for s in roster.sites)


@pytest.mark.parametrize("kind", ["advertise", "shares", "masked", "signed", "unmask"])
@pytest.mark.parametrize("missing", [1, 3])
def test_sites_lost_in_any_phase(add: Make, network: Make, truth: Make, kind: str, missing: int) -> None:
    roster, step, parts = network(10)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=7))
    gone = roster.sites[2 : 2 + missing]
    phases = ["advertise", "shares", "masked", "signed", "unmask"]
    silent = set(phases[phases.index(kind) :])
    office = add(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind in silent)
    results = office.run()
    counted = roster.sites if kind in ("signed", "unmask") else [s for s in roster.sites if s not in gone]
    close(results["coordinator"], truth(step, parts, counted), step, 10)


def test_sums_of_whole_numbers_are_bit_exact_with_drop_outs(add: Make) -> None:
    rng = np.random.default_rng(1)
    names = tuple(f"s{i}" for i in range(10))
    step = Step(1, "statistics", {"S": (300,)}, bound=2.0**15, grid=2.0**-16)
    parts = {s: Contribution({"S": rng.integers(-(2**31), 2**31, 300) * 2.0**-16}) for s in names}  # type: ignore[dict-item]
    adder = Masked()
    roster = adder.enrol(Roster(names, threshold=7))
    office = add(adder, roster, step, parts, lost=lambda m: m.sender in names[:3] and m.kind == "masked")
    total = office.run()["coordinator"]
    want = sum((parts[s].arrays["S"] * 2**16).astype(np.int64) for s in names[3:])
    np.testing.assert_array_equal(total.arrays["S"] * 2**16, want)
    assert total.weight == 7.0


def test_a_value_off_the_grid_is_refused_at_the_site() -> None:
    step = Step(1, "statistics", {"S": (2,)}, bound=1.0, grid=0.25)
    code = FixedPoint.of(step, 3)
    with pytest.raises(ProtocolMismatch, match="grid"):
        code.encode(flatten(step, Contribution({"S": np.array([0.25, 0.3])}), "north"), "north")


def test_a_grid_that_could_wrap_is_refused() -> None:
    with pytest.raises(ConfigError, match="59 bits"):
        FixedPoint.of(Step(1, "s", {"S": (2,)}, bound=1e6, grid=2.0**-60), 3)


def test_fixed_point_error_is_below_the_documented_bound() -> None:
    rng = np.random.default_rng(2)
    step = Step(1, "s", {"S": (300,)}, bound=1e-3, weight_bound=1e6)
    code = FixedPoint.of(step, 100)
    small = [10.0 ** rng.uniform(-12, 3, 300) * rng.choice([-1, 1], 300) for _ in range(100)]  # all magnitudes
    vectors = [np.append(v, 1e6 * rng.random()) for v in small]
    words = sum((code.encode(v, "x") for v in vectors), np.zeros(301, np.uint64))
    exact = [sum(Fraction(float(v[i])) for v in vectors) for i in range(300)]
    whole = words.view(np.int64)
    worst = max(abs(Fraction(int(whole[i])) / Fraction(code.scale) - exact[i]) for i in range(300))
    assert 0 < float(worst) <= code.error
    assert code.error / (100 * 1e3) < 100 * 1.74e-18 * 2  # relative to the largest possible sum


@pytest.mark.parametrize("kind", ["advertise", "shares", "masked", "signed", "unmask"])
def test_below_threshold_the_attempt_is_burnt_and_no_secret_left(add: Make, network: Make, kind: str) -> None:
    roster, step, parts = network(6)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=5))
    gone = roster.sites[:2]
    office = add(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind == kind)
    results = office.run()
    assert results["coordinator"] == "aborted"
    assert not any(isinstance(r, Total) for r in results.values())
    shares_sent = [m for m in office.transcript if m.kind == "unmask"]
    if kind != "unmask":
        assert shares_sent == []
    else:  # fewer than t shares left, which say nothing about any seed (test_shamir)
        assert len(shares_sent) < roster.threshold
    # What was sent of each vector is still under its self-mask: far from the contribution in every word.
    code = FixedPoint.of(step, 6)
    for m in office.transcript:
        if m.kind == "masked":
            clear = code.encode(flatten(step, parts[m.sender], m.sender), m.sender)
            assert not np.any(m.body["vector"][:-1] == clear)


def test_a_masked_vector_is_uniform(add: Make, network: Make) -> None:
    """Bits of what travels are balanced although the contributions are all zero."""
    roster, step, _ = network(3, 4000)
    parts = {s: Contribution({"B": np.zeros(4000), "C": np.zeros((2, 2))}) for s in roster.sites}
    adder = Masked()
    office = add(adder, adder.enrol(roster), step, parts)
    office.run()
    vectors = [m.body["vector"][:-1] for m in office.transcript if m.kind == "masked"]
    assert len(vectors) == 3
    for v in vectors:
        ones = np.unpackbits(v.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * v.size)


def test_whole_numbers_travel_in_the_bytes_that_their_sum_needs(add: Make, network: Make) -> None:
    """Seven bytes a number, uniform; the total is exact, signs included, and passes every site's check."""
    roster, _, _ = network(3, 4)
    step = Step(1, "packed", {"x": (4000,)}, bound=2.0**50, grid=1.0)
    rng = np.random.default_rng(0)
    parts = {s: Contribution({"x": rng.integers(-(2**50), 2**50, 4000).astype(np.float64)}) for s in roster.sites}
    adder = Masked()
    office = add(adder, adder.enrol(roster), step, parts)
    total = office.run()["coordinator"]
    np.testing.assert_array_equal(total.arrays["x"], sum(parts[s].arrays["x"] for s in roster.sites))
    centre = office.sides["coordinator"]
    for s in roster.sites:
        checked = office.sides[s].check(centre.opened, centre.members)
        np.testing.assert_array_equal(checked.arrays["x"], total.arrays["x"])
    vectors = [m.body["vector"] for m in office.transcript if m.kind == "masked"]
    for v in vectors:
        assert v.size == 7 * 4000 + 16
        assert abs(np.unpackbits(v[:-16]).mean() - 0.5) < 5 * 0.5 / np.sqrt(8 * v.size)


def test_never_both_shares_of_one_site(add: Make, network: Make) -> None:
    roster, step, parts = network(7)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=5))
    office = add(adder, roster, step, parts, lost=lambda m: m.sender == roster.sites[0] and m.kind == "masked")
    office.run()
    unmasking = [m for m in office.transcript if m.kind == "unmask"]
    assert len(unmasking) == 6
    for m in unmasking:
        assert len(m.body["seeds"]) == 6 * BYTES  # of the survivors, in the order of names
        assert len(m.body["masks"]) == BYTES  # of the lost one


def start(n: int, threshold: int, network: Make) -> tuple[Masked, Roster, Step, dict[str, Any], list[Message]]:
    roster, step, parts = network(n)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=threshold))
    sides = {s: adder.exchange(s, roster, step, parts[s]) for s in roster.sites}
    sides["coordinator"] = adder.exchange("coordinator", roster, step, None)
    return adder, roster, step, sides, [m for s in sides.values() for m in s.start()]


def carry(sides: dict[str, Any], queue: list[Message], until: str) -> list[Message]:
    """Deliver until messages of one kind are next; return those."""
    while queue and queue[0].kind != until:
        m = queue.pop(0)
        queue.extend(sides[m.to].receive(m))
    return queue


def test_a_lying_coordinator_cannot_get_two_lists_signed(network: Make) -> None:
    """It tells half that a victim is alive and half that it is lost, to get both of its shares: it gets neither."""
    _, roster, _, sides, queue = start(5, 4, network)
    survivors = carry(sides, queue, "survivors")
    coordinator = sides["coordinator"]
    victim = roster.sites[0]
    alive, dead = list(roster.sites), list(roster.sites[1:])
    signed = {}
    for site in roster.sites[1:]:
        listed = alive if site in roster.sites[1:3] else dead
        (answer,) = sides[site].receive(
            coordinator.envelope.seal(site, "survivors", {"sites": to_bits(listed, roster.sites)})
        )
        signed[site] = answer.body["votes"]
    assert survivors
    voters = sorted(signed)
    for site in voters:  # nobody can be shown 4 votes for the list that it voted for itself
        mine = alive if site in roster.sites[1:3] else dead
        at, bits = mine.index(site), to_bits(voters, mine)
        votes = b"".join(signed[v][16 * at : 16 * at + 16].ljust(16, b"0") for v in voters)
        with pytest.raises(MessageRefused, match="2 right signatures"):
            sides[site].receive(coordinator.envelope.seal(site, "signatures", {"voters": bits, "votes": votes}))
        with pytest.raises(MessageRefused, match=r"one list|received before"):
            sides[site].receive(coordinator.envelope.seal(site, "survivors", {"sites": to_bits(alive, roster.sites)}))
    assert victim in alive


def test_a_coordinator_cannot_enrol_a_ghost(network: Make) -> None:
    _, roster, _, sides, queue = start(4, 3, network)
    keys = carry(sides, queue, "keys")
    first, office, shown = roster.sites[0], sides["coordinator"].envelope, dict(keys[0].body)
    shown.pop("signature")
    key, own = shown["keys"][32:64], shown["owns"][64:128]  # of the second site
    everybody = [True] * len(roster.sites)
    ghost = {
        "sites": np.packbits([*everybody, True]).tobytes(),
        "keys": shown["keys"] + key,
        "owns": shown["owns"] + own,
    }
    with pytest.raises(MessageRefused, match="malformed"):
        sides[first].receive(office.seal(first, "keys", {**shown, **ghost}))
    twice = {"keys": shown["keys"] + key, "owns": shown["owns"] + own}  # a key more than sites
    with pytest.raises(MessageRefused, match="malformed"):
        sides[first].receive(office.seal(first, "keys", {**shown, **twice}))
    third = slice(2 * 32, 3 * 32), slice(2 * 64, 3 * 64)
    swapped = {
        "keys": shown["keys"][: third[0].start] + key + shown["keys"][third[0].stop :],
        "owns": shown["owns"][: third[1].start] + own + shown["owns"][third[1].stop :],
    }
    with pytest.raises(MessageRefused, match="signature is wrong"):
        sides[first].receive(office.seal(first, "keys", {**shown, **swapped}))
    bound = {"bound": msgpack.packb([[roster.sites[1], list(roster.sites)]])}  # it signed that it is bound to nothing
    with pytest.raises(MessageRefused, match="signature is wrong"):
        sides[first].receive(office.seal(first, "keys", {**shown, **bound}))
    assert sides[first].receive(keys[0])[0].kind == "shares"


def test_too_few_signatures_release_no_share(network: Make) -> None:
    _, roster, _, sides, queue = start(5, 4, network)
    carry(sides, queue, "signatures")
    (message,) = [m for m in queue if m.to == roster.sites[0]]
    voters, votes = message.body["voters"], message.body["votes"]
    for body, why in [
        ({"voters": to_bits(roster.sites[:3], roster.sites), "votes": votes[: 3 * 16]}, "3 right signatures"),
        ({"voters": voters, "votes": bytes(16) * 5}, "1 right signatures"),
        ({"voters": voters, "votes": votes[16:] + votes[:16]}, "1 right signatures"),
        ({"voters": voters, "votes": votes[16:]}, "more or fewer"),
        ({"voters": b"\xff", "votes": votes}, "malformed"),
    ]:
        forged = sides["coordinator"].envelope.seal(roster.sites[0], "signatures", body)
        with pytest.raises(MessageRefused, match=why):
            sides[roster.sites[0]].receive(forged)


def test_false_shares_burn_the_sum_instead_of_spoiling_it(network: Make) -> None:
    _, roster, _, sides, queue = start(4, 3, network)
    carry(sides, queue, "unmask")
    liar = roster.sites[0]
    for m in queue:
        if m.sender == liar:
            false = bytes([b if i % BYTES == 0 else b ^ 3 for i, b in enumerate(m.body["seeds"])])
            m = sides[liar].envelope.seal("coordinator", "unmask", {"seeds": false, "masks": b""})
        sides["coordinator"].receive(m)
    assert sides["coordinator"].result() == "aborted"


def test_the_coordinator_holds_no_contribution(add: Make, network: Make) -> None:
    """After every message no array that it holds equals a site's encoded vector."""
    roster, step, parts = network(4)
    adder = Masked()
    roster = adder.enrol(roster)
    office = add(adder, roster, step, parts)
    code = FixedPoint.of(step, 4)
    clear = [code.encode(flatten(step, parts[s], s), s) for s in roster.sites]
    office.run()
    coordinator = office.sides["coordinator"]
    assert isinstance(coordinator, MaskedCoordinator)
    held = [v for v in gc.get_objects() if isinstance(v, np.ndarray)]
    held += [v for v in vars(coordinator).values() if isinstance(v, np.ndarray)]
    assert not any(
        h.shape in (c.shape, (c.size + 1,)) and h.dtype == c.dtype and np.array_equal(h[: c.size], c) and h is not c
        for c in clear
        for h in held
    )
    assert not any(hasattr(coordinator, a) for a in ("mine", "parts", "contributions"))


def test_keys_cannot_be_written_to_disk(network: Make) -> None:
    _, roster, _, sides, _ = start(3, 3, network)
    site = sides[roster.sites[0]]
    assert isinstance(site, MaskedSite)
    with pytest.raises(TypeError):
        pickle.dumps(site)
    with pytest.raises(TypeError):
        pickle.dumps(Identity.generate("north"))


def test_keys_and_masks_are_fresh_in_every_attempt_and_round(add: Make, network: Make) -> None:
    roster, step, parts = network(3)
    adder = Masked()
    roster = adder.enrol(roster)
    vectors, keys = [], []
    for r, s in [(roster, step), (replace(roster, attempt=1), step), (roster, replace(step, round=4))]:
        office = add(adder, r, s, parts)
        office.run()
        vectors += [m.body["vector"] for m in office.transcript if m.kind == "masked"]
        keys += [m.body["line"] for m in office.transcript if m.kind == "advertise"]
    assert len(set(keys)) == 6  # the third sum went on with the keys of the second; a new attempt had new ones
    assert not any(np.any(a == b) for i, a in enumerate(vectors) for b in vectors[:i])


def test_unsafe_rosters_are_refused(network: Make) -> None:
    roster, step, parts = network(4)
    adder = Masked()
    roster = adder.enrol(roster)
    one = parts[roster.sites[0]]
    with pytest.raises(ConfigError, match="fewer than 3"):
        adder.exchange(roster.sites[0], replace(roster, sites=roster.sites[:2], threshold=2), step, one)
    with pytest.raises(ConfigError, match="threshold 2"):
        adder.exchange(roster.sites[0], replace(roster, threshold=2), step, one)
    with pytest.raises(ConfigError, match="1 colluders"):
        adder.exchange(roster.sites[0], replace(roster, threshold=2, colluders=1), step, one)
    with pytest.raises(ConfigError, match="verification key"):
        adder.exchange(roster.sites[0], replace(roster, keys={}), step, one)
    with pytest.raises(ConfigError, match="does not match"):
        Masked({roster.sites[0]: Identity.generate("x")}).exchange(roster.sites[0], roster, step, one)
    with pytest.raises(ConfigError, match="only ever reveals the sum"):
        adder.exchange(roster.sites[0], roster, replace(step, how="gather"), one)
    with pytest.raises(ConfigError, match="finite"):
        adder.exchange(roster.sites[0], roster, replace(step, bound=float("inf")), one)


def test_a_contribution_above_the_public_bound_is_not_sent(network: Make) -> None:
    roster, step, _ = network(3)
    adder = Masked()
    roster = adder.enrol(roster)
    with pytest.raises(ProtocolMismatch, match="exceeds"):
        adder.exchange(
            roster.sites[0], roster, step, Contribution({"B": np.full(12, 5.1), "C": np.zeros((2, 2))}, 10.0)
        )


def test_noise_share_and_realised_noise(add: Make) -> None:
    names = tuple("abcdef")
    step = Step(1, "statistics", {"S": (3,)}, bound=1.0, sensitivity=1.0, multiplier=2.0)
    adder = Masked()
    roster = adder.enrol(Roster(names, threshold=5, colluders=1))
    assert adder.noise_share(roster) == 1 / 4
    parts = {s: Contribution({"S": np.full(3, 7.0)}) for s in names}  # above the bound: noise was added at the door
    total = add(adder, roster, step, parts).run()["coordinator"]
    np.testing.assert_allclose(total.arrays["S"], 42.0, rtol=1e-15)
    assert total.noise_sd == pytest.approx(2.0 * np.sqrt(6 / 4))


def test_every_message_survives_the_wire(add: Make, network: Make, truth: Make) -> None:
    roster, step, parts = network(4)
    adder = Masked()
    roster = adder.enrol(roster)
    office = add(adder, roster, step, parts)
    plain_receive = {n: s.receive for n, s in office.sides.items()}
    for name, side in office.sides.items():
        side.receive = lambda m, f=plain_receive[name]: f(wire.decode_message(wire.encode_message(m, "x/1"), "x/1"))
    close(office.run()["coordinator"], truth(step, parts), step, 4)


@pytest.mark.parametrize("n", [3, 31, pytest.param(100, marks=pytest.mark.slow)])
def test_three_to_a_hundred_sites(add: Make, network: Make, truth: Make, n: int) -> None:
    roster, step, parts = network(n, 40)
    adder = by_name("masked")
    roster = adder.enrol(replace(roster, threshold=least_threshold(n)))
    gone = set(roster.sites[: n - roster.threshold])
    office = add(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind == "masked")
    total = office.run()["coordinator"]
    close(total, truth(step, parts, [s for s in roster.sites if s not in gone]), step, n)


def test_the_stream_is_chacha20() -> None:
    """Known answer, RFC 8439 section 2.4.2's key with counter and nonce zero is checked against the library itself."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = bytes(range(32))
    want = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(80))
    assert stream(key, 10).tobytes() == want


@pytest.mark.parametrize("name", ["masked", "subspace", "cycle"])
def test_between_hospitals_a_party_holds_its_own_key_only(network: Make, truth: Make, name: str) -> None:
    """Public keys meet in the roster; every side is made by an adder that knows one private key."""
    roster, step, parts = network(4)
    roster = by_name(name).enrol(roster)  # for the graph and threshold
    parties = [*roster.sites, *([roster.coordinator] if roster.coordinator else [])]
    own = {p: Identity.generate(p) for p in parties}
    roster = replace(roster, keys={p: own[p].public for p in parties})
    sides = {p: by_name(name, identities={p: own[p]}).exchange(p, roster, step, parts.get(p)) for p in parties}
    queue = [m for p in parties for m in sides[p].start()]
    while queue:
        m = queue.pop(0)
        queue.extend(sides[m.to].receive(m))
    total = next(r for r in (s.result() for s in sides.values()) if isinstance(r, Total))
    np.testing.assert_allclose(total.arrays["B"], truth(step, parts).arrays["B"], rtol=1e-12)
    with pytest.raises(ConfigError, match="no signing key"):
        by_name(name, identities={parties[0]: own[parties[0]]}).exchange(parties[1], roster, step, parts[parties[1]])
