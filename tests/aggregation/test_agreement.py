"""Keys once a run, secrets shared ahead, neighbours: the same sums, and nothing of one sum tells of another (issue 22.1)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.secure.key_broadcast import to_bits
from polyclinic.aggregation.secure.mask_graph import MaskGraph, circle
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.aggregation.secure.shamir import BYTES
from polyclinic.errors import MessageRefused
from polyclinic.protocol.interfaces import Message, Total
from polyclinic.protocol.loop import Simulation

Make = Callable[..., Any]


def sums(
    add: Make,
    network: Make,
    adder: Masked,
    n: int,
    steps: int,
    *,
    lost: Callable[[int, Message], bool] | None = None,
    **r: Any,
) -> list[Any]:
    """Several sums of a run, one after the other; the post offices."""
    roster, step, parts = network(n)
    roster = adder.enrol(replace(roster, **r))
    out = []
    for k in range(steps):
        office = add(
            adder, roster, replace(step, round=k + 1), parts, lost=lambda m, k=k: lost is not None and lost(k, m)
        )
        office.run()
        out.append(office)
    return out


def kinds(office: Any) -> list[str]:
    return list(dict.fromkeys(m.kind for m in office.transcript))


def test_keys_are_agreed_once_and_secrets_shared_every_few_sums(add: Make, network: Make, truth: Make) -> None:
    offices = sums(add, network, Masked(slots=3), 4, 7)
    _, step, parts = network(4)
    short = ["masked", "survivors", "signed", "signatures", "unmask"]
    for k, office in enumerate(offices):
        first = ["advertise", "keys", "shares", "inbox"] if k == 0 else ["shares", "inbox"] if k % 3 == 0 else []
        assert kinds(office) == first + short
        np.testing.assert_allclose(
            office.sides["coordinator"].result().arrays["B"], truth(step, parts).arrays["B"], rtol=1e-12
        )
        for s in office.sides:
            if s != "coordinator":
                office.sides[s].check(office.sides["coordinator"].opened, office.sides["coordinator"].members)


def test_totals_are_the_same_bits_with_keys_once_a_run_or_per_sum_and_in_any_order_of_sites() -> None:
    sites = pc.datasets.icu_network(patients=240, seed=0)[:4]
    runs = [
        Simulation(pc.TRIP(rank=2, rounds=3, seed=0), order, adder=adder).run()
        for adder, order in [
            (Masked(), sites),
            (Masked(once=False), sites),
            (Masked(slots=2), list(reversed(sites))),
        ]
    ]
    plain = Simulation(pc.TRIP(rank=2, rounds=3, seed=0), sites).run()
    for run in runs[1:]:
        for a, b in zip(runs[0].public.factors, run.public.factors):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(runs[0].public.factors, plain.public.factors):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max()))


def test_a_lost_site_makes_the_next_sum_agree_anew(add: Make, network: Make, truth: Make) -> None:
    offices = sums(
        add,
        network,
        Masked(),
        6,
        4,
        threshold=5,
        lost=lambda k, m: k == 1 and m.sender == "site002" and m.kind == "masked",
    )
    _, step, parts = network(6)
    assert offices[1].sides["coordinator"].members == tuple(s for s in parts if s != "site002")
    np.testing.assert_allclose(
        offices[1].sides["coordinator"].result().arrays["B"],
        truth(step, parts, [s for s in parts if s != "site002"]).arrays["B"],
        rtol=1e-12,
    )
    assert "advertise" in kinds(offices[2])
    assert offices[2].sides["coordinator"].result().members == 6
    assert "advertise" not in kinds(offices[3])


@pytest.mark.parametrize("who", ["site001", "coordinator"])
def test_a_party_that_was_restarted_is_helped_by_new_keys(add: Make, network: Make, who: str) -> None:
    adder = Masked()
    roster, step, parts = network(4)
    roster = adder.enrol(roster)
    add(adder, roster, step, parts).run()
    if who == "coordinator":
        adder.boards.clear()
    else:
        adder.sessions = {k: v for k, v in adder.sessions.items() if k[0] != who}
    office = add(adder, roster, replace(step, round=9), parts)
    office.run()
    assert office.sides["coordinator"].result().members == 4
    assert sum(m.kind == "again" for m in office.transcript) == (4 if who == "coordinator" else 3)
    last = add(adder, roster, replace(step, round=10), parts)
    last.run()
    assert kinds(last)[0] == "masked"


def test_what_is_opened_for_one_sum_tells_nothing_of_another(add: Make, network: Make) -> None:
    """Shares of every slot are independent numbers, each is sent at most once, and no pair's key or its shares ever travel."""
    adder = Masked(slots=4)
    offices = sums(add, network, adder, 5, 4, threshold=4)
    sent: list[bytes] = []
    for office in offices:
        for m in office.transcript:
            if m.kind == "unmask":
                assert not m.body["masks"]
                seeds = m.body["seeds"]
                sent += [seeds[i : i + BYTES] for i in range(0, len(seeds), BYTES)]
    assert len(sent) == 4 * 5 * 5
    assert len(set(sent)) == len(sent)
    pairs = {k for s in adder.sessions.values() for k in s._pairs.values()}
    assert len(pairs) == 10
    letters = b"".join(
        v if isinstance(v, bytes) else v.tobytes() if isinstance(v, np.ndarray) else repr(v).encode()
        for office in offices
        for m in office.transcript
        for v in m.body.values()
    )
    assert not any(k in letters for k in pairs)


