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
from polyclinic.node.flare.run_study import publish
from polyclinic.privacy.accounting.mechanisms import RehearsalNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.report.contents import RunContents
from polyclinic.report.html import render
from polyclinic.report.spending import spending
from polyclinic.studies import simulate
from polyclinic.studies.owners import door_in_process
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
SEED = 5
COST = ("bytes_up", "bytes_down", "payload_bytes_up", "seconds_at_15_MB_per_s")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("truth"), patients=80)


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def _without(value: dict[str, Any], *names: str) -> bytes:
    return json.dumps({k: v for k, v in value.items() if k not in names}, sort_keys=True).encode()


def _both(world: World, path: Path, place: Path) -> tuple[Path, Path]:
    """The run folders of one study, between hosts and in one process."""
    order = world.order(path)
    world.open(order)
    outcome = world.lead(order).run()
    hosts = world.coordinator.run(order.id)
    write_outcome(hosts, outcome)
    publish(hosts, order, read_model(hosts, order))
    nodes = json.dumps([str(s.node_path) for s in world.sites.values()])
    alone = path.with_name(f"alone-{path.name}")
    alone.write_text(path.read_text() + f"[sites]\nnodes = {nodes}\n")
    study = Study.read(alone)
    run_study(study, make(study), RunFolder.create(place / "run"), threads=1)
    return hosts, place / "run"


@pytest.mark.parametrize("method", ["sumals", pytest.param("trip", marks=pytest.mark.slow)])
def test_simulation_and_federation_publish_the_same(world: World, method: str, tmp_path: Path) -> None:
    chosen = f'name = "{method}"\nrank = 3\nrounds = 4\naggregation = "masked"'
    path = world.study(f"truth-{method}", chosen, head="deadline = 300\nreplicate = 1\n", data=FLOORED, tail=PEOPLE)
    hosts, one = _both(world, path, tmp_path)
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


def test_a_formal_study_publishes_the_same_with_the_same_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines draw each site's noise from the seed in its node file, as only a rehearsal may."""

    def same_noise(site: str, *args: Any, **options: Any) -> ReleaseGate:
        door = door_in_process(site, *args, **options)
        door.noise = RehearsalNoise(np.random.default_rng([SEED, *site.encode()]))
        return door

    monkeypatch.setattr(simulate, "door_in_process", same_noise)
    seeded = f"[ledger]\nsimulated_noise_seed = {SEED}\n"
    policy = "max_epsilon_per_study = 20.0\ndelta = 1e-3"
    world = World(tmp_path / "hosts", policy, patients=80, rehearsal=True, more=seeded)
    chosen = 'name = "dpem"\nrank = 3\nrounds = 3\nplanning_size = 240\naggregation = "masked"'
    tail = PEOPLE + "[privacy]\nepsilon = 8.0\ndelta = 1e-4\n[evaluate]\nplanning_size = 240\n"
    path = world.study("truth-dpem", chosen, data=FLOORED, tail=tail)
    hosts, one = _both(world, path, tmp_path)
    found = _read(one, "findings.json")
    assert found["forecast"] and found["patients"] != 240  # noise was drawn
    assert _without(_read(hosts, "findings.json"), "traffic", "privacy") == _without(found, "traffic", "privacy")
    apart = (*COST, "simulation_only")  # the exact fit, which only a simulation knows
    assert _without(_read(hosts, "metrics.json"), *apart) == _without(_read(one, "metrics.json"), *apart)
    contents = RunContents.read(RunFolder(hosts))
    spent = {s.site: (s.releases, s.unbounded) for s in spending(contents)}
    assert spent == dict.fromkeys(("east", "north", "south"), (contents.card.releases, 0))
    assert "<td>north</td>" in render(contents)
    flow = _read(hosts, "study.json")["flow"]
    assert flow == _read(one, "study.json")["flow"]
    assert [b["patients"] for b in flow if not b["released"]] == [None] * sum(not b["released"] for b in flow)
