"""DuckDB, the one engine that reads every source: opened inside the site's folder, spilling there, offline."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from polyclinic.errors import DataError
from polyclinic.util.atomic_files import locked
from polyclinic.util.database_errors import advice, said

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Connection: TypeAlias = "DuckDBPyConnection"
MEMORY: Final = "1500MB"  # what DuckDB may hold while it parses a source, before it spills
COUNTING: Final = "400MB"  # afterwards: integers need little, and patients are counted in slices
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$ -]{0,62}")


class DataAway(DataError):
    """The database does not answer now. Nothing is known to be wrong with the data."""


@contextmanager
def session(inside: Path, *, memory: str = MEMORY, threads: int | None = None) -> Iterator[tuple[Connection, Path]]:
    """An engine and its scratch folder under ``inside``: every temporary byte lies there, and goes at the end."""
    import duckdb

    new_folders = [p for p in (inside, *inside.parents) if not p.exists()]
    inside.mkdir(parents=True, exist_ok=True)
    _sweep(inside)
    scratch = Path(tempfile.mkdtemp(dir=inside, prefix=".work-"))  # mode 0700
    try:
        with locked(scratch / "alive"), duckdb.connect(str(scratch / "work.duckdb")) as con:
            con.execute(f"SET memory_limit = {literal(memory)}")
            con.execute(f"SET temp_directory = {literal(str(scratch / 'spill'))}")
            con.execute("SET preserve_insertion_order = false")
            con.execute("SET autoinstall_known_extensions = false")  # a hospital's machine is offline
            with suppress(duckdb.InvalidInputException):  # a notebook without ipywidgets has no bar to turn off
                con.execute("SET enable_progress_bar = false")
            con.execute("CREATE TABLE skipped (reason VARCHAR, n BIGINT)")
            if threads is not None:
                con.execute(f"SET threads = {int(threads)}")
            yield con, scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in new_folders:  # nothing is left behind where nothing was before
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _sweep(inside: Path) -> None:
    """Remove what a killed process left behind: a scratch folder whose lock nobody holds."""
    for old in inside.glob(".work-*"):
        if not (old / "alive").exists():
            continue  # being made at this moment
        with suppress(OSError), locked(old / "alive", wait=False):  # else another process is at work there
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn the engine's errors into one :class:`~polyclinic.errors.DataError`."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as e:
        raise DataError(f"{what}: needs more memory or disk", faults=[said(e)], hint="free disk space there") from None
    except duckdb.Error as e:  # the chain is cut: the engine's own words may quote a patient's line
        raise DataError(f"{what}: cannot be read", faults=[said(e)], hint=advice(e)) from None


def note_skipped(con: Connection, reason: str, n: int) -> None:
    """Count what a formal study leaves out: :func:`skipped` gives it to the owner."""
    if n:
        con.execute("INSERT INTO skipped VALUES (?, ?)", [reason, n])


def skipped(con: Connection) -> dict[str, int]:
    """Return what was left out so far: reason -> number, with the lines of CSV files that are no rows."""
    rows = dict(con.execute("SELECT reason, sum(n)::BIGINT FROM skipped GROUP BY 1 ORDER BY 1").fetchall())
    if con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'").fetchone() != (0,):
        lines = con.execute(
            "SELECT count(DISTINCT (file_path, line_byte_position)) FROM reject_errors JOIN reject_scans USING (scan_id, file_id)"
        ).fetchone()
        rows |= {"lines of CSV files cannot be read": int(lines[0])} if lines and lines[0] else {}
    return rows


def numbers(con: Connection, sql: str) -> tuple[int, ...]:
    """Return the first row of a query of counts; an empty cell is 0."""
    return tuple(int(x or 0) for x in con.execute(sql).fetchone() or ())


def identifier(name: str) -> str:
    """A table, schema or column name, quoted; a name that could be anything else is refused.

    Examples
    --------
    >>> identifier("condition_occurrence")
    '"condition_occurrence"'
    >>> identifier('x"; DROP TABLE person; --')
    Traceback (most recent call last):
    polyclinic.errors.DataError: [PC300] 'x"; DROP TABLE person; --' is not the name of a table or column
      what to do: letters, digits, _, $, - and spaces only, at most 63
    """
    if not IDENTIFIER.fullmatch(name):
        raise DataError(
            f"{name!r} is not the name of a table or column",
            hint="letters, digits, _, $, - and spaces only, at most 63",
        )
    return f'"{name}"'


def literal(text: str) -> str:
    """A text as an SQL literal.

    Examples
    --------
    >>> literal("O'Neill")
    "'O''Neill'"
    """
    return "'" + text.replace("'", "''") + "'"


def statement(name: str) -> str:
    """The text of a ``.sql`` file of this package: what runs is what an owner can read."""
    return files("polyclinic.records.sources").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
