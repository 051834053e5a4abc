"""Readers of a formal study: one hostile patient more changes nobody else's values, in any source."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from polyclinic.config import Node, Study
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.preflight import check
from polyclinic.records.sources.csv_files import RETURNS

PEOPLE = range(900_001, 900_021)
DAY = "2020-01-02"
LONG = "v" * 3_000_000
Tables = dict[str, bytes]


def table(header: str, rows: list[str]) -> bytes:
    return "".join(f"{r}\n" for r in (header, *rows)).encode()


def files() -> Tables:
    kinds = (("drug", 200, 2), ("diagnosis", 100, 3))
    rows = [f"{p},{p}0,{DAY},{kind},{first + p % n}" for p in PEOPLE for kind, first, n in kinds]
    labels = [f"{p},{p % 2},{40 + p % 9},F" for p in PEOPLE]
    return {
        "events": table("patient_id,visit_id,time,kind,code", rows),
        "labels": table("patient_id,label,age,sex", labels),
    }


def omop() -> Tables:
    return {
        "person": table("person_id,year_of_birth", [f"{p},1950" for p in PEOPLE]),
        "visit_occurrence": table(
            "visit_occurrence_id,person_id,visit_start_date,visit_end_date,visit_concept_id",
            [f"{p}0,{p},2020-01-01,2020-01-05,9201" for p in PEOPLE],
        ),
        "condition_occurrence": table(
            "person_id,condition_concept_id,condition_start_date,visit_occurrence_id",
            [f"{p},{100 + p % 3},{DAY},{p}0" for p in PEOPLE],
        ),
        "drug_exposure": table(
            "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id",
            [f"{p},{200 + p % 2},{DAY},{p}0" for p in PEOPLE],
        ),
        "death": table("person_id,death_date", ["900001,2020-01-03"]),
        "concept": table(
            "concept_id,concept_name,vocabulary_id,concept_code",
            [f"{c},concept {c},SNOMED,{c}" for c in (100, 101, 102, 200, 201)],
        ),
    }


def mimic3() -> Tables:
    return {
        "admissions": table(
            "subject_id,hadm_id,admittime,dischtime,hospital_expire_flag,admission_type",
            [f"{p},{p}0,2120-01-01 08:00:00,2120-01-05 08:00:00,{p % 2},URGENT" for p in PEOPLE],
        ),
        "icustays": table(
            "subject_id,hadm_id,first_careunit,intime", [f"{p},{p}0,MICU,2120-01-01 09:00:00" for p in PEOPLE]
        ),
        "diagnoses_icd": table("subject_id,hadm_id,icd9_code", [f"{p},{p}0,{100 + p % 3}" for p in PEOPLE]),
        "procedures_icd": table("subject_id,hadm_id,icd9_code", []),
        "prescriptions": table(
            "subject_id,hadm_id,startdate,drug", [f"{p},{p}0,2120-01-02,{200 + p % 2}" for p in PEOPLE]
        ),
    }


def eicu() -> Tables:
    return {
        "patient": table(
            "patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,hospitaldischargeyear,hospitaladmitoffset,"
            "hospitaldischargeoffset,hospitaldischargestatus",
            [f"{p}0,{p}1,{p},73,2014,-60,3000,Alive" for p in PEOPLE],
        ),
        "diagnosis": table(
            "patientunitstayid,diagnosisoffset,icd9code,diagnosisstring", [f"{p}0,10,{100 + p % 3},x" for p in PEOPLE]
        ),
        "medication": table(
            "patientunitstayid,drugstartoffset,drugname,drugordercancelled",
            [f"{p}0,30,{200 + p % 2},No" for p in PEOPLE],
        ),
    }


def resource(kind: str, patient: object, code: object, **more: Any) -> str:
    place = {"Condition": "code", "MedicationRequest": "medicationCodeableConcept"}[kind]
    body = {"subject": {"reference": f"Patient/{patient}"}, "encounter": {"reference": f"Encounter/{patient}0"}}
    day = {"Condition": "onsetDateTime", "MedicationRequest": "authoredOn"}[kind]
    return json.dumps({"resourceType": kind, place: {"coding": [{"code": str(code)}]}, day: DAY, **body, **more})


def encounter(patient: object, visit: object) -> str:
    return json.dumps(
        {"id": str(visit), "subject": {"reference": f"Patient/{patient}"}, "period": {"start": DAY, "end": DAY}}
    )


def fhir() -> Tables:
    lines = {
        "Condition": [resource("Condition", p, 100 + p % 3) for p in PEOPLE],
        "MedicationRequest": [resource("MedicationRequest", p, 200 + p % 2) for p in PEOPLE],
        "Encounter": [encounter(p, f"{p}0") for p in PEOPLE],
        "Patient": [json.dumps({"id": str(p)}) for p in PEOPLE],
    }
    return {kind: "".join(f"{x}\n" for x in some).encode() for kind, some in lines.items()}


def meds() -> Tables:
    rows = [
        f"{p},{DAY},{code},{p}0" for p in PEOPLE for code in (f"DIAGNOSIS//{100 + p % 3}", f"MEDICATION//{200 + p % 2}")
    ]
    return {"meds": table("subject_id,time,code,visit_id", rows)}


EVENT = {
    "short line": b"bad,v,2020\n",
    "long line": f"bad,v,{DAY},drug,200,1,2,3\n".encode(),
    "3 MB field": f"bad,{LONG},{DAY},drug,200\n".encode(),
    "no date": b"bad,v,soon,drug,200\n",
    "date 9999": b"bad,v,9999-12-31,drug,200\n",
    "empty cells": b"bad,,,,\n",
    "only commas": b",,,,\n",
    "another delimiter": f"bad;v;{DAY};drug;200\n".encode() * 500,
    "raw byte": b"bad,v,2020-01-02,drug,2\xff0\n",
    "zero byte": b"bad,v,2020-01-02,drug,2\x000\n",
    "quotes": b'bad,"v"x,2020-01-02,drug,2""0\n',
    "quoted lines": f'bad,"v\n900001,9000010,{DAY},drug,201\n",{DAY},drug,200\n'.encode(),
    "carriage returns": f"bad,v,{DAY},drug,200\r\nbad,v\r,{DAY},diagnosis,100\n".encode(),
    "visit of another": f"bad,9000010,{DAY},drug,200\nbad,9000010,{DAY},diagnosis,100\n".encode(),
    "ICD-10 among ICD-9": f"bad,v,{DAY},diagnosis,I509\nbad,v,{DAY},drug,200\n".encode(),
    "30,000 events": f"bad,v,{DAY},drug,200\nbad,v,{DAY},diagnosis,100\n".encode() * 15_000,
}
LABEL = {
    "label is a text": b"bad,perhaps,50,F\n",
    "two labels": b"bad,1,50,F\nbad,0,50,F\n",
    "no patient": b",1,50,F\n",
    "age is a text": b"bad,1,old,F\n",
    "age is infinite": b"bad,1,1e400,F\n",
}
OMOP = {
    "visit_occurrence": b"9000010,bad,2020-01-01,2020-01-05,9202\n",  # the visit of another patient
    "condition_occurrence": b"bad,100,2020-01-02,9000010\nbad,flu,infinity,\nbad\nbad,1,2,3,4,5,6\n",
    "drug_exposure": f"bad,{'2' * 50},{DAY},{LONG}\n".encode(),
    "person": b"bad,none\nbad,1900\n",
    "death": b"bad,yesterday\nbad,0001-01-01\n",
}
MIMIC = {
    "admissions": b"bad,9000010,2100-01-01 08:00:00,,x,URGENT\n",
    "icustays": b"bad,9000010,AAAA,0001-01-01\n",
    "diagnoses_icd": b"bad,9000010,I509\nbad\nbad,1,2,3\n",
    "prescriptions": f"bad,9000010,{LONG},200\n".encode(),
}
EICU = {
    "patient": b"9000010,1,bad,73,2014,x,y,Alive\n",  # the unit stay of another patient
    "diagnosis": b"9000010x,1e99,I50.9,x\n1\n1,2,3,4,5\n",
    "medication": f"9000010x,{LONG},200,No\n".encode(),
}
FHIR = {
    "Condition": b'{"resourceType": "Condition", \n[]\n{}\n"x"\n'
    + resource("Condition", "bad", LONG).encode()
    + b"\n"
    + b'{"code": {"coding": 7}, "subject": {"reference": "Patient/bad"}, "onsetDateTime": {"a": 1}}\n'
    + b"\xff\xfe\n",
    "Encounter": (encounter("bad", "9000010") + "\n").encode() * 2,
    "Patient": b'{"id": "bad"}\n{"id": "bad"}\n',
}
MEDS = {
    "meds": b"bad,soon,DIAGNOSIS//100,9000010\nbad,,//,\nbad,9999-12-31,MEDICATION//200,9000010\nbad\n",
}
SOURCES: dict[str, tuple[Callable[[], Tables], dict[str, Any]]] = {
    "files": (files, {"kind": "files", "events": "events.csv", "labels": "labels.csv"}),
    "omop": (omop, {"kind": "omop", "folder": "."}),
    "mimic3": (mimic3, {"kind": "mimic3", "folder": "."}),
    "eicu": (eicu, {"kind": "eicu", "folder": "."}),
    "fhir": (fhir, {"kind": "fhir", "folder": "."}),
    "meds": (meds, {"kind": "meds", "events": "meds.csv"}),
}
ALL = "all of these at once"  # in make test; one at a time in make test-all
CASES = [("files", "events", k, v) for k, v in (*EVENT.items(), (ALL, b"".join(EVENT.values())))]
CASES += [("files", "labels", k, v) for k, v in (*LABEL.items(), (ALL, b"".join(LABEL.values())))]
CASES += [
    (source, name, f"of {name}", rows)
    for source, hostile in (("omop", OMOP), ("mimic3", MIMIC), ("eicu", EICU), ("fhir", FHIR), ("meds", MEDS))
    for name, rows in hostile.items()
]


def write(folder: Path, tables: Tables, source: str) -> None:
    folder.mkdir()
    for name, text in tables.items():
        (folder / f"{name}.{'ndjson' if source == 'fhir' else 'csv'}").write_bytes(text)


def read(folder: Path, source: dict[str, Any]) -> Ingested:
    for mode, codes in (("drug", "200\n201\n"), ("diagnosis", "100\n101\n102\n")):
        (folder / f"listed_{mode}.txt").write_text(f"code\n{codes}")
    sections: dict[str, Any] = {
        "study": {"name": "s"},
        "tensor": {
            "modes": ["drug", "diagnosis"],
            "window": "visit",
            "vocabulary": {m: f"listed_{m}.txt" for m in ("drug", "diagnosis")},
        },
    }
    if "labels" in source:
        sections |= {"labels": {"outcome": "label"}, "people": {"age": [0, 45, 120], "sex": True}}
    node = Node.parse({"site": {"name": "a"}, "source": source}, folder=folder)
    return ingest(node, Study.parse(sections, folder=folder), folder / "out", events=False, skip_faulty=True)


def others(result: Ingested) -> dict[str, object]:
    """Values of everybody but the hostile patient, by name."""
    site, out = result.site, {}
    tensor = site.counts()
    for n, name in enumerate(tensor.axes[0].labels or ()):
        one = tensor.take(np.array([n]))
        covariates = {} if site.people is None else {k: v[n] for k, v in site.people.columns.items()}
        label = None if site.labels is None else float(site.labels[n])
        out[name] = (one.coords.tolist(), one.values.tolist(), label, covariates)
    return {k: v for k, v in out.items() if "bad" not in k and k != "900999"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Everybody's values by kind of source, where nobody is hostile."""
    out = {}
    for source, (tables, keys) in SOURCES.items():
        folder = tmp_path_factory.mktemp("clean") / source
        write(folder, tables(), source)
        out[source] = others(read(folder, keys))
        assert len(out[source]) == len(PEOPLE)
    return out