def test_opening_a_lost_site_opens_this_slot_only(add: Make, network: Make) -> None:
    """From the lock of one slot the coordinator reads the masks of that slot; the table's other rows stay closed."""
    adder = Masked(slots=3)
    roster, step, parts = network(5)
    roster = adder.enrol(replace(roster, threshold=4))
    gone = roster.sites[4]
    truth: dict[str, Any] = {}
    boards: list[Any] = []

    def lost(m: Message) -> bool:
        if m.kind == "survivors" and not boards:
            boards.append(office.sides["coordinator"]._board)
        if m.sender == gone and m.kind == "masked":
            truth.update({s: b.copy() for s, b in office.sides[gone]._session._bases.items()})
            return True
        return False

    office = add(adder, roster, step, parts, lost=lost)
    assert office.run()["coordinator"].members == 4
    (board,) = boards
    got = {m.sender: {gone: m.body["masks"]} for m in office.transcript if m.kind == "unmask"}
    assert set(truth) == set(board.circle.near(gone)) == set(roster.sites[:4])
    for slot in range(3):
        read = board.bases(gone, slot, got)
        for s, base in truth.items():
            assert (read[s] == base[slot].tobytes()) == (slot == 0)


def test_sessions_cannot_be_pickled(add: Make, network: Make) -> None:
    adder = Masked()
    sums(add, network, adder, 3, 1)
    with pytest.raises(TypeError):
        pickle.dumps(next(iter(adder.sessions.values())))


def test_an_old_letter_does_not_pass_in_a_later_sum(add: Make, network: Make) -> None:
    adder = Masked()
    first, second = sums(add, network, adder, 4, 2)
    _, step, _ = network(4)
    roster = first.sides["coordinator"].roster
    old = next(m for m in second.transcript if m.kind == "masked")
    office = adder.exchange("coordinator", roster, replace(step, round=3), None)
    with pytest.raises(MessageRefused, match="another sum"):
        office.receive(old)
    with pytest.raises(MessageRefused, match="signature is wrong"):
        office.receive(replace(old, round=3))


# ---- neighbours


