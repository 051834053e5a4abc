"""OMOP Common Data Model 5.3, 5.4 and 5.5, in PostgreSQL, SQLite, DuckDB, CSV or Parquet: the same rows, the same tensor."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.databases.engine import Connection, reading, statement
from polyclinic.records.sources.base import OpenedSource, Tabular, forgiving
from polyclinic.records.sources.pushdown import Keys, Push
from polyclinic.records.sources.tables import SourceTable


def _events(table: str, what: str, day: str, may: str = "", optional: bool = True) -> SourceTable:
    """Return a table of events: who, when, the standard concept, and the source's own code."""
    times = f"{day}time", day
    more = f"{times[0]} visit_occurrence_id {may} {what}_source_value {what}_source_concept_id"
    keys = Keys("person_id", "visit_occurrence_id", times, f"{what}_concept_id", f"{what}_source_value")
    return SourceTable(table, f"person_id {what}_concept_id {day}", more, optional, keys)


def _people(table: str, need: str, may: str = "", optional: bool = True, patient: str = "person_id") -> SourceTable:
    """Return a table about people that no protocol asks about."""
    return SourceTable(table, need, may, optional, patient=patient)


# 5.4 renamed columns of visit_occurrence only (admitted_from_*, discharged_to_*), none of which is needed.
OMOP = Tabular(
    "omop",
    tables=(
        _people(
            "person", "person_id", "care_site_id year_of_birth gender_concept_id gender_source_value", optional=False
        ),
        SourceTable(
            "visit_occurrence",
            "visit_occurrence_id person_id visit_start_date visit_end_date",
            "visit_start_datetime visit_end_datetime care_site_id visit_concept_id",
            patient="person_id",
            visit="visit_occurrence_id",
        ),
        _events("condition_occurrence", "condition", "condition_start_date", optional=False),
        _events("procedure_occurrence", "procedure", "procedure_date"),
        _events("drug_exposure", "drug", "drug_exposure_start_date"),
        _events(
            "measurement",
            "measurement",
            "measurement_date",
            "value_as_number value_as_concept_id range_low range_high",
        ),
        _people("death", "person_id death_date"),
        _people("observation_period", "person_id observation_period_start_date observation_period_end_date"),
        _people("cohort", "cohort_definition_id subject_id cohort_start_date", "cohort_end_date", patient="subject_id"),
        SourceTable("concept_ancestor", "ancestor_concept_id descendant_concept_id", optional=True),
        SourceTable("concept_relationship", "concept_id_1 concept_id_2 relationship_id", optional=True),
        SourceTable("concept", "concept_id concept_name vocabulary_id concept_code", "concept_class_id"),
        SourceTable("cdm_source", "cdm_version", optional=True),
    ),
    events=("condition_occurrence", "procedure_occurrence", "drug_exposure", "measurement"),
    visits=("visit_occurrence", "visit_occurrence_id"),
    unique={"person": "person_id", "concept": "concept_id", "death": "person_id"},
    typed=True,
    people=("person", "person_id"),
)
DEATHS = "SELECT person_id AS patient_id, death_date AS day FROM death"
BIRTHS = "SELECT person_id AS patient_id, year_of_birth AS year FROM person"
SEXES = (
    "SELECT person_id AS patient_id, CASE CAST(gender_concept_id AS VARCHAR) WHEN '8507' THEN 'M' WHEN '8532' THEN 'F' "
    "ELSE gender_source_value END AS sex FROM person"
)
OBSERVED = (
    "SELECT person_id AS patient_id, observation_period_start_date AS starts, observation_period_end_date AS ends "
    "FROM observation_period"
)
COHORT = (
    "SELECT CAST(cohort_definition_id AS BIGINT) AS definition, CAST(subject_id AS VARCHAR) AS patient_id, "
    "cohort_start_date AS starts, cohort_end_date AS ends FROM cohort"
)


def open_source(con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
    """Open the tables; ``[source] codes`` chooses standard concepts or the source's own codes."""
    omop = OMOP if node.source.folder or node.source.database else replace(OMOP, tables=_without_relationships())
    source = omop.open(con, node, outcome, push)
    with reading("cdm_source"):
        version = con.execute("SELECT any_value(CAST(cdm_version AS VARCHAR)) FROM cdm_source").fetchone()
    inputs = {**source.inputs, **({"cdm_version": str(version[0])} if version and version[0] else {})}
    if node.source.codes == "source":
        source = replace(source, events=omop.events_sql(con, node, "omop_source"))
    about = told(source.inputs)
    lives = replace(source, births=about.births, sexes=SEXES, deaths=DEATHS)
    return replace(lives, inputs=inputs, observed=about.observed, cohort=about.cohort)


def _without_relationships() -> tuple[SourceTable, ...]:
    """The tables that are copied from a server: concept_relationship has tens of millions of rows."""
    return tuple(t for t in OMOP.tables if t.name != "concept_relationship")


def told(there: Container[str]) -> OpenedSource:
    """What the small tables (their names) tell of patients, before any table of events is opened."""
    return OpenedSource(
        events="",
        rows={},
        visits=forgiving(statement("omop_visits")),
        typed=True,
        births=BIRTHS,
        observed=OBSERVED if "observation_period" in there else None,
        cohort=COHORT if "cohort" in there else None,
    )
