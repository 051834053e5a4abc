"""MIMIC-IV: as MIMIC-III, with ICD-9 and ICD-10 side by side (``[codes.diagnosis] to = "ccs"`` brings them together)."""

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


MIMIC4 = Tabular(
    "mimic4",
    tables=(
        SourceTable(
            "admissions",
            "subject_id hadm_id admittime dischtime hospital_expire_flag",
            "admission_type",
            patient="subject_id",
        ),
        SourceTable("patients", "subject_id", "anchor_age anchor_year", optional=True, patient="subject_id"),
        SourceTable("icustays", "hadm_id first_careunit intime", optional=True),
        SourceTable("diagnoses_icd", "subject_id hadm_id icd_code icd_version", keys=_keys("icd_code", via=ADMITTED)),
        SourceTable(
            "procedures_icd",
            "subject_id hadm_id icd_code icd_version",
            "chartdate",
            keys=_keys("icd_code", "chartdate", via=ADMITTED),
        ),
        SourceTable(
            "prescriptions", "subject_id hadm_id starttime drug", optional=True, keys=_keys("drug", "starttime")
        ),
        SourceTable(
            "labevents",
            "subject_id hadm_id itemid charttime valuenum flag",
            optional=True,
            keys=_keys("itemid", "charttime"),
        ),
        SourceTable("d_icd_diagnoses", "icd_code icd_version long_title", optional=True),
        SourceTable("d_icd_procedures", "icd_code icd_version long_title", optional=True),
        SourceTable("d_labitems", "itemid label", optional=True),
    ),
    events=("diagnoses_icd", "procedures_icd", "prescriptions", "labevents"),
    visits=("admissions", "hadm_id"),
    unique={"d_labitems": "itemid"},
    typed=True,
)
BIRTHS = "SELECT subject_id AS patient_id, TRY_CAST(anchor_year AS INTEGER) - TRY_CAST(anchor_age AS INTEGER) AS year FROM patients"


def open_source(con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
    """Open the tables."""
    opened = MIMIC4.open(con, node, outcome, push)
    return replace(opened, births=BIRTHS if "patients" in opened.inputs else None)