@pytest.mark.parametrize(
    ("source", "name", "what", "rows"),
    [
        pytest.param(*c, marks=[pytest.mark.slow] * (c[0] == "files" and c[2] != ALL), id=f"{c[0]}: {c[1]}: {c[2]}")
        for c in CASES
    ],
)
def test_one_hostile_patient_changes_nobody_else(
    tmp_path: Path, clean: dict[str, dict[str, object]], source: str, name: str, what: str, rows: bytes
) -> None:
    tables, keys = SOURCES[source]
    for place in ("last", "first") if source == "files" else ("first",):
        dirty = tables()
        header, line, body = dirty[name].partition(b"\n") if source != "fhir" else (b"", b"", dirty[name])
        dirty[name] = header + line + (rows + body if place == "first" else body + rows)
        write(tmp_path / place, dirty, source)
        assert others(read(tmp_path / place, keys)) == clean[source]


@pytest.mark.parametrize("database", ["duckdb", "sqlite"])
def test_one_hostile_patient_changes_nobody_else_in_a_database(tmp_path: Path, database: str) -> None:
    def store(folder: Path, extra: Tables) -> dict[str, object]:
        folder.mkdir()
        path = folder / ("omop.duckdb" if database == "duckdb" else "omop.sqlite")
        link: Any = duckdb.connect(str(path)) if database == "duckdb" else sqlite3.connect(path)
        for name, text in omop().items():
            header, *rows = text.decode().splitlines()
            link.execute(f"CREATE TABLE {name} ({', '.join(f'{c} VARCHAR' for c in header.split(','))})")
            rows += extra.get(name, b"").decode().splitlines()
            cells = [r.split(",") for r in rows if r.count(",") == header.count(",")]
            for row in cells:
                link.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        if database == "sqlite" and extra:
            link.execute("INSERT INTO drug_exposure VALUES ('bad', X'ff', CAST(X'fffe' AS TEXT), NULL)")
            link.commit()
        link.commit()
        link.close()
        return others(read(folder, {"kind": "omop", "database": path.name}))

    assert store(tmp_path / "dirty", OMOP) == store(tmp_path / "clean", {})


