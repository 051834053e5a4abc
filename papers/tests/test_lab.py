"""Parts of an experiment are done once, counted once, and done anew where they are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyclinic_papers import experiment
from polyclinic_papers.claims import Claim
from polyclinic_papers.experiment import Experiment, Lab, Result, markdown, run
from polyclinic_papers.interval import Interval, interval, mean_sd

NAME = "dpfact-mu"


def lab(folder: Path) -> Lab:
    return Lab(NAME, "quick", folder)


clock = [0.0]


@pytest.fixture(autouse=True)
def work_alone_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "time", SimpleNamespace(perf_counter=lambda: clock[0]))


def slow(seconds: float = 0.05) -> float:
    clock[0] += seconds
    return seconds


def parts(folder: Path) -> dict[str, Path]:
    return {json.loads(p.read_text())["key"]: p for p in (folder / NAME / "parts").glob("*.json")}


def test_a_part_read_again_in_its_own_run_is_no_earlier_work(tmp_path: Path) -> None:
    first = lab(tmp_path)
    for _ in range(5):
        first.part("a", slow)
    assert first.before == 0.0


def test_a_part_of_an_earlier_run_counts_once(tmp_path: Path) -> None:
    lab(tmp_path).part("a", slow)
    seconds = json.loads(parts(tmp_path)["a"].read_text())["seconds"]
    later = lab(tmp_path)
    for _ in range(5):
        later.part("a", slow)
    assert later.before == seconds == pytest.approx(0.05)


@pytest.mark.parametrize("order", [("outer", "inner"), ("inner", "outer"), ("outer",)])
def test_a_part_inside_another_counts_once(tmp_path: Path, order: tuple[str, ...]) -> None:
    first = lab(tmp_path)
    first.part("outer", lambda: slow() + first.part("inner", slow))
    whole = json.loads(parts(tmp_path)["outer"].read_text())["seconds"]
    later = lab(tmp_path)
    for key in order:
        later.part(key, slow)
    assert later.before == pytest.approx(whole) and whole == pytest.approx(0.1)


def test_the_reported_time_is_not_longer_than_the_run(tmp_path: Path) -> None:
    def work(lab: Lab) -> Result:
        return Result(["a"], [[lab.part("a", slow)] for _ in range(20)][:1])

    found = run(Experiment(NAME, "p", "t", work), "quick", tmp_path)
    done_once = json.loads(parts(tmp_path)["a"].read_text())["seconds"]
    assert done_once == pytest.approx(0.05)
    assert found["seconds"] == pytest.approx(done_once), "twenty readings of one part are one work"


def test_time_is_not_told_where_an_old_part_lacks_it(tmp_path: Path) -> None:
    lab(tmp_path).part("a", slow)
    path = parts(tmp_path)["a"]
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({"key": "a", "value": kept["value"]}))
    later = lab(tmp_path)
    assert later.part("a", lambda: 7) == 0.05
    assert later.before is None


@pytest.mark.parametrize("damage", ["", '{"key": "a", "val', "[]", "{}", "null"])
def test_a_damaged_part_is_done_anew(tmp_path: Path, damage: str) -> None:
    lab(tmp_path).part("a", lambda: [1.5])
    path = parts(tmp_path)["a"]
    path.write_text(damage)
    assert lab(tmp_path).part("a", lambda: [2.5]) == [2.5]
    assert json.loads(path.read_text())["value"] == [2.5]


def test_a_part_that_is_no_text_is_done_anew(tmp_path: Path) -> None:
    lab(tmp_path).part("a", lambda: 1)
    parts(tmp_path)["a"].write_bytes(b"\xff\xfe\x00")
    assert lab(tmp_path).part("a", lambda: 2) == 2


def test_one_repetition_refutes_nothing(tmp_path: Path) -> None:
    claims = [
        Claim("a", "more", "less", "does not hold"),
        Claim("b", "more", "less", "does not hold", "E0.3"),
        Claim("c", "more", "more", "holds"),
        Claim("d", "more", "-", "undecided", "E0.14"),
    ]
    found = run(Experiment(NAME, "p", "t", lambda lab: Result(["a"], [[1]], claims)), "quick", tmp_path)
    once = "one repetition decides nothing: run it in full"
    assert [c["why"] for c in found["claims"]] == [once, f"{once}; E0.3", "", "E0.14"]
    assert [c["verdict"] for c in found["claims"]] == ["undecided", "undecided", "holds", "undecided"]
    assert "no explanation" not in markdown(found)
    full = run(Experiment(NAME, "p", "t", lambda lab: Result(["a"], [[1]], claims)), "full", tmp_path)
    assert "no explanation" in markdown(full) and once not in markdown(full)


def test_one_repetition_has_no_spread() -> None:
    assert mean_sd([0.5]) == "0.5000 ± -"
    assert mean_sd([0.5, 0.5]) == "0.5000 ± 0.0000"
    assert interval([0.5]) == Interval(0.5, 0.5, 0.5, 1)
