"""Every experiment runs in quick mode, and the asserted claims hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyclinic.errors import DataError
from polyclinic_papers.catalogue import CATALOGUE, find
from polyclinic_papers.experiment import Lab, run
from polyclinic_papers.results import page

ASSERTED = {
    "dpfact-sites",
    "trip-size",
    "trip-hospitals",
    "trip-skew",
    "trip-discovery",
    "unpsl-table2",
    "unpsl-figure1",
    "unpsl-figures",
    "em-figure2",
    "em-figure3",
    "beyond-epsilon",
}


@pytest.mark.paper
@pytest.mark.parametrize("name", CATALOGUE)
def test_experiment_runs_quickly_and_its_asserted_claims_hold(name: str, tmp_path: Path) -> None:
    (experiment,) = find(name)
    try:
        found = run(experiment, "quick", tmp_path)
    except DataError as e:
        pytest.skip(f"{e.what} (set POLYCLINIC_DATA)")
    assert found["rows"] and all(len(r) == len(found["columns"]) for r in found["rows"])
    wrong = [c for c in found["claims"] if c["asserted"] and c["verdict"] != "holds"]
    assert not wrong, wrong
    assert (name in ASSERTED) == any(c["asserted"] for c in found["claims"])
    assert json.loads((tmp_path / name / "quick.json").read_text())["name"] == name
    assert name in page(tmp_path)


def test_interrupted_experiments_go_on(tmp_path: Path) -> None:
    lab = Lab("dpfact-mu", "quick", tmp_path)
    done: list[int] = []
    assert lab.part("a", lambda: done.append(1) or [1.5]) == [1.5]  # type: ignore[func-returns-value]
    assert Lab("dpfact-mu", "quick", tmp_path).part("a", lambda: done.append(2)) == [1.5]
    assert done == [1]


def test_every_experiment_has_parameters() -> None:
    for name in CATALOGUE:
        assert Lab(name, "full").parameters is not None