def test_what_was_left_out_is_counted_for_the_owner(tmp_path: Path) -> None:
    tables = files()
    tables["events"] += EVENT["short line"] + EVENT["no date"] + EVENT["3 MB field"]
    tables["labels"] += LABEL["two labels"]
    write(tmp_path / "a", tables, "files")
    result = read(tmp_path / "a", SOURCES["files"][1])
    assert result.skipped == {
        "labels: patients with more than one row": 1,
        "lines of CSV files cannot be read": 2,
        "read events: time is not a date": 1,
    }
    assert result.manifest["skipped"] == result.skipped


FEATURES = {
    "text": b"bad,x,1,a\n",
    "empty cell": b"bad,,1,a\n",
    "same id twice": b"bad,1,1,a\nbad,0,1,a\n",
    "1e400": b"bad,1e400,1,a\n",
    "nan": b"bad,nan,1,a\n",
    "no id": b",1,1,a\n",
    "no class": b"bad,1,1,\n",
    "class of another type": b"bad,1,1,zzz\n",
    "short line": b"bad,1\n",
    "long line": b"bad,1,1,a,5\n",
    "3 MB field": f"bad,{LONG},1,a\n".encode(),
    "quotes": b'bad"x,1,1,a\n',
    "comma in a number": b'bad,"1,5",1,a\n',
    "raw byte": b"bad,\xff,1,a\n",
}


