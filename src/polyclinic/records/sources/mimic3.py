"""MIMIC-III (also the open demo): diagnoses, procedures, drugs and laboratory results by admission."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.engine import Connection
from polyclinic.records.sources.base import OpenedSource, Tabular
from polyclinic.records.sources.pushdown import Keys, Push
from polyclinic.records.sources.tables import SourceTable

__all__ = ["open_source"]

ADMITTED = ("admissions", "admittime")


def _keys(code: str, *times: str, via: tuple[str, str] | None = None) -> Keys:
    return Keys("subject_id", "hadm_id", times, code, code, via)


MIMIC3 = Tabular(
    "mimic3",
    tables=(
        SourceTable(
            "admissions",
            "subject_id hadm_id admittime dischtime hospital_expire_flag",
            "deathtime admission_type",
            patient="subject_id",
        ),
        SourceTable("patients", "subject_id", "dob", optional=True, patient="subject_id"),
        SourceTable("icustays", "hadm_id first_careunit intime"),
        SourceTable("diagnoses_icd", "subject_id hadm_id icd9_code", keys=_keys("icd9_code", via=ADMITTED)),
        SourceTable("procedures_icd", "subject_id hadm_id icd9_code", keys=_keys("icd9_code", via=ADMITTED)),
        SourceTable(
            "prescriptions", "subject_id hadm_id startdate drug", optional=True, keys=_keys("drug", "startdate")
        ),
        SourceTable(
            "labevents",
            "subject_id hadm_id itemid charttime valuenum flag",
            optional=True,
            keys=_keys("itemid", "charttime"),
        ),
        SourceTable("d_icd_diagnoses", "icd9_code long_title", optional=True),
        SourceTable("d_icd_procedures", "icd9_code long_title", optional=True),
        SourceTable("d_labitems", "itemid label", optional=True),
    ),
    events=("diagnoses_icd", "procedures_icd", "prescriptions", "labevents"),
    visits=("admissions", "hadm_id"),
    unique={"d_icd_diagnoses": "icd9_code", "d_icd_procedures": "icd9_code", "d_labitems": "itemid"},
    typed=True,
)
# Who was older than 89 is born 300 years before the first admission there; 91 is their median age.
BIRTHS = (
    "SELECT p.subject_id AS patient_id, CASE WHEN a.first - year(TRY_CAST(p.dob AS TIMESTAMP)) > 150 THEN a.first - 91 "
    "ELSE year(TRY_CAST(p.dob AS TIMESTAMP)) END AS year FROM patients p LEFT JOIN (SELECT CAST(subject_id AS VARCHAR) AS who, "
    "min(year(TRY_CAST(admittime AS TIMESTAMP))) AS first FROM admissions GROUP BY 1) a ON a.who = CAST(p.subject_id AS VARCHAR)"
)


def open_source(con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
    """Open the tables."""
    opened = MIMIC3.open(con, node, outcome, push)
    return replace(opened, births=BIRTHS if "patients" in opened.inputs else None)
