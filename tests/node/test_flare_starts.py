"""Several starts between hosts are one order: the models and the choice of one process; one chain, one card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.ingested import ingest_once
from tests.node.test_flare_halves import World

from polyclinic.config import Study
from polyclinic.errors import ConfigError, PeerLost
from polyclinic.node.enrolment.federation import sign_study
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.loop import Simulation
from polyclinic.studies.registry import federated

METHOD = 'name = "{}"\nrank = 3\nrounds = 2\nn_starts = 3\naggregation = "{}"\n{}'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("starts"))


def _sites(world: World, study: Any) -> Any:
    return [ingest_once(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]


@pytest.mark.parametrize(
    ("name", "adder", "more"),
    [
        pytest.param("trip", "plain", 'start = "random"\nwarmup = 0', marks=pytest.mark.slow),
        ("sumals", "masked", ""),
        pytest.param("localtf", "plain", "", marks=pytest.mark.slow),
    ],
)
def test_best_of_several_starts_is_the_one_of_one_process(world: World, name: str, adder: str, more: str) -> None:
    path = world.study(f"starts-{name}", METHOD.format(name, adder, more))
    study = Study.read(path)
    order = world.order(path)
    world.open(order)
    lead = world.lead(order)
    lead.stopped = lambda: lead.number >= 4  # in the middle of a start
    with pytest.raises(PeerLost, match="stopped"):
        lead.run()
    world.open(order)
    write_outcome(world.coordinator.run(order.id), world.lead(order).run())
    there = read_model(world.coordinator.run(order.id), order)
    models, best = there.models_, there.model_
    sites = _sites(world, study)
    alone = federated(study).fit(sites)
    assert best.objective_ == alone.objective_ == min(m.objective_ for m in models)
    assert all(np.array_equal(a, b) for a, b in zip(best.factors_, alone.factors_))
    assert len({m.objective_ for m in models}) == 3  # a choice was made
    assert 0.0 < best.stability_ <= 1.0
    for k, m in enumerate(models):  # each start is the bits of the one that runs alone
        one = federated(study).with_params(seed=study.seed + k, n_starts=1)
        one.publish(Simulation(one, sites).run())
        assert all(np.array_equal(a, b) for a, b in zip(m.factors_, one.factors_))
        assert [h["round"] for h in m.history_] == [h["round"] for h in one.history_]
        assert m.history_[-1]["objective"] == one.history_[-1]["objective"]
    book = ledger_of(world.sites["north"].node)  # every sum of every start is one line, in one order
    lines = [c for c in book.charges() if c.study == study.name]
    assert len(lines) == best.happened_.releases


def test_a_private_study_has_one_start_and_is_refused_before_it_is_signed(world: World) -> None:
    method = 'name = "dpem"\nrank = 3\nn_starts = 2\naggregation = "masked"'
    before = len(list((world.coordinator.path / "runs").iterdir()))
    with pytest.raises(ConfigError, match="n_starts"):
        sign_study(world.coordinator, Study.read(world.study("dp", method, tail="[privacy]\nepsilon = 1.0\n")))
    assert len(list((world.coordinator.path / "runs").iterdir())) == before


def test_a_study_that_does_not_say_is_signed_with_its_halving_and_flags_are_those_of_one_process(world: World) -> None:
    path = world.study("halved", 'name = "sumals"\nrank = 2\nrounds = 2\naggregation = "masked"')
    path.write_text(path.read_text().replace("replicate = 0\n", ""))
    order = world.order(path)
    assert order.study["study"]["replicate"] == 1, "who reads the order sees it, and an older site runs the same"
    world.open(order)
    write_outcome(world.coordinator.run(order.id), world.lead(order).run())
    there = read_model(world.coordinator.run(order.id), order)
    study = Study.read(path)
    alone = federated(study)
    alone.publish(Simulation(alone, _sites(world, study)).run())
    found, here = (m.findings_ for m in (there.model_, alone.model_))
    assert len(here.replicability) == 2
    assert [r["replicable"] for r in found.replicability] == [r["replicable"] for r in here.replicability]
    assert found.replicability["halves"] == pytest.approx(here.replicability["halves"], abs=1e-9)