@pytest.mark.parametrize("what", [*(pytest.param(w, marks=pytest.mark.slow) for w in FEATURES), ALL])
def test_one_hostile_patient_changes_nobody_else_in_a_matrix(tmp_path: Path, what: str) -> None:
    def values(extra: bytes) -> dict[str, object]:
        (tmp_path / "m.csv").write_bytes(
            table("patient_id,x0,x1,class", [f"{p},{p % 2},{p % 3},{p % 2}" for p in PEOPLE]) + extra
        )
        node = Node.parse(
            {"site": {"name": "a"}, "source": {"kind": "matrix", "features": "m.csv", "label": "class"}},
            folder=tmp_path,
        )
        study = Study.parse({"study": {"name": "s"}, "features": {"columns": ["x0", "x1"]}}, folder=tmp_path)
        result = ingest(node, study, tmp_path / "out", skip_faulty=True)
        assert result.site.labels is not None
        rows = zip(result.patients, result.site.matrix().tolist(), result.site.labels.tolist())
        return {p: (x, y) for p, x, y in rows if "bad" not in p}

    clean = values(b"")
    assert len(clean) == len(PEOPLE)
    assert values({**FEATURES, ALL: b"".join(FEATURES.values())}[what]) == clean


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize(
    "line", [b"900999,1,2020-01-02,drug,200\r", b"\r\r\r\n", b"900999,1\r,2020-01-02,drug,200\r\r\n"]
)
def test_a_carriage_return_without_a_line_feed_changes_nobody_else(tmp_path: Path, line: bytes, ending: str) -> None:
    def written(name: str, *more: bytes) -> dict[str, Any]:
        tables = {k: v.replace(b"\n", b"\r\n") for k, v in files().items()}
        header, *rows = tables["events"].splitlines(keepends=True)
        text = b"".join([header, *rows[:9], *more, *rows[9:]])
        (tmp_path / name).mkdir()
        (tmp_path / name / f"events.{ending}").write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
        (tmp_path / name / "labels.csv").write_bytes(tables["labels"])
        return {"kind": "files", "events": f"events.{ending}", "labels": "labels.csv"}

    plain, hostile = (
        read(tmp_path / name, written(name, *more)) for name, more in (("plain", []), ("hostile", [line]))
    )
    assert others(hostile) == others(plain)
    assert hostile.skipped[RETURNS] >= 1
    assert RETURNS not in plain.skipped


