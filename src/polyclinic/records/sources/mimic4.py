"""MIMIC-IV: as MIMIC-III, with ICD-9 and ICD-10 side by side (``[codes.diagnosis] to = "ccs"`` brings them together)."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sources.base import OpenedSource
from polyclinic.records.sources.mimic3 import ADMISSIONS, ICU_STAYS, keys, mimic, open_mimic
from polyclinic.records.sources.pushdown import Push
from polyclinic.records.sources.tables import SourceTable

CODED = "subject_id hadm_id icd_code icd_version"
MIMIC4 = mimic(
    "mimic4",
    stays=(
        replace(ADMISSIONS, may="admission_type"),
        SourceTable("patients", "subject_id", "anchor_age anchor_year gender", optional=True, patient="subject_id"),
        replace(ICU_STAYS, optional=True),
    ),
    coded=(
        SourceTable("diagnoses_icd", CODED, keys=keys("icd_code")),
        SourceTable("procedures_icd", CODED, "chartdate", keys=keys("icd_code", "chartdate")),
    ),
    titles=tuple(
        SourceTable(name, "icd_code icd_version long_title", optional=True)
        for name in ("d_icd_diagnoses", "d_icd_procedures")
    ),
    drug_time="starttime",
    unique={},
)
BIRTHS = "SELECT subject_id AS patient_id, TRY_CAST(anchor_year AS INTEGER) - TRY_CAST(anchor_age AS INTEGER) AS year FROM patients"


def open_source(con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
    """Open the tables."""
    return open_mimic(MIMIC4, BIRTHS, con, node, outcome, push)
