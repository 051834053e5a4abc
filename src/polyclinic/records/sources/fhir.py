"""FHIR bulk export (R4, ndjson): conditions, procedures, medications and laboratory observations of encounters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.engine import Connection, identifier, literal, note_skipped, reading, statement
from polyclinic.records.sources.base import OpenedSource
from polyclinic.records.sources.csv_files import csv_lines

EVENTS: Final = ("Condition", "Procedure", "MedicationRequest", "MedicationAdministration", "Observation")
RESOURCES: Final = ("Patient", "Encounter", "Medication", *EVENTS)

BIRTHS: Final = (
    "SELECT json ->> '$.id' AS patient_id, substr(json ->> '$.birthDate', 1, 4) AS year FROM \"fhir Patient\""
)
SEXES: Final = "SELECT json ->> '$.id' AS patient_id, json ->> '$.gender' AS sex FROM \"fhir Patient\""


def open_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """Open every ``<Resource>*.ndjson`` (also gzipped) of ``[source] folder`` as a view of one JSON column."""
    if not node.source.folder:
        raise ConfigError(f"node {node.name!r}: [source] folder is missing", hint="the folder of the ndjson files")
    folder = node.path(node.source.folder)
    resources = [p for p in sorted(folder.rglob("*")) if p.name.lower().endswith((".ndjson", ".ndjson.gz", ".jsonl"))]
    inputs: dict[str, str] = {}
    faults = []
    for kind in RESOURCES:
        files = [p for p in resources if p.name.partition(".")[0].partition("-")[0].lower() == kind.lower()]
        view = f"fhir {kind}"
        if not files:
            con.execute(f"CREATE OR REPLACE VIEW {identifier(view)} AS SELECT CAST(NULL AS JSON) AS json WHERE false")
            continue
        try:
            with reading(", ".join(p.name for p in files)):
                # Parsed once: every line is read again by no query.
                table = identifier(f"read {kind}")
                con.execute(f"CREATE OR REPLACE TABLE {table} AS {_lines(files, node.skip_faulty)}")
                if node.skip_faulty:
                    empty = con.execute(f"DELETE FROM {table} WHERE json IS NULL").fetchone()
                    note_skipped(con, f"lines of {kind} are no JSON", int(empty[0]) if empty else 0)
        except DataError as e:
            faults += [f"{e.what}: {f}" for f in e.faults]
            continue
        con.execute(f"CREATE OR REPLACE VIEW {identifier(view)} AS SELECT json FROM {identifier('read ' + kind)}")
        inputs[kind] = ", ".join(p.name for p in files)
    if not any(k in inputs for k in EVENTS) and not faults:
        faults.append(f"{folder}: no {', '.join(EVENTS)} file")
    if faults:
        raise DataError(
            f"site {node.name!r}: the FHIR export cannot be read", faults=faults, hint="see [source] folder"
        )
    return OpenedSource(
        events=statement("fhir"),
        rows={k: f"SELECT count(*) FROM {identifier(f'fhir {k}')}" for k in EVENTS},
        visits=statement("fhir_visits") if "Encounter" in inputs else None,
        inputs=inputs,
        births=BIRTHS if "Patient" in inputs else None,
        sexes=SEXES if "Patient" in inputs else None,
    )


def _lines(files: list[Path], skip_faulty: bool) -> str:
    """Query of the resources. A formal study reads lines of text, so that one that is no JSON is a row without value."""
    if skip_faulty:
        return f"SELECT TRY_CAST(line AS JSON) AS json FROM {csv_lines(files)}"
    return f"SELECT json FROM read_ndjson_objects([{', '.join(literal(str(p)) for p in files)}])"
