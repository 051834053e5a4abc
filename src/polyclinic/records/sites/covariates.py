"""Covariates and times of patients: columns that stand beside the labels or in the visits, one row a patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import DataError
from polyclinic.records.engine import Connection, identifier, literal, note_skipped
from polyclinic.records.sites.people import People
from polyclinic.records.sources.tables import describe

PLACES = ("raw labels", "visits")
TRUE = ("1", "1.0", "true", "t", "yes", "y")


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

    A column is looked for in the label table, then among the visits; of several values of a patient the first by order is
    taken (age: the lowest). ``sex`` is F or M by its first letter. Texts that are ``missing`` are unknown. With ``skip_faulty``
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
            faults.append(f"{column!r} is a column of neither the labels nor the visits")
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
