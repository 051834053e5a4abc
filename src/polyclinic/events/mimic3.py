"""MIMIC-III (also the open demo): diagnoses, procedures, drugs and laboratory results by admission."""

from __future__ import annotations

from polyclinic.events.source import Tabular
from polyclinic.events.tables import Table

__all__ = ["open_source"]

MIMIC3 = Tabular(
    "mimic3",
    tables=(
        Table("admissions", "subject_id hadm_id admittime dischtime hospital_expire_flag", "deathtime admission_type"),
        Table("icustays", "hadm_id first_careunit intime"),
        Table("diagnoses_icd", "subject_id hadm_id icd9_code"),
        Table("procedures_icd", "subject_id hadm_id icd9_code"),
        Table("prescriptions", "subject_id hadm_id startdate drug", optional=True),
        Table("labevents", "subject_id hadm_id itemid charttime valuenum flag", optional=True),
        Table("d_icd_diagnoses", "icd9_code long_title", optional=True),
        Table("d_icd_procedures", "icd9_code long_title", optional=True),
        Table("d_labitems", "itemid label", optional=True),
    ),
    events=("diagnoses_icd", "procedures_icd", "prescriptions", "labevents"),
    visits=("admissions", "hadm_id"),
    unique={"d_icd_diagnoses": "icd9_code", "d_icd_procedures": "icd9_code", "d_labitems": "itemid"},
    typed=True,
)
open_source = MIMIC3.open
