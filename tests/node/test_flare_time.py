"""Courses, counts and classes between hosts: the same bits as in one process; the model is saved, applied and reported."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.node import test_flare_halves as halves

import polyclinic as pc
from polyclinic.cli import main
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.records.ingest import ingest

hospitals = halves.hospitals  # type: ignore[attr-defined]

COURSES = hospitals.TENSOR.replace('["drug", "diagnosis"]', '["drug", "time"]').replace(
    ', diagnosis = "diagnosis.csv"', ""
)
GAPS = hospitals.FEATURES + 'missing = "random"\n'
STUDIES = {
    "courses": ('name = "parafac2"\nrank = 2\nrounds = 4\nwarmup = 1\n', COURSES + '\n[time]\nbins = "30d"\n'),
    "topics": ('name = "topics"\nrank = 2\nrounds = 4\n', hospitals.TENSOR),
    "classes": ('name = "latentclass"\nn_components = 2\nrounds = 4\n', GAPS),
    "gaps": ('name = "gaussianmixture"\nn_components = 2\nrounds = 3\nradius = 20.0\n', GAPS),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = halves.World(tmp_path_factory.mktemp("time"))
    path = made.root / "north" / "features.csv"  # one hospital did not measure everything
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    for k, row in enumerate(rows[1:]):
        row[1 + k % 6] = ""
    with path.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows(rows)
    return made


@pytest.mark.parametrize("name", ["courses", "topics", "gaps", pytest.param("classes", marks=pytest.mark.slow)])
def test_between_hosts_as_in_one_process_and_the_model_is_a_value(world: Any, name: str, tmp_path: Path) -> None:
    method, data = STUDIES[name]
    path = world.study(name, method + 'aggregation = "masked"', data=data)
    order = world.order(path)
    world.open(order)
    outcome = world.lead(order).run()
    assert halves._same(outcome.public, world.reference(path).public)
    run = world.coordinator.run(order.id)
    write_outcome(run, outcome)
    model = read_model(run, order)
    back = pc.load(model.save(tmp_path / f"m.{model.result_.kind}"))
    mine = ingest(world.sites["north"].node, pc.Study.read(path), tmp_path / "north").site
    assert np.isnan(mine.matrix()).any() if name in ("classes", "gaps") else mine.counts().nnz
    placed = np.asarray(back.transform(mine))
    assert placed.shape == (mine.patients, 2) and np.isfinite(placed).all() and (placed >= 0).all()


def commanded(arguments: list[str]) -> None:
    """A command as it is typed; it ends well."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code


@pytest.mark.parametrize(
    "name", ["courses", "classes", *(pytest.param(n, marks=pytest.mark.slow) for n in ("topics", "gaps"))]
)
def test_a_study_file_is_simulated_and_reported_by_command(world: Any, name: str, tmp_path: Path) -> None:
    method, data = STUDIES[name]
    sites = "".join(f'[[site]]\nnode = "{s.node_path}"\n' for s in world.sites.values())
    path = world.study(f"{name} here", method + 'aggregation = "masked"', data=data, tail=sites)
    for command in (["simulate", str(path), "--out", str(tmp_path / "run")], ["report", str(tmp_path / "run")]):
        commanded(command)
    page = (tmp_path / "run" / "report.html").read_text()
    told = {"courses": "Trajectory of ", "topics": "Phenotypes", "classes": "Patient groups", "gaps": "Patient groups"}
    assert told[name] in page and "north-1" not in page
    if name in ("courses", "topics"):
        command = ["apply", str(tmp_path / "run"), "--node", str(world.sites["north"].node_path)]
        commanded([*command, "--out", str(tmp_path / "applied")])
        assert len((tmp_path / "applied" / "memberships.csv").read_text().splitlines()) > 10
