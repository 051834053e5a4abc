"""Cohort definitions of ATLAS: the JSON travels in the study, and each site compiles it to SQL over its own OMOP tables.

The SQL runs in an engine of its own that holds copies of these tables and can reach no file, whatever the JSON contains.
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError, MissingExtra
from polyclinic.records.databases.engine import Connection, reading, session
from polyclinic.records.sources.pushdown import Push
from polyclinic.records.sources.tables import SourceTable, open_tables

if TYPE_CHECKING:
    from circe.api import CohortExpression

TABLE: Final = re.compile(r"\bcdm\.(\w+)", re.IGNORECASE)
NUMBERS: Final = (
    r"\w+_as_number|\w+_of_birth|\w+_count|days_supply|range_low|range_high|gap_days|dose_value|quantity|refills"
)
COLUMN: Final = re.compile(rf"\b(?:\w+_id|\w+_date|\w+_datetime|\w+_as_string|\w+_value|\w+_reason|{NUMBERS})\b", re.I)
PEOPLELESS: Final = ("concept", "concept_ancestor", "concept_relationship", "provider", "care_site", "location")
# A formal study names visits by a text; any number that is the same in all tables serves the query.
CELLS: Final = {
    r"\w+_concept_id|concept_id|person_id": "TRY_CAST({0} AS BIGINT)",
    r"\w+_id": "coalesce(TRY_CAST({0} AS BIGINT), CAST(hash({0}) >> 1 AS BIGINT))",
    r"\w+_date": "TRY_CAST({0} AS DATE)",
    r"\w+_datetime": "TRY_CAST({0} AS TIMESTAMP)",
    NUMBERS: "TRY_CAST({0} AS DOUBLE)",
    r"\w+": "CAST({0} AS VARCHAR)",
}

CLOSED: Final = """SET enable_external_access = false; SET lock_configuration = true;
CREATE TABLE main.found (cohort_definition_id INT, subject_id BIGINT, cohort_start_date DATE, cohort_end_date DATE)"""


def described(text: str) -> str:
    """Return the plain English of a definition, as ATLAS shows it."""
    expression = _expression(text)
    from circe.api import cohort_print_friendly

    return unescape(str(cohort_print_friendly(expression, include_concept_sets=True)))


def atlas_rows(con: Connection, node: Node, file: Path) -> str:
    """Make the table ``atlas`` (patient_id, day) of a site's cohort, and return the query of it."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file", hint="[cohort] atlas names the JSON file that ATLAS exports")
    statements = _compiled(file.read_text(encoding="utf-8"))
    optout = tuple(str(r[0]) for r in con.execute("SELECT patient_id FROM optout").fetchall())
    with session(node.home) as (own, _), reading(f"site {node.name!r}, the cohort {file.name}"):
        _copy(own, node, ";".join(statements), Push(optout))
        for statement in (CLOSED, *statements):
            own.execute(statement)
        found = own.execute("SELECT subject_id::VARCHAR AS p, cohort_start_date AS d FROM main.found").fetchnumpy()
    con.register("found", found)
    con.execute("CREATE OR REPLACE TEMP TABLE atlas AS SELECT p AS patient_id, CAST(d AS DATE) AS day FROM found")
    con.unregister("found")
    return "SELECT * FROM atlas"


def _copy(own: Connection, node: Node, sql: str, push: Push) -> None:
    """Copy the tables that the SQL names, with the columns that it names, and without those who opted out."""
    columns = " ".join(sorted(set(map(str.lower, COLUMN.findall(sql))) - {"person_id"}))
    names = sorted(set(map(str.lower, TABLE.findall(sql))))
    tables = [_table(name, columns) for name in names]
    mapped = {k: v for k, v in node.source.table_names.items() if k in names}
    open_tables(own, node.with_source(tables=mapped), tables, push if push.optout else None)
    own.execute("CREATE SCHEMA cdm")
    for t in tables:
        cells = ", ".join(f"{_typed(c)} AS {c}" for c in t.columns)
        own.execute(f'CREATE TABLE cdm.{t.name} AS SELECT {cells} FROM main."{t.name}"')


def _table(name: str, columns: str) -> SourceTable:
    who = None if name in PEOPLELESS else "person_id"
    return SourceTable(name, who or "", columns, patient=who, visit=who and "visit_occurrence_id")


def _typed(column: str) -> str:
    return next(cell for kind, cell in CELLS.items() if re.fullmatch(kind, column)).format(column)


def _expression(text: str) -> CohortExpression:
    try:
        from circe.api import cohort_expression_from_json
    except ImportError:
        raise MissingExtra("ohdsi-circepy", "atlas", "a cohort definition of ATLAS") from None
    try:
        value = json.loads(text)
        return cohort_expression_from_json(json.dumps(value.get("expression", value)))
    except (ValueError, AttributeError) as e:
        raise ConfigError(
            "not a cohort definition of ATLAS", faults=[str(e)[:300]], hint="ATLAS: Cohort Definitions, Export, JSON"
        ) from None


def _compiled(text: str) -> list[str]:
    """Return the statements that fill ``main.found``."""
    expression = _expression(text)
    from circe.api import BuildExpressionQueryOptions, build_cohort_query
    from circe.sqlrender import render, split_sql, translate

    options = BuildExpressionQueryOptions()
    options.cdm_schema = options.vocabulary_schema = "cdm"
    options.result_schema, options.target_table, options.cohort_id = "main", "main.found", 1
    options.generate_stats = False
    return [s for s in split_sql(translate(render(build_cohort_query(expression, options)), "duckdb")) if s.strip()]
