"""eICU: diagnoses, treatments, drugs and laboratory results of unit stays at many hospitals (site = hospital)."""

from __future__ import annotations

from polyclinic.events.source import Tabular
from polyclinic.events.tables import Table

__all__ = ["open_source"]

EICU = Tabular(
    "eicu",
    tables=(
        Table(
            "patient",
            "patientunitstayid patienthealthsystemstayid uniquepid hospitalid hospitaldischargestatus hospitaladmitoffset "
            "hospitaldischargeoffset",
            "hospitaldischargeyear unittype",
        ),
        Table("diagnosis", "patientunitstayid diagnosisoffset icd9code", "diagnosisstring"),
        Table("treatment", "patientunitstayid treatmentoffset treatmentstring", optional=True),
        Table("medication", "patientunitstayid drugstartoffset drugname", "drugordercancelled", optional=True),
        Table("lab", "patientunitstayid labresultoffset labname labresult", optional=True),
    ),
    events=("diagnosis", "treatment", "medication", "lab"),
    visits=("patient", "patientunitstayid"),
)
open_source = EICU.open
