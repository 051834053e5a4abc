"""Schema-true miniatures of sources of which no sample is at hand: MIMIC-IV, eICU, FHIR, MEDS, OMOP 5.3."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.sources.base import sql_of


def made(folder: Path, source: dict[str, Any], modes: list[str], window: str = "visit", **more: Any) -> Ingested:
    node = Node.parse({"site": {"name": "a"}, "source": source}, folder=folder)
    study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": modes, "window": window}, **more}, folder=folder)
    out = ingest(node, study, folder / "out")
    for s in out.manifest["steps"]:
        assert s["rows_in"] == s["rows_out"] + sum(s["dropped"].values())
    return out


def cells(made: Ingested) -> dict[tuple[str, ...], float]:
    t = made.site.counts()
    return {tuple(a.label(int(i)) for a, i in zip(t.axes, x)): v for x, v in zip(t.coords, t.values.tolist())}


def dropped(made: Ingested, step: str) -> dict[str, int]:
    return dict(next(s for s in made.manifest["steps"] if s["step"] == step)["dropped"])


def write(folder: Path, **tables: str) -> None:
    for name, text in tables.items():
        path = folder / f"{name.replace('__', '/')}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def mimic4(tmp_path: Path) -> Path:
    write(
        tmp_path,
        hosp__patients="subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod\n1,F,50,2150,2011 - 2013,\n",
        hosp__admissions="subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,hospital_expire_flag\n"
        "1,10,2150-01-01 08:00:00,2150-01-04 08:00:00,,URGENT,0\n1,11,2150-01-20 08:00:00,2150-01-22 08:00:00,,URGENT,1\n"
        "2,12,2150-05-01 08:00:00,2150-05-02 08:00:00,,URGENT,0\n",
        icu__icustays="subject_id,hadm_id,stay_id,first_careunit,last_careunit,intime,outtime,los\n"
        '1,10,5,"Medical Intensive Care Unit (""MICU"")",x,2150-01-01 09:00:00,2150-01-02 09:00:00,1\n',
        hosp__diagnoses_icd="subject_id,hadm_id,seq_num,icd_code,icd_version\n1,10,1,4280   ,9\n1,11,1,I509,10\n2,12,1,E119,10\n"
        "2,12,2,xx,8\n2,12,3,,10\n",
        hosp__procedures_icd="subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version\n1,10,1,2150-01-02,3722,9\n",
        hosp__prescriptions="subject_id,hadm_id,pharmacy_id,starttime,stoptime,drug_type,drug\n"
        "1,10,1,2150-01-01 10:00:00,,MAIN,Aspirin\n1,11,2,2150-01-20 10:00:00,,MAIN,Aspirin\n2,12,3,,,MAIN,Insulin\n",
        hosp__labevents="labevent_id,subject_id,hadm_id,specimen_id,itemid,charttime,storetime,value,valuenum,valueuom,flag\n"
        "1,1,10,1,50931,2150-01-01 11:00:00,,___,200,mg/dL,abnormal\n2,1,,1,50931,2150-01-09 11:00:00,,90,90,mg/dL,\n",
        hosp__d_icd_diagnoses='icd_code,icd_version,long_title\n4280,9,"Congestive heart failure, ""unspecified"""\n',
        hosp__d_labitems="itemid,label,fluid,category\n50931,Glucose,Blood,Chemistry\n",
    )
    return tmp_path


def test_mimic4_brings_icd9_and_icd10_together_by_ccs(mimic4: Path) -> None:
    source = {"kind": "mimic4", "folder": "."}
    with pytest.raises(DataError, match="mixes ICD-9 and ICD-10"):
        made(mimic4, source, ["drug", "diagnosis"])
    one = made(mimic4, source, ["drug", "diagnosis"], codes={"diagnosis": {"to": "ccs"}})
    assert cells(one) == {("1", "Aspirin", "CCS 108"): 2.0, ("2", "Insulin", "CCS 49"): 1.0}
    assert dropped(one, "read diagnoses_icd") == {"ICD version is neither 9 nor 10": 1, "no code": 1}
    assert one.manifest["labels"]["visits positive"] == 1
    assert one.manifest["sites"]["patients"] == {'Medical Intensive Care Unit ("MICU")': 1}


