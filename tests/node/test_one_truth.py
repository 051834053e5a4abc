"""The same study in one process and between hosts: the same findings, figures, patient flow and shown codes, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.node.test_flare_halves import World

from polyclinic.config import Study
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.node.run_study import publish
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study

FLOORED = hospitals.TENSOR.replace("minimum_patients = 1 ", "minimum_patients = 11 ")
PEOPLE = """
[labels]
outcome = "label"
[people]
age = [0, 50, 70, 120]
sex = true
survival = {time = "days", event = "died", grid = "90d", until = "720d"}
"""
COST = ("bytes_up", "bytes_down", "payload_bytes_up", "seconds_at_15_MB_per_s")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("truth"), patients=80)


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def _without(value: dict[str, Any], *names: str) -> bytes:
    return json.dumps({k: v for k, v in value.items() if k not in names}, sort_keys=True).encode()


@pytest.mark.parametrize("method", ["trip", "sumals"])
def test_simulation_and_federation_publish_the_same(world: World, method: str, tmp_path: Path) -> None:
    chosen = f'name = "{method}"\nrank = 3\nrounds = 4\naggregation = "masked"'
    path = world.study(f"truth-{method}", chosen, head="deadline = 300\nreplicate = 1\n", data=FLOORED, tail=PEOPLE)
    order = world.order(path)
    world.open(order)
    outcome = world.lead(order).run()
    hosts = world.coordinator.run(order.id)
    write_outcome(hosts, outcome)
    publish(hosts, order, read_model(hosts, order))
    nodes = json.dumps([str(s.node_path) for s in world.sites.values()])
    alone = path.with_name(f"alone-{method}.toml")
    alone.write_text(path.read_text() + f"[sites]\nnodes = {nodes}\n")
    study = Study.read(alone)
    run_study(study, make(study), RunFolder.create(tmp_path / "run"), threads=1)
    one = tmp_path / "run"
    assert _without(_read(hosts, "findings.json"), "traffic") == _without(_read(one, "findings.json"), "traffic")
    assert _without(_read(hosts, "metrics.json"), *COST) == _without(_read(one, "metrics.json"), *COST)
    flow = _read(hosts, "study.json")["flow"]
    assert flow == _read(one, "study.json")["flow"]
    assert [b["box"] for b in flow] == ["source", "has_codes", "takes_part", "outcome_known", "outcome"]
    assert flow[2]["patients"] == _read(hosts, "findings.json")["patients"] <= flow[0]["patients"] == 240
    with np.load(hosts / "presence.npz") as a, np.load(one / "presence.npz") as b:
        assert a.files == b.files and all(a[k].tobytes() == b[k].tobytes() for k in a.files)
        assert 0 < a["few1"].sum() < a["few1"].size
    assert _read(hosts, "metrics.json")["fit"] is not None
