"""Several starts between hosts: the same models and the same choice as in one process; everything refused before it is sent."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")
sys.path.insert(0, str(Path(__file__).parent))

from test_flare_halves import World

from polyclinic.engines.flare.result import write_outcome
from polyclinic.engines.flare.starts import choose, sign_starts, starts_of
from polyclinic.engines.registry import federated
from polyclinic.errors import ConfigError
from polyclinic.study import Study
from polyclinic.tensors.ingest import ingest


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("starts"))


def test_best_of_several_starts_is_the_one_of_one_process(world):
    method = 'name = "trip"\nrank = 3\nrounds = 2\nn_starts = 3\nwarmup = 0\naggregation = "plain"'
    path = world.study("starts", method)
    study = Study.read(path)
    orders = sign_starts(world.coordinator, study)
    assert [o.study["study"]["seed"] for o in orders] == [study.seed + k for k in range(3)]
    for order in orders:
        world.open(order)
        write_outcome(world.coordinator.run(order.id), world.lead(order).run())
    best, models = choose(world.coordinator, orders)
    sites = [ingest(s.node, study, world.root / "in-process" / n).site for n, s in world.sites.items()]
    alone = federated(study).fit(sites)
    assert models[best].objective_ == alone.objective_
    assert all(np.array_equal(a, b) for a, b in zip(models[best].factors_, alone.factors_))
    assert len({m.objective_ for m in models}) == 3  # a choice was made
    assert 0.0 < models[best].stability_ <= 1.0
    assert [o.id for o in starts_of(world.coordinator, orders[1])] == [o.id for o in orders]


def test_one_start_is_one_order_and_a_private_study_has_one(world):
    assert (
        len(sign_starts(world.coordinator, Study.read(world.study("one", 'name="trip"\nrank=3\naggregation="plain"'))))
        == 1
    )
    method = 'name = "dpem"\nrank = 3\nn_starts = 2\naggregation = "masked"'
    before = len(list((world.coordinator.path / "runs").iterdir()))
    with pytest.raises(ConfigError, match="n_starts"):
        sign_starts(world.coordinator, Study.read(world.study("dp", method, tail="[privacy]\nepsilon = 1.0\n")))
    assert len(list((world.coordinator.path / "runs").iterdir())) == before
