"""MEDS (Medical Event Data Standard): Parquet of subject_id, time, code, numeric_value."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.engine import Connection, identifier, literal, reading, statement
from polyclinic.records.sources.base import OpenedSource
from polyclinic.records.sources.tables import describe, open_file

KINDS: Final = {
    "DIAGNOSIS": "diagnosis",
    "CONDITION": "diagnosis",
    "PROCEDURE": "procedure",
    "MEDICATION": "drug",
    "DRUG": "drug",
    "LAB": "lab",
    "MEASUREMENT": "lab",
}
VISIT: Final = ("visit_id", "hadm_id", "encounter_id", "visit_occurrence_id")

BIRTHS: Final = (
    "SELECT subject_id AS patient_id, year(TRY_CAST(time AS TIMESTAMP)) AS year FROM meds WHERE code = 'MEDS_BIRTH'"
)
SEXES: Final = (
    "SELECT subject_id AS patient_id, regexp_extract(code, '^(?i:gender|sex)/+(.*)$', 1) AS sex FROM meds "
    "WHERE regexp_matches(code, '^(?i:gender|sex)/')"
)


def open_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """Open ``[source] events`` (a file, or the ``data`` folder of a MEDS data set).

    The part of a code before ``//`` (or ``/``) tells the kind: ``DIAGNOSIS//...`` is a diagnosis. Other first parts are
    mapped by ``kinds = {SNOMED = "diagnosis"}``, or are kinds of their own in small letters.
    """
    if not node.source.events:
        raise ConfigError(f"node {node.name!r}: [source] events is missing", hint="name the MEDS data folder")
    path = node.path(node.source.events)
    cheap = open_file(con, path, "meds raw", skip_faulty=node.skip_faulty)
    present = describe(con, "meds raw")
    absent = [c for c in ("subject_id", "time", "code") if c not in present]
    if absent:
        raise DataError(f"{path}: not MEDS", faults=[f"column {c} missing" for c in absent])
    visit = next((c for c in VISIT if c in present), None)
    columns = [
        "subject_id",
        "time",
        "code",
        f"{visit or 'CAST(NULL AS VARCHAR)'} AS visit_id",
        "numeric_value" if "numeric_value" in present else "CAST(NULL AS DOUBLE) AS numeric_value",
    ]
    con.execute(f"CREATE OR REPLACE VIEW meds AS SELECT {', '.join(columns)} FROM {identifier('meds raw')}")
    kind_rows = ", ".join(f"({literal(k)}, {literal(v)})" for k, v in {**KINDS, **node.source.kinds}.items())
    con.execute(f"CREATE OR REPLACE TABLE meds_kinds AS SELECT * FROM (VALUES {kind_rows}) t(prefix, kind)")
    _names(con, path)
    return OpenedSource(
        events=statement("meds"),
        rows={"meds": "SELECT count(*) FROM meds"},
        visits=statement("meds_visits"),
        cheap=cheap,
        inputs={"events": path.name},
        births=BIRTHS,
        sexes=SEXES,
    )


def _names(con: Connection, path: Path) -> None:
    """``metadata/codes.parquet`` beside the data, where it exists."""
    folders = (path, path.parent, path.parent.parent)
    codes = next(
        (f / "metadata" / "codes.parquet" for f in folders if (f / "metadata" / "codes.parquet").is_file()), None
    )
    empty = "SELECT CAST(NULL AS VARCHAR) AS code, CAST(NULL AS VARCHAR) AS description WHERE false"
    query = (
        empty
        if codes is None
        else f"SELECT code, any_value(description) AS description FROM read_parquet({literal(str(codes))}) GROUP BY code"
    )
    with reading("metadata/codes.parquet"):
        con.execute(f"CREATE OR REPLACE TABLE meds_codes AS {query}")
