"""Thousands of mutated messages, correctly signed, thrown at real sites in the middle of an honest run.

Before every ask of the honest coordinator reaches a site, an attacker with the coordinator's key sends mutations of it. Five
oracles: nothing leaves that is not in the honest run or masked; no combination of the sums that can be opened gives the part of
fewer than three sites; every charge is one paid sum; the model has the honest bits; no exception but refusals, and no file
outside of the study's folders.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.mutations import CLASSES, mutated
from tests.hostile.plain_world import Halves
from tests.hostile.spans import Lists
from tests.ingested import ingest_once

from polyclinic.alignment.ecdh_ring import place
from polyclinic.config import Study
from polyclinic.errors import PeerLost, ProtocolMismatch
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.enrolment.folders import SiteFolder, read_events, read_json
from polyclinic.node.flare.carry import carry, driver_of
from polyclinic.node.messages import read_answer, seal_ask
from polyclinic.node.signed_study import StudyOrder
from polyclinic.node.site.worker import SiteStudy
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site
from polyclinic.studies.registry import federated

MESSAGES = int(os.environ.get("POLYCLINIC_MUTATIONS", "20000"))  # of each protocol, in the slow test
ROUNDS = "rank = 3\nrounds = {}\naggregation = "
DPEM = 'name = "dpem"\nplanning_size = 10000\n'
PAID = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"
MIXTURE = 'name = "gaussianmixture"\nn_components = 2\nrounds = 1\nradius = 20.0\nstart = "box"\naggregation = "masked"'
RING = '[tensor]\nmodes = ["drug", "diagnosis"]\nwindow = "visit"\nminimum_patients = 1\nalignment = "ring"\n'
STUDIES = {  # method, tail, head, data
    "trip plain": ('name = "trip"\n' + ROUNDS.format(3) + '"plain"', "", "", hospitals.TENSOR),
    "trip masked": ('name = "trip"\n' + ROUNDS.format(2) + '"masked"', "", "quorum = 3\n", hospitals.TENSOR),
    "dpem plain": (DPEM + ROUNDS.format(3) + '"plain"', PAID, "", hospitals.TENSOR),
    "dpem masked": (DPEM + ROUNDS.format(2) + '"masked"', PAID, "quorum = 3\n", hospitals.TENSOR),
    "sumals masked": ('name = "sumals"\n' + ROUNDS.format(2) + '"masked"', "", "quorum = 3\n", hospitals.TENSOR),
    "mixture masked": (MIXTURE, "", "quorum = 3\n", hospitals.FEATURES),
    "trip subspace": ('name = "trip"\n' + ROUNDS.format(1) + '"subspace"', "", "", hospitals.TENSOR),
    "trip ring": ('name = "trip"\n' + ROUNDS.format(2) + '"plain"', "", "", RING),
}
_written: set[str] = set()
_watching = threading.Event()
_honest: dict[tuple[Path, str], bytes] = {}  # models of honest runs, by world and study


def _hook(event: str, args: Any) -> None:
    if event == "open" and _watching.is_set() and isinstance(args[0], str | bytes | Path):
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & 0o3):
            _written.add(str(args[0]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    sys.addaudithook(_hook)
    made = World(tmp_path_factory.mktemp("hostile"), ("east", "north", "south", "west"))
    for site in made.sites.values():
        site.node_path.write_text(site.node_path.read_text().replace("min_sites = 3", "min_sites = 2"))
    made.sites = {n: SiteFolder.of(s.node_path) for n, s in made.sites.items()}
    return made


def _body(letter: bytes) -> bytes:
    """What a letter says; the attempt it is addressed to is the asker's."""
    return wire.encode(wire.decode(bytes(letter))[-1])


