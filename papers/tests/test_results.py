"""The page of results, and the papers' commands: what is missing or damaged is said, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyclinic.errors import ConfigError, DataError
from polyclinic_papers.catalogue import CATALOGUE, find
from polyclinic_papers.claims import Claim
from polyclinic_papers.command import app
from polyclinic_papers.experiment import Experiment, Result, run
from polyclinic_papers.results import page, results, write_page


def made(name: str, folder: Path, mode: str = "quick") -> Path:
    known = CATALOGUE[name]
    stub = Experiment(name, known.paper, known.title, lambda lab: Result(["a"], [[1]], [Claim("x", "1", "1", "holds")]))
    run(stub, mode, folder)  # type: ignore[arg-type]
    return folder / name / f"{mode}.json"


def test_the_page_prefers_full_results(tmp_path: Path) -> None:
    made("trip-skew", tmp_path)
    made("trip-skew", tmp_path, "full")
    made("em-figure2", tmp_path)
    assert {n: v["mode"] for n, v in results(tmp_path).items()} == {"trip-skew": "full", "em-figure2": "quick"}
    overview = write_page(tmp_path, tmp_path / "page.md").read_text()
    assert "`em-figure2`, quick" in (tmp_path / "page-em.md").read_text() and "page-em" in overview


@pytest.mark.parametrize("damage", ["", '{"name": ', "[]", '{"name": "trip-skew"}'])
def test_all_damaged_results_are_named_at_once_and_nothing_is_written(tmp_path: Path, damage: str) -> None:
    made("dpfact-mu", tmp_path)
    for path in (broken := [made("trip-skew", tmp_path, "full"), made("em-figure2", tmp_path)]):
        path.write_text(damage)
    with pytest.raises(DataError) as e:
        write_page(tmp_path, tmp_path / "page.md")
    assert len(e.value.faults) == 2
    assert all(any(str(path) in fault for fault in e.value.faults) for path in broken)
    assert f"polyclinic papers run em-figure2 --quick --out {tmp_path}`" in str(e.value)
    assert f"polyclinic papers run trip-skew --out {tmp_path}`" in str(e.value)
    assert not (tmp_path / "page.md").exists()


def test_a_claim_cut_short_is_damage(tmp_path: Path) -> None:
    path = made("trip-skew", tmp_path)
    value = json.loads(path.read_text())
    del value["claims"][0]["verdict"]
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match="cannot be read"):
        page(tmp_path)


def test_no_results_are_no_page(tmp_path: Path) -> None:
    for folder, what in ((tmp_path / "nosuch", "no such folder"), (tmp_path, "none")):
        with pytest.raises(DataError, match=what) as e:
            write_page(folder, tmp_path / "page.md")
        assert f"polyclinic papers run all --quick --out {folder}" in e.value.hint
    assert list(tmp_path.iterdir()) == []


def test_piped_lists_have_an_experiment_a_line() -> None:
    found = CliRunner().invoke(app, ["list"])
    assert found.exit_code == 0
    assert [line.split()[0] for line in found.stdout.splitlines()] == list(CATALOGUE)
    assert max(map(len, found.stdout.splitlines())) > 80
    rows = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [r["name"] for r in rows] == list(CATALOGUE) and set(rows[0]) == {"name", "paper", "title", "data"}


@pytest.mark.parametrize(
    ("name", "meant"), [("DPFact-cost", "dpfact-cost"), ("unpsl-tabel1", "unpsl-table1"), ("UNPSL", "unpsl")]
)
def test_a_near_miss_gets_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="did you mean") as e:
        find(name)
    assert f"did you mean {meant}" in e.value.what


def test_a_strange_name_gets_the_list() -> None:
    with pytest.raises(ConfigError) as e:
        find("xyzzy")
    assert "did you mean" not in str(e.value) and "dpfact-cost" in str(e.value)
