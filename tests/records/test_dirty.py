"""Dirty tables, one fault each: the row is dropped and counted by its reason, the rest goes on, no patient is quoted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli import main

PATIENTS = 30
STUDY = '[study]\nname = "s"\n[tensor]\nmodes = ["drug", "diagnosis"]\n'


def omop(folder: Path, **more: str) -> None:
    """A small clean OMOP export; ``more``: rows added to a table."""
    people = range(900_001, 900_001 + PATIENTS)
    tables = {
        "person": "person_id,year_of_birth,care_site_id\n" + "".join(f"{p},1950,1\n" for p in people),
        "visit_occurrence": "visit_occurrence_id,person_id,visit_start_date,visit_end_date,visit_concept_id\n"
        + "".join(f"{p}0,{p},2020-01-01,2020-01-05,9201\n" for p in people),
        "condition_occurrence": "person_id,condition_concept_id,condition_start_date,visit_occurrence_id\n"
        + "".join(f"{p},{100 + p % 3},2020-01-02,{p}0\n" for p in people),
        "drug_exposure": "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id\n"
        + "".join(f"{p},{200 + p % 2},2020-01-02,{p}0\n" for p in people),
        "measurement": "person_id,measurement_concept_id,measurement_date,visit_occurrence_id,value_as_number,range_low,range_high\n"
        + "".join(f"{p},300,2020-01-02,{p}0,5,1,9\n" for p in people),
        "death": "person_id,death_date\n900001,2020-02-01\n",
        "concept": "concept_id,concept_name,vocabulary_id,concept_code\n"
        + "".join(f"{c},concept {c},SNOMED,{c}\n" for c in (0, 100, 101, 102, 200, 201, 300)),
    }
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text + more.get(name, ""))
    (folder / "node.toml").write_text('[site]\nname = "north"\n[source]\nkind = "omop"\nfolder = "."\n')
    (folder / "study.toml").write_text(STUDY)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


CONDITION, DRUG, LAB = "condition_occurrence", "drug_exposure", "measurement"
DIRTY = [
    (CONDITION, "900001,100,infinity,9000010", "impossible date"),
    (CONDITION, "900001,100,-infinity,9000010", "impossible date"),
    (CONDITION, "900001,100,2020-02-30,9000010", "time is not a date"),
    (CONDITION, "900001,100,0001-01-01,9000010", "impossible date"),
    (CONDITION, "900001,100,9999-12-31,9000010", "impossible date"),
    (CONDITION, "900001,100,soon,9000010", "time is not a date"),
    (CONDITION, "900001,flu,2020-01-02,9000010", "concept_id is not a number"),
    (CONDITION, "900001,0,2020-01-02,9000010", "concept_id 0: no standard concept"),
    (CONDITION, "900001,,2020-01-02,9000010", "concept_id 0: no standard concept"),
    (CONDITION, "900001,777,2020-01-02,9000010", "concept is not in the vocabulary"),
    (CONDITION, "900002,100,1949-05-05,9000020", "before the birth of the patient"),
    (CONDITION, "900001,100,2020-05-01,9000010", "more than 60 days after the death of the patient"),
    (DRUG, "900001,200,2020-01-02,9000020", "visit of another patient"),
    (DRUG, "999999,200,2020-01-02,9000020", "patient is not in person"),
    (DRUG, ",200,2020-01-02,9000020", "patient is not in person"),
    (LAB, "900001,300,2020-01-02,9000010,high,1,9", "value is not a number"),
    (LAB, "900001,300,2020-01-02,9000010,NaN,1,9", "value is not finite"),
    (LAB, "900001,300,2020-01-02,9000010,inf,1,9", "value is not finite"),
]


@pytest.mark.parametrize(("table", "row", "reason"), DIRTY, ids=[f"{t}: {w} {i}" for i, (t, _, w) in enumerate(DIRTY)])
def test_one_dirty_row_costs_one_row(tmp_path: Path, capsys: Any, table: str, row: str, reason: str) -> None:
    omop(tmp_path, **{table: row + "\n"})
    assert call("ingest", tmp_path / "node.toml", "--study", tmp_path / "study.toml", "--out", tmp_path / "out") == 0  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    step = next(s for s in manifest["steps"] if s["step"] == f"read {table}")
    assert (step["rows_in"], step["rows_out"], step["dropped"]) == (PATIENTS + 1, PATIENTS, {reason: 1})
    assert manifest["tensor"]["shape"] == [PATIENTS, 2, 3]
    text = capsys.readouterr()
    assert not re.search(r"9\d{5}", text.out + text.err)
    assert "Traceback" not in text.err


@pytest.mark.parametrize("value", ["1e308", "5e-324", "-1e308"])
def test_any_finite_value_is_a_value(tmp_path: Path, value: str) -> None:
    omop(tmp_path, measurement=f"900001,300,2020-01-02,9000010,{value},1,9\n")
    (tmp_path / "study.toml").write_text(STUDY.replace("drug", "abnormal_lab"))
    assert call("ingest", tmp_path / "node.toml", "--study", tmp_path / "study.toml", "--out", tmp_path / "out") == 0  # type: ignore[arg-type]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tensor"]["shape"] == [1, 1, 1]


def checked(folder: Path, capsys: Any) -> tuple[int, str]:
    code = call("check", folder / "node.toml", "--study", folder / "study.toml")  # type: ignore[arg-type]
    return code, " ".join(capsys.readouterr().out.split())


def test_check_calls_many_dropped_rows_what_they_are(tmp_path: Path, capsys: Any) -> None:
    omop(tmp_path, condition_occurrence="900001,0,2020-01-02,9000010\n" * 19)
    code, text = checked(tmp_path, capsys)
    assert code == 0
    assert "39% of its 49 rows cannot be used, mostly: concept_id 0: no standard concept (19)" in text
    omop(tmp_path, condition_occurrence="900001,0,2020-01-02,9000010\n" * 60)
    code, text = checked(tmp_path, capsys)
    assert code == 3
    assert "FAULT read condition_occurrence: 67% of its 90 rows cannot be used" in text
    assert "more than 50%" in text


def test_check_fails_where_one_patient_is_most_of_the_events(tmp_path: Path, capsys: Any) -> None:
    omop(tmp_path, drug_exposure="900001,200,2020-01-02,9000010\n" * 200_000)
    code, text = checked(tmp_path, capsys)
    assert code == 3
    assert "one patient has 100% of all 200,090 events, more than 20%" in text
    assert "900001" not in text
    # ... and the cell of that patient is still one visit.
    assert call("ingest", tmp_path / "node.toml", "--study", tmp_path / "study.toml", "--out", tmp_path / "out") == 0  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["tensor"]["largest"] == 1.0
    assert manifest["skew"]["repeats"] > 0.9


def test_check_fails_where_most_codes_have_no_group_and_names_a_wrong_method(tmp_path: Path, capsys: Any) -> None:
    omop(tmp_path)
    (tmp_path / "study.toml").write_text(
        STUDY + '[codes.diagnosis]\nto = "groups.csv"\n[method]\nname = "trip"\nrank = -3\naggregation = "plain"\n'
    )
    (tmp_path / "groups.csv").write_text("code,group\n100,A\n")
    code, text = checked(tmp_path, capsys)
    assert code == 3
    assert "mode diagnosis: 67% of its 30 rows have no group, more than 50%" in text
    assert "rank" in text
    assert "ready" not in text


def test_a_key_that_repeats_costs_its_row_and_is_told_without_quoting_it(tmp_path: Path, capsys: Any) -> None:
    more = {
        "person": "900001,1960,1\n",
        "visit_occurrence": "9000010,900001,2020-01-01,2020-01-05,9201\n9000020,900002,2021-01-01,2021-01-05,9202\n",
        "concept": "100,other name,SNOMED,100\n",
    }
    for folder in ("clean", "twice"):
        (tmp_path / folder).mkdir()
    omop(tmp_path / "clean")
    omop(tmp_path / "twice", **more)
    for folder in ("clean", "twice"):
        place = tmp_path / folder
        assert call("ingest", place / "node.toml", "--study", place / "study.toml", "--out", place / "out") == 0  # type: ignore[arg-type]
    said = [json.loads((tmp_path / f / "out" / "manifest.json").read_text()) for f in ("clean", "twice")]
    assert said[1]["notes"] | said[0]["notes"] == said[1]["notes"]
    assert said[1]["notes"]["rows of visit_occurrence repeat a visit_occurrence_id: one of each is used"] == 2
    assert said[1]["notes"]["rows of person repeat a person_id: one of each is used"] == 1
    assert said[1]["notes"]["rows of concept repeat a concept_id: one of each is used"] == 1
    assert said[0]["steps"] == said[1]["steps"]
    tensors = [(tmp_path / f / "out" / "tensor.npz").read_bytes() for f in ("clean", "twice")]
    assert tensors[0] == tensors[1]
    assert call("check", tmp_path / "twice" / "node.toml") == 0  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert "1 rows of person repeat a person_id: one of each is used" in text and "900001" not in text


def test_a_drug_whose_amount_is_text_keeps_its_code(tmp_path: Path) -> None:
    rows = ["patient_id,visit_id,time,kind,code,value"]
    for p in range(12):
        amount = ("half a tablet", "inf", "2.5", "")[p % 4]
        rows += [f"p{p},v{p},2020-01-01,drug,aspirin,{amount}", f"p{p},v{p},2020-01-01,diagnosis,4280,"]
    rows += ["p0,v0,2020-01-01,lab,glucose,high"]
    (tmp_path / "events.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "node.toml").write_text('[site]\nname = "a"\n[source]\nkind = "files"\nevents = "events.csv"\n')
    (tmp_path / "study.toml").write_text('[study]\nname = "s"\n[tensor]\nmodes = ["drug", "diagnosis"]\n')
    assert call("ingest", tmp_path / "node.toml", "--study", tmp_path / "study.toml", "--out", tmp_path / "out") == 0  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["notes"]["amounts are no numbers: the codes are kept"] == 6
    assert manifest["steps"][0]["dropped"] == {"value is not a number": 1}
    import duckdb

    kept = duckdb.sql(f"SELECT count(*), count(value) FROM '{tmp_path / 'out' / 'events.parquet'}' WHERE kind = 'drug'")
    assert kept.fetchall() == [(12, 3)]
