"""Between hosts the card is made from what the sites signed of their books."""

from __future__ import annotations

import base64
import json
from typing import Any

import hospitals
import pytest
from tests.attacks.hostile_world import World

from polyclinic.config import Study
from polyclinic.node.flare.carry import carry, driver_of
from polyclinic.node.flare.result import read_outcome, write_outcome
from polyclinic.node.flare.worker import Worker
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.studies.registry import federated

DPEM = 'name = "dpem"\nrank = 2\nrounds = 2\nplanning_size = 10000\naggregation = "{}"'
TRIP = 'name = "trip"\nrank = 2\nrounds = 2\naggregation = "{}"'
PAID = "[privacy]\nepsilon = 0.7\ndelta = 1e-6\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("cards"))


def fit(world: World, name: str, method: str, tail: str = "") -> Any:
    path = hospitals.study(world.root / "studies", name, method, head="deadline = 30\n", tail=tail)
    order = world.order(name, method, tail=tail)
    world.workers = {n: Worker(order, s, world._post) for n, s in world.sites.items()}
    run = world.coordinator.run(order.id)
    made = driver_of(order, world.key, run)
    outcome = carry(made, lambda site, data, _: world.workers[site].answer(data))
    assert outcome is not None
    write_outcome(run, outcome)
    model = federated(Study.read(path))
    model.publish(read_outcome(run, model))
    return model, run


@pytest.mark.parametrize("adder", ["plain", "masked", "subspace"])
def test_the_card_is_that_of_the_worst_signed_book(world: World, adder: str) -> None:
    model, run = fit(world, f"paid-{adder}", DPEM.format(adder), PAID)
    card = model.privacy_
    books = {n: ledger_of(s.node) for n, s in world.sites.items()}
    worst = max(b.epsilon(1e-6, study=f"paid-{adder}") for b in books.values())
    assert card.epsilon == pytest.approx(worst, abs=1e-9)
    assert card.books == "signed by east, north, south: every site that took part"
    assert model.lines_, "what is built on this model knows its cost"
    value = json.loads((run / "books.json").read_text())
    raw = bytearray(base64.b64decode(value["books"]["north"]))
    raw[3] ^= 1
    value["books"]["north"] = base64.b64encode(bytes(raw)).decode()
    (run / "books.json").write_text(json.dumps(value))
    again = federated(Study.read(world.root / "studies" / f"paid-{adder}.toml"))
    again.publish(read_outcome(run, again))
    assert "not by north" in again.privacy_.books
    assert again.privacy_.epsilon == pytest.approx(worst, abs=1e-9)


def test_an_exact_study_says_who_signed_and_what_the_coordinator_saw(world: World) -> None:
    model, _ = fit(world, "exact", TRIP.format("masked"))
    assert model.privacy_.epsilon is None
    assert "every site that took part" in model.privacy_.books
