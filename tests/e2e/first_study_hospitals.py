"""Three hospitals with the same kind of patients in three kinds of sources: OMOP in PostgreSQL, CSV files, FHIR.

Three planted phenotypes: patients have the diagnoses and procedures of one of them, and those of the first come back to the
hospital within 30 days more often. Nothing here is about a real patient.
"""

from __future__ import annotations

import csv
import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"diagnosis": [1000 + i for i in range(12)], "procedure": [2000 + i for i in range(12)]}
TABLES = {
    "person": "person_id BIGINT PRIMARY KEY, gender_concept_id BIGINT, year_of_birth INT",
    "visit_occurrence": "visit_occurrence_id BIGINT PRIMARY KEY, person_id BIGINT, visit_start_date DATE, visit_end_date DATE",
    "condition_occurrence": "person_id BIGINT, condition_concept_id BIGINT, condition_start_date DATE, visit_occurrence_id BIGINT",
    "procedure_occurrence": "person_id BIGINT, procedure_concept_id BIGINT, procedure_date DATE, visit_occurrence_id BIGINT",
    "concept": "concept_id BIGINT, concept_name VARCHAR, vocabulary_id VARCHAR, concept_code VARCHAR",
}
STUDY = """
[study]
name = "first-study"
description = "Which diagnoses and procedures occur together, and who comes back within 30 days?"
seed = 3
pace = 0
reading = 0
deadline = 900

[tensor]
modes = ["diagnosis", "procedure"]
window = "patient"
vocabulary = {diagnosis = "diagnosis.csv", procedure = "procedure.csv"}

[method]
name = "sumals"
rank = 3
rounds = 6
aggregation = "masked"

[people]
outcome = "readmission"
age = [0, 50, 70, 120]
sex = true
"""


@dataclass(frozen=True)
class Visit:
    """One stay and its codes."""

    number: int
    first: datetime.date
    last: datetime.date
    codes: dict[str, list[int]]


@dataclass(frozen=True)
class Patient:
    """One patient and the stays."""

    number: int
    born: int
    sex: str
    visits: list[Visit]


def patients(name: str, many: int = 240) -> list[Patient]:
    """Draw the patients of one hospital."""
    rng, made, number = np.random.default_rng([5, *name.encode()]), [], 0
    for p in range(many):
        kind = int(rng.integers(3))
        first = datetime.date(2023, 1, 1) + datetime.timedelta(days=int(rng.integers(300)))
        days = [first]
        if rng.random() < (0.5 if kind == 0 else 0.2):
            days.append(first + datetime.timedelta(days=2 + int(rng.integers(20))))
        days.append(first + datetime.timedelta(days=120 + int(rng.integers(30))))
        visits = []
        for day in days:
            codes = {k: sorted(set(rng.choice(v[4 * kind : 4 * kind + 4], 3).tolist())) for k, v in CODES.items()}
            visits.append(Visit(number, day, day + datetime.timedelta(days=1), codes))
            number += 1
        made.append(Patient(p, 1930 + int(rng.integers(60)), str(rng.choice(["F", "M"])), visits))
    return made


def write_csv(folder: Path, people: list[Patient]) -> None:
    """``events.csv`` and ``people.csv``: a table of events and one of patients."""
    events: list[list[Any]] = [["patient_id", "visit_id", "time", "kind", "code"]]
    table: list[list[Any]] = [["patient_id", "age", "sex", "label"]]
    for p in people:
        gaps = [(b.first - a.last).days for a, b in zip(p.visits, p.visits[1:])]
        table.append([p.number, p.visits[0].first.year - p.born, p.sex, int(any(0 < g <= 30 for g in gaps))])
        for v in p.visits:
            events += [[p.number, v.number, v.first, kind, c] for kind, codes in v.codes.items() for c in codes]
    for name, rows in (("events", events), ("people", table)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows(rows)


def write_fhir(folder: Path, people: list[Patient]) -> None:
    """One file of newline-delimited JSON for each kind of resource."""
    folder.mkdir()
    rows: dict[str, list[dict[str, Any]]] = {k: [] for k in ("Patient", "Encounter", "Condition", "Procedure")}
    for p in people:
        subject = {"reference": f"Patient/{p.number}"}
        sex = {"F": "female", "M": "male"}[p.sex]
        rows["Patient"].append({"id": str(p.number), "birthDate": f"{p.born}-06-01", "gender": sex})
        for v in p.visits:
            period = {"start": f"{v.first}T08:00:00Z", "end": f"{v.last}T08:00:00Z"}
            rows["Encounter"].append({"id": f"e{v.number}", "subject": subject, "period": period, "status": "finished"})
            for resource, kind, when in (
                ("Condition", "diagnosis", "onsetDateTime"),
                ("Procedure", "procedure", "performedDateTime"),
            ):
                for c in v.codes[kind]:
                    code = {"coding": [{"system": "http://snomed.info/sct", "code": str(c)}]}
                    seen = {"encounter": {"reference": f"Encounter/e{v.number}"}, when: str(v.first)}
                    rows[resource].append({"subject": subject, "status": "completed", "code": code, **seen})
    for resource, made in rows.items():
        text = "".join(json.dumps({"resourceType": resource, **r}) + "\n" for r in made)
        (folder / f"{resource}.ndjson").write_text(text)


def write_omop(address: str, schema: str, people: list[Patient]) -> None:
    """OMOP tables in a schema of PostgreSQL."""
    import psycopg

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    rows["concept"] = [(c, f"{k} {c}", "SNOMED", str(c)) for k, codes in CODES.items() for c in codes]
    for p in people:
        rows["person"].append((p.number, {"F": 8532, "M": 8507}[p.sex], p.born))
        for v in p.visits:
            rows["visit_occurrence"].append((v.number, p.number, v.first, v.last))
            rows["condition_occurrence"] += [(p.number, c, v.first, v.number) for c in v.codes["diagnosis"]]
            rows["procedure_occurrence"] += [(p.number, c, v.first, v.number) for c in v.codes["procedure"]]
    with psycopg.connect(address) as link:
        link.execute(f'CREATE SCHEMA "{schema}"')
        for name, columns in TABLES.items():
            link.execute(f'CREATE TABLE "{schema}".{name} ({columns})')
            with link.cursor().copy(f'COPY "{schema}".{name} FROM STDIN') as copy:
                for row in rows[name]:
                    copy.write_row(row)


def write_study(folder: Path) -> Path:
    """The study file and its public lists of codes."""
    for kind, codes in CODES.items():
        lines = ["code,name", *(f"{c},{kind} {c}" for c in codes)]
        (folder / f"{kind}.csv").write_text("\n".join(lines) + "\n")
    path = folder / "first-study.toml"
    path.write_text(STUDY)
    return path
