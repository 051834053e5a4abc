"""Every experiment runs in quick mode, and the asserted claims hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyclinic.errors import DataError
from polyclinic_papers.catalogue import CATALOGUE, find
from polyclinic_papers.command import app
from polyclinic_papers.experiment import Lab, run
from polyclinic_papers.results import page

MAIN = {"dpfact-rmse", "localtf-rmse", "trip-iterations", "unpsl-table1", "em-figure2"}
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
}


OTHER_DATA = (
    "-synthetic",
    "-mimic",
    "-cms",
    "-real",
)  # the code of another experiment over other data: in make test-all


@pytest.mark.paper
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n.endswith(OTHER_DATA) else n for n in CATALOGUE]
)
def test_experiment_runs_quickly_and_its_asserted_claims_hold(name: str, tmp_path: Path) -> None:
    (experiment,) = find(name)
    try:
        found = run(experiment, "quick", tmp_path)
    except DataError as e:
        pytest.skip(f"{e.what} (set POLYCLINIC_DATA)")
    assert found["rows"] and all(len(r) == len(found["columns"]) for r in found["rows"])
    wrong = [c for c in found["claims"] if c["asserted"] and c["verdict"] != "holds"]
    assert not wrong, wrong
    # Controls: the zero model, random factors or permuted labels in the place of the method, on the same data.
    bare = [c["text"] for c in found["claims"] if not c["controls"]]
    assert not bare, bare
    fooled = [c for c in found["claims"] if c["verdict"] == "holds" and "holds" in c["controls"].values()]
    assert not fooled, fooled
    assert (name in MAIN) == bool(found["main"])
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


def test_a_run_of_a_paper_ends_with_its_main_figure(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["run", "trip-iterations", "--quick", "--out", str(tmp_path)])
    assert found.exit_code == 0
    heading, _, row = found.stdout.rstrip().splitlines()[-3:]
    assert heading == "| paper | figure | paper says | ours | literal | verdict |"
    assert "TRIP 1.4409, central 1.4404" in row and "default: " in row and "Literal: " in row