class Desks:
    """The sites of an order and their coordinator: each a worker with its threads, as in an engine, or the plain objects.

    The plain ones answer every ask at once, never "busy", and need no thread to be woken: the long runs take a tenth of the time.
    """

    def __init__(self, world: World, order: StudyOrder, *, plain: bool) -> None:
        self.world, self.order = world, order
        self.halves = Halves(world, order) if plain else None
        self._ask = None if self.halves is None else self.halves.ask
        if self.halves is None:
            world.open(order)

    def study(self, site: str) -> SiteStudy:
        return self.world.workers[site].study if self.halves is None else self.halves.sites[site]

    def answer(self, site: str, data: bytes) -> bytes:
        if self._ask is None:
            return self.world.workers[site].answer(data)
        out = self._ask(site, data)  # with the letters that neighbours write to each other
        assert out is not None
        return out

    def run(self, ask: Callable[[str, bytes], bytes]) -> tuple[Coordinator, Any]:
        """The honest study, its asks carried by ``ask``; no outcome where the attacker stopped it."""
        if self.halves is not None:
            self.halves.ask = ask  # type: ignore[method-assign, assignment]
            driver, run = self.halves.driver, self.halves.run
        else:
            driver = driver_of(self.order, self.world.key, self.world.coordinator.run(self.order.id))
            run = partial(carry, driver, lambda site, data, timeout: ask(site, data))
        try:
            return driver, run()
        except (PeerLost, ProtocolMismatch):  # whoever has the coordinator's key can always stop a study
            return driver, None

    def events(self) -> list[Any]:
        if self.halves is not None:
            return self.halves.events
        files = [s.events for s in self.world.sites.values()]
        return [e for file in files for e in read_events(file) if e.get("study") == self.order.id]


