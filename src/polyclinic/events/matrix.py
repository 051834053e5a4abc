"""Feature matrices: one row a patient, number columns, a class (similarity and mixtures)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.events.accounting import Step
from polyclinic.events.engine import Connection, reading
from polyclinic.events.tables import describe, open_file
from polyclinic.study import FeatureRule, Node

__all__ = ["Matrix", "read_matrix"]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A feature matrix and what belongs to its rows.

    Parameters
    ----------
    values
        (patients, d) float64.
    columns
        Names of the d columns.
    patients, sites
        Identifier and site of every row (``sites`` None without ``split``).
    labels
        (patients,) class, or None.
    step
        Row accounting.
    """

    values: NDArray[np.float64]
    columns: tuple[str, ...]
    patients: tuple[str, ...]
    labels: NDArray[Any] | None
    sites: tuple[str, ...] | None
    step: Step


def read_matrix(con: Connection, node: Node, rule: FeatureRule) -> Matrix:
    """Read ``[source] features``; every fault of the table is reported at once."""
    source = node.source
    if not source.features:
        raise ConfigError(f"node {node.name!r}: [source] features is missing", hint="name the CSV or Parquet table")
    path = node.path(source.features)
    open_file(con, path, "matrix raw")
    present = describe(con, "matrix raw")
    label = rule.label or source.label
    patient = source.columns.get("patient_id", "patient_id")
    special = {c for c in (label, patient, source.split) if c}
    faults = [f"column {c!r} missing" for c in (label, source.split, *rule.columns) if c and c not in present]
    if "patient_id" in source.columns and patient not in present:
        faults.append(f"column {patient!r} missing")
    if faults:
        raise DataError(
            f"{path}: columns are missing", faults=faults, hint=f"there are {', '.join(list(present)[:30])}"
        )
    with reading(str(path)):
        table = con.execute('SELECT * FROM "matrix raw"').fetchnumpy()
        rows = len(next(iter(table.values()))) if table else 0
    wanted = list(rule.columns) or [c for c in present if c not in special]
    numbers: dict[str, NDArray[np.float64]] = {}
    for c in wanted:
        try:
            numbers[c] = _numbers(table[c], source.missing)
        except ValueError:
            if rule.columns:
                faults.append(f"column {c!r} holds texts that are not numbers")
            continue
        empty = int(np.isnan(numbers[c]).sum())
        if empty:
            faults.append(f"column {c!r}: {empty} of {rows} cells are empty")
    if not rows:
        faults.append("the table is empty")
    elif not numbers:
        faults.append("no column of numbers")
    names = _texts(table[patient]) if patient in table else tuple(str(i) for i in range(rows))
    if len(set(names)) != len(names):
        faults.append(f"{len(names) - len(set(names))} patients occur more than once")
    if faults:
        raise DataError(
            f"{path}: not a feature matrix", faults=faults, hint="complete it, or choose [features] columns"
        )
    return Matrix(
        np.column_stack(list(numbers.values())),
        tuple(numbers),
        names,
        None if label is None else _classes(table[label]),
        None if source.split is None else _texts(table[source.split]),
        Step("read features", rows, rows),
    )


def _numbers(column: Any, missing: tuple[str, ...]) -> NDArray[np.float64]:
    filled = np.ma.filled(np.ma.asarray(column).astype(object), None)
    return np.array([np.nan if x is None or x in missing else float(x) for x in filled], np.float64)


def _texts(column: Any) -> tuple[str, ...]:
    return tuple(str(x) for x in np.ma.filled(np.ma.asarray(column).astype(object), ""))


def _classes(column: Any) -> NDArray[Any]:
    texts = _texts(column)
    try:
        values = np.array([float(x) for x in texts])
    except ValueError:
        return np.array(texts)
    return values.astype(np.int64) if np.all(values == np.floor(values)) else values
