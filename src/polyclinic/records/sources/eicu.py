"""eICU: diagnoses, treatments, drugs and laboratory results of unit stays at many hospitals (site = hospital)."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sources.base import OpenedSource, Tabular
from polyclinic.records.sources.tables import SourceTable

EICU = Tabular(
    "eicu",
    tables=(
        SourceTable(
            "patient",
            "patientunitstayid patienthealthsystemstayid uniquepid hospitalid hospitaldischargestatus hospitaladmitoffset "
            "hospitaldischargeoffset",
            "hospitaldischargeyear unittype age gender",
            patient="uniquepid",
        ),
        SourceTable("diagnosis", "patientunitstayid diagnosisoffset icd9code", "diagnosisstring"),
        SourceTable("treatment", "patientunitstayid treatmentoffset treatmentstring", optional=True),
        SourceTable("medication", "patientunitstayid drugstartoffset drugname", "drugordercancelled", optional=True),
        SourceTable("lab", "patientunitstayid labresultoffset labname labresult", optional=True),
    ),
    events=("diagnosis", "treatment", "medication", "lab"),
    visits=("patient", "patientunitstayid"),
    within="patienthealthsystemstayid",
    row="unit_stay",
)
# The first stay begins in 2002 (see the SQL); '> 89' is 90. Later stays lie 1,000 days apart, whatever the truth was.
BIRTHS = (
    "SELECT uniquepid AS patient_id, 2002 - CASE WHEN trim(CAST(age AS VARCHAR)) LIKE '>%' THEN 90 "
    "ELSE TRY_CAST(age AS INTEGER) END AS year FROM (SELECT *, row_number() OVER (PARTITION BY uniquepid ORDER BY "
    "hospitaldischargeyear, patienthealthsystemstayid) AS nth FROM patient) WHERE nth = 1"
)
SEXES = "SELECT uniquepid AS patient_id, gender AS sex FROM patient"


def open_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """Open the tables; ``[source] codes = "source"`` takes diagnoses by their path instead of ICD-9 codes."""
    source = EICU.open(con, node, outcome)
    if node.source.codes == "source":
        source = replace(source, events=EICU.events_sql(con, node, "eicu_source"))
    return replace(source, births=BIRTHS, sexes=SEXES)
