"""Memberships and OMOP cohorts of a hospital's own patients, as tables that stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from polyclinic.models.base import Array
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.util.table import Table

CARRIES: Final = 0.05  # of a patient's recorded activity


def shares(model: Phenotypes, placed: Array) -> Array:
    """(patients, R) share of what was recorded of a patient that every phenotype explains; rows sum to 1 or are 0."""
    mass = np.abs(placed) * np.prod([np.abs(f).sum(0) for f in model.factors], axis=0)
    return np.asarray(mass / np.maximum(mass.sum(1, keepdims=True), 1e-300))


def memberships_table(placed: Array, subjects: Sequence[str]) -> Table:
    """One row a patient."""
    names = [f"phenotype {r + 1}" for r in range(placed.shape[1])]
    return Table(["patient_id", *names], [[s, *row] for s, row in zip(subjects, placed.tolist())])


def cohort_tables(
    model: Phenotypes,
    placed: Array,
    subjects: Sequence[str],
    when: Mapping[str, tuple[object, object]],
    *,
    names: Sequence[str] | None = None,
    about: Sequence[str] | None = None,
) -> dict[str, Table]:
    """OMOP's ``cohort`` and ``cohort_definition``: who carries which phenotype (at least 5 % of recorded activity).

    Parameters
    ----------
    model, placed, subjects
        The phenotypes, (patients, R) memberships, and whose they are.
    when
        First and last day of a patient; one who is not in it has neither.
    names, about
        What a phenotype is called and where it comes from; default: its heaviest codes, the model's fingerprint.
    """
    share = shares(model, placed)
    rows = [
        (r + 1, subjects[i], *when.get(subjects[i], (None, None)))
        for r in range(model.rank)
        for i in np.flatnonzero(share[:, r] >= CARRIES).tolist()
    ]
    top = model.top(2)
    called = names or [" + ".join(str(n) for n in top.where(phenotype=r)["name"]) for r in range(model.rank)]
    source = about or [f"model {model.digest()[:16]}"] * model.rank
    defined = [
        (r + 1, called[r], f"at least {CARRIES:.0%} of recorded activity, {source[r]}") for r in range(model.rank)
    ]
    return {
        "cohort": Table(["cohort_definition_id", "subject_id", "cohort_start_date", "cohort_end_date"], rows),
        "cohort_definition": Table(
            ["cohort_definition_id", "cohort_definition_name", "cohort_definition_description"], defined
        ),
    }


def periods_of(events: Path) -> dict[str, tuple[object, object]]:
    """First and last day of every patient, as ISO dates, from ``events.parquet``."""
    import duckdb

    with duckdb.connect() as con:
        found = con.execute(
            "SELECT CAST(patient_id AS VARCHAR), CAST(CAST(min(time) AS DATE) AS VARCHAR), "
            "CAST(CAST(max(time) AS DATE) AS VARCHAR) FROM read_parquet(?) GROUP BY 1",
            [str(events)],
        ).fetchall()
    return {p: (a, b) for p, a, b in found}
