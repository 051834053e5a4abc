"""MIMIC-III (also the open demo): diagnoses, procedures, drugs and laboratory results by admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sources.base import OpenedSource, Tabular
from polyclinic.records.sources.pushdown import Keys, Push
from polyclinic.records.sources.tables import SourceTable


def keys(code: str, *times: str) -> Keys:
    """Return the keys of a table of codes, whose day is the admission's where it has none."""
    return Keys("subject_id", "hadm_id", times, code, code, ("admissions", "admittime"))


def mimic(
    name: str,
    stays: tuple[SourceTable, ...],
    coded: tuple[SourceTable, ...],
    titles: tuple[SourceTable, ...],
    drug_time: str,
    unique: Mapping[str, str],
) -> Tabular:
    """Make a source of one version's tables and of those that both versions have."""
    drugs = replace(keys("drug", drug_time), via=None)
    results = replace(keys("itemid", "charttime"), via=None)
    return Tabular(
        name,
        tables=(
            *stays,
            *coded,
            SourceTable("prescriptions", f"subject_id hadm_id {drug_time} drug", optional=True, keys=drugs),
            SourceTable("labevents", "subject_id hadm_id itemid charttime valuenum flag", optional=True, keys=results),
            *titles,
            SourceTable("d_labitems", "itemid label", optional=True),
        ),
        events=("diagnoses_icd", "procedures_icd", "prescriptions", "labevents"),
        visits=("admissions", "hadm_id"),
        unique={**unique, "d_labitems": "itemid"},
        typed=True,
    )


ADMISSIONS = SourceTable(
    "admissions",
    "subject_id hadm_id admittime dischtime hospital_expire_flag",
    "deathtime admission_type",
    patient="subject_id",
    visit="hadm_id",
)
ICU_STAYS = SourceTable(
    "icustays", "hadm_id first_careunit intime", "subject_id", patient="subject_id", visit="hadm_id"
)
MIMIC3 = mimic(
    "mimic3",
    stays=(
        ADMISSIONS,
        SourceTable("patients", "subject_id", "dob gender", optional=True, patient="subject_id"),
        ICU_STAYS,
    ),
    coded=tuple(
        SourceTable(name, "subject_id hadm_id icd9_code", keys=keys("icd9_code"))
        for name in ("diagnoses_icd", "procedures_icd")
    ),
    titles=tuple(
        SourceTable(name, "icd9_code long_title", optional=True) for name in ("d_icd_diagnoses", "d_icd_procedures")
    ),
    drug_time="startdate",
    unique={"d_icd_diagnoses": "icd9_code", "d_icd_procedures": "icd9_code"},
)
SEXES = "SELECT subject_id AS patient_id, gender AS sex FROM patients"
# Who was older than 89 is born 300 years before the first admission there; 91 is their median age.
BIRTHS = (
    "SELECT p.subject_id AS patient_id, CASE WHEN a.first - year(TRY_CAST(p.dob AS TIMESTAMP)) > 150 THEN a.first - 91 "
    "ELSE year(TRY_CAST(p.dob AS TIMESTAMP)) END AS year FROM patients p LEFT JOIN (SELECT CAST(subject_id AS VARCHAR) AS who, "
    "min(year(TRY_CAST(admittime AS TIMESTAMP))) AS first FROM admissions GROUP BY 1) a ON a.who = CAST(p.subject_id AS VARCHAR)"
)


def open_mimic(
    tabular: Tabular, births: str, con: Connection, node: Node, outcome: str | None, push: Push | None
) -> OpenedSource:
    """Open the tables of one version."""
    source = tabular.open(con, node, outcome, push)
    return replace(source, births=births, sexes=SEXES) if "patients" in source.inputs else source


def open_source(con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
    """Open the tables."""
    return open_mimic(MIMIC3, BIRTHS, con, node, outcome, push)
