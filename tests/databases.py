"""A PostgreSQL of the tests' own, and the tables of a folder in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def postgresql() -> Iterator[str]:
    """Address of a server with its own folder and socket, which is stopped and removed at the end."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("adbc_driver_postgresql", reason="the PostgreSQL driver is not installed")
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL to start: pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pc-pg-"))
    try:
        server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    except Exception as e:  # whatever keeps a server from starting is the reason to skip
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot start here: {e}")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def copied(tables: Path, duck: Any, postgres: Any, out: Path) -> dict[str, list[tuple[str, str]]]:
    """Copy a folder's tables to DuckDB, to the schema ``cdm`` of PostgreSQL and to CSV; return their columns with types."""
    columns = {}
    postgres.execute("CREATE SCHEMA cdm")
    for file in sorted(tables.glob("*.csv.gz")):
        name = file.name.partition(".")[0].lower()
        duck.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('{file}')")
        duck.execute(f"COPY {name} TO '{out}/{name}.csv' (HEADER)")
        columns[name] = [(r[0], r[1]) for r in duck.execute(f"DESCRIBE {name}").fetchall()]
        typed = ", ".join(f'"{c}" {t.replace("DOUBLE", "NUMERIC")}' for c, t in columns[name])
        postgres.execute(f"CREATE TABLE cdm.{name} ({typed})")
        with postgres.cursor().copy(f"COPY cdm.{name} FROM STDIN (FORMAT csv, HEADER)") as copy:
            copy.write((out / f"{name}.csv").read_bytes())
    postgres.commit()
    return columns