def test_mimic4_time_windows_use_the_procedures_own_day_and_flags(mimic4: Path) -> None:
    source = {"kind": "mimic4", "folder": "."}
    day = made(mimic4, source, ["drug", "abnormal_lab"], "6h")
    assert cells(day) == {("1", "Aspirin", "50931"): 1.0}
    assert day.site.counts().axes[2].names == ("Glucose",)
    assert dropped(day, "choose codes")["no time"] == 1
    again = made(mimic4, source, ["procedure", "drug"], "1d")
    assert cells(again) == {("1", "3722", "Aspirin"): 1.0}


def test_mimic4_readmission(mimic4: Path) -> None:
    source = {"kind": "mimic4", "folder": "."}
    rule = {"labels": {"outcome": "readmission", "days": 30}}
    one = made(mimic4, source, ["drug", "diagnosis"], codes={"diagnosis": {"to": "ccs"}}, **rule)  # type: ignore[arg-type]
    assert one.manifest["labels"]["visits positive"] == 1
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [1, 0]


def test_any_boolean_column_of_the_visits_is_an_outcome(mimic4: Path) -> None:
    write(
        mimic4,
        hosp__admissions="subject_id,hadm_id,admittime,dischtime,hospital_expire_flag,readmitted\n"
        "1,10,2150-01-01,2150-01-04,0,yes\n1,11,2150-01-20,2150-01-22,1,no\n2,12,2150-05-01,2150-05-02,0,no\n",
    )
    rule = {"codes": {"diagnosis": {"to": "ccs"}}, "labels": {"outcome": "readmitted"}}
    one = made(mimic4, {"kind": "mimic4", "folder": "."}, ["drug", "diagnosis"], **rule)  # type: ignore[arg-type]
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="column blood_type missing"):
        made(mimic4, {"kind": "mimic4", "folder": "."}, ["drug", "diagnosis"], labels={"outcome": "blood_type"})


def test_eicu_takes_times_from_offsets_and_keeps_stays_apart(tmp_path: Path) -> None:
    write(
        tmp_path,
        patient="patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,unittype,hospitaldischargeyear,"
        "hospitaladmitoffset,hospitaldischargeoffset,hospitaldischargestatus\n"
        "1,100,002-1,73,MICU,2014,-60,3000,Alive\n2,100,002-1,73,SICU,2014,-1500,1560,Alive\n"
        "3,101,002-1,73,MICU,2015,0,90,Expired\n4,102,002-2,79,MICU,2015,0,90,\n",
        diagnosis="diagnosisid,patientunitstayid,activeupondischarge,diagnosisoffset,diagnosisstring,icd9code,diagnosispriority\n"
        '1,1,True,10,cardiovascular|chf,"428.0, I50.9",Primary\n2,3,True,20,x,I50.9,Major\n3,3,True,30,y,"518.81, J96.00",Major\n'
        "4,9,True,30,y,518.81,Major\n",
        treatment="treatmentid,patientunitstayid,treatmentoffset,treatmentstring,activeupondischarge\n1,2,0,pulmonary|ventilation,True\n",
        medication="medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugname,drugordercancelled\n"
        "1,1,0,30,ASPIRIN,No\n2,3,0,31,HEPARIN,No\n3,3,0,31,HEPARIN,Yes\n4,4,0,5,,No\n",
        lab="labid,patientunitstayid,labresultoffset,labtypeid,labname,labresult\n1,1,40,1,glucose,250\n2,3,5,1,glucose,80\n",
    )
    (tmp_path / "ranges.csv").write_text("code,low,high\nglucose,70,110\n")
    source = {"kind": "eicu", "folder": "."}
    one = made(tmp_path, source, ["drug", "diagnosis"], "1h")
    assert cells(one) == {("002-1", "ASPIRIN", "4280"): 1.0, ("002-1", "HEPARIN", "51881"): 1.0}
    assert dropped(one, "read diagnosis") == {"no ICD-9 code": 1, "stay is not in patient": 1}
    assert dropped(one, "read medication") == {"no drug name": 1, "order was cancelled": 1}
    assert one.manifest["sites"]["patients"] == {"73": 1}
    assert one.manifest["labels"]["visits unknown"] == 1
    # 25 hours after admission: the treatment of the second unit stay is 24 h 20 min after the diagnosis of the first.
    two = made(tmp_path, source, ["procedure", "diagnosis"], "1d")
    assert cells(two) == {("002-1", "pulmonary|ventilation", "4280"): 1.0}
    node = Node.parse({"site": {"name": "a"}, "source": source}, folder=tmp_path)
    rule = {"modes": ["drug", "abnormal_lab"], "window": "visit", "ranges": "ranges.csv"}
    study = Study.parse({"study": {"name": "s"}, "tensor": rule}, folder=tmp_path)
    assert cells(ingest(node, study, tmp_path / "out")) == {("002-1", "ASPIRIN", "glucose"): 1.0}