SEVERAL, UNCLOSED = "CSV cells of several lines in", "unclosed CSV cells, each line left out, in"
LATER = table("", [f"9001,1,{DAY},drug,200", f'9001,1,{DAY},diagnosis,"5"" nail"']).lstrip()


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (b'bad,"v,2020-01-02,drug,200\n' + LATER.replace(b'"', b""), {UNCLOSED: (0, 1)}),
        (b'bad,"v,2020-01-02,drug,200\n' + LATER, {UNCLOSED: (0, 1)}),
        (b'bad,"v\nw",2020-01-02,drug,200\n' + LATER, {SEVERAL: (0, 1)}),
        (b'bad,v" w,2020-01-02,drug,200\n' + LATER, {}),
        (LATER + b'bad,"v\n' * 3 + LATER + b'bad,"v\nw"\n', {UNCLOSED: (2, 3), SEVERAL: (7, 1)}),
    ],
    ids=["to the end", "to a later mark", "closed", "within a cell", "several"],
)
def test_an_unclosed_quotation_mark_costs_its_line(
    tmp_path: Path, lines: bytes, told: dict[str, tuple[int, int]], ending: str
) -> None:
    """``check`` refuses such a file. A formal study leaves out the line that opened the cell, and the owner reads which."""
    tables = files()
    text, before = tables["events"] + lines, tables["events"].count(b"\n") + 1
    name = f"events.{ending}"
    (tmp_path / name).write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    (tmp_path / "labels.csv").write_bytes(tables["labels"])
    source = {"kind": "files", "events": name, "labels": "labels.csv"}
    node = Node.parse({"site": {"name": "a"}, "source": source}, folder=tmp_path)
    study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"]}})
    made = ingest(node, study, tmp_path / "out", skip_faulty=True)
    assert made.site.patients == len(PEOPLE) + 1, "patient 9001 comes after the mark and is read"
    assert {
        f"{what} {name}, the first in line {before + n}": count for what, (n, count) in told.items()
    }.items() <= made.skipped.items()
    assert sum("CSV cells" in reason for reason in made.skipped) == len(told)
    refused = any("unterminated quote" in fault or "quote" in fault for fault in check(node, study).faults)
    assert refused is (UNCLOSED in told)


