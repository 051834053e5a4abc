"""Any party killed at any instant at which it makes something durable: the same bits, and every paid sum paid once."""

from __future__ import annotations

import zlib
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
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 3\nrounds = 4\naggregation = "{}"'
DPEM = 'name = "dpem"\nplanning_size = 10000\nrank = 3\nrounds = 3\naggregation = "{}"'
PAID = "[privacy]\nepsilon = 0.1\ndelta = 1e-6\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("kills"))


def attempt(world: World, method: str, seed: int, tail: str = "") -> int:
    """One study with kills; returns how many there were."""
    name = f"kill-{seed}-{zlib.crc32((method + tail).encode())}"
    path = hospitals.study(world.root / "studies", name, method, head="deadline = 60\n", tail=tail)
    order = coordination.sign_study(world.coordinator, Study.read(path))
    halves = Halves(world, order, chance=0.04, seed=seed)
    outcome = halves.run()
    study = Study.read(path)
    for name, site in world.sites.items():
        charges = [c for c in ledger_of(site.node).charges() if c.study == study.name]
        assert ledger_of(site.node).verify() == ()
        paid = [(c.number, c.attempt) for c in charges]
        assert {n for n, _ in paid} == set(range(len(outcome.releases))), name
        assert len(set(paid)) == len(paid), name  # the masks' leak is paid for in every attempt, once
        releases = {c.number: c.release for c in charges}
        assert all(c.release == releases[c.number] for c in charges), name  # and noise was drawn once
        if order.aggregation != "subspace":
            assert len(charges) == len(outcome.releases), name
        assert not list(site.study(order.digest).glob("releases/*.npz"))
    if not tail:
        sites = [ingest_once(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
        reference = Simulation(federated(study), sites).run().public
        assert wire.encode(wire.pack(outcome.public)) == wire.encode(wire.pack(reference))
    else:
        assert all(np.isfinite(f).all() for f in outcome.public.factors)
    return halves.kills


CASES = [("plain", TRIP, ""), ("masked", TRIP, ""), ("subspace", TRIP.replace("rounds = 4", "rounds = 1"), "")]
CASES += [("masked", DPEM, PAID), ("plain", DPEM, PAID), ("subspace", DPEM.replace("rounds = 3", "rounds = 1"), PAID)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("adder", "method", "tail"), [CASES[1], CASES[4]], ids=["trip masked", "dpem plain"])
def test_kills_at_any_instant_end_in_the_same_bits_and_one_charge_a_sum(
    world: World, adder: str, method: Any, tail: str
) -> None:
    assert attempt(world, method.format(adder), 0, tail) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("adder", "method", "tail"), CASES, ids=[f"{m[8:12]} {a}" for a, m, _ in CASES])
def test_forty_runs_with_kills(tmp_path: Path, adder: str, method: Any, tail: str) -> None:
    world = World(tmp_path)
    assert sum(attempt(world, method.format(adder), seed, tail) for seed in range(100, 140)) >= 200