ICD10 = "http://hl7.org/fhir/sid/icd-10-cm"
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"


def coded(system: str, code: str, display: str = "") -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, **({"display": display} if display else {})}]}


@pytest.fixture
def fhir(tmp_path: Path) -> Path:
    one, two = {"reference": "Patient/p1"}, {"reference": "urn:uuid:p2"}
    stay, other = {"reference": "Encounter/e1"}, {"reference": "urn:uuid:e2"}
    lab = [{"coding": [{"code": "laboratory"}]}]
    resources: dict[str, list[dict[str, Any]]] = {
        "Patient": [{"id": "p1"}, {"id": "p2", "deceasedDateTime": "2020-01-03T00:00:00Z"}],
        "Encounter": [
            {
                "id": "e1",
                "subject": one,
                "period": {"start": "2020-01-01T08:00:00+01:00", "end": "2020-01-05T08:00:00+01:00"},
                "serviceProvider": {"reference": "Organization/o1"},
            },
            {"id": "e2", "subject": two, "period": {"start": "2020-01-01", "end": "2020-01-03"}},
        ],
        "Condition": [
            {
                "code": coded(ICD10, "I50.9", "Heart failure"),
                "subject": one,
                "encounter": stay,
                "onsetDateTime": "2020-01-01T23:30:00+01:00",
            },
            {"code": coded(ICD10, "E11.9"), "subject": two, "encounter": other, "onsetDateTime": "2020-01"},
            {
                "code": coded(ICD10, "E11.9"),
                "subject": two,
                "encounter": other,
                "verificationStatus": {"coding": [{"code": "refuted"}]},
            },
        ],
        "Medication": [{"id": "m1", "code": coded(RXNORM, "1191", "Aspirin")}],
        "MedicationRequest": [
            {
                "status": "active",
                "subject": one,
                "encounter": stay,
                "authoredOn": "2020-01-01",
                "medicationReference": {"reference": "Medication/m1"},
            },
            {"status": "cancelled", "subject": one, "medicationCodeableConcept": {"text": "x"}},
        ],
        "MedicationAdministration": [
            {
                "status": "completed",
                "subject": two,
                "context": other,
                "effectiveDateTime": "2020-01-02T10:00:00Z",
                "medicationCodeableConcept": coded(RXNORM, "6809", "Metformin"),
            },
        ],
        "Observation": [
            {
                "status": "final",
                "category": lab,
                "code": coded("http://loinc.org", "2345-7", "Glucose"),
                "subject": one,
                "encounter": stay,
                "effectiveDateTime": "2020-01-01T22:00:00+01:00",
                "valueQuantity": {"value": 200},
                "referenceRange": [{"low": {"value": 70}, "high": {"value": 100}}],
            },
            {
                "status": "final",
                "category": lab,
                "code": coded("http://loinc.org", "2345-7"),
                "subject": one,
                "encounter": stay,
                "effectiveDateTime": "2020-01-01",
                "valueQuantity": {"value": 80},
                "interpretation": [{"coding": [{"code": "N"}]}],
            },
            {
                "status": "final",
                "category": [{"coding": [{"code": "vital-signs"}]}],
                "code": {"text": "pulse"},
                "subject": one,
            },
        ],
    }
    for kind, rows in resources.items():
        name = f"{kind}.000.ndjson" if kind == "Observation" else f"{kind}.ndjson"
        (tmp_path / name).write_text("".join(json.dumps({"resourceType": kind, **r}) + "\n" for r in rows))
    return tmp_path


