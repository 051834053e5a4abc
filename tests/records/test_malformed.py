"""Malformed input: exit code 3 (or 2 for the files of the study), one message with every fault, nothing half-written."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from polyclinic import SparseTensor
from polyclinic.cli import main

HEAD = "patient_id,visit_id,time,kind,code\n"
GOOD = HEAD + "001,v1,2020-01-01,drug,aspirin\n001,v1,2020-01-01,diagnosis,4280\n"
STUDY = '[study]\nname = "s"\n[tensor]\nmodes = ["drug", "diagnosis"]\n'
NODE = '[site]\nname = "a"\n[source]\nkind = "files"\nevents = "events.csv"\n'
OMOP = '[site]\nname = "a"\n[source]\nkind = "omop"\nfolder = "omop"\n'

Run = Callable[..., tuple[int, str, Path]]


def call(folder: Path, out: str = "out") -> int:
    """Run the command as a user does; returns the exit code."""
    with pytest.raises(SystemExit) as e:
        main(["ingest", str(folder / "node.toml"), "--study", str(folder / "study.toml"), "--out", str(folder / out)])
    assert isinstance(e.value.code, int)
    return e.value.code


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def go(
        events: str | bytes = GOOD, *, node: str = NODE, study: str = STUDY, **files: str | bytes
    ) -> tuple[int, str, Path]:
        for name, content in {"events.csv": events, "node.toml": node, "study.toml": study, **files}.items():
            path = tmp_path / name.replace("__", "/").replace("_csv", ".csv")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
        code = call(tmp_path)
        after = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
        assert after == before, "something was left behind"
        text = capsys.readouterr().err
        assert text.count("[PC") == 1, "not one message"
        return code, text, tmp_path

    return go


def test_every_missing_column_is_named(run: Run) -> None:
    code, text, _ = run("patient_id,when,kind\n1,2020-01-01,drug\n")
    assert code == 3
    assert all(f"column {c} missing" in text for c in ("visit_id", "time", "code"))


def test_wrong_types_are_counted_together(run: Run) -> None:
    events = "patient_id,visit_id,time,kind,code,value\n1,v,yesterday,drug,a,12\n1,v,2020-13-45,diagnosis,b,high\n"
    code, text, _ = run(events)
    assert code == 3
    assert "no usable event at all (read events: 2 rows, 2 time is not a date)" in text


def test_an_unknown_code_system_is_refused(run: Run) -> None:
    events = "patient_id,visit_id,time,kind,code,system\n1,v,2020-01-01,drug,a,icd7\n1,v,2020-01-01,diagnosis,b,\n"
    code, text, _ = run(events)
    assert code == 3
    assert "'icd7'" in text
    assert "icd9cm" in text


def test_duplicate_patients_in_the_labels_are_refused(run: Run) -> None:
    labels = "patient_id,label\n001,1\n001,0\n002,maybe\n"
    code, text, _ = run(node=NODE + 'labels = "labels.csv"\n', labels_csv=labels)
    assert code == 3
    assert "1 patients have more than one row" in text
    assert "1 labels are neither" in text


@pytest.mark.parametrize("named", [True, False])
def test_mixed_icd_versions_are_refused_unless_grouped(run: Run, named: bool) -> None:
    system = ("system", "icd9cm", "icd10cm") if named else ("value", "", "")
    events = f"patient_id,visit_id,time,kind,code,{system[0]}\n1,v,2020-01-01,diagnosis,428.0,{system[1]}\n"
    events += f"1,v,2020-01-01,diagnosis,I50.9,{system[2]}\n1,v,2020-01-01,drug,a,\n"
    code, text, folder = run(events)
    assert code == 3
    assert "mixes ICD-9 and ICD-10" in text
    assert "1 rows of ICD-10" in text
    if named:
        (folder / "study.toml").write_text(STUDY + '[codes.diagnosis]\nto = "ccs"\n')
        assert call(folder) == 0
        assert json.loads((folder / "out" / "manifest.json").read_text())["tensor"]["shape"] == [1, 1, 1]


@pytest.mark.parametrize("damage", ["truncated", "not gzip"])
def test_a_broken_gzip_is_refused(run: Run, damage: str) -> None:
    rows = "".join(f"{k},v{k},2020-01-01,{kind},c{k % 97}\n" for k in range(40_000) for kind in ("drug", "diagnosis"))
    packed = gzip.compress((HEAD + rows).encode())
    content = packed[: len(packed) // 2] if damage == "truncated" else b"patient" + packed
    code, text, _ = run(node=NODE.replace("events.csv", "e.csv.gz"), **{"e.csv.gz": content})
    assert code == 3
    assert "e.csv.gz" in text or "cannot be read" in text


@pytest.mark.parametrize("events", [HEAD, ""])
def test_an_empty_table_is_refused(run: Run, events: str) -> None:
    code, _, _ = run(events)
    assert code == 3


def test_a_kind_without_events_is_refused_with_the_kinds_there_are(run: Run) -> None:
    code, text, _ = run(study=STUDY.replace("drug", "treatment"))
    assert code == 3
    assert "mode 'treatment'" in text
    assert "diagnosis, drug" in text


def test_rows_of_different_length_are_refused(run: Run) -> None:
    code, _, _ = run(GOOD + "001,v1,2020-01-01,drug,a,b,c,d\n" * 3)
    assert code == 3


def test_a_missing_file_is_refused(run: Run) -> None:
    code, text, _ = run(node=NODE.replace("events.csv", "nowhere.parquet"))
    assert code == 3
    assert "nowhere.parquet" in text


TABLES = {
    "person": "person_id\n1\n",
    "visit_occurrence": "visit_occurrence_id,person_id,visit_start_date,visit_end_date\n1,1,2020-01-01,2020-01-02\n",
    "condition_occurrence": "person_id,condition_concept_id,condition_start_date,visit_occurrence_id\n1,7,2020-01-01,1\n",
    "drug_exposure": "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id\n1,8,2020-01-01,1\n",
    "concept": "concept_id,concept_name,vocabulary_id,concept_code\n7,x,SNOMED,1\n8,y,RxNorm,2\n",
}


def omop(**changed: str) -> dict[str, str]:
    return {f"omop__{k}_csv": v for k, v in {**TABLES, **changed}.items() if v}


def test_missing_tables_and_columns_are_named_together(run: Run) -> None:
    code, text, _ = run(node=OMOP, **omop(person="", concept="concept_id\n7\n", drug_exposure="person_id\n1\n"))
    assert code == 3
    assert "no file person.csv" in text
    assert "concept_name, vocabulary_id, concept_code missing" in text
    assert "drug_concept_id, drug_exposure_start_date missing" in text


INJECTION = 'person"; DROP TABLE concept; --'


@pytest.mark.parametrize("place", ["tables", "schema"])
def test_sql_in_a_table_name_is_refused_and_runs_nothing(run: Run, tmp_path: Path, place: str) -> None:
    (tmp_path / "cdm.duckdb").unlink(missing_ok=True)
    with duckdb.connect(str(tmp_path / "cdm.duckdb")) as con:
        con.execute("CREATE TABLE concept AS SELECT 1 AS concept_id")
    node = OMOP.replace('folder = "omop"', 'database = "cdm.duckdb"')
    node += f"tables = {{person = '{INJECTION}'}}\n" if place == "tables" else f"schema = '{INJECTION}'\n"
    code, text, folder = run(node=node)
    assert code == 3
    assert "is not the name of a table" in text
    with duckdb.connect(str(folder / "cdm.duckdb"), read_only=True) as con:
        assert con.execute("SELECT count(*) FROM concept").fetchone() == (1,)


def test_sql_in_values_is_only_text(tmp_path: Path) -> None:
    evil = "x'); DROP TABLE units; --"
    rows = f'"{evil}","{evil}",2020-01-01,drug,"{evil}"\n"{evil}","{evil}",2020-01-01,diagnosis,"{evil}"\n'
    (tmp_path / "ev'ents.csv").write_text(HEAD + rows)
    (tmp_path / "node.toml").write_text(NODE.replace("events.csv", "ev'ents.csv"))
    (tmp_path / "study.toml").write_text(STUDY)
    assert call(tmp_path, "o'ut") == 0
    assert SparseTensor.load(tmp_path / "o'ut" / "tensor.npz").axes[1].labels == (evil,)


def test_wrong_study_and_node_files_exit_with_2_and_name_every_fault(run: Run) -> None:
    code, text, _ = run(study='[study]\nname = "s"\nseed = -1\n[tensor]\nmodes = []\nwindow = "6 moons"\ncolour = 1\n')
    assert code == 2
    assert all(
        x in text
        for x in ("study.seed", "tensor.modes", "tensor.window", "tensor.colour: unknown key; known: alignment, cap")
    )
    code, text, _ = run(node='[site]\nname = "a"\n[source]\nkind = "oracle"\nfoo = 1\n')
    assert code == 2
    assert "source.kind" in text
    assert "source.foo" in text
    code, _, _ = run(node="[site\n")
    assert code == 2


def test_a_failed_run_leaves_an_earlier_result_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(GOOD)
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "study.toml").write_text(STUDY)
    assert call(tmp_path) == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    (tmp_path / "events.csv").write_text(HEAD)
    assert call(tmp_path) == 3
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_killed_run_leaves_nothing_after_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(GOOD)
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "study.toml").write_text(STUDY)
    script = (
        "import os, sys; from pathlib import Path; from polyclinic.records.databases.engine import session\n"
        "with session(Path(sys.argv[1])) as (con, scratch):\n"
        "    con.execute('CREATE TABLE patients AS SELECT 1 AS patient_id'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert [p.name[:6] for p in (tmp_path / "out").iterdir()] == [".work-"]
    assert call(tmp_path) == 0
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["events.parquet", "labels.parquet", "manifest.json", "tensor.npz"]
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "out").iterdir())
