"""Covariates and times of patients: columns that stand beside the labels or in the visits, one row a patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import DataError
from polyclinic.records.engine import Connection, identifier, literal
from polyclinic.records.sites.people import People
from polyclinic.records.sources.tables import describe

__all__ = ["read_people"]

PLACES = ("raw labels", "visits")


def read_people(
    con: Connection,
    rule: PeopleRule | None,
    patients: Sequence[str],
    mapped: Mapping[str, str],
    missing: Sequence[str] = ("",),
) -> People | None:
    """The rows of these patients in their order; None where the study asks for none.

    A column is looked for in the label table, then among the visits; of several values of a patient the first by order is
    taken (age: the lowest). ``sex`` is F or M by its first letter. Texts that are ``missing`` are unknown.
    """
    if rule is None or not rule.names:
        return None
    there = {}
    for place in PLACES:
        try:
            there[place] = set(describe(con, place))
        except Exception:  # the source has no such table
            continue
    columns: dict[str, Any] = {}
    faults: list[str] = []
    hints = set()
    numbers = {"age", rule.survival.time if rule.survival is not None else "age"}
    none = ", ".join(map(literal, missing or ("",)))
    for name in rule.names:
        real = mapped.get(name, name)
        where = next((p for p in there if real in there[p]), None)
        if where is None:
            faults.append(f"{real!r} is a column of neither the labels nor the visits")
            hints.add(
                f"drop it, or put it into the table of labels; under another name: [source] columns = {{{name} = 'theirs'}}"
            )
            continue
        id_ = mapped.get("patient_id", "patient_id")
        if where != "raw labels" or id_ not in there[where]:
            id_ = "patient_id"  # the map may be meant for the event file only
        place, column = identifier(where), identifier(real)
        cell = f"CASE WHEN trim(CAST({column} AS VARCHAR)) IN ({none}) THEN NULL ELSE {column} END"
        if name in numbers:
            cell = f"TRY_CAST({cell} AS DOUBLE)"
            known = f"trim(CAST({column} AS VARCHAR)) NOT IN ({none}, '')"
            (odd,) = con.execute(f"SELECT count(*) FROM {place} WHERE {known} AND {cell} IS NULL").fetchone() or (0,)
            if odd:
                faults.append(f"{odd} values of {real!r} are no numbers")
                hints.add('texts that mean unknown, in a file: [source] missing = ["", "NA"]')
        found = con.execute(f"SELECT CAST({identifier(id_)} AS VARCHAR), min({cell}) FROM {place} GROUP BY 1")
        columns[name] = dict(found.fetchall())
    if faults:
        raise DataError("[people] cannot be read from this source", faults=faults, hint="; ".join(sorted(hints)))
    made = {n: [_value(n, at.get(p)) for p in patients] for n, at in columns.items()}
    time = event = None
    if rule.survival is not None:
        time = np.array([np.nan if v is None else float(v) for v in made.pop(rule.survival.time)])
        event = np.array(
            [str(v).lower() in ("1", "1.0", "true", "t", "yes", "y") for v in made.pop(rule.survival.event)]
        )
    if "age" in made:
        made["age"] = [np.nan if v is None else float(v) for v in made["age"]]
    return People(made, time, event)


def _value(name: str, value: Any) -> Any:
    if name == "sex" and value is not None:
        first = str(value).strip()[:1].upper()
        return first if first in ("F", "M") else ""
    return value if value is None or name == "age" else str(value)