def test_fhir_follows_references_and_keeps_the_local_day(fhir: Path) -> None:
    one = made(fhir, {"kind": "fhir", "folder": "."}, ["drug", "diagnosis"])
    assert cells(one) == {("p1", "1191", "I509"): 1.0, ("p2", "6809", "E119"): 1.0}
    assert one.site.counts().axes[1].names == ("Aspirin", "Metformin")
    assert dropped(one, "read Condition") == {"refuted or entered in error": 1}
    assert dropped(one, "read MedicationRequest") == {"cancelled or entered in error": 1}
    assert dropped(one, "read Observation") == {"not a laboratory result": 1}
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [0, 1]
    # 23:30+01:00 is still the first of January where the hospital is.
    assert cells(made(fhir, {"kind": "fhir", "folder": "."}, ["abnormal_lab", "diagnosis"], "day")) == {
        ("p1", "2345-7", "I509"): 1.0
    }


def test_fhir_with_a_broken_line_is_refused(fhir: Path) -> None:
    with open(fhir / "Condition.ndjson", "a") as f:
        f.write('{"resourceType": "Condition", "code": \n')
    with pytest.raises(DataError, match="Condition"):
        made(fhir, {"kind": "fhir", "folder": "."}, ["drug", "diagnosis"])


def test_meds_reads_prefixes_systems_and_deaths(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "metadata").mkdir()
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE m AS SELECT * FROM (VALUES (1, TIMESTAMP '2020-01-01 08:00', 'DIAGNOSIS//icd9cm//4280', NULL, 5), "
            "(1, TIMESTAMP '2020-01-01 09:00', 'RxNorm/1191', NULL, 5), (1, TIMESTAMP '2020-01-01 10:00', 'LAB//glucose//mg', 200.0, 5), "
            "(1, NULL, 'MEDS_BIRTH', NULL, NULL), (2, TIMESTAMP '2020-02-01', 'MEDS_DEATH', NULL, NULL), "
            "(2, TIMESTAMP '2020-02-01', 'RxNorm/1191', NULL, 6), (2, TIMESTAMP '2020-02-01', 'DIAGNOSIS//icd9cm//0389', NULL, 6)"
            ") t(subject_id, time, code, numeric_value, hadm_id)"
        )
        con.execute(f"COPY m TO '{tmp_path}/data/0.parquet'")
        con.execute(
            f"COPY (SELECT 'RxNorm/1191' AS code, 'Aspirin' AS description) TO '{tmp_path}/metadata/codes.parquet'"
        )
    source = {"kind": "meds", "events": "data", "kinds": {"RxNorm": "drug"}}
    one = made(tmp_path, source, ["drug", "diagnosis"])
    assert cells(one) == {("1", "1191", "4280"): 1.0, ("2", "1191", "0389"): 1.0}
    assert one.site.counts().axes[1].names == ("Aspirin",)
    assert dropped(one, "read meds") == {"marker of birth or death": 2}
    assert one.site.labels is not None
    assert one.site.labels.tolist() == [0, 1]


def test_omop_53_reads_and_reports_concept_zero_and_missing_times(tmp_path: Path) -> None:
    write(
        tmp_path,
        PERSON="PERSON_ID,GENDER_CONCEPT_ID,YEAR_OF_BIRTH,CARE_SITE_ID\n1,8507,1950,77\n",
        VISIT_OCCURRENCE="VISIT_OCCURRENCE_ID,PERSON_ID,VISIT_START_DATE,VISIT_START_DATETIME,VISIT_END_DATE,VISIT_END_DATETIME,"
        "ADMITTING_SOURCE_CONCEPT_ID,DISCHARGE_TO_CONCEPT_ID\n5,1,2020-01-01,,2020-01-03,,0,0\n",
        CONDITION_OCCURRENCE="PERSON_ID,CONDITION_CONCEPT_ID,CONDITION_START_DATE,CONDITION_START_DATETIME,VISIT_OCCURRENCE_ID\n"
        "1,316139,2020-01-01,2020-01-01 10:00:00,5\n1,0,2020-01-01,,5\n9,316139,2020-01-01,,5\n1,316139,,,5\n",
        DRUG_EXPOSURE="PERSON_ID,DRUG_CONCEPT_ID,DRUG_EXPOSURE_START_DATE,DRUG_EXPOSURE_START_DATETIME,VISIT_OCCURRENCE_ID\n"
        "1,1112807,2020-01-01,,5\n",
        MEASUREMENT="PERSON_ID,MEASUREMENT_CONCEPT_ID,MEASUREMENT_DATE,VALUE_AS_NUMBER,VALUE_AS_CONCEPT_ID,RANGE_LOW,RANGE_HIGH\n"
        "1,3004501,2020-01-01,9,,10,20\n1,3004501,2020-01-01,15,,10,20\n1,3004501,2020-01-01,15,4328749,10,20\n",
        CONCEPT="CONCEPT_ID,CONCEPT_NAME,VOCABULARY_ID,CONCEPT_CODE\n316139,Heart failure,SNOMED,84114007\n"
        "1112807,aspirin,RxNorm,1191\n3004501,Glucose,LOINC,2345-7\n4328749,High,SNOMED,75540009\n",
        DEATH="PERSON_ID,DEATH_DATE\n1,2020-01-03\n",
        CDM_SOURCE="CDM_SOURCE_NAME,CDM_VERSION\nx,v5.3.1\n",
    )
    one = made(tmp_path, {"kind": "omop", "folder": "."}, ["drug", "diagnosis"], "day")
    assert cells(one) == {("1", "1112807", "316139"): 1.0}
    assert one.site.counts().axes[2].names == ("Heart failure",)
    assert dropped(one, "read condition_occurrence") == {
        "concept_id 0: no standard concept": 1,
        "patient is not in person": 1,
    }
    assert one.manifest["notes"]["events without time"] == 1
    assert dropped(one, "choose codes")["no time"] == 1
    assert dropped(one, "choose codes")["kind 'abnormal_lab' is not in the study"] == 2
    assert one.manifest["source"]["read"]["cdm_version"] == "v5.3.1"
    assert one.manifest["labels"]["visits positive"] == 1
    assert one.manifest["sites"]["patients"] == {"77": 1}


