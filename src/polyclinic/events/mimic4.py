"""MIMIC-IV: as MIMIC-III, with ICD-9 and ICD-10 side by side (``[codes.diagnosis] to = "ccs"`` brings them together)."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.events.engine import Connection
from polyclinic.events.source import Opened, Tabular
from polyclinic.events.tables import Table
from polyclinic.study import Node

__all__ = ["open_source"]

MIMIC4 = Tabular(
    "mimic4",
    tables=(
        Table("admissions", "subject_id hadm_id admittime dischtime hospital_expire_flag", "admission_type"),
        Table("patients", "subject_id", "anchor_age anchor_year", optional=True),
        Table("icustays", "hadm_id first_careunit intime", optional=True),
        Table("diagnoses_icd", "subject_id hadm_id icd_code icd_version"),
        Table("procedures_icd", "subject_id hadm_id icd_code icd_version", "chartdate"),
        Table("prescriptions", "subject_id hadm_id starttime drug", optional=True),
        Table("labevents", "subject_id hadm_id itemid charttime valuenum flag", optional=True),
        Table("d_icd_diagnoses", "icd_code icd_version long_title", optional=True),
        Table("d_icd_procedures", "icd_code icd_version long_title", optional=True),
        Table("d_labitems", "itemid label", optional=True),
    ),
    events=("diagnoses_icd", "procedures_icd", "prescriptions", "labevents"),
    visits=("admissions", "hadm_id"),
    unique={"d_labitems": "itemid"},
    typed=True,
)
BIRTHS = "SELECT subject_id AS patient_id, TRY_CAST(anchor_year AS INTEGER) - TRY_CAST(anchor_age AS INTEGER) AS year FROM patients"


def open_source(con: Connection, node: Node, outcome: str | None) -> Opened:
    """Open the tables."""
    opened = MIMIC4.open(con, node, outcome)
    return replace(opened, births=BIRTHS if "patients" in opened.inputs else None)
