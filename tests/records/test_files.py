"""Plain event files: other names, other formats, constants, labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.preflight import check_node
from polyclinic.tensors.sparse import SparseTensor

HEAD = "patient_id,visit_id,time,kind,code\n"
ROWS = (
    "01,v1,2020-01-01,drug,a\n01,v1,2020-01-01,diagnosis,0389\n1,v2,2020-01-01,drug,a\n1,v2,2020-01-01,diagnosis,389\n"
)


def made(folder: Path, modes: tuple[str, ...] = ("drug", "diagnosis"), **source: Any) -> Ingested:
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", **source}}, folder=folder)
    study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": modes}})
    return ingest(node, study, folder / "out")


def test_csv_gz_parquet_folders_and_patterns_give_the_same_tensor(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE e AS SELECT * FROM read_csv('{tmp_path}/e.csv', all_varchar = true)")
        con.execute(f"COPY e TO '{tmp_path}/e.csv.gz' (HEADER)")
        con.execute(f"COPY (SELECT * REPLACE (CAST(time AS TIMESTAMP) AS time) FROM e) TO '{tmp_path}/e.parquet'")
        (tmp_path / "parts").mkdir()
        for k in (0, 1):
            con.execute(
                f"COPY (SELECT * FROM e LIMIT 2 OFFSET {2 * k}) TO '{tmp_path}/parts/{k}.csv' (HEADER, DELIMITER ';')"
            )
    names = ("e.csv", "e.csv.gz", "e.parquet", "parts", "parts/*.csv")
    found = {made(tmp_path, events=name).manifest["outputs"]["tensor.npz"] for name in names}
    assert len(found) == 1
    tensor = SparseTensor.load(tmp_path / "out" / "tensor.npz")
    assert tensor.axes[0].labels == ("01", "1")  # two patients: text, not numbers
    assert tensor.axes[2].labels == ("0389", "389")


def test_other_column_names_constants_and_absent_columns(tmp_path: Path) -> None:
    (tmp_path / "drugs.csv").write_text(
        "Person ID,stay,drug name,dead\n7,s1,aspirin,1\n7,s1,heparin,1\n8,s2,aspirin,0\n"
    )
    columns = {"patient_id": "Person ID", "visit_id": "stay", "time": "", "kind": "=drug", "code": "drug name"}
    one = made(tmp_path, ("drug",), events="drugs.csv", columns=columns, label="dead")
    assert one.site.counts().shape == (2, 2)
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [1, 0]


def test_the_map_holds_for_the_label_file_too(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text((HEAD + ROWS).replace("patient_id", "mrn"))
    (tmp_path / "l.csv").write_text("mrn,died\n01,true\n1,FALSE\n")
    one = made(tmp_path, events="e.csv", labels="l.csv", columns={"patient_id": "mrn", "label": "died"})
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [1, 0]


def test_labels_follow_the_patients_of_the_tensor_and_unknown_ones_are_counted(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    (tmp_path / "l.csv").write_text("patient_id,label\n99,1\n1,0\n")
    one = made(tmp_path, events="e.csv", labels="l.csv")
    np.testing.assert_array_equal(one.site.labels, [np.nan, 0.0])  # one of two patients has none
    assert one.manifest["labels"]["unknown"] == 1
    with duckdb.connect() as con:
        rows = con.execute(f"SELECT patient_id, label FROM read_parquet('{tmp_path}/out/labels.parquet')").fetchall()
    assert rows == [("01", None), ("1", 0)]


def test_an_unknown_canonical_name_in_the_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    with pytest.raises(ConfigError, match=r"columns\.colour: unknown"):
        made(tmp_path, events="e.csv", columns={"colour": "x"})


def test_a_name_in_the_map_that_is_not_in_the_file_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    with pytest.raises(DataError, match="column icd missing") as e:
        made(tmp_path, events="e.csv", columns={"code": "icd"})
    assert "patient_id, visit_id" in e.value.hint


def test_texts_that_mean_no_value_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS + "1,v2,?,drug,?\n?,v2,2020-01-01,drug,a\n")
    one = made(tmp_path, events="e.csv", missing=["?", ""])
    assert one.manifest["steps"][0] == {
        "step": "read events", "rows_in": 6, "rows_out": 4, "dropped": {"no code": 1, "no patient": 1},
    }  # fmt: skip


def test_a_time_format_reads_other_dates_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS.replace("2020-01-01", "31.12.2020"))
    made(tmp_path, events="e.csv", time_format="%d.%m.%Y")
    with duckdb.connect() as con:
        times = con.execute(
            f"SELECT DISTINCT CAST(time AS VARCHAR) FROM read_parquet('{tmp_path}/out/events.parquet')"
        ).fetchall()
    assert times == [("2020-12-31 00:00:00",)]
    with pytest.raises(DataError, match="4 rows, 4 time is not a date"):
        made(tmp_path, events="e.csv", time_format="%Y/%m/%d")


def test_several_time_formats_read_a_column_of_mixed_dates(tmp_path: Path) -> None:
    first, *others = ROWS.splitlines(keepends=True)
    (tmp_path / "e.csv").write_text(HEAD + first.replace("2020-01-01", "01.01.2020") + "".join(others))
    one = made(tmp_path, events="e.csv", time_format=["%Y-%m-%d", "%d.%m.%Y"])
    assert one.manifest["steps"][0]["rows_out"] == 4
    with duckdb.connect() as con:
        times = con.execute(
            f"SELECT DISTINCT CAST(time AS VARCHAR) FROM read_parquet('{tmp_path}/out/events.parquet')"
        ).fetchall()
    assert times == [("2020-01-01 00:00:00",)]


def test_texts_that_mean_no_value_are_unknown_labels(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    (tmp_path / "l.csv").write_text("patient_id,died\n1,yes\n2,NA\n3,unknown\n4,\n")
    source: dict[str, Any] = {"events": "e.csv", "labels": "l.csv", "columns": {"label": "died"}}
    with pytest.raises(DataError, match="2 labels are neither") as e:
        made(tmp_path, **source)
    assert 'missing = ["", "NA"]' in e.value.hint
    one = made(tmp_path, missing=["", "NA", "unknown"], **source)
    assert one.manifest["labels"]["rows without label"] == 3


def test_a_label_table_without_the_column_says_which_it_has(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + ROWS)
    (tmp_path / "l.csv").write_text("patient_id,died\n1,1\n")
    with pytest.raises(DataError, match="column label missing") as e:
        made(tmp_path, events="e.csv", labels="l.csv")
    assert e.value.hint == "l.csv has patient_id, died: columns = {label = 'their_name'}"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_latin1_and_utf16_are_recognised(tmp_path: Path, encoding: str) -> None:
    rows = "Meier,v,2020-01-01,drug,Aspirín\nMeier,v,2020-01-01,diagnosis,4280\n"
    (tmp_path / "e.csv").write_bytes((HEAD + rows).encode(encoding))
    assert made(tmp_path, events="e.csv").site.counts().axes[1].labels == ("Aspirín",)


def test_a_file_of_two_encodings_is_refused_without_quoting_a_patient(tmp_path: Path) -> None:
    rows = "Meier,v,2020-01-01,drug,Aspirin\n" * 60_000 + "Meier,v,2020-01-01,drug,Aspirín\n"
    (tmp_path / "e.csv").write_bytes((HEAD + rows).encode("latin-1"))
    with pytest.raises(DataError, match="encoding") as e:
        made(tmp_path, events="e.csv")
    assert "Meier" not in str(e.value)
    (tmp_path / "e.csv").write_bytes(b"\xfe\xff" + (HEAD + rows[:100]).encode("utf-16-be"))
    with pytest.raises(DataError, match="encoding is UTF-16"):
        made(tmp_path, events="e.csv")


def test_codes_may_hold_anything_a_text_can(tmp_path: Path) -> None:
    rows = 'é1,v,2020-01-01,drug,"a, ""b""\nc"\r\né1,v,2020-01-01,diagnosis,NULL\r\n'
    (tmp_path / "e.csv").write_bytes(("\ufeff" + HEAD.replace("\n", "\r\n") + rows).encode())
    axes = made(tmp_path, events="e.csv").site.counts().axes
    assert [a.labels for a in axes] == [("é1",), ('a, "b"\nc',), ("NULL",)]


def peopled(folder: Path, **source: Any) -> tuple[Node, Study]:
    rows = "".join(f"p{p},v{p},2020-01-01,{k},{k}1\n" for p in range(30) for k in ("drug", "diagnosis"))
    (folder / "e.csv").write_text(HEAD.replace("patient_id", "Patient ID") + rows)
    people = "".join(f"p{p},{p % 2},{'NA' if p % 10 == 0 else 40 + p},{'FM'[p % 2]}\n" for p in range(30))
    (folder / "l.csv").write_text("patient_id,died,Alter,sex\n" + people)
    columns = {"patient_id": "Patient ID", "label": "died", **source.pop("columns", {})}
    given = {"kind": "files", "events": "e.csv", "labels": "l.csv", "columns": columns, **source}
    node = Node.parse({"site": {"name": "a"}, "source": given}, folder=folder)
    asked = {"outcome": "label", "age": [0, 50, 120], "sex": True}
    return node, Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"]}, "people": asked})


def test_covariates_beside_the_labels_have_names_and_unknown_values_of_their_own(tmp_path: Path) -> None:
    node, study = peopled(tmp_path, columns={"age": "Alter"}, missing=["", "NA"])
    assert check_node(node, study).ok
    people = ingest(node, study, tmp_path / "out").site.people
    assert people is not None
    assert np.isnan(people.columns["age"].astype(float)).sum() == 3
    assert set(people.columns["sex"].tolist()) == {"F", "M"}


@pytest.mark.parametrize(
    ("source", "fault", "hint"),
    [
        ({}, "'age' is a column of neither the labels nor the visits", "columns = {age = 'theirs'}"),
        ({"columns": {"age": "Alter"}}, "3 values of 'Alter' are no numbers", 'missing = ["", "NA"]'),
    ],
)
def test_check_finds_covariates_that_a_study_would_not(
    tmp_path: Path, source: dict[str, Any], fault: str, hint: str
) -> None:
    node, study = peopled(tmp_path, **source)
    found = check_node(node, study)
    assert not found.ok and any(fault in f for f in found.faults) and any(hint in h for h in found.advice)
    with pytest.raises(DataError, match=re.escape(fault)):
        ingest(node, study, tmp_path / "out")


def test_a_map_of_a_column_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    node, study = peopled(tmp_path, columns={"age": "Age"})
    with pytest.raises(ConfigError, match=r"columns\.age: unknown"):
        ingest(node, study, tmp_path / "out")
