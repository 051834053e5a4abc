"""Tables as strangers write them: dates, encodings, outcomes and codes are recognised, or the first error names the way out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import polyclinic as pc
from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.preflight import check


def read(folder: Path, times: list[str], source: dict[str, Any] | None = None, window: str = "1d") -> Ingested:
    rows = [f"{p},{p},{t},{k},{k}{p % 2}" for p, t in enumerate(times) for k in ("drug", "diagnosis")]
    (folder / "e.csv").write_text("\n".join(["patient_id,visit_id,time,kind,code", *rows]))
    node = Node.parse(
        {"site": {"name": "a"}, "source": {"kind": "files", "events": "e.csv", **(source or {})}}, folder=folder
    )
    tensor = {"modes": ["drug", "diagnosis"], "window": window}
    return ingest(node, Study.parse({"study": {"name": "s"}, "tensor": tensor}, folder=folder), folder / "out")


@pytest.mark.parametrize(
    "times",
    [
        ["12/31/2020", "01/15/2021"],
        ["31/12/2020", "15/01/2021"],
        ["31.12.2020", "01.02.2021"],
        ["20201231", "20210115"],
        ["31-Dec-2020", "15-Jan-2021"],
        ["12/31/2020 11:59 PM", "01/15/2021 01:00 AM"],
        ["-30", "0", "365"],
    ],
    ids=lambda t: t[0],
)
def test_times_that_allow_one_reading_are_recognised(tmp_path: Path, times: list[str]) -> None:
    assert read(tmp_path, times).site.patients == len(times)


def test_days_since_an_index_date_keep_their_distance(tmp_path: Path) -> None:
    assert read(tmp_path, ["5", "5"], {"time_format": "days"}).site.patients == 2
    rows = "patient_id,visit_id,time,kind,code\n1,1,0,drug,a\n1,1,10,diagnosis,b\n"
    for window, together in (("9d", False), ("10d", True)):
        (tmp_path / "e.csv").write_text(rows)
        node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "e.csv"}}, folder=tmp_path)
        tensor = {"modes": ["drug", "diagnosis"], "window": window}
        study = Study.parse({"study": {"name": "s"}, "tensor": tensor})
        if together:
            assert ingest(node, study, tmp_path / "out").site.patients == 1
        else:
            with pytest.raises(DataError, match="nothing occurs together"):
                ingest(node, study, tmp_path / "out")


def test_times_that_allow_two_readings_are_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"every time fits %m/%d/%Y and %d/%m/%Y") as e:
        read(tmp_path, ["01/02/2020", "03/04/2021"])
    assert "time_format" in str(e.value)


def test_an_unknown_format_is_shown_with_a_sample_and_the_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="times are not dates: '2020W53'") as e:
        read(tmp_path, ["2020W53", "2021W01"])
    assert "time_format" in str(e.value)


@pytest.mark.parametrize(("values", "question"), [(["yes", "no"], "'no', 'yes'"), ([1, 2], "1, 2")])
def test_outcome_levels_are_never_guessed(values: list[object], question: str) -> None:
    rows = {"p": [1, 2], "a": ["x", "y"], "b": ["u", "v"], "died": values}
    with pytest.raises(DataError, match=f"died: which of {question} is the event") as e:
        pc.from_frame(rows, patient="p", modes=["a", "b"], outcome="died")
    assert f"one of {question}" in str(e.value)


def test_an_outcome_of_one_level_is_an_error() -> None:
    rows = {"p": [1, 2], "a": ["x", "y"], "b": ["u", "v"], "died": [False, False]}
    with pytest.raises(DataError, match="the outcome is 0 for everybody"):
        pc.from_frame(rows, patient="p", modes=["a", "b"], outcome="died")


def labelled(folder: Path, labels: list[str], **source: Any) -> tuple[Node, Study]:
    read(folder, ["2020-01-01"] * len(labels))
    (folder / "l.csv").write_text("\n".join(["patient_id,label", *(f"{p},{x}" for p, x in enumerate(labels))]))
    keys = {"kind": "files", "events": "e.csv", "labels": "l.csv", **source}
    sections = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"]}, "labels": {"outcome": "label"}}
    return Node.parse({"site": {"name": "a"}, "source": keys}, folder=folder), Study.parse(sections, folder=folder)


def test_labels_of_two_unknown_levels_ask_which_is_the_event(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="which of 1, 2 is the event"):
        ingest(*labelled(tmp_path, ["1", "2", "2"]), tmp_path / "out")
    site = ingest(*labelled(tmp_path, ["1", "2", "2"], positive=["2"]), tmp_path / "out").site
    assert site.labels is not None
    assert site.labels.tolist() == [0, 1, 1]


def test_check_refuses_an_outcome_of_one_level(tmp_path: Path) -> None:
    node, study = labelled(tmp_path, ["0", "0", "0"])
    assert any("is 0 for all 3 patients" in fault for fault in check(node, study).faults)


PEOPLE = range(1, 41)


def three_tables(folder: Path) -> dict[str, Any]:
    """US dates, identifiers as 7.0, spaces behind codes, no column under its expected name."""
    day = {p: f"{p % 12 + 1}/{p % 28 + 1}/2019" for p in PEOPLE}
    files = {
        "patients.csv": ["PatientID,Hospital", *(f"{p}.0,{'NS'[p % 2]}" for p in PEOPLE)],
        "dx.csv": ["PatientID,Encounter,Date,Code", *(f"{p},{p},{day[p]},I{p % 3} " for p in PEOPLE)],
        "rx.csv": ["PatientID,Encounter,Start,Drug", *(f"{p}.0,{p}.0,{day[p]},{'ab'[p % 2]}" for p in PEOPLE)],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    events = {"visit_id": "Encounter", "time": "Date", "code": "Code", "kind": "=dx"}
    drugs = {"visit_id": "Encounter", "time": "Start", "code": "Drug", "kind": "=rx"}
    tables = [{"file": "dx.csv", "columns": events}, {"file": "rx.csv", "columns": drugs}]
    return {"tables": [*tables, {"file": "patients.csv", "key": "PatientID"}]}


def latin_1(folder: Path) -> dict[str, Any]:
    """Semicolons, German dates and letters, ICD-9 next to ICD-10, an outcome of ja and nein."""
    rows = [
        f"{p};{p};{p % 28 + 1:02}.01.2019;{k};{c};{'ja' if p % 4 == 0 else 'nein'}"
        for p in PEOPLE
        for k, c in (("dx", ["I50.9", "4280", "J44.9"][p % 3]), ("rx", "ab"[p % 2]))
    ]
    text = "\n".join(["Patient;Fall;Datum;Art;Schlüssel;verstorben", *rows]) + "\n"
    (folder / "e.csv").write_bytes(text.encode("latin-1"))
    columns = {"patient_id": "Patient", "visit_id": "Fall", "time": "Datum", "kind": "Art", "code": "Schlüssel"}
    return {"events": "e.csv", "columns": columns, "label": "verstorben"}


def days_and_floats(folder: Path) -> dict[str, Any]:
    """Days since an index date, identifiers as 7.0 in one table and 7 in the other, an outcome of 1 and 2."""
    rows = [f"{p}.0,{p}.0,{p % 9 - 4},{k},{k}{p % 2}  " for p in PEOPLE for k in ("dx", "rx")]
    (folder / "e.csv").write_text("\n".join(["subject,stay,time,kind,code", *rows]) + "\n")
    (folder / "l.csv").write_text("\n".join(["subject,label", *(f"{p},{1 + p % 2}" for p in PEOPLE)]) + "\n")
    return {"events": "e.csv", "labels": "l.csv", "columns": {"patient_id": "subject", "visit_id": "stay"}}


@pytest.mark.parametrize(
    ("write", "outcome", "hint", "correction"),
    [
        (three_tables, None, "columns = {patient_id = 'their_name'}", {"columns": {"patient_id": "PatientID"}}),
        (latin_1, "verstorben", "which of ja, nein is the event", {"positive": ["ja"]}),
        (days_and_floats, "label", "which of 1, 2 is the event", {"positive": ["2"]}),
    ],
)
def test_a_strangers_tables_need_one_correction_that_the_first_error_names(
    tmp_path: Path, write: Any, outcome: str | None, hint: str, correction: dict[str, Any]
) -> None:
    source = {"kind": "files", **write(tmp_path)}
    sections: dict[str, Any] = {"study": {"name": "s"}, "tensor": {"modes": ["dx", "rx"], "minimum_patients": 1}}
    study = Study.parse({**sections, **({"labels": {"outcome": outcome}} if outcome else {})})
    first = check(Node.parse({"site": {"name": "a"}, "source": source}, folder=tmp_path), study)
    assert len(first.faults) == 1
    assert hint in " ".join([*first.faults, *first.advice])
    node = Node.parse({"site": {"name": "a"}, "source": {**source, **correction}}, folder=tmp_path)
    assert check(node, study).ok
    found = ingest(node, study, tmp_path / "out")
    assert found.site.patients == len(PEOPLE)
    assert found.manifest["steps"][0]["dropped"] == {}
    assert found.site.tensor is not None
    assert found.site.tensor.shape[1:] == ((2, 2) if write is days_and_floats else (3, 2)), "a space makes no new code"


def test_rows_of_wide_tables_are_not_said_to_be_absent(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("patient_id,visit_id,time,d1,d2\n1,1,2020-01-01,a,b\n2,2,2020-01-01,a,c\n")
    wide = {"dx": {"columns": ["d1", "d2"]}}
    source = {"kind": "files", "events": "w.csv", "wide": wide}
    found = check(Node.parse({"site": {"name": "a"}, "source": source}, folder=tmp_path))
    assert found.ok and not any("no table" in r for r in found.remarks)


REMARKS: dict[str, tuple[dict[str, list[Any]], str]] = {
    "two code systems": ({"a": ["4280", "25000", "I509", "E119"]}, "look like ICD-9"),
    "lost zeros": ({"a": ["038", "38", "x", "y"]}, "may have lost its zeros"),
    "dates as codes": ({"a": ["2020-01-01", "2020-01-02", "2020-01-03", "x"]}, "most codes are dates"),
    "age of 999": ({"age": [50, 999, 60, 70]}, "1 ages are above 120"),
    "sites that differ by case": ({"site": ["North", "north", "North", "north"]}, "differ by case"),
    "no common codes": ({"a": ["a", "b", "c", "d"], "site": ["n", "n", "s", "s"]}, "same code system"),
}


@pytest.mark.parametrize("what", REMARKS)
def test_odd_tables_are_warned_of(what: str) -> None:
    columns, text = REMARKS[what]
    rows = {"p": [1, 2, 3, 4], "a": ["x"] * 4, "b": ["u"] * 4, "age": [50] * 4, "site": ["n", "n", "s", "s"], **columns}
    with pytest.warns(UserWarning, match=text):
        pc.from_frame(rows, patient="p", modes=["a", "b"], site="site", covariates=["age"])


def test_an_ordinary_table_is_not_warned_of() -> None:
    rows = {"p": [1, 2, 3, 4], "a": ["x", "y"] * 2, "b": ["u"] * 4, "age": [50] * 4, "site": ["n", "n", "s", "s"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.from_frame(rows, patient="p", modes=["a", "b"], site="site", covariates=["age"])
