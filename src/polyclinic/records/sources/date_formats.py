"""How a file writes its times: recognised where all rows allow one reading only."""

from __future__ import annotations

from itertools import product
from typing import Final

from polyclinic.errors import DataError
from polyclinic.records.databases.engine import Connection, literal, reading

DAYS: Final = "days"  # whole numbers: days since an index date, as in de-identified data
INDEX: Final = "2000-01-01"  # the day that 0 stands for
DATES: Final = "%m/%d/%Y|%d/%m/%Y|%d.%m.%Y|%m-%d-%Y|%d-%m-%Y|%Y%m%d|%d-%b-%Y|%b %d, %Y|%m/%d/%y|%d/%m/%y"
TIMES: Final = "| %H:%M| %H:%M:%S| %I:%M %p| %I:%M:%S %p"
FORMATS: Final = tuple(map("".join, product(DATES.split("|"), TIMES.split("|"))))


def time_cell(cell: str, time_format: str | tuple[str, ...] | None) -> str:
    """SQL of a time. What does not fit the format stays as it is, and is counted as unreadable later."""
    if time_format is None:
        return cell
    text = f"CAST({cell} AS VARCHAR)"
    if time_format == DAYS:
        return f"coalesce(CAST(DATE '{INDEX}' + TRY_CAST({text} AS INTEGER) AS VARCHAR), {text} || ' ?')"
    formats = (time_format,) if isinstance(time_format, str) else time_format
    return f"coalesce(CAST(try_strptime({text}, [{', '.join(map(literal, formats))}]) AS VARCHAR), {text} || ' ?')"


def recognised(con: Connection, times: str) -> str | None:
    """Return the format of a column whose times are no ISO dates, or None. Two formats that fit every row are an error."""
    present = f"SELECT trim(CAST(time AS VARCHAR)) AS t FROM ({times}) WHERE time IS NOT NULL"
    iso = "count(TRY_CAST(regexp_replace(t, '(Z|[+-][0-9]{2}:?[0-9]{2})$', '') AS TIMESTAMP))"
    with reading("the column of times"):
        if con.execute(f"SELECT {iso} FROM ({present} LIMIT 1000)").fetchone() != (0,):
            return None  # the usual case: a file is not read twice
        con.execute(f"CREATE OR REPLACE TEMP TABLE times AS SELECT DISTINCT t FROM ({present})")
    fits = {f: f"count(try_strptime(t, {literal(f)}))" for f in FORMATS}
    row = con.execute(
        f"SELECT count(*), {iso}, count(*) FILTER (regexp_full_match(t, '-?[0-9]{{1,5}}')), {', '.join(fits.values())} FROM times"
    ).fetchone()
    con.execute("DROP TABLE times")
    rows, dates, whole, *counts = row or (0, 0, 0)
    if not rows or dates:
        return None
    if whole == rows:
        return DAYS
    fitting = [f for f, n in zip(fits, counts) if n == rows]
    if len(fitting) > 1:
        raise DataError(
            "times can be read in two ways",
            faults=[f"every time fits {' and '.join(fitting)}"],
            hint=f"say which: [source] time_format = {fitting[0]!r}",
        )
    return fitting[0] if fitting else None
