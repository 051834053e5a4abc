"""OMOP cohort rows are for the site alone, and name the patients who carry a phenotype."""

from __future__ import annotations

import csv
from pathlib import Path

import duckdb
import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import DataError
from polyclinic.report.export.omop_cohort import write_cohort
from polyclinic.studies.run_folder import RunFolder


def _tensor(run: RunFolder, site: str, path: Path, extra: int = 0) -> Path:
    with np.load(run.path / "sites" / site / "memberships.npz") as z:
        n = len(z["memberships"]) + extra
    people = [str(1000 + i) for i in range(n)]
    return pc.SparseTensor([[0, 0]], [1.0], (n, 1), [people, ["x"]]).save(path)


def test_cohort_names_those_who_carry_the_phenotype(plain_run: RunFolder, tmp_path: Path) -> None:
    tensor = _tensor(plain_run, "MICU", tmp_path / "tensor.npz")
    events = tmp_path / "events.parquet"
    duckdb.sql(
        "COPY (SELECT '1000' AS patient_id, TIMESTAMP '2020-01-02 03:00' AS time UNION ALL "
        f"SELECT '1000', TIMESTAMP '2020-02-03') TO '{events}' (FORMAT parquet)"
    )
    out = tmp_path / "cohort"
    written = write_cohort(plain_run, "MICU", tensor, events=events, out=out)
    assert all(p.stat().st_mode & 0o077 == 0 for p in written)
    columns, *rows = csv.reader((out / "cohort.csv").read_text(encoding="utf-8").splitlines())
    assert columns == ["cohort_definition_id", "subject_id", "cohort_start_date", "cohort_end_date"]
    mine = [r for r in rows if r[1] == "1000"]
    assert mine and all(r[2:] == ["2020-01-02", "2020-02-03"] for r in mine)
    with np.load(plain_run.path / "sites" / "MICU" / "memberships.npz") as z:
        a = z["memberships"]
    r = int(a.sum(0).argmax())  # the unit's own main phenotype
    most = int(a[:, r].argmax())
    members = {subject for definition, subject, *_ in rows if definition == str(r + 1)}
    assert str(1000 + most) in members
    assert not members & {str(1000 + i) for i in np.flatnonzero(a[:, r] == 0)}


def test_a_tensor_of_other_patients_is_refused(plain_run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="named patients"):
        write_cohort(plain_run, "MICU", _tensor(plain_run, "MICU", tmp_path / "t.npz", extra=3), out=tmp_path / "c")