def attack(world: World, name: str, count: int, seed: int, *, plain: bool = False) -> Counter[str]:
    """Run a study with about ``count`` mutated asks in between; returns how often each class was used.

    Workers with threads and a clock may be cut at another ask in every run. What a site sent before it was cut is then not
    among the honest letters, so only the plain ones are tested in every run.
    """
    method, tail, head, data = STUDIES[name]
    title = f"{name.replace(' ', '-')}-{seed}"
    path = hospitals.study(
        world.root / "studies",
        title,
        method,
        head=f"deadline = {6 if plain else 6 + count // 500 if data is RING else 60 + count // 5}\n{head}",
        tail=tail,
        data=data,
    )
    from polyclinic.node.enrolment import federation as coordination

    order = coordination.sign_study(world.coordinator, Study.read(path))
    before = {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()}
    desks = Desks(world, order, plain=plain)
    rng, used, lock = np.random.default_rng(seed), Counter(), threading.Lock()  # type: ignore[var-annotated]
    honest: dict[tuple[str, int], set[bytes]] = {}  # letters of the honest run, by site and sum
    evil: list[tuple[str, int, str, tuple[bytes, ...]]] = []
    lists = Lists(order)

    def throw(site: str, value: dict[str, Any], times: int) -> None:
        for _ in range(times):
            kind, ask = mutated(rng, value)
            used[kind] += 1
            data = seal_ask(world.key, order.digest, site, f"evil-{len(evil)}", ask)
            if rng.random() < 0.05:  # a wrong key, another addressee, a cut
                data = [bytes(64) + data[64:], seal_ask(world.key, order.digest, "north", "x", ask)[:-1], data[:70]][
                    int(rng.integers(3))
                ]
            out = desks.answer(site, data)
            read_answer(out)  # one of the known kinds, and of no other fields than these have
            answer = wire.decode(out)
            lists.seen(site, desks.study(site).mark.signed, answer)
            evil.append((site, int(value.get("number", -1)), kind, tuple(answer.get("letters") or ())))

    def ask(site: str, data: bytes) -> bytes:
        value = wire.decode(data[64:])
        value.pop("id")
        if value["what"] != "look":
            with lock:
                left = count - sum(used.values())
                throw(site, value, min(left, max(1, count // 15)))
        out = desks.answer(site, data)
        answer = wire.decode(out)
        with lock:
            lists.seen(site, desks.study(site).mark.signed, answer)
        for letter in answer.get("letters") or ():
            honest.setdefault((site, int(value.get("number", -1))), set()).add(_body(letter))
        return out

    _written.clear()
    _watching.set()
    try:
        driver, outcome = desks.run(ask)
        if (
            outcome is None and order.aggregation != "subspace"
        ):  # plain: one site was told another weight, found by votes
            assert order.aggregation == "plain"
            told = [str(e.get("what")) for e in desks.events()] + driver.standing()
            assert any("sites voted for the sums before it" in t or "its vote is not one" in t for t in told), told[-9:]
        for site in world.sites:  # after the end, too
            with lock:
                throw(site, {"what": "take", "number": 0, "attempt": 0, "sites": list(order.sites)}, 20)
    finally:
        _watching.clear()

    # 1: what left in the clear is the one release of its number; everything else is keys and masked words
    clear = order.aggregation == "plain"
    for site, number, kind, letters in evil if clear else ():
        for letter in letters:
            assert _body(letter) in honest[site, number], (kind, number)
    # 2: what can be opened: no combination of sums is the part of fewer than three sites
    assert not lists.faults()
    # 3: nobody was thrown out, nothing crashed
    for site in world.sites:
        assert desks.study(site).stage == "ready", desks.study(site).reasons
    assert not [e for e in desks.events() if e["event"] == "failed"]
    # 4: the book: one charge for each sum that this site took part in; of a study that was stopped, for the open one too
    for n, s in world.sites.items():
        charges = ledger_of(s.node).charges()[before[n] :]
        if order.aggregation != "subspace":
            sums = 0 if driver._conductor is None else len(driver.conductor.releases)
            assert len(charges) in ({sums} if outcome is not None else {sums, sums + 1}), (n, len(charges), sums)
            assert len({c.number for c in charges}) == len(charges)
    # 5: files
    roots = (str(world.root), "/tmp", "/proc", "/dev")
    outside = [p for p in _written if p.startswith("/") and not p.startswith(roots)]
    assert not [p for p in outside if "__pycache__" not in p]  # where numba keeps what it compiles
    inside = [p for p in _written if p.startswith(str(world.root))]
    allowed = [str(s.path) for s in world.sites.values()] + [str(world.coordinator.path)]
    allowed += [str(s.node.home) for s in world.sites.values()]
    books = [str(world.root / n / f"{n}.ledger.jsonl") for n in world.sites]
    allowed += [b for name in books for b in (name, str(Path(name).with_name(f".{Path(name).name}")))]
    assert not [p for p in inside if not p.startswith(tuple(allowed))]
    # and the model is that of the honest run
    if outcome is not None and not tail:
        assert wire.encode(wire.pack(outcome.public)) == honest_bits(world, order, name, Study.read(path))
    return used


def honest_bits(world: World, order: StudyOrder, name: str, study: Study) -> bytes:
    """The model of the study in one process; of studies that differ in their names only it is made once."""
    if order.alignment or (world.root, name) not in _honest:  # the ring gives every study places of its own
        sites = [ingest_once(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
        sites = [agreed_places(world, order, s) for s in sites] if order.alignment else sites
        _honest[world.root, name] = wire.encode(wire.pack(Simulation(federated(study), sites).run().public))
    return _honest[world.root, name]


def agreed_places(world: World, order: StudyOrder, site: Site) -> Site:
    """A site on the places that the ring gave its codes."""
    agreed = read_json(world.sites[site.name].study(order.digest) / "codes.json")["agreed"]
    tensor = site.counts()
    for n, a in enumerate(tensor.axes):
        if a.name in agreed:
            tensor = place(tensor, n, agreed[a.name]["places"], agreed[a.name]["size"])
    return Site(site.name, tensor)


def attacked(world: World, name: str, messages: int, first: int) -> Counter[str]:
    """Attack as many studies as it takes: whoever has the coordinator's key can stop a plain one early."""
    used: Counter[str] = Counter()
    for seed in itertools.count(first):
        used += attack(world, name, min(5_000, messages - used.total()), seed=seed, plain=True)
        if used.total() >= messages:
            return used
    raise AssertionError


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STUDIES)
def test_mutated_asks_change_nothing(world: World, name: str) -> None:
    assert attacked(world, name, 560, 1).total() >= 560


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STUDIES)
def test_mutated_asks_of_workers_with_threads_change_nothing(world: World, name: str) -> None:
    assert attack(world, name, 560, seed=1).total() >= 560


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", STUDIES)
def test_many_mutated_asks_change_nothing(world: World, name: str) -> None:
    used = attacked(world, name, MESSAGES, 1000)
    print(f"\nFIGURE {name}: {used.total()} messages; {dict(used)}")
    assert set(used) == set(CLASSES)
    assert min(used.values()) >= 200, used
