"""A hostile neighbour on the ring of codes: what it does to letters costs attempts, and shows or moves no code."""

from __future__ import annotations

from collections import deque
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.hostile.test_hostile_coordinator import RING, agreed_places
from tests.ingested import ingest_once

from polyclinic.alignment.ecdh_ring import RingCoordinator
from polyclinic.config import Study
from polyclinic.errors import PeerLost, ProtocolMismatch
from polyclinic.node.admission import alignment as aligning
from polyclinic.node.coordinator import coordinator as driver
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import read_json
from polyclinic.node.signed_study import StudyOrder
from polyclinic.node.site.inbox import open_batch, seal_batch
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.schema import common
from polyclinic.protocol.wire import chain as certificate
from polyclinic.protocol.wire import encoding as wire
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 2\nrounds = 1\naggregation = "plain"'


class Post(deque[Any]):
    """Letters between sites; one site's are falsified as they leave, so often: before it signs their batch, or after."""

    def __init__(self, world: World, order: StudyOrder, seed: int, lies: int) -> None:
        super().__init__()
        self.order, self.sign = order, world.sites["north"].identity().sign
        self.rng, self.lies, self.left = np.random.default_rng(seed), 0, lies
        self.carried: list[bytes] = []
        self.old: list[bytes] = []

    def append(self, item: tuple[str, bytes]) -> None:
        to, data = item
        sender, body = open_batch(data, self.order.keys, self.order.digest, to)
        letters = [bytes(x) for x in wire.decode(bytes(body))]
        if sender == "north" and self.left and self.rng.random() < 0.4:
            self.left, self.lies = self.left - 1, self.lies + 1
            letters = self._false(letters)
            name = "north" if self.rng.random() < 0.8 else "south"
            data = seal_batch(self.sign, self.order.digest, name, to, letters)
        self.old += letters
        self.carried.append(data)
        super().append((to, data))

    def _false(self, letters: list[bytes]) -> list[bytes]:
        raw, kind = bytearray(letters[0]), int(self.rng.integers(7))
        if kind == 0:
            raw[int(self.rng.integers(len(raw)))] ^= 1 << int(self.rng.integers(8))
        elif kind == 1:
            del raw[int(self.rng.integers(len(raw))) :]
        elif kind == 2 and self.old:  # of another attempt, another mode, another site
            raw = bytearray(self.old[int(self.rng.integers(len(self.old)))])
        elif kind == 3:
            letter = wire.decode(bytes(raw))
            raw = bytearray(wire.encode([letter[0], "south", *letter[2:]]))
        elif kind == 4:
            return [*letters, *letters]
        elif kind == 5:
            return []
        else:  # points of its own making, under its own name
            letter = wire.decode(bytes(raw))
            body = {k: self.rng.bytes(len(v)) if isinstance(v, bytes) else v for k, v in letter[-1].items()}
            raw = bytearray(wire.encode([*letter[:-1], body]))
        return [bytes(raw), *letters[1:]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("ring"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_letters_that_a_neighbour_falsifies_move_no_code_and_show_none(world: World, seed: int) -> None:
    path = hospitals.study(world.root / "studies", f"ring-{seed}", TRIP, head="deadline = 2\n", data=RING)
    study = Study.read(path)
    order = coordination.sign_study(world.coordinator, study)
    halves = Halves(world, order)
    halves.post = Post(world, order, seed, 12)
    for _ in range(6):
        try:
            outcome = halves.run()
            break
        except PeerLost:  # not agreed in five attempts: the coordinator resumes
            halves.driver = halves.coordinator()
    assert halves.post.lies >= 1
    raw = [ingest_once(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
    placed = [agreed_places(world, order, s) for s in raw]
    whole = {}  # type: ignore[var-annotated]
    for name, site in world.sites.items():  # a code has one place, and a place one code, everywhere
        for mode, found in read_json(site.study(order.digest) / "codes.json")["agreed"].items():
            for code, place in found["places"].items():
                assert whole.setdefault((mode, code), place) == place, (name, mode, code)
    assert len({(mode, place) for (mode, _), place in whole.items()}) == len(whole)
    reference = Simulation(federated(study), placed).run().public
    assert wire.encode(wire.pack(outcome.public)) == wire.encode(wire.pack(reference))
    codes = {c.encode() for s in raw for a in s.counts().axes[1:] for c in a.labels or ()}
    assert codes
    assert not [c for c in codes for data in halves.post.carried if c in data]


class Twofold(RingCoordinator):
    """Gives one hospital a union of its own: by itself it is right, and it fits nobody else's."""

    def _tags(self, sender: Any, body: Any) -> Any:
        mine = {m.to: m for m in super()._tags(sender, body)}
        again = {m.to: m for m in super()._tags(sender, body)} if mine else {}
        return [again["south"] if to == "south" else m for to, m in mine.items()]


@pytest.mark.parametrize(
    ("adder", "chained"),
    [("plain", True), ("masked", True), ("masked", False), pytest.param("plain", False, marks=pytest.mark.slow)],
)
def test_a_hospital_that_was_given_places_of_its_own_shares_no_sum(
    world: World, monkeypatch: pytest.MonkeyPatch, adder: str, chained: bool
) -> None:
    """A coordinator that lies on the ring, and goes on as if all had agreed; without the mark of the union in the chain it succeeds."""
    monkeypatch.setattr(aligning, "RingCoordinator", Twofold)
    told: dict[str, str] = {}

    def believed(order: StudyOrder, known: Any) -> Any:  # the coordinator compares nothing
        told.update({s: v["alignment"] for s, v in known.items()})
        return common(order, {s: {**v, "alignment": told["east"]} for s, v in known.items()})

    monkeypatch.setattr(driver, "common", believed)
    monkeypatch.setattr(driver, "fits", lambda ours, theirs: True)
    if not chained:
        root = certificate.root
        monkeypatch.setattr(
            certificate, "root", lambda order, shape, axes, names, sites: root(order, shape, axes, None, sites)
        )
    name, head = f"twofold-{adder}-{chained}", "deadline = 2\nquorum = 3\n"
    path = hospitals.study(world.root / "studies", name, TRIP.replace("plain", adder), head=head, data=RING)
    halves = Halves(world, coordination.sign_study(world.coordinator, Study.read(path)))
    if chained:
        with pytest.raises((PeerLost, ProtocolMismatch)):
            halves.run()
    else:
        assert len(halves.run().releases) >= 2
    assert len(set(told.values())) == 2