def test_small_federations_are_complete_and_large_ones_are_not() -> None:
    for n in (3, 10, 30):
        assert circle(tuple(f"{i:04d}" for i in range(n)), n, 1, bytes(32)).half == 0
    for n in (60, 100, 1000):
        c = circle(tuple(f"{i:04d}" for i in range(n)), n // 2 + 1, 1, bytes(range(32)))
        assert 0 < 2 * c.half < n - 1
        for s in c.order[:5]:
            near = c.near(s)
            assert len(set(near)) == 2 * c.half
            assert all(s in c.near(x) for x in near)


def connected(c: MaskGraph, here: set[str]) -> bool:
    if not here:
        return True
    seen, todo = set(), [min(here)]
    while todo:
        s = todo.pop()
        if s not in seen:
            seen.add(s)
            todo += [x for x in c.near(s) if x in here]
    return seen == here


def test_a_safe_list_stays_connected_whoever_colludes() -> None:
    """All lists over 11 sites, all pairs of colluders: what passes hangs together; without the rule some do not."""
    from itertools import combinations

    names = tuple("abcdefghijk")
    c = MaskGraph(names, 3, 2)
    passed = cut = 0
    for size in range(4, 12):
        for listed in combinations(names, size):
            for colluders in (1, 2):
                whole = all(connected(c, set(listed) - set(x)) for x in combinations(listed, colluders))
                if c.safe(set(listed), colluders):
                    passed += 1
                    assert whole
                elif not whole:
                    cut += 1
    assert passed > 50
    assert cut > 50


def test_sixty_sites_with_a_third_lost(add: Make, network: Make, truth: Make) -> None:
    roster, step, parts = network(60)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=31))
    gone = set(np.random.default_rng(3).permutation(np.array(roster.sites))[:18].tolist())
    office = add(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind == "masked")
    total = office.run()["coordinator"]
    assert isinstance(total, Total)
    assert total.members == 42
    np.testing.assert_allclose(
        total.arrays["B"], truth(step, parts, [s for s in parts if s not in gone]).arrays["B"], rtol=1e-11
    )
    for s in office.sides["coordinator"].members:
        office.sides[s].check(office.sides["coordinator"].opened, office.sides["coordinator"].members)
    sent = [len(m.body["sealed"]) for m in office.transcript if m.kind == "shares"]
    assert (
        sorted(set(sent))[0] == 30
    )  # neighbours only, and eight of 38 know theirs; who deals the group's key writes to all


def test_most_keepers_know_their_shares_without_a_letter(add: Make, network: Make) -> None:
    """Of six sites with t = 4 two of five are sent theirs, with t = 6 nobody; later batches seal nothing else; sums stay exact."""
    for threshold, told in ((4, 2), (6, 0)):
        adder = Masked(slots=2)
        lengths = []
        for office in sums(add, network, adder, 6, 5, threshold=threshold):
            for m in office.transcript:
                if m.kind == "shares":
                    lengths.append(sorted(len(v) for v in m.body["sealed"].values()))
        first, later = lengths[:6], lengths[6:]
        assert len(later) == 12
        assert all(
            len(x) == 5 and sum(n > 100 for n in x) == told for x in first
        )  # 32 bytes of the tag's key go to all
        assert all(len(x) == told for x in later)


def test_a_site_is_not_cut_off_by_calling_its_neighbours_lost(add: Make, network: Make) -> None:
    """Its neighbours are called lost, more than half of the sites remain: nobody signs, and nothing is opened."""
    roster, step, parts = network(90)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=46))
    sides: dict[str, Any] = {s: adder.exchange(s, roster, step, parts[s]) for s in roster.sites}
    office: Any = adder.exchange("coordinator", roster, step, None)
    queue = [m for s in roster.sites for m in sides[s].start()]
    while queue and queue[0].kind != "survivors":
        m = queue.pop(0)
        queue += (office if m.to == "coordinator" else sides[m.to]).receive(m)
    around = office._board.circle
    victim = roster.sites[7]
    left = sorted(set(roster.sites) - set(around.near(victim)))
    assert victim in left
    assert len(left) >= roster.threshold
    for s in left:
        with pytest.raises(MessageRefused, match="hang together"):
            sides[s].receive(office.envelope.seal(s, "survivors", {"sites": to_bits(left, roster.sites)}))