def read_events(folder: Path, rows: list[str], lists: dict[str, list[str]], **sections: Any) -> dict[str, object]:
    """Values of everybody but the hostile patient, of a formal study that lists these codes."""
    folder.mkdir()
    (folder / "events.csv").write_bytes(table("patient_id,visit_id,time,kind,code,system", rows))
    for mode, listed in lists.items():
        (folder / f"{mode}.csv").write_text("".join(f"{c}\n" for c in ("code", *listed)))
    tensor = {"modes": list(lists), "vocabulary": {m: f"{m}.csv" for m in lists}, **sections.pop("tensor", {})}
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "events.csv"}}, folder=folder)
    study = Study.parse({"study": {"name": "s"}, "tensor": tensor, **sections}, folder=folder)
    return others(ingest(node, study, folder / "out", events=False, skip_faulty=True))


def test_one_patient_does_not_decide_whether_the_others_are_read(tmp_path: Path) -> None:
    """Codes side by side: nobody else may have a code of one kind, and the patients with the other kind count all the same."""
    rows = [f"{p},{p}0,{DAY},drug,R{p % 3}," for p in PEOPLE]
    codes, rule = {"drug": ["R0", "R1", "R2"], "diagnosis": ["D0"]}, {"side_by_side": True}
    without = read_events(tmp_path / "without", rows, codes, tensor=rule)
    unlisted = read_events(tmp_path / "unlisted", [*rows, f"bad,v,{DAY},diagnosis,Z,"], codes, tensor=rule)
    listed = read_events(tmp_path / "listed", [*rows, f"bad,v,{DAY},diagnosis,D0,"], codes, tensor=rule)
    assert len(without) == len(PEOPLE)
    assert without == unlisted == listed


def test_one_patients_code_system_does_not_decide_how_the_others_codes_are_grouped(tmp_path: Path) -> None:
    rows = [f"{p},{p}0,{DAY},{kind},{code},{system}" for p in PEOPLE for kind, code, system in GROUPED]
    codes, rule = {"drug": ["R"], "diagnosis": ["CCS 108"]}, {"codes": {"diagnosis": {"to": "ccs"}}}
    clean = read_events(tmp_path / "clean", rows, codes, **rule)
    dirty = read_events(tmp_path / "dirty", [*rows, f"bad,v,{DAY},diagnosis,316139,omop"], codes, **rule)
    assert len(clean) == len(PEOPLE)
    assert dirty == clean


GROUPED = (("drug", "R", ""), ("diagnosis", "428.0", "icd9cm"))


def test_one_patient_with_endless_combinations_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyclinic.records.events.cooccurrence.HEAVY", 100)
    kinds = ("drug", "diagnosis")
    rows = [f"{p},{p}0,{DAY},{kind},{kind[0]}{p % 3}," for p in PEOPLE for kind in kinds]
    codes = {kind: [f"{kind[0]}{n}" for n in range(11)] for kind in kinds}
    heavy = [f"bad,v,{DAY},{kind},{code}," for kind in kinds for code in codes[kind]]
    clean = read_events(tmp_path / "clean", rows, codes)
    assert len(clean) == len(PEOPLE)
    assert read_events(tmp_path / "dirty", [*rows, *heavy], codes) == clean
