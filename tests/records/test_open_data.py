"""Real and realistic data sets: the figures of their SOURCE.md, and every row accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.records.ingest import Ingested, ingest, read_sites
from polyclinic.records.sites.site import pooled

Find = Callable[[str], Path]
DRUGS = [
    "metformin",
    "repaglinide",
    "nateglinide",
    "chlorpropamide",
    "glimepiride",
    "acetohexamide",
    "glipizide",
    "glyburide",
    "tolbutamide",
    "pioglitazone",
    "rosiglitazone",
    "acarbose",
    "miglitol",
    "troglitazone",
    "tolazamide",
    "examide",
    "citoglipton",
    "insulin",
    "glyburide-metformin",
    "glipizide-metformin",
    "glimepiride-pioglitazone",
    "metformin-rosiglitazone",
    "metformin-pioglitazone",
]


def study(modes: list[str], window: str = "visit", **more: Any) -> Study:
    return Study.parse(
        {"study": {"name": "s"}, "tensor": {"modes": modes, "window": window, "count": "product"}, **more}
    )


def node(**source: Any) -> Node:
    return Node.parse({"site": {"name": "a"}, "source": source})


def assert_every_row_is_accounted_for(made: Ingested) -> None:
    steps = made.manifest["steps"]
    for s in steps:
        assert s["rows_in"] == s["rows_out"] + sum(s["dropped"].values()), s
    reads = [s for s in steps if s["step"].startswith("read ")]
    assert sum(s["rows_out"] for s in reads) == next(s for s in steps if s["step"] == "choose codes")["rows_in"]


def test_mimic3_procedures_and_diagnoses_of_one_admission(data_path: Find, tmp_path: Path) -> None:
    source = node(kind="mimic3", folder=str(data_path("mimic3_demo")))
    made = ingest(source, study(["procedure", "diagnosis"]), tmp_path / "out")
    t = made.site.counts()
    assert (t.shape, t.nnz) == ((88, 164, 539), 7133)
    assert made.manifest["labels"]["visits"] == 129
    assert made.manifest["labels"]["visits positive"] == 40
    assert {s["step"]: s["rows_in"] for s in made.manifest["steps"][:4]} == {
        "read diagnoses_icd": 1761,
        "read procedures_icd": 506,
        "read prescriptions": 10398,
        "read labevents": 76074,
    }
    assert_every_row_is_accounted_for(made)
    assert "0389" in (t.axes[2].labels or ())
    assert all(name and name != label for name, label in zip(t.axes[2].names or (), t.axes[2].labels or ()))
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == made.manifest


def test_mimic3_drugs_and_abnormal_labs_of_one_day(data_path: Find, tmp_path: Path) -> None:
    source = node(kind="mimic3", folder=str(data_path("mimic3_demo")))
    made = ingest(source, study(["drug", "abnormal_lab"], "day"), tmp_path / "out")
    assert (made.site.counts().shape, made.site.counts().nnz) == ((94, 585, 162), 75291)
    assert_every_row_is_accounted_for(made)


def test_mimic3_splits_into_care_units_and_names_patients_of_several(data_path: Find, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        f'[site]\nname = "bidmc"\n[source]\nkind = "mimic3"\nfolder = "{data_path("mimic3_demo")}"\n'
    )
    asked = Study.parse(
        {
            "study": {"name": "s"},
            "tensor": {"modes": ["procedure", "diagnosis"], "count": "product", "minimum_patients": 1},
            "sites": {"nodes": ["node.toml"], "split": True},
        },
        folder=tmp_path,
    )
    sites = read_sites(asked)
    assert [s.name for s in sites] == ["CCU", "CSRU", "MICU", "SICU", "TSICU"]
    assert len({s.counts().shape[1:] for s in sites}) == 1  # one vocabulary: aligned from the start
    assert pooled(sites).patients == sum(s.patients for s in sites)  # a patient of two units is two rows
    folder = data_path("mimic3_demo")
    with duckdb.connect() as con:
        for t in ("PROCEDURES_ICD", "DIAGNOSES_ICD", "ICUSTAYS"):
            con.execute(f"CREATE TABLE {t} AS SELECT * FROM read_csv('{folder}/{t}.csv.gz', all_varchar = true)")
        pairs = con.execute("SELECT count(*) FROM procedures_icd JOIN diagnoses_icd USING (hadm_id)").fetchone()
        several = con.execute(
            "SELECT count(*) FROM (SELECT subject_id FROM (SELECT subject_id, hadm_id, arg_min(first_careunit, intime) AS u "
            "FROM icustays GROUP BY 1, 2) GROUP BY 1 HAVING count(DISTINCT u) > 1)"
        ).fetchone()
    assert pairs is not None
    assert several is not None
    assert sum(float(s.counts().values.sum()) for s in sites) == pairs[0]
    assert not (tmp_path / "site").exists()  # nothing is left behind
    whole = ingest(asked.nodes()[0], asked, tmp_path / "out")
    assert float(whole.site.counts().values.sum()) == pairs[0]
    assert whole.manifest["sites"]["patients_at_several"] == several[0] > 0
    assert sum(whole.manifest["sites"]["patients"].values()) > 100


def test_mimic3_readmission_leaves_out_stays_that_ended_in_death(data_path: Find, tmp_path: Path) -> None:
    source = node(kind="mimic3", folder=str(data_path("mimic3_demo")))
    rule = study(["procedure", "diagnosis"], labels={"outcome": "readmission", "days": 30})
    found = ingest(source, rule, tmp_path / "out").manifest["labels"]
    folder = data_path("mimic3_demo")
    with duckdb.connect() as con:
        expected = con.execute(
            f"""SELECT count(*) FROM (SELECT *, lead(admittime) OVER (PARTITION BY subject_id ORDER BY admittime) AS next
        FROM read_csv('{folder}/ADMISSIONS.csv.gz')) WHERE hospital_expire_flag = 0 AND next >= dischtime
        AND next <= dischtime + INTERVAL 30 DAY"""
        ).fetchone()
    assert expected is not None
    assert found["visits positive"] == expected[0] > 0
    assert found["visits ended by death"] == 40


def test_synpuf_drops_diagnoses_in_procedure_columns_and_counts_them(data_path: Find, tmp_path: Path) -> None:
    source = node(kind="synpuf", folder=str(data_path("cms_desynpuf") / "sample_01"))
    made = ingest(source, study(["procedure", "diagnosis"]), tmp_path / "out")
    dropped = made.manifest["steps"][1]["dropped"]
    assert dropped["procedure column holds a diagnosis (by shape)"] == 2685
    assert made.manifest["steps"][0]["rows_in"] == 5775 * 10
    assert made.site.counts().shape == (2262, 912, 2306)
    assert made.manifest["labels"]["patients"] == 10_000
    assert_every_row_is_accounted_for(made)
    assert all(len(c) <= 4 and c.isdigit() for c in made.site.counts().axes[1].labels or ())


def test_synpuf_knows_age_and_sex(data_path: Find, tmp_path: Path) -> None:
    folder = data_path("cms_desynpuf") / "sample_01"
    asked = {
        "study": {"name": "demo"},
        "tensor": {"modes": ["procedure", "diagnosis"]},
        "people": {"age": [0, 65, 75, 85, 120], "sex": True},
    }
    made = ingest(node(kind="synpuf", folder=str(folder)), Study.parse(asked), tmp_path / "out")
    people, who = made.site.people, made.site.counts().axes[0].labels
    assert people is not None and who is not None
    rows = duckdb.sql(
        f"SELECT DESYNPUF_ID, any_value(BENE_BIRTH_DT), any_value(BENE_SEX_IDENT_CD) "
        f"FROM read_csv('{folder}/beneficiary_20*.csv.gz', all_varchar=true, union_by_name=true) GROUP BY 1"
    ).fetchall()
    known = {p: (2008 - int(b[:4]) - (b[4:] > "0101"), {"1": "M", "2": "F"}[s]) for p, b, s in rows}
    assert people.columns["age"].tolist() == [known[p][0] for p in who]
    assert people.columns["sex"].tolist() == [known[p][1] for p in who]
    assert 60 < people.columns["age"].mean() < 80
    old = Study.parse(asked | {"cohort": {"age": [85, 120]}})  # a cohort by age can be drawn, too
    assert ingest(node(kind="synpuf", folder=str(folder)), old, tmp_path / "old").site.patients < made.site.patients


def test_synpuf_outpatient_claims_by_hcpcs_and_what_the_difference_is(data_path: Find, tmp_path: Path) -> None:
    absent = {t: f"no_{t}" for t in ("inpatient_claims", *(f"beneficiary_{y}" for y in (2008, 2009, 2010)))}
    tables = {"outpatient_claims": "outpatient_claims_partial_s01", **absent}
    source = node(kind="synpuf", folder=str(data_path("cms_desynpuf")), tables=tables)
    made = ingest(source, study(["hcpcs", "diagnosis"]), tmp_path / "out")
    # SOURCE.md counts 1,870 x 4,570 and 135,959: it takes the text 'OTHER' (54 cells) for a diagnosis.
    assert (made.site.counts().shape, made.site.counts().nnz) == ((1189, 1868, 4569), 135931)
    assert made.manifest["steps"][0]["dropped"]["diagnosis column holds no ICD-9 diagnosis (by shape)"] == 54
    assert_every_row_is_accounted_for(made)


@pytest.mark.slow
def test_synpuf_one_sample_is_one_site_and_samples_are_disjoint(data_path: Find, tmp_path: Path) -> None:
    source = node(kind="synpuf", folder=str(data_path("cms_desynpuf")))
    made = ingest(source, study(["procedure", "diagnosis"]), tmp_path / "out")
    assert list(made.manifest["sites"]["patients"]) == [f"sample_0{k}" for k in range(1, 6)]
    assert made.manifest["sites"]["patients_at_several"] == 0


def test_diabetes130_by_a_column_map_where_none_is_a_value(data_path: Find, tmp_path: Path) -> None:
    source = node(
        kind="files",
        events=str(data_path("diabetes130") / "diabetic_data.csv.gz"),
        missing=["?"],
        columns={"patient_id": "patient_nbr", "visit_id": "encounter_id", "time": "", "site": "admission_source_id"},
        label="readmitted",
        positive=["<30"],
        systems={"diagnosis": "icd9cm"},
        wide={
            "diagnosis": {"columns": ["diag_1", "diag_2", "diag_3"]},
            "medication": {"columns": DRUGS, "code": "column", "without": ["No"]},
            "test": {"columns": ["A1Cresult"]},
        },
    )
    made = ingest(source, study(["diagnosis", "medication"]), tmp_path / "out")
    assert (made.site.counts().shape, made.site.counts().nnz) == ((33732, 833, 21), 194324)
    assert made.manifest["labels"]["visits"] == 61132
    assert_every_row_is_accounted_for(made)
    tests = next(s for s in made.manifest["steps"] if s["step"] == "read events.test")
    assert tests["rows_out"] == tests["rows_in"] == 61132  # 'None' is a result: no row is empty


@pytest.mark.parametrize("codes", ["standard", "source"])
def test_synthea_omop_54_reads(data_path: Find, tmp_path: Path, codes: str) -> None:
    source = node(kind="omop", folder=str(data_path("synthea27nj_omop")), codes=codes)
    made = ingest(source, study(["drug", "diagnosis"], "30d"), tmp_path / "out")
    assert [s["rows_in"] for s in made.manifest["steps"][:4]] == [470, 1649, 883, 10040]
    assert (made.site.counts().patients, made.site.counts().nnz) == (26, 310)
    assert made.manifest["labels"]["visits positive"] == 3
    assert_every_row_is_accounted_for(made)


def test_parkinsons_matrix_has_its_class_and_refuses_repeated_people(data_path: Find, tmp_path: Path) -> None:
    file = str(data_path("parkinsons") / "parkinsons.data")
    copy = tmp_path / "parkinsons.csv"
    copy.write_bytes(Path(file).read_bytes())
    source = node(kind="matrix", features=str(copy), label="status", columns={"patient_id": "name"})
    asked = Study.parse({"study": {"name": "s"}, "features": {}})
    site = ingest(source, asked, tmp_path / "out").site
    assert site.matrix().shape == (195, 22)
    assert site.labels is not None
    assert int(site.labels.sum()) == 147
