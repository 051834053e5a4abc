"""MIMIC-IV: as MIMIC-III, with ICD-9 and ICD-10 side by side (``[codes.diagnosis] to = "ccs"`` brings them together)."""

from __future__ import annotations

from polyclinic.events.source import Tabular
from polyclinic.events.tables import Table

__all__ = ["open_source"]

MIMIC4 = Tabular(
    "mimic4",
    tables=(
        Table("admissions", "subject_id hadm_id admittime dischtime hospital_expire_flag", "admission_type"),
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
open_source = MIMIC4.open