def test_the_sql_an_owner_runs_elsewhere_continues_from_its_export(tmp_path: Path) -> None:
    write(
        tmp_path,
        person="person_id,care_site_id\n1,\n",
        visit_occurrence="visit_occurrence_id,person_id,visit_start_date,visit_end_date,care_site_id\n5,1,2020-01-01,2020-01-03,\n",
        condition_occurrence="person_id,condition_concept_id,condition_start_date,condition_start_datetime,visit_occurrence_id\n1,316139,2020-01-01,,5\n1,0,2020-01-01,,5\n",
        drug_exposure="person_id,drug_concept_id,drug_exposure_start_date,drug_exposure_start_datetime,visit_occurrence_id\n1,1112807,2020-01-01,,5\n",
        procedure_occurrence="person_id,procedure_concept_id,procedure_date,procedure_datetime,visit_occurrence_id\n",
        measurement="person_id,measurement_concept_id,measurement_date,measurement_datetime,visit_occurrence_id,value_as_number,value_as_concept_id,range_low,range_high\n",
        concept="concept_id,concept_name,vocabulary_id,concept_code\n316139,Heart failure,SNOMED,84114007\n1112807,aspirin,RxNorm,1191\n",
    )
    direct = made(tmp_path, {"kind": "omop", "folder": "."}, ["drug", "diagnosis"])
    with duckdb.connect() as con:  # the owner's own tool
        for f in tmp_path.glob("*.csv.gz"):
            con.execute(f"CREATE TABLE {f.name.partition('.')[0]} AS SELECT * FROM read_csv('{f}', all_varchar = true)")
        con.execute(f"COPY ({sql_of('omop')}) TO '{tmp_path}/export.parquet'")
    exported = made(tmp_path, {"kind": "files", "events": "export.parquet"}, ["drug", "diagnosis"])
    assert cells(exported) == cells(direct) == {("1", "1112807", "316139"): 1.0}
    assert dropped(exported, "read events") == {"concept_id 0: no standard concept": 1}


@pytest.mark.parametrize("kind", ["omop", "omop_source", "mimic3", "mimic4", "eicu", "synpuf", "fhir", "meds"])
def test_every_sql_file_explains_itself(kind: str) -> None:
    text = sql_of(kind)
    assert text.startswith("--")
    assert "AS dropped" in text


