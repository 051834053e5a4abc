"""Feature matrices: one row a patient, number columns, a class (similarity and mixtures)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyclinic.config import FeatureRule, Node
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.attrition import Stage
from polyclinic.records.databases.engine import Connection, note_skipped, reading
from polyclinic.records.events.cohort import opt_out
from polyclinic.records.sources.tables import describe, open_file


@dataclass(frozen=True, eq=False)
class Matrix:
    """A feature matrix and what belongs to its rows.

    Parameters
    ----------
    values
        (patients, d) float64.
    columns
        Names of the d columns: the study's, in its order; where it lists none every column of numbers, by name, so that
        the order in which a hospital happened to write them means nothing.
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
    labels: NDArray[np.generic] | None
    sites: tuple[str, ...] | None
    step: Stage


def read_matrix(con: Connection, node: Node, rule: FeatureRule) -> Matrix:
    """Read ``[source] features``; every fault of the table is reported at once.

    Where the node skips faulty records (a formal study), a patient whose row has a fault is left out, and no other notices.
    """
    source = node.source
    if not source.features:
        raise ConfigError(f"node {node.name!r}: [source] features is missing", hint="name the CSV or Parquet table")
    path = node.path(source.features)
    open_file(con, path, "matrix raw", skip_faulty=node.skip_faulty)
    present = describe(con, "matrix raw")
    label = rule.label or source.label
    patient = source.columns.get("patient_id", "patient_id")
    _check_choice(node, rule, label, patient)
    required = (label, source.split, *rule.columns, patient if "patient_id" in source.columns else None)
    faults = [f"column {c!r} missing" for c in required if c and c not in present]
    if faults:
        raise DataError(
            f"{path}: columns are missing", faults=faults, hint=f"there are {', '.join(list(present)[:30])}"
        )
    with reading(str(path)):
        table = con.execute('SELECT * FROM "matrix raw"').fetchnumpy()
    rows = len(next(iter(table.values()))) if table else 0
    features = list(rule.columns) or sorted(c for c in present if c not in (label, patient, source.split))
    names = _texts(table[patient]) if patient in table else tuple(str(i) for i in range(rows))
    cells = _Cells(rule, source.missing, keep_all=node.skip_faulty)
    numbers = cells.features(table, features)
    if label is not None:
        unknown = [i for i, x in enumerate(_texts(table[label])) if not x.strip() or x in source.missing]
        cells.fault(label, unknown, rows, "empty (the class)")
    faults = [*cells.faults, *_table_faults(rows, numbers, names)]
    if node.skip_faulty:
        faulty = cells.rows | _unnamed(names)
        note_skipped(con, "features: patients with a fault in their row", len(faulty))
    elif faults:
        raise DataError(
            f"{path}: not a feature matrix",
            faults=faults,
            hint="complete it, choose [features] columns, or [features] missing = 'random'",
        )
    stays = _stays(con, node, names)
    optouts = int((~stays).sum())
    dropped = {"opted out": optouts} if optouts else {}
    if node.skip_faulty:
        faulty &= set(np.flatnonzero(stays).tolist())
        stays[list(faulty)] = False
        dropped |= {"fault in the row": len(faulty)} if faulty else {}
    if not stays.any():
        raise DataError(f"{path}: every patient opted out or has a fault", hint="see [exclude] of the node")
    return Matrix(
        np.column_stack(list(numbers.values()))[stays],
        tuple(numbers),
        tuple(n for n, s in zip(names, stays) if s),
        None if label is None else _classes(table[label], node.skip_faulty)[stays],
        None if source.split is None else tuple(np.array(_texts(table[source.split]), object)[stays].tolist()),
        Stage("read features", rows, int(stays.sum()), dropped),
    )


