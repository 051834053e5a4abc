"""Age and sex of patients from every standard source, without a table of labels; the same for check and for the study."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.records.ingest import ingest
from polyclinic.records.preflight import check_node

PEOPLE = [(f"{n}", 1930 + n, "FM"[n % 2]) for n in range(1, 25)]
STUDY: dict[str, Any] = {
    "study": {"name": "s"},
    "tensor": {"modes": ["procedure", "diagnosis"], "minimum_patients": 1},
    "people": {"age": [0, 65, 120], "sex": True},
}


def table(folder: Path, name: str, head: str, rows: list[str]) -> None:
    (folder / f"{name}.csv").write_text("\n".join([head, *rows]) + "\n")


def omop(folder: Path) -> dict[str, Any]:
    code = {"F": 8532, "M": 8507}
    table(folder, "person", "person_id,gender_concept_id,gender_source_value,year_of_birth",
          [f"{p},{code[s] if int(p) > 2 else 0},{s},{b}" for p, b, s in PEOPLE])  # fmt: skip
    table(folder, "visit_occurrence", "visit_occurrence_id,person_id,visit_start_date,visit_end_date",
          [f"{p}{k},{p},{y}-05-01,{y}-05-03" for p, _, _ in PEOPLE for k, y in ((0, 2020), (1, 2022))])  # fmt: skip
    for name, concept, day in (("condition", 1, "condition_start_date"), ("procedure", 2, "procedure_date")):
        table(folder, f"{name}_occurrence", f"person_id,{name}_concept_id,{day},visit_occurrence_id",
              [f"{p},{concept},2020-05-01,{p}0" for p, _, _ in PEOPLE])  # fmt: skip
    table(folder, "concept", "concept_id,concept_name,vocabulary_id,concept_code", ["1,a,SNOMED,1", "2,b,SNOMED,2"])
    return {"kind": "omop", "folder": "."}


def fhir(folder: Path) -> dict[str, Any]:
    subject = [{"reference": f"Patient/{p}"} for p, _, _ in PEOPLE]
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "1"}]}
    resources: dict[str, list[dict[str, Any]]] = {
        "Patient": [
            {"id": p, "birthDate": f"{b}-12-24", "gender": {"F": "female", "M": "male"}[s]} for p, b, s in PEOPLE
        ],
        "Encounter": [
            {"id": f"e{r['reference'][8:]}", "subject": r, "period": {"start": "2020-05-01T08:00:00+02:00"}}
            for r in subject
        ],
        **{
            kind: [
                {"subject": r, "encounter": {"reference": f"Encounter/e{r['reference'][8:]}"}, "status": "completed", "code": code,
                 day: "2020-05-01"} for r in subject
            ]
            for kind, day in (("Condition", "onsetDateTime"), ("Procedure", "performedDateTime"))
        },
    }  # fmt: skip
    for kind, rows in resources.items():
        (folder / f"{kind}.ndjson").write_text("".join(json.dumps({"resourceType": kind, **r}) + "\n" for r in rows))
    return {"kind": "fhir", "folder": "."}


def mimic3(folder: Path) -> dict[str, Any]:
    table(folder, "patients", "subject_id,gender,dob", [f"{p},{s},{b}-02-02 00:00:00" for p, b, s in PEOPLE])
    _stays(folder)
    for kind in ("diagnoses", "procedures"):
        table(folder, f"{kind}_icd", "subject_id,hadm_id,icd9_code", [f"{p},{p}0,4280" for p, _, _ in PEOPLE])
    return {"kind": "mimic3", "folder": "."}


def mimic4(folder: Path) -> dict[str, Any]:
    table(folder, "patients", "subject_id,gender,anchor_age,anchor_year",
          [f"{p},{s},{2019 - b},2019" for p, b, s in PEOPLE])  # fmt: skip
    _stays(folder)
    for kind in ("diagnoses", "procedures"):
        table(folder, f"{kind}_icd", "subject_id,hadm_id,icd_code,icd_version",
              [f"{p},{p}0,4280,9" for p, _, _ in PEOPLE])  # fmt: skip
    return {"kind": "mimic4", "folder": "."}


def _stays(folder: Path) -> None:
    table(folder, "admissions", "subject_id,hadm_id,admittime,dischtime,hospital_expire_flag",
          [f"{p},{p}0,2020-05-01 08:00:00,2020-05-03 08:00:00,0" for p, _, _ in PEOPLE])  # fmt: skip
    table(folder, "icustays", "hadm_id,first_careunit,intime", [f"{p}0,MICU,2020-05-01" for p, _, _ in PEOPLE])


def eicu(folder: Path) -> dict[str, Any]:
    table(folder, "patient", "patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,hospitaldischargeyear,age,gender,"
          "hospitaladmitoffset,hospitaldischargeoffset,hospitaldischargestatus",
          [f"{p},{p}0,{p},7,2014,{2020 - b},{'Female' if s == 'F' else 'Male'},0,90,Alive" for p, b, s in PEOPLE])  # fmt: skip
    table(folder, "diagnosis", "patientunitstayid,diagnosisoffset,icd9code", [f"{p},5,428.0" for p, _, _ in PEOPLE])
    table(folder, "treatment", "patientunitstayid,treatmentoffset,treatmentstring", [f"{p},5,t" for p, _, _ in PEOPLE])
    return {"kind": "eicu", "folder": "."}


def meds(folder: Path) -> dict[str, Any]:
    rows = [
        row
        for p, b, s in PEOPLE
        for row in (
            f"({p}, TIMESTAMP '{b}-01-01', 'MEDS_BIRTH')",
            f"({p}, NULL, '{'GENDER//' if int(p) > 9 else 'Gender/'}{s}')",
            f"({p}, TIMESTAMP '2020-05-01', 'DIAGNOSIS//icd9cm//4280')",
            f"({p}, TIMESTAMP '2020-05-01', 'PROCEDURE//icd9proc//3722')",
        )
    ]
    with duckdb.connect() as con:
        con.execute(
            f"COPY (SELECT * FROM (VALUES {', '.join(rows)}) t(subject_id, time, code)) TO '{folder}/data.parquet'"
        )
    return {"kind": "meds", "events": "data.parquet"}


@pytest.mark.parametrize("write", [omop, fhir, mimic3, mimic4, eicu, meds])
@pytest.mark.parametrize("formal", [False, True])
def test_age_and_sex_come_from_the_patients_of_the_source(
    tmp_path: Path, write: Callable[[Path], dict[str, Any]], formal: bool
) -> None:
    node = Node.parse({"site": {"name": "a"}, "source": write(tmp_path)}, folder=tmp_path)
    window = "1d" if write is meds else "visit"
    study = Study.parse({**STUDY, "tensor": {**STUDY["tensor"], "window": window}}, folder=tmp_path)
    found = check_node(node, study)
    assert found.ok, found.faults
    assert "people: age, sex" in found.findings
    site = ingest(node, study, tmp_path / "out", skip_faulty=formal).site
    assert site.people is not None
    patients = site.counts().axes[0].labels
    assert patients is not None
    known = dict(zip(patients, zip(site.people.columns["age"].tolist(), site.people.columns["sex"].tolist())))
    assert known == {p: (float(2020 - b), s) for p, b, s in PEOPLE}


def test_age_is_taken_at_the_index_date_where_the_study_has_a_cohort(tmp_path: Path) -> None:
    node = Node.parse({"site": {"name": "a"}, "source": omop(tmp_path)}, folder=tmp_path)
    events = (tmp_path / "condition_occurrence.csv").read_text().replace("2020-05-01,10\n", "2022-05-01,11\n")
    (tmp_path / "condition_occurrence.csv").write_text(events)
    late = {**STUDY, "cohort": {"first": {"diagnosis": ["1"]}}, "tensor": {**STUDY["tensor"], "window": "patient"}}
    site = ingest(node, Study.parse(late, folder=tmp_path), tmp_path / "out").site
    assert site.people is not None
    assert site.people.columns["age"][list(site.counts().axes[0].labels or ()).index("1")] == 2022 - 1931


def test_a_source_without_the_columns_is_told_so_by_check(tmp_path: Path) -> None:
    node = Node.parse({"site": {"name": "a"}, "source": mimic3(tmp_path)}, folder=tmp_path)
    table(tmp_path, "patients", "subject_id,dob", [f"{p},{b}-02-02" for p, b, _ in PEOPLE])
    found = check_node(node, Study.parse(STUDY, folder=tmp_path))
    assert found.exit_code == 3
    assert any("sex: of no patient" in f for f in found.faults)
    assert not any("age" in f for f in found.faults)
    (tmp_path / "patients.csv").unlink()
    found = check_node(node, Study.parse(STUDY, folder=tmp_path))
    assert sum("neither the labels nor the visits nor the patients" in f for f in found.faults) == 2
