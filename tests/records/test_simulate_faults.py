"""What a newcomer meets when a simulation cannot go on: all faults at once, what became of small units, no half-made folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli import main


def call(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def events(folder: Path, sizes: dict[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["patient_id,visit_id,time,kind,code,site"]
    for site, n in sizes.items():
        for p in range(n):
            for kind, code in (("drug", f"d{p % 3}"), ("diagnosis", f"x{p % 2}")):
                rows.append(f"{site}{p},{site}{p}v,2020-01-01,{kind},{code},{site}")
    (folder / "events.csv").write_text("\n".join(rows) + "\n")


STUDY = (
    '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[sites]\nsplit = true\n[sites.source]\nkind = "files"\n'
    'events = "events.csv"\n[method]\nname = "trip"\nrank = 2\nrounds = 2\naggregation = "masked"\n'
)


def test_units_that_were_joined_into_too_few_are_told_and_leave_no_folder(tmp_path: Path, capsys: Any) -> None:
    events(tmp_path, {"a": 40, "b": 5, "c": 3})
    (tmp_path / "study.toml").write_text(STUDY)
    assert call("simulate", tmp_path / "study.toml", "--out", tmp_path / "run") == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "1 site is left of units with fewer than 11 patients; a masked sum needs 3" in text
    assert "'others 1' was made of 'b', 'c', 'a'" in text and "aggregation = 'plain'" in text
    assert not (tmp_path / "run").exists()
    (tmp_path / "study.toml").write_text(STUDY.replace("masked", "plain"))
    assert call("simulate", tmp_path / "study.toml", "--out", tmp_path / "run") == 0


def test_a_failed_run_leaves_no_folder_and_a_resumable_one_stays(tmp_path: Path) -> None:
    events(tmp_path, {"a": 5, "b": 5, "c": 5})  # no code has 11 patients
    (tmp_path / "study.toml").write_text(STUDY)
    assert call("simulate", tmp_path / "study.toml", "--out", tmp_path / "deep" / "run") == 3
    assert not (tmp_path / "deep" / "run").exists()
    from polyclinic.studies.run_folder import RunFolder

    begun = RunFolder.create(tmp_path / "begun")
    begun.write_checkpoint(1, b"x")
    assert not begun.abandon() and begun.checkpoints()


def test_faults_of_the_study_and_of_its_method_come_together(tmp_path: Path, capsys: Any) -> None:
    events(tmp_path, {"a": 40})
    wrong = STUDY.replace('modes = ["drug", "diagnosis"]', 'modes = ["drug", "drug"]\nwindow = "soon"')
    (tmp_path / "study.toml").write_text(wrong.replace("rank = 2", "rank = -2\nnonsense = 1"))
    (tmp_path / "node.toml").write_text('[site]\nname = "a"\n[source]\nkind = "files"\nevents = "events.csv"\n')
    for command in (
        ["simulate", tmp_path / "study.toml", "--out", tmp_path / "run"],
        ["check", tmp_path / "node.toml", "--study", tmp_path / "study.toml"],
    ):
        assert call(*command) == 2
        text = capsys.readouterr().err
        assert "window" in text and "rank" in text and "nonsense" in text


def test_all_owners_who_refuse_are_named_at_once(tmp_path: Path, capsys: Any) -> None:
    for name, n in (("a", 30), ("b", 14), ("c", 15)):
        events(tmp_path / name, {name: n})
        (tmp_path / name / "node.toml").write_text(
            f'[site]\nname = "{name}"\n[source]\nkind = "files"\nevents = "events.csv"\n[policy]\nmin_patients = 20\n'
        )
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[sites]\nnodes = ["a/node.toml", "b/node.toml", '
        '"c/node.toml"]\n[method]\nname = "trip"\nrank = 2\nrounds = 2\naggregation = "plain"\n'
    )
    assert call("simulate", tmp_path / "study.toml", "--out", tmp_path / "run") == 4
    text = capsys.readouterr().err
    assert "2 of 3 sites do not take part" in text and "'b'" in text and "'c'" in text
    assert text.count("fewer than 20 patients") == 2
    assert not (tmp_path / "run").exists()


def test_check_takes_the_owners_own_minimum_and_says_the_outcome_in_words(tmp_path: Path, capsys: Any) -> None:
    events(tmp_path, {"a": 40, "b": 5, "c": 20, "d": 30})
    (tmp_path / "labels.csv").write_text("patient_id,label\n" + "".join(f"a{p},{p % 2}\n" for p in range(40)))
    node = '[site]\nname = "a"\n[source]\nkind = "files"\nevents = "events.csv"\nlabels = "labels.csv"\n'
    (tmp_path / "study.toml").write_text(STUDY + '[labels]\noutcome = "label"\n')
    for policy, small in (
        ("", ["b"]),
        ("[policy]\nmin_patients = 1\n", []),
        ("[policy]\nmin_patients = 21\n", ["b", "c"]),
    ):
        (tmp_path / "node.toml").write_text(node + policy)
        call("check", tmp_path / "node.toml", "--study", tmp_path / "study.toml", "--json")
        found = json.loads(capsys.readouterr().out)
        assert found["small"] == small
    assert call("check", tmp_path / "node.toml", "--study", tmp_path / "study.toml") == 0
    assert "outcome label: 20 of 40 patients" in capsys.readouterr().out
