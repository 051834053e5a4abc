"""A hostile hospital: letters of its own making, to the coordinator and to neighbours; and two orders that only one budget pays.

It can cost attempts and time, never a bit of the model, another's contribution, or a charge.
"""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.ingested import ingest_once

from polyclinic.config import Study
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.flare import worker
from polyclinic.node.site.inbox import EARLY, seal_batch
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.interfaces import Message
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 3\nrounds = {}\naggregation = "{}"'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("peer"))


def _order(world: World, name: str, method: str, tail: str = "") -> Any:
    path = hospitals.study(world.root / "studies", name, method, head="deadline = 2\n", tail=tail)
    return Study.read(path), coordination.sign_study(world.coordinator, Study.read(path))


def _right(world: World, study: Study, halves: Halves, outcome: Any) -> None:
    sites = [ingest_once(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
    reference = Simulation(federated(study), sites).run().public
    assert wire.encode(wire.pack(outcome.public)) == wire.encode(wire.pack(reference))
    for name, site in world.sites.items():
        assert halves.sites[name].stage == "ready"
        if halves.order.aggregation != "subspace":
            charges = [c for c in ledger_of(site.node).charges() if c.study == study.name]
            assert len(charges) == len(outcome.releases)


def test_letters_that_a_site_falsifies_cost_attempts_and_nothing_else(world: World) -> None:
    """Bits, cuts, doubles, another's name, an earlier letter, another site's words: of one site, correctly carried."""
    study, order = _order(world, "false-letters", TRIP.format(2, "masked"))
    halves = Halves(world, order)
    rng, heard, lies = np.random.default_rng(5), [], 0

    def tap(site: str, data: bytes) -> bytes:
        nonlocal lies
        value = wire.decode(data)
        if value["what"] != "letters" or not value["letters"]:
            return data
        mine = [bytes(x) for x in value["letters"]]
        heard.extend(mine)
        if site != "north" or lies >= 60 or rng.random() < 0.3:
            return data
        lies += 1
        raw = bytearray(mine[0])
        kind = int(rng.integers(6))
        if kind == 0:
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del raw[int(rng.integers(len(raw))) :]
        elif kind == 2:
            raw = bytearray(heard[int(rng.integers(len(heard)))])
        elif kind == 3:
            letter = wire.decode(bytes(raw))
            raw = bytearray(wire.encode([letter[0], "south", *letter[2:]]))
        elif kind == 4:
            letter = wire.decode(bytes(raw))
            body = {k: (v + np.uint64(1) if isinstance(v, np.ndarray) else v) for k, v in letter[-1].items()}
            raw = bytearray(wire.encode([*letter[:-1], body]))
        value["letters"] = [bytes(raw), *mine[1:]] if kind != 5 else [*mine, *mine]
        return wire.encode(value)

    halves.tap = tap
    outcome = halves.run()
    assert lies >= 20
    _right(world, study, halves, outcome)


def test_a_flood_of_early_letters_stays_within_its_quota(world: World) -> None:
    study, order = _order(world, "flood", TRIP.format(1, "subspace"))
    halves = Halves(world, order)
    east = halves.sites["east"]
    big = np.zeros(100_000)
    batch = [
        wire.encode_message(Message("north", "east", "value", n, "sweep", 7, {"x": n}), east.box.protocol)
        for n in range(200)
    ]
    keys = {n: s.identity() for n, s in world.sites.items()}

    def north(*letters: bytes, to: str = "east") -> bytes:
        return seal_batch(keys["north"].sign, order.digest, "north", to, letters)

    flood = north(*batch)
    strangers = [
        Message("nobody", "east", "value", 1, "sweep", 0, {}),
        Message("north", "south", "value", 1, "sweep", 0, {}),
    ]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):  # 10,000 letters
        east.put(flood)
    for n in range(120):  # 96 MB, in letters that differ
        heavy = Message("north", "east", "value", n, "sweep", 9, {"x": big + n})
        east.put(north(wire.encode_message(heavy, east.box.protocol)))
    for m in strangers:
        east.put(north(wire.encode_message(m, east.box.protocol)))
    for odd in ([-1], [2**62], [[300]], [None], [b"x"]):
        east.put(north(*odd))
    for junk in (b"", b"\xff", b"x" * 1000, wire.encode([1])):
        east.put(junk)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(east.box.early) <= EARLY
    assert kept < 2 * wire.LIMIT
    assert east.box.dropped > 50
    _right(world, study, halves, halves.run())


def test_one_peer_uses_up_nobody_elses_room_for_early_letters(world: World) -> None:
    """A letter's sender is a word that anybody can write; the batch that it came in is signed."""
    _, order = _order(world, "room", TRIP.format(1, "subspace"))
    east = Halves(world, order).sites["east"]
    keys = {n: s.identity() for n, s in world.sites.items()}

    def letter(sender: str, n: int) -> bytes:
        return wire.encode_message(Message(sender, "east", "value", n, "sweep", 7, {"x": n}), east.box.protocol)

    def batch(signer: str, sender: str, to: str, first: int) -> bytes:
        return seal_batch(
            keys[signer].sign, order.digest, sender, to, [letter("south", first + n) for n in range(EARLY)]
        )

    honest = batch("south", "south", "north", 1000)
    for forged in (
        batch("north", "north", "east", 0),  # south's letters in north's batch
        batch("north", "south", "east", 0),  # a batch of south's that north signed
        honest,  # south's own, to north, handed on
        bytes([5]) + b"south" + bytes(64) + wire.encode([letter("south", 1)]),
    ):
        east.put(forged)
    assert not east.box.early
    east.put(seal_batch(keys["north"].sign, order.digest, "north", "east", [letter("north", n) for n in range(200)]))
    east.put(batch("south", "south", "east", 0))
    kept = [m.sender for m in east.box.early]
    assert (kept.count("north"), kept.count("south")) == (EARLY, EARLY)


def test_one_peer_uses_up_nobody_elses_queue_while_a_site_computes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "QUEUE", 2**20)
    order = world.order("queue", TRIP.format(1, "subspace"))
    world.open(order, ("east",))
    east = world.workers["east"]
    keys = {n: s.identity() for n, s in world.sites.items()}
    came: list[str] = []
    monkeypatch.setattr(east.study, "put", lambda data: came.append(data[1 : 1 + data[0]].decode()))
    free = threading.Event()
    busy = east._pool.submit(free.wait, 60)
    flood = seal_batch(keys["north"].sign, order.digest, "north", "east", [bytes(200_000)])
    for _ in range(50):
        east.put(flood)
    for n in range(50):  # as many bytes with nobody's signature, or in the name of others
        east.put(seal_batch(keys["north"].sign, order.digest, "south", "east", [bytes(200_000 + n)]))
    small = seal_batch(keys["north"].sign, order.digest, "north", "east", [b"x"])
    for _ in range(3000):
        east.put(small)
    for _ in range(3):
        east.put(seal_batch(keys["south"].sign, order.digest, "south", "east", [bytes(200_000)]))
    free.set()
    busy.result(60)
    east._pool.submit(lambda: None).result(60)
    assert came.count("south") == 3
    assert came.count("north") <= 2**20 // worker.LEAST
    assert east.study.box.dropped == 50


def test_two_orders_that_do_not_fit_into_one_budget(tmp_path: Path) -> None:
    world = World(tmp_path, policy="max_epsilon_total = 1.0")
    method = 'name = "dpem"\nplanning_size = 10000\nrank = 3\nrounds = 1\naggregation = "plain"'
    tail = "[privacy]\nepsilon = 0.7\ndelta = 1e-6\n"
    first, second = (_order(world, n, method, tail) for n in ("one", "two"))
    one, two = Halves(world, first[1]), Halves(world, second[1])
    assert {s.stage for s in one.sites.values()} == {"ready"}
    assert {s.stage for s in two.sites.values()} == {"refused"}
    assert {s.why for s in two.sites.values()} == {"declined"}
    outcome = one.run()
    for site in world.sites.values():
        charges = ledger_of(site.node).charges()
        assert len(charges) == len(outcome.releases)
        assert {c.study for c in charges} == {"one"}