def test_claims_tell_age_and_sex_and_nothing_where_the_files_do_not(tmp_path: Path) -> None:
    codes = [*(f"ICD9_DGNS_CD_{k}" for k in range(1, 11)), *(f"ICD9_PRCDR_CD_{k}" for k in range(1, 7))]
    claims = f"DESYNPUF_ID,CLM_ID,SEGMENT,CLM_FROM_DT,CLM_THRU_DT,{','.join(codes)}\n"
    cells = ",".join(["4280", *[""] * 9, "3722", *[""] * 5])
    claims += "".join(f"{p},{n},1,20080301,20080304,{cells}\n" for n, p in enumerate("ABCD"))
    people = "DESYNPUF_ID,BENE_BIRTH_DT,BENE_DEATH_DT,BENE_SEX_IDENT_CD\n"
    first = people + "A,19430101,,1\nB,19430201,20080901,2\nD,,,\n"  # on 1 January 2008: 65, 64, unknown
    write(tmp_path, inpatient_claims=claims, beneficiary_2008=first, beneficiary_2009=people + "C,19201201,,2\n")
    asked = {"study": {"name": "s"}, "tensor": {"modes": ["procedure", "diagnosis"], "minimum_patients": 1},
             "people": {"age": [0, 65, 120], "sex": True}}  # fmt: skip
    here = Node.parse({"site": {"name": "cms"}, "source": {"kind": "synpuf", "folder": "."}}, folder=tmp_path)
    site = ingest(here, Study.parse(asked), tmp_path / "out").site
    assert site.counts().axes[0].labels == ("A", "B", "C", "D") and site.people is not None
    age, sex = site.people.columns["age"], site.people.columns["sex"]
    assert age[:3].tolist() == [65.0, 64.0, 87.0] and age[3] != age[3]
    assert [s or "" for s in sex.tolist()] == ["M", "F", "F", ""]


def test_tables_in_parts_are_read_whole_and_two_copies_are_refused(tmp_path: Path) -> None:
    rows = {"a": "1,10,4280\n", "b": "2,11,0389\n"}
    for part, text in rows.items():
        write(tmp_path, **{f"diagnoses_icd__{part}": "subject_id,hadm_id,icd9_code\n" + text})
    write(
        tmp_path,
        admissions="subject_id,hadm_id,admittime,dischtime,hospital_expire_flag\n1,10,2150-01-01,2150-01-02,0\n2,11,2150-01-01,2150-01-02,1\n",
        icustays="hadm_id,first_careunit,intime\n10,MICU,2150-01-01\n",
        procedures_icd="subject_id,hadm_id,icd9_code\n1,10,3722\n2,11,3722\n",
    )
    source = {"kind": "mimic3", "folder": "."}
    assert made(tmp_path, source, ["procedure", "diagnosis"]).site.counts().nnz == 2
    write(tmp_path, copy__admissions="subject_id,hadm_id,admittime,dischtime,hospital_expire_flag\n")
    with pytest.raises(DataError, match="several files for table admissions"):
        made(tmp_path, source, ["procedure", "diagnosis"])


EICU = {
    "patient": "patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,unittype,hospitaldischargeyear,age,"
    "hospitaladmitoffset,hospitaldischargeoffset,hospitaldischargestatus\n"
    "1,100,a,73,MICU,2014,70,0,3000,Alive\n2,101,a,73,SICU,2015,71,0,1560,Expired\n"
    "3,102,b,73,SICU,2015,> 89,0,90,Alive\n4,103,c,79,MICU,2015,30,0,90,Alive\n",
    "diagnosis": "patientunitstayid,diagnosisoffset,diagnosisstring,icd9code\n1,10,heart|failure|acute,428.0\n"
    "2,20,lung|edema,\n3,soon,lung|edema,518.4\n3,30,lung|edema,\n4,inf,heart|failure|acute,428.0\n4,5,heart|failure|old,428.0\n",
    "treatment": "patientunitstayid,treatmentoffset,treatmentstring\n1,1,line\n2,2,tube\n3,3,tube\n4,4,line\n",
}


def test_eicu_diagnoses_by_their_path_and_offsets_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    write(tmp_path, **EICU)
    source = {"kind": "eicu", "folder": "."}
    icd = made(tmp_path, source, ["procedure", "diagnosis"])
    assert dropped(icd, "read diagnosis") == {"no ICD-9 code": 2, "offset is not a number": 2}
    rule = {"codes": {"diagnosis": {"to": "path:2"}}}
    path = made(tmp_path, source | {"codes": "source"}, ["procedure", "diagnosis"], **rule)  # type: ignore[arg-type]
    assert dropped(path, "read diagnosis") == {"offset is not a number": 2}
    assert cells(path) == {
        ("a", "line", "heart|failure"): 1.0,
        ("a", "tube", "lung|edema"): 1.0,
        ("b", "tube", "lung|edema"): 1.0,
        ("c", "line", "heart|failure"): 1.0,
    }


