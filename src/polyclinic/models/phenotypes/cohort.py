"""Memberships and OMOP cohorts of a hospital's own patients, as tables that stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from polyclinic.errors import MissingExtra
from polyclinic.models.base import Array
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.util.atomic_files import write_whole
from polyclinic.util.table import Table

CARRIES: Final = 0.05  # of a patient's recorded activity


def shares(model: Phenotypes, placed: Array) -> Array:
    """(patients, R) share of what was recorded of a patient that every phenotype explains; rows sum to 1 or are 0."""
    mass = np.abs(placed) * np.prod([np.abs(f).sum(0) for f in model.factors], axis=0)
    return np.asarray(mass / np.maximum(mass.sum(1, keepdims=True), 1e-300))


def heaviest(model: Phenotypes) -> list[str]:
    """Names of the two heaviest codes of every phenotype."""
    top = model.top(2)
    return [" + ".join(str(n) for n in top.where(phenotype=r)["name"]) for r in range(model.rank)]


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
    called = names or heaviest(model)
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


def write_meds(
    folder: Path, model: Phenotypes, placed: Array, subjects: Sequence[str], when: Mapping[str, tuple[object, object]]
) -> None:
    """Write memberships as MEDS: ``data/memberships.parquet`` and ``metadata/codes.parquet``.

    The code is ``PHENOTYPE//1``, ``numeric_value`` the membership, ``time`` the patient's last day. Memberships of 0 are no
    rows. MEDS calls subjects by integers: other identifiers are numbered, and ``subjects.csv`` says how.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = {s: int(s) if s.isdecimal() else -1 for s in subjects}
    if min(number.values(), default=0) < 0:
        number = {s: n for n, s in enumerate(subjects)}
        named = Table(["subject_id", "patient_id"], [(n, s) for s, n in number.items()])
        write_whole(folder / "subjects.csv", named.to_csv())
    cells = [(subjects[i], r + 1, placed[i, r]) for i, r in zip(*np.nonzero(placed))]
    rows = [(number[s], when.get(s, (None, None))[1], f"PHENOTYPE//{r}", float(w)) for s, r, w in cells]
    codes = [(f"PHENOTYPE//{r}", name, None) for r, name in enumerate(heaviest(model), start=1)]
    _parquet(
        folder / "data" / "memberships.parquet",
        Table(["subject_id", "time", "code", "numeric_value"], rows),
        "subject_id::BIGINT AS subject_id, time::TIMESTAMP AS time, code, numeric_value::FLOAT AS numeric_value",
    )
    _parquet(
        folder / "metadata" / "codes.parquet",
        Table(["code", "description", "parent_codes"], codes),
        "code, description, parent_codes::VARCHAR[] AS parent_codes",
    )


def _parquet(file: Path, table: Table, columns: str) -> None:
    """Write a table, sorted, readable by its owner only."""
    import duckdb

    file.parent.mkdir(mode=0o700, exist_ok=True)
    with duckdb.connect() as con:
        con.register("cells", table)
        con.sql(f"SELECT {columns} FROM cells ORDER BY ALL").write_parquet(str(file))
    file.chmod(0o600)


def write_anndata(
    file: Path, model: Phenotypes, placed: Array, subjects: Sequence[str], when: Mapping[str, tuple[object, object]]
) -> None:
    """Write memberships as an AnnData of patients x phenotypes, which ehrdata reads, too."""
    try:
        import anndata
        import pandas
    except ImportError:
        raise MissingExtra("anndata", "anndata", "writing an AnnData") from None
    days = [[str(day or "") for day in when.get(s, (None, None))] for s in subjects]
    table = anndata.AnnData(
        X=np.asarray(placed, np.float32),
        obs=pandas.DataFrame(days, columns=["first_day", "last_day"], index=list(subjects)),
        var=pandas.DataFrame(
            {"name": heaviest(model), "weight": model.weights},
            index=[f"phenotype {r}" for r in range(1, model.rank + 1)],
        ),
        uns={"model": model.digest()},
    )
    table.write_h5ad(file)
    file.chmod(0o600)


def periods_of(events: Path) -> dict[str, tuple[object, object]]:
    """First and last day of every patient, as ISO dates, from ``events.parquet``."""
    import duckdb

    with duckdb.connect() as con:
        rows = con.execute(
            "SELECT CAST(patient_id AS VARCHAR), CAST(CAST(min(time) AS DATE) AS VARCHAR), "
            "CAST(CAST(max(time) AS DATE) AS VARCHAR) FROM read_parquet(?) GROUP BY 1",
            [str(events)],
        ).fetchall()
    return {p: (a, b) for p, a, b in rows}
