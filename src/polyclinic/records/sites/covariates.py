"""Covariates and times of patients: columns beside the labels, in the visits, or in the table of patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import DataError
from polyclinic.records.databases.engine import Connection, identifier, literal, note_skipped, reading
from polyclinic.records.sites.people import People
from polyclinic.records.sources.base import OpenedSource
from polyclinic.records.sources.tables import describe

PLACES = ("raw labels", "visits", "persons")
TRUE = ("1", "1.0", "true", "t", "yes", "y")


def make_persons(con: Connection, opened: OpenedSource, events: str) -> None:
    """Make the table ``persons`` (patient_id, age, sex) of what the source knows about its patients.

    Age is the year of the index date minus the year of birth. Without a cohort the first visit stands for the index date, and
    without a visit the first event.
    """
    if opened.births is None and opened.sexes is None:
        con.execute("DROP TABLE IF EXISTS persons")
        return
    days = [f"SELECT patient_id, 3 AS place, time AS day FROM {events}"]
    if opened.visits is not None:
        days.append(f"SELECT patient_id, 2, starts FROM ({opened.visits})")
    if con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'member'").fetchone():
        days.append("SELECT patient_id, 1, index_date FROM member")
    dated = " UNION ALL ".join(
        f"SELECT CAST(d.patient_id AS VARCHAR) AS patient_id, place, year(TRY_CAST(CAST(day AS VARCHAR) AS TIMESTAMP)) AS year "
        f"FROM ({d}) d(patient_id, place, day)"
        for d in days
    )
    nobody = "SELECT NULL AS patient_id, NULL AS value WHERE false"
    known = [name for name, query in (("age", opened.births), ("sex", opened.sexes)) if query is not None]
    with reading("age and sex of the patients"):
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE persons AS SELECT patient_id, {', '.join(known)} FROM (SELECT patient_id, "
            "CASE WHEN i.year - b.value BETWEEN 0 AND 150 THEN i.year - b.value END AS age, s.value AS sex FROM "
            f"(SELECT CAST(patient_id AS VARCHAR) AS patient_id, min(TRY_CAST(value AS INTEGER)) AS value FROM "
            f"({opened.births or nobody}) t(patient_id, value) GROUP BY 1) b FULL JOIN "
            f"(SELECT CAST(patient_id AS VARCHAR) AS patient_id, min(CAST(value AS VARCHAR)) AS value FROM "
            f"({opened.sexes or nobody}) t(patient_id, value) GROUP BY 1) s USING (patient_id) LEFT JOIN "
            f"(SELECT patient_id, arg_min(year, (place, year)) AS year FROM ({dated}) WHERE year IS NOT NULL GROUP BY 1) i "
            "USING (patient_id))"
        )


def read_people(
    con: Connection,
    rule: PeopleRule | None,
    patients: Sequence[str],
    mapped: Mapping[str, str],
    missing: Sequence[str] = ("",),
    *,
    skip_faulty: bool = False,
) -> People | None:
    """The rows of these patients in their order; None where the study asks for none.

    A column is looked for in the label table, then among the visits, then in what :func:`make_persons` made. Of several
    values of a patient the first by order is taken (age: the lowest). ``sex`` is F or M by its first letter. Texts that are ``missing`` are unknown. With ``skip_faulty``
    a number that cannot be used is unknown, too.
    """
    if rule is None or not rule.names:
        return None
    places = _columns(con)
    faults: list[str] = []
    hints: set[str] = set()
    numbers = {"age", rule.survival.time if rule.survival is not None else "age"}
    unknown = ", ".join(map(literal, missing or ("",)))
    columns: dict[str, Any] = {}
    for name in rule.names:
        column = mapped.get(name, name)
        place = next((p for p in places if column in places[p]), None)
        if place is None:
            faults.append(f"{column!r} is a column of neither the labels nor the visits nor the patients")
            hints.add(
                f"drop it, or put it into the table of labels; under another name: [source] columns = {{{name} = 'theirs'}}"
            )
            continue
        id_ = mapped.get("patient_id", "patient_id")
        if place != "raw labels" or id_ not in places[place]:
            id_ = "patient_id"  # the map may be meant for the event file only
        cell = f"CASE WHEN trim(CAST({identifier(column)} AS VARCHAR)) IN ({unknown}) THEN NULL ELSE {identifier(column)} END"
        if name in numbers:
            cell = f"TRY_CAST({cell} AS DOUBLE)"
            not_numbers = _not_numbers(con, place, column, cell, unknown)
            if skip_faulty:
                note_skipped(con, f"{column}: no numbers", not_numbers)
                cell = f"CASE WHEN isfinite({cell}) AND {cell} >= 0 THEN {cell} END"
            elif not_numbers:
                faults.append(f"{not_numbers} values of {column!r} are no numbers")
                hints.add('texts that mean unknown, in a file: [source] missing = ["", "NA"]')
        query = f"SELECT CAST({identifier(id_)} AS VARCHAR), min({cell}) FROM {identifier(place)} GROUP BY 1"
        columns[name] = dict(con.execute(query).fetchall())
    if faults:
        raise DataError("[people] cannot be read from this source", faults=faults, hint="; ".join(sorted(hints)))
    return _people(rule, {n: [_value(n, by_patient.get(p)) for p in patients] for n, by_patient in columns.items()})


def _columns(con: Connection) -> dict[str, set[str]]:
    """Return the columns of every table that may hold covariates."""
    places = {}
    for place in PLACES:
        try:
            places[place] = set(describe(con, place))
        except Exception:  # the source has no such table
            continue
    return places


def _not_numbers(con: Connection, place: str, column: str, cell: str, unknown: str) -> int:
    """Count the cells that are known and are no numbers."""
    is_known = f"trim(CAST({identifier(column)} AS VARCHAR)) NOT IN ({unknown}, '')"
    row = con.execute(f"SELECT count(*) FROM {identifier(place)} WHERE {is_known} AND {cell} IS NULL").fetchone()
    return int(row[0]) if row else 0


def _people(rule: PeopleRule, columns: dict[str, list[Any]]) -> People:
    """Make the value of the patients' columns, with the times of survival apart."""
    time = event = None
    if rule.survival is not None:
        time = _numbers(columns.pop(rule.survival.time))
        event = [str(v).lower() in TRUE for v in columns.pop(rule.survival.event)]
    if "age" in columns:
        columns["age"] = _numbers(columns["age"])
    return People(columns, time, event)


def _numbers(values: Sequence[Any]) -> list[float]:
    return [np.nan if v is None else float(v) for v in values]


def _value(name: str, value: Any) -> Any:
    if name == "sex" and value is not None:
        initial = str(value).strip()[:1].upper()
        return initial if initial in ("F", "M") else ""
    return value if value is None or name == "age" else str(value)