def test_eicu_has_ages_a_first_visit_with_a_code_and_units_to_divide_by(tmp_path: Path) -> None:
    write(tmp_path, **EICU)
    source = {"kind": "eicu", "folder": ".", "codes": "source"}
    modes = ["procedure", "diagnosis"]
    old = made(tmp_path, source, modes, cohort={"age": [60, 120]})
    assert {p for p, _, _ in cells(old)} == {"a", "b"}
    edema = made(
        tmp_path, source, modes, cohort={"first": {"diagnosis": ["lung|edema"]}}, time={"before": 0, "after": 5}
    )
    assert cells(edema) == {("a", "tube", "lung|edema"): 1.0, ("b", "tube", "lung|edema"): 1.0}
    divided = made(tmp_path, source | {"split": "unittype"}, modes)
    assert divided.manifest["sites"]["patients"] == {"MICU": 2, "SICU": 2}


def test_mimic_has_ages_and_a_patient_is_observed_since_the_first_admission(tmp_path: Path) -> None:
    stays = [
        (1, 10, "2150-01-01"),
        (1, 11, "2151-01-01"),
        (2, 20, "2150-06-01"),
        (3, 30, "2150-06-01"),
        (4, 40, "2150-06-01"),
    ]
    write(
        tmp_path,
        patients="subject_id,dob\n1,2080-05-05\n2,2140-01-01\n3,1850-06-01\n4,\n",
        admissions="subject_id,hadm_id,admittime,dischtime,hospital_expire_flag\n"
        + "".join(f"{p},{h},{d},{d},0\n" for p, h, d in stays),
        icustays="hadm_id,first_careunit,intime\n" + "".join(f"{h},MICU,{d}\n" for _, h, d in stays),
        diagnoses_icd="subject_id,hadm_id,icd9_code\n" + "".join(f"{p},{h},4280\n" for p, h, _ in stays),
        procedures_icd="subject_id,hadm_id,icd9_code\n" + "".join(f"{p},{h},{3722 + (h == 11)}\n" for p, h, _ in stays),
    )
    source = {"kind": "mimic3", "folder": "."}
    modes = ["procedure", "diagnosis"]
    grown = made(tmp_path, source, modes, cohort={"age": [18, 120]})  # 3 is 91, as all who were born 300 years before
    assert {p for p, _, _ in cells(grown)} == {"1", "3"}
    assert dropped(grown, "age") == {"not of the age at the index date": 2, "age is not known": 2}
    late = made(tmp_path, source, modes, cohort={"first": {"procedure": ["3723"]}, "washout": 300})
    assert {p for p, _, _ in cells(late)} == {"1"}
    with pytest.raises(DataError, match="no patient is left"):
        made(tmp_path, source, modes, cohort={"first": {"procedure": ["3723"]}, "washout": 400})


def test_event_files_have_ages_by_a_column_and_visits_as_long_as_their_events(tmp_path: Path) -> None:
    rows = [
        ("a", "a1", "2020-01-01", "1950"),
        ("a", "a2", "2020-12-01", "1950"),
        ("b", "b1", "2020-05-01", "2010-02-03"),
    ]
    lines = [f"{p},{v},{t},{k},{c},{b}" for p, v, t, b in rows for k, c in (("drug", f"d{v[-1]}"), ("diagnosis", "x"))]
    (tmp_path / "events.csv").write_text("patient_id,visit_id,time,kind,code,born\n" + "\n".join(lines) + "\n")
    source = {"kind": "files", "events": "events.csv", "columns": {"birth": "born"}}
    grown = made(tmp_path, source, ["drug", "diagnosis"], cohort={"age": [18, 120]})
    assert {p for p, _, _ in cells(grown)} == {"a"}
    later = made(
        tmp_path, source, ["drug", "diagnosis"], cohort={"first": {"drug": ["d2"]}, "washout": 300}, time={"before": 10}
    )
    assert cells(later) == {("a", "d2", "x"): 1.0}
    with pytest.raises(DataError, match=r"column nowhere \(birth\) missing"):
        made(tmp_path, source | {"columns": {"birth": "nowhere"}}, ["drug", "diagnosis"])
