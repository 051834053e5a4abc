"""Thousands of mutated messages, correctly signed, thrown at real sites in the middle of an honest run.

Before every ask of the honest coordinator reaches a site, an attacker with the coordinator's key sends mutations of it. Four
oracles: nothing leaves that is not in the honest run or masked; every charge is one paid sum; the model has the honest bits; no
exception but refusals, and no file outside of the study's folders.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_world import World, hospitals
from mutations import CLASSES, mutated

from polyclinic.engines.flare.carry import carry, driver_of
from polyclinic.engines.flare.folders import SiteFolder, read_events
from polyclinic.engines.registry import federated
from polyclinic.errors import PeerLost, ProtocolMismatch
from polyclinic.federation import wire
from polyclinic.federation.fold import Fold
from polyclinic.federation.messages import ANSWERS, read_answer, seal_ask
from polyclinic.privacy.owner import ledger_of
from polyclinic.study import Study
from polyclinic.tensors.ingest import ingest

ROUNDS = "rank = 3\nrounds = {}\naggregation = "
STUDIES = {
    "trip plain": ('name = "trip"\n' + ROUNDS.format(3) + '"plain"', "", ""),
    "dpem plain": (
        'name = "dpem"\nplanning_size = 10000\n' + ROUNDS.format(3) + '"plain"',
        "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n",
        "",
    ),
    "dpem masked": (
        'name = "dpem"\nplanning_size = 10000\n' + ROUNDS.format(2) + '"masked"',
        "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n",
        "",
    ),
    "sumals masked": ('name = "sumals"\n' + ROUNDS.format(2) + '"masked"', "", ""),
    "localtf asynchronous": ('name = "localtf"\n' + ROUNDS.format(4) + '"plain"', "", "quorum = 2\nstaleness = 2\n"),
    "trip subspace": ('name = "trip"\n' + ROUNDS.format(1) + '"subspace"', "", ""),
}
_written: set[str] = set()
_watching = threading.Event()


def _hook(event: str, args: Any) -> None:
    if event == "open" and _watching.is_set() and isinstance(args[0], str | bytes | Path):
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & 0o3):
            _written.add(str(args[0]))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    sys.addaudithook(_hook)
    made = World(tmp_path_factory.mktemp("hostile"))
    for site in made.sites.values():
        site.node_path.write_text(site.node_path.read_text().replace("min_sites = 3", "min_sites = 2"))
    made.sites = {n: SiteFolder.of(s.node_path) for n, s in made.sites.items()}
    return made


def _body(letter: bytes) -> bytes:
    """What a letter says; the attempt it is addressed to is the asker's."""
    return wire.encode(wire.decode(bytes(letter))[-1])


def attack(world: World, name: str, count: int, seed: int) -> Counter[str]:
    """Run a study with about ``count`` mutated asks in between; returns how often each class was used."""
    method, tail, head = STUDIES[name]
    head = f"deadline = 60\n{head}"
    path = hospitals.study(world.root / "studies", f"{name.replace(' ', '-')}-{seed}", method, head=head, tail=tail)
    from polyclinic.engines.flare import coordination

    order = coordination.sign_study(world.coordinator, Study.read(path))
    before = {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()}
    world.open(order)
    rng, used, lock = np.random.default_rng(seed), Counter(), threading.Lock()
    honest: dict[tuple[str, int], set[bytes]] = {}  # letters of the honest run, by site and sum
    evil: list[tuple[str, int, str, dict[str, Any]]] = []
    asks = 0

    def throw(site: str, value: dict[str, Any], times: int) -> None:
        for _ in range(times):
            kind, ask = mutated(rng, value)
            used[kind] += 1
            data = seal_ask(world.key, order.digest, site, f"evil-{len(evil)}", ask)
            if rng.random() < 0.05:  # a wrong key, another addressee, a cut
                data = [bytes(64) + data[64:], seal_ask(world.key, order.digest, "north", "x", ask)[:-1], data[:70]][
                    int(rng.integers(3))
                ]
            answer = wire.decode(world.workers[site].answer(data))
            evil.append((site, int(value.get("number", -1)), kind, answer))

    def ask(site: str, data: bytes, timeout: float) -> bytes:
        nonlocal asks
        value = wire.decode(data[64:])
        value.pop("id")
        if value["what"] != "look":
            with lock:
                asks += 1
                left = count - sum(used.values())
                throw(site, value, min(left, max(1, count // 15)))
        out = world.workers[site].answer(data)
        answer = wire.decode(out)
        for letter in answer.get("letters") or ():
            honest.setdefault((site, int(value.get("number", -1))), set()).add(_body(letter))
        return out

    _written.clear()
    _watching.set()
    try:
        try:
            outcome = carry(driver_of(order, world.key, world.coordinator.run(order.id)), ask)
        except (PeerLost, ProtocolMismatch):  # whoever has the coordinator's key can always stop a study
            outcome = None
            if order.aggregation != "subspace":  # plain: one site was told another weight, and the votes found it
                assert order.aggregation == "plain"
                own = [e for s in world.sites.values() for e in read_events(s.events) if e.get("study") == order.id]
                assert any("sites voted for the sums before it" in str(e.get("what")) for e in own)
        for site in world.sites:  # after the end, too
            with lock:
                throw(site, {"what": "take", "number": 0, "attempt": 0, "sites": list(order.sites)}, 20)
    finally:
        _watching.clear()

    # 1: what left in the clear is the one release of its number; everything else is keys and masked words
    clear = order.aggregation == "plain"
    for site, number, kind, answer in evil:
        assert answer["what"] in ANSWERS, (kind, answer)
        read_answer(wire.encode(answer))  # and of no other fields than these have
        if clear and order.staleness is None:
            for letter in answer.get("letters") or ():
                assert _body(letter) in honest[site, number], (kind, number)
    # 2: nobody was thrown out, nothing crashed
    for site in world.sites:
        desk = world.workers[site]
        assert desk.study.stage == "ready", desk.study.reasons
        own = [e for e in read_events(world.sites[site].events) if e.get("study") == order.id]
        assert not [e for e in own if e["event"] == "failed"], [e for e in own if e["event"] == "failed"][:3]
    # 3: the book: one charge for each sum that this site took part in
    sums = () if outcome is None else outcome.releases
    for n, s in world.sites.items():
        paid = len(ledger_of(s.node).charges()) - before[n]
        if order.staleness is None and order.aggregation != "subspace":
            assert paid == len(sums), (n, paid, len(sums))
    # 4: files
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
    if outcome is not None and order.staleness is None and not tail:
        study = Study.read(path)
        sites = [ingest(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
        reference = Fold(federated(study), sites).run()
        assert wire.encode(wire.pack(outcome.public)) == wire.encode(wire.pack(reference.public))
    return used


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STUDIES)
def test_mutated_asks_change_nothing(world, name):
    used = attack(world, name, 840, seed=1)
    assert sum(used.values()) >= 840


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STUDIES)
def test_many_mutated_asks_change_nothing(world, name):
    used: Counter[str] = Counter()
    for seed in range(2, 7):
        used += attack(world, name, 4_000, seed=seed)
    assert set(used) == set(CLASSES)
    assert min(used.values()) >= 200, used
