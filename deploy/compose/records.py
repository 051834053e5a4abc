"""Three hospitals' OMOP tables in PostgreSQL, one schema each, drawn from a known truth: no real patient is behind them.

``OMOP_URL``, ``OMOP_PASSWORD_FILE``; a schema that is there already is left alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psycopg

HOSPITALS = os.environ.get("SITES", "north south east").split()
PATIENTS = int(os.environ.get("PATIENTS", "300"))
DRUGS = {
    1308216: "lisinopril",
    956874: "furosemide",
    1310149: "warfarin",
    1154343: "albuterol",
    1734104: "amoxicillin",
    1551099: "prednisone",
}
ILLNESSES = {
    316866: "Hypertensive disorder",
    316139: "Heart failure",
    313217: "Atrial fibrillation",
    255573: "Chronic obstructive lung disease",
    255848: "Pneumonia",
    257011: "Acute respiratory infection",
}
TABLES = {
    "person": "person_id BIGINT PRIMARY KEY, gender_concept_id BIGINT, year_of_birth INT, care_site_id BIGINT",
    "visit_occurrence": "visit_occurrence_id BIGINT PRIMARY KEY, person_id BIGINT, visit_start_date DATE, visit_end_date DATE, "
    "care_site_id BIGINT, visit_start_datetime TIMESTAMP, visit_end_datetime TIMESTAMP",
    "condition_occurrence": "person_id BIGINT, condition_concept_id BIGINT, condition_start_date DATE, "
    "visit_occurrence_id BIGINT, condition_start_datetime TIMESTAMP",
    "drug_exposure": "person_id BIGINT, drug_concept_id BIGINT, drug_exposure_start_date DATE, "
    "visit_occurrence_id BIGINT, drug_exposure_start_datetime TIMESTAMP",
    "death": "person_id BIGINT, death_date DATE",
    "concept": "concept_id BIGINT, concept_name VARCHAR, vocabulary_id VARCHAR, concept_code VARCHAR",
}


def fill(link: psycopg.Connection, schema: str) -> int:
    """One hospital; returns the number of its visits."""
    rng = np.random.default_rng([7, *schema.encode()])
    link.execute(f'CREATE SCHEMA "{schema}"')
    for name, columns in TABLES.items():
        link.execute(f'CREATE TABLE "{schema}".{name} ({columns})')
    drugs, illnesses = list(DRUGS), list(ILLNESSES)
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in TABLES}
    rows["concept"] = [(k, v, "SNOMED", str(k)) for k, v in {**DRUGS, **ILLNESSES}.items()]
    visit = 0
    for p in range(PATIENTS):
        kind = int(rng.random() < 0.5)
        rows["person"].append((p, 8507 + 25 * int(rng.random() < 0.5), 1930 + int(rng.integers(60)), 1))
        for _ in range(1 + int(rng.integers(3))):
            day = f"2024-{1 + int(rng.integers(12)):02d}-{1 + int(rng.integers(28)):02d}"
            rows["visit_occurrence"].append((visit, p, day, day, 1, None, None))
            for c in rng.choice(illnesses[3 * kind : 3 * kind + 3], 2, replace=False).tolist():
                rows["condition_occurrence"].append((p, c, day, visit, None))
            for d in rng.choice(drugs[3 * kind : 3 * kind + 3], 2, replace=False).tolist():
                rows["drug_exposure"].append((p, d, day, visit, None))
            visit += 1
    for name, found in rows.items():
        if found:
            with link.cursor().copy(f'COPY "{schema}".{name} FROM STDIN') as copy:
                for row in found:
                    copy.write_row(row)
    link.commit()
    return visit


def main() -> None:
    """Fill what is missing."""
    more = {}
    if os.environ.get("OMOP_PASSWORD_FILE"):
        more["password"] = Path(os.environ["OMOP_PASSWORD_FILE"]).read_text().strip()
    with psycopg.connect(os.environ["OMOP_URL"], **more) as link:
        known = {r[0] for r in link.execute("SELECT schema_name FROM information_schema.schemata").fetchall()}
        for name in HOSPITALS:
            print(f"{name}: " + ("was there" if name in known else f"{fill(link, name)} visits of {PATIENTS} patients"))


if __name__ == "__main__":
    main()