def _table_faults(rows: int, numbers: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Return the faults of the whole table."""
    faults = []
    if not rows:
        faults.append("the table is empty")
    elif not numbers:
        faults.append("no column of numbers")
    if len(set(names)) != len(names):
        faults.append(f"{len(names) - len(set(names))} patients occur more than once")
    return faults


@dataclass
class _Cells:
    """The cells of a table as numbers, its faults in words, and the rows that have one."""

    rule: FeatureRule
    missing: tuple[str, ...]
    keep_all: bool
    faults: list[str] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)

    def features(
        self, table: Mapping[str, NDArray[np.generic]], columns: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the columns of numbers. A column that the study names and that has texts is a fault."""
        numbers = {}
        for c in columns:
            values, empty, texts = _numbers(table[c], self.missing)
            if texts and not self.rule.columns and not self.keep_all:
                continue  # not a column of numbers
            numbers[c] = values
            if self.rule.missing == "refuse":
                self.fault(c, empty, len(values), "empty")
            self.fault(c, [*texts, *np.flatnonzero(np.isinf(values)).tolist()], len(values), "no numbers")
        return numbers

    def fault(self, column: str, cells: list[int], rows: int, what: str) -> None:
        """Note how many cells have a fault and where the first is. A patient's line is never quoted."""
        self.rows.update(cells)
        if cells:
            self.faults.append(
                f"column {column!r}: {len(cells)} of {rows} cells are {what}, the first in row {min(cells) + 1} below the header"
            )


def _unnamed(names: Sequence[str]) -> set[int]:
    """Rows without a patient, and all rows of a patient who has several."""
    times = Counter(names)
    return {i for i, n in enumerate(names) if not n.strip() or times[n] > 1}


def _stays(con: Connection, node: Node, patients: Sequence[str]) -> NDArray[np.bool_]:
    """Return which patients did not opt out."""
    opt_out(con, node)
    rows = con.execute("SELECT patient_id FROM optout WHERE patient_id IS NOT NULL").fetchall()
    optouts = {str(r[0]) for r in rows}
    return np.array([p not in optouts for p in patients], bool)


def _check_choice(node: Node, rule: FeatureRule, label: str | None, patient: str) -> None:
    """What belongs to a patient but is no feature may not be listed as one: the class would predict itself."""
    roles = {patient: "identifies the patient"}
    if node.source.split:
        roles[node.source.split] = "names the site ([source] split)"
    if label:
        roles[label] = f"is the class ({'[features]' if rule.label else '[source]'} label)"
    faults = [f"column {c!r} {roles[c]}" for c in rule.columns if c in roles]
    faults += [
        f"column {c!r} is listed more than once" for c in sorted({c for c in rule.columns if rule.columns.count(c) > 1})
    ]
    if faults:
        raise ConfigError(
            f"node {node.name!r}: [features] columns lists what is no feature",
            faults=faults,
            hint="take it out of [features] columns",
        )


def _numbers(column: NDArray[np.generic], missing: tuple[str, ...]) -> tuple[NDArray[np.float64], list[int], list[int]]:
    """Values, rows that are empty, and rows that hold something else than a number."""
    if np.ma.asarray(column).dtype.kind in "biuf":
        floats = np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan)
        return floats, np.flatnonzero(np.isnan(floats)).tolist(), []
    values, empty, texts = np.full(len(column), np.nan), [], []
    for i, x in enumerate(np.ma.asarray(column).astype(object).tolist()):  # a masked cell is None in a list
        if x is None or x in missing or (isinstance(x, str) and not x.strip()):
            empty.append(i)
            continue
        try:
            values[i] = float(x)
        except (TypeError, ValueError):
            texts.append(i)
            continue
        if np.isnan(values[i]):
            empty.append(i)
    return values, empty, texts


def _texts(column: object) -> tuple[str, ...]:
    return tuple(str(x) for x in np.ma.filled(np.ma.asarray(column).astype(object), ""))


def _classes(column: object, each_alone: bool) -> NDArray[np.generic]:
    """Whole numbers where all classes are; in a formal study texts, because no cell may change what another is."""
    texts = _texts(column)
    if each_alone:
        return np.array([re.sub(r"^(-?\d+)\.0+$", r"\1", x.strip()) for x in texts], np.str_)
    try:
        values = np.array([float(x) for x in texts])
    except ValueError:
        return np.array(texts)
    return values.astype(np.int64) if np.all(values == np.floor(values)) else values
