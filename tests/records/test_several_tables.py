"""A source of several tables: rows of events below each other, the columns of the others by their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.ingest import Ingested, ingest

TABLES = [
    {"file": "diagnoses.csv", "columns": {"kind": "=diagnosis", "code": "ICD"}},
    {"file": "drugs.csv", "columns": {"kind": "=drug", "code": "Substance"}},
    {"file": "patients.csv", "key": "patient_id", "columns": {"patient_id": "PatientID", "birth": "Born"}},
    {"file": "visits.csv", "key": "Encounter", "columns": {"patient_id": "Patient", "time": "Admitted"}},
]
COLUMNS = {"visit_id": "Encounter", "site": "Ward"}
STUDY = {"study": {"name": "s"}, "tensor": {"modes": ["diagnosis", "drug"], "minimum_patients": 1}}


def write(folder: Path) -> None:
    """Visits know the patient, patients know the ward. Numbers come as 1 and as 1.0."""
    people = range(1, 31)
    files = {
        "patients.csv": ["PatientID,Born,Ward", *(f"{p}.0,{1940 + p},{'NS'[p % 2]}" for p in people)],
        "visits.csv": ["Encounter,Patient,Admitted", *(f"{100 + p},{p},2020-02-{p % 28 + 1:02}" for p in people)],
        "diagnoses.csv": ["Encounter;ICD", *(f"{100 + p}.0;I{p % 3}" for p in people)],
        "drugs.csv": ["Encounter,Substance", *(f"{100 + p},{'abc'[p % 3]}" for p in people), "999,a"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")


def node(folder: Path, tables: list[dict[str, Any]] | None = None, **more: Any) -> Node:
    source = {"kind": "files", "tables": TABLES if tables is None else tables, "columns": COLUMNS, **more}
    return Node.parse({"site": {"name": "a"}, "source": source}, folder=folder)


def read(node: Node, out: Path, **more: Any) -> Ingested:
    return ingest(node, Study.parse({**STUDY, **more}), out, skip_faulty=node.skip_faulty)


def test_four_tables_give_the_tensor_of_one(tmp_path: Path) -> None:
    write(tmp_path)
    found = read(node(tmp_path), tmp_path / "several")
    rows = [
        f"{p},{100 + p},2020-02-{p % 28 + 1:02},{kind},{code},{'NS'[p % 2]},{1940 + p}"
        for p in range(1, 31)
        for kind, code in (("diagnosis", f"I{p % 3}"), ("drug", "abc"[p % 3]))
    ]
    (tmp_path / "one.csv").write_text("\n".join(["patient_id,visit_id,time,kind,code,site,birth", *rows]) + "\n")
    one = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "one.csv"}}, folder=tmp_path)
    assert found.manifest["outputs"]["tensor.npz"] == read(one, tmp_path / "one").manifest["outputs"]["tensor.npz"]
    assert found.manifest["steps"][0]["dropped"] == {"no patient": 1}, "a drug of a visit that is not there"
    events = f"'{tmp_path}/several/events.parquet'"
    assert duckdb.sql(f"SELECT DISTINCT site FROM {events} ORDER BY 1").fetchall() == [("N",), ("S",)]


def test_a_key_that_repeats_is_used_once_and_the_owner_is_told(tmp_path: Path) -> None:
    write(tmp_path)
    with open(tmp_path / "visits.csv", "a") as f:
        f.write("101,1,2020-03-01\n")
    found = read(node(tmp_path), tmp_path / "out")
    assert found.manifest["notes"]["rows of visits.csv repeat a Encounter: one of each is used"] == 1
    assert found.site.patients == 30


def test_numbers_of_visits_may_begin_anew_with_each_patient(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("patient_id,visit_id,time\n1,1,2020-01-01\n2,1,2021-01-01\n")
    rows = [f"{p},1,{k},{k}{p}" for p in (1, 2) for k in ("diagnosis", "drug")]
    (tmp_path / "e.csv").write_text("\n".join(["patient_id,visit_id,kind,code", *rows]) + "\n")
    both = [{"file": "e.csv"}, {"file": "v.csv", "key": "visit_id"}]
    read(node(tmp_path, both, columns={}), tmp_path / "out")
    query = f"SELECT DISTINCT patient_id, CAST(time AS DATE)::VARCHAR FROM '{tmp_path}/out/events.parquet' ORDER BY 1"
    assert duckdb.sql(query).fetchall() == [("1", "2020-01-01"), ("2", "2021-01-01")]


def test_in_a_formal_study_a_claimed_visit_changes_nobody_else(tmp_path: Path) -> None:
    write(tmp_path)
    read(node(tmp_path).skipping_faulty(), tmp_path / "before")
    with open(tmp_path / "visits.csv", "a") as f:
        f.write("101,0,1900-01-01\n101,,\n")  # patient 0 claims the visit of patient 1
    read(node(tmp_path).skipping_faulty(), tmp_path / "after")
    queries = [
        f"SELECT * FROM '{tmp_path}/{x}/events.parquet' WHERE patient_id != '0' ORDER BY ALL"
        for x in ("before", "after")
    ]
    before, after = (duckdb.sql(q).fetchall() for q in queries)
    assert before == after and len(before) == 60


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ([{"file": "drugs.csv", "columns": {"code": "ATC"}}], "drugs.csv lacks columns\n  - column ATC missing"),
        ([{"file": "drugs.csv"}, {"file": "patients.csv", "key": "Patient"}], "patients.csv lacks columns"),
        (
            [{"file": "drugs.csv"}, {"file": "patients.csv", "key": "Ward"}],
            "no event has the key of patients.csv: 'Ward'",
        ),
        ([{"file": "visits.csv", "key": "Encounter"}], "events is missing"),
        ([{"file": "drugs.csv", "keys": "x"}], "did you mean 'key'"),
    ],
)
def test_faults_name_the_table_the_column_and_the_fix(tmp_path: Path, tables: list[Any], text: str) -> None:
    write(tmp_path)
    with pytest.raises((ConfigError, DataError)) as e:
        read(node(tmp_path, tables), tmp_path / "out")
    assert text in str(e.value)


def test_only_files_are_put_together() -> None:
    with pytest.raises(ConfigError, match="of kind 'files', this one is 'omop'"):
        Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", "tables": [{"file": "x.csv"}]}})
