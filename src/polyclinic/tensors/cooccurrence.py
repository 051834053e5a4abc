"""Co-occurrence: from the event table to patients x codes x codes (the rule, exactly).

For a patient and one code of every mode, the value is the number of ways to take one event of each mode (that has the
code) such that the events occur together: in the same visit, on the same calendar day, or with all their times at most
a window apart. Values above ``cap`` become ``cap``. The patients of the tensor are those with at least one value;
docs/howto/ingest.md works an example by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.events.accounting import Step
from polyclinic.events.codes import Code, group
from polyclinic.events.engine import Connection, literal, reading
from polyclinic.study import CodeRule, Study, TensorRule
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.codelist import read_public_axis
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["Coverage", "Vocabulary", "choose_codes", "count_together"]

TOP: Final = 20  # codes listed in a coverage report


@dataclass(frozen=True)
class Coverage:
    """How much of a mode found its place: rows, rows without a group, and the most frequent of those."""

    mode: str
    rows: int
    unmapped: int
    top_unmapped: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        share = self.unmapped / self.rows if self.rows else 0.0
        return {
            "rows": self.rows,
            "unmapped": self.unmapped,
            "unmapped_share": round(share, 6),
            "top_unmapped": [list(x) for x in self.top_unmapped],
        }


@dataclass(frozen=True)
class Vocabulary:
    """The codes of every feature mode, and the row accounting of how they came about.

    ``codemap`` is a table of the engine: mode, kind, code, system -> index of the axis.
    """

    axes: tuple[Axis, ...]
    coverage: tuple[Coverage, ...]
    step: Step
    fixed: tuple[bool, ...]


def choose_codes(con: Connection, events: str, study: Study) -> Vocabulary:
    """Map every distinct code to a label of its mode, then keep the public list, the top k, or all.

    Parameters
    ----------
    events
        Relation of events (``EventTable.scan()``).
    study
        Its ``[tensor]`` and ``[codes]`` sections.
    """
    rule = study.rule()
    _view(con, events, rule, study)
    key = {"visit": "visit_id"}.get(rule.window, "time")
    with reading("events"):
        found = con.execute(
            "SELECT kind, code, system, any_value(description), count(*), count(*) FILTER "
            f"({key} IS NULL) FROM events GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ).fetchall()
    by_mode, absent = _by_mode(found, rule)
    if absent:
        there = ", ".join(sorted({f"{r[0]}" for r in found}))
        raise DataError(
            "no events for some modes",
            faults=[f"mode {m!r}: no event of this kind" for m in absent],
            hint=f"the kinds there are: {there or 'none'}",
        )
    fate: dict[tuple[str, str, str | None], str | None] = {}
    rows_map: list[tuple[int, str, str, str | None, str]] = []
    coverage, names = [], []
    for m, mode in enumerate(rule.modes):
        rows = by_mode[mode]
        codes = [Code(r[1], r[2], r[3], r[4]) for r in rows]
        groups = group(codes, study.codes.get(mode, CodeRule()), kind=mode, folder=study.folder)
        lost: dict[str, int] = defaultdict(int)
        for r, g in zip(rows, groups):
            if g.label is None:
                lost[r[1]] += r[4]
                fate.setdefault(r[:3], f"{mode}: code has no group")
            else:
                rows_map.append((m, r[0], r[1], r[2], g.label))
        ranked = tuple(sorted(lost.items(), key=lambda x: (-x[1], x[0]))[:TOP])
        coverage.append(Coverage(mode, sum(r[4] for r in rows), sum(lost.values()), ranked))
        names.append({g.label: g.name for g in groups if g.label is not None})
    _fill(con, rows_map)
    axes, fixed = _kept(con, rule, study, names, key)
    kept = [a.labels or () for a in axes]
    index = {(m, label): i for m, labels in enumerate(kept) for i, label in enumerate(labels)}
    used = set()
    for m, kind, code, system, label in rows_map:
        if (m, label) in index:
            used.add((kind, code, system))
        else:
            why = "not in the public list" if rule.modes[m] in rule.vocabulary else "not among the chosen codes"
            fate.setdefault((kind, code, system), f"{rule.modes[m]}: {why}")
    _fill(con, [(m, k, c, s, str(index[m, label])) for m, k, c, s, label in rows_map if (m, label) in index])
    missing = "no visit" if key == "visit_id" else "no time"
    dropped: dict[str, int] = defaultdict(int)
    total = out = 0
    for r in found:
        total += r[4]
        if r[:3] in used:
            out += r[4] - r[5]
            dropped[missing] += r[5]
        else:
            dropped[fate.get(r[:3]) or f"kind {r[0]!r} is not in the study"] += r[4]
    step = Step("choose codes", total, out, {k: v for k, v in dropped.items() if v})
    return Vocabulary(tuple(axes), tuple(coverage), step, tuple(fixed))


def count_together(
    con: Connection, rule: TensorRule, vocabulary: Vocabulary, *, site: str | None = None
) -> tuple[SparseTensor, Step]:
    """Count what occurs together; returns the tensor and the accounting of events that found no partner.

    Parameters
    ----------
    site
        Only events of this value of the site column.
    """
    modes = len(vocabulary.axes)
    with reading("events"):
        entering, used = _units(con, rule, modes, site)
        people = [str(r[0]) for r in con.execute("SELECT patient FROM people ORDER BY p").fetchall()]
        order = ", ".join(["p", *(f"c{m}" for m in range(modes))])
        columns = con.execute(f"{_joined(rule, modes)} ORDER BY {order}").fetchnumpy()
        con.execute("DROP TABLE units")
    lonely = f"no partner in the same {rule.window}" if rule.hours is None else "the patient lacks a mode"
    dropped = {lonely: entering - used} if entering > used else {}
    step = Step("count together" if site is None else f"count together at {site}", entering, used, dropped)
    return _tensor(columns, people, vocabulary), step


def _view(con: Connection, events: str, rule: TensorRule, study: Study) -> None:
    """The view ``events`` that everything below reads; a range file decides what is abnormal."""
    if rule.ranges:
        path = study.path(rule.ranges)
        with reading(str(path)):
            con.execute(
                "CREATE OR REPLACE TEMP TABLE ranges AS SELECT CAST(code AS VARCHAR) AS code, CAST(low AS DOUBLE) AS low, "
                f"CAST(high AS DOUBLE) AS high FROM read_csv({literal(str(path))}, all_varchar = true, header = true)"
            )
        kind = "CASE WHEN e.kind = 'lab' AND (e.value < r.low OR e.value > r.high) THEN 'abnormal_lab' ELSE e.kind END AS kind"
        source = f"{events} e LEFT JOIN ranges r ON r.code = e.code"
    else:
        kind, source = "e.kind", f"{events} e"
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW events AS SELECT e.patient_id, e.visit_id, e.time, {kind}, e.code, e.system, "
        f"e.description, e.site FROM {source}"
    )


def _kinds(mode: str) -> tuple[str, ...]:
    return ("lab", "abnormal_lab") if mode == "lab" else (mode,)  # every abnormal result is also a result


def _by_mode(found: Sequence[Any], rule: TensorRule) -> tuple[dict[str, list[Any]], list[str]]:
    by_mode = {m: [tuple(r) for r in found if r[0] in _kinds(m)] for m in rule.modes}
    return by_mode, [m for m in rule.modes if not by_mode[m]]


def _fill(con: Connection, rows: Sequence[tuple[int, str, str, str | None, str]]) -> None:
    """The table ``codemap``: mode, kind, code, system -> label, or index of the axis."""
    con.execute(
        "CREATE OR REPLACE TEMP TABLE codemap (mode UTINYINT, kind VARCHAR, code VARCHAR, system VARCHAR, label VARCHAR)"
    )
    if rows:
        texts = [np.array([str(r[k] if r[k] is not None else "") for r in rows], dtype=object) for k in range(1, 5)]
        con.register(
            "incoming",
            {"m": np.array([r[0] for r in rows], np.uint8), "k": texts[0], "c": texts[1], "s": texts[2], "l": texts[3]},
        )
        con.execute("INSERT INTO codemap SELECT m, k, c, s, l FROM incoming")
        con.unregister("incoming")


MATCH: Final = "events e JOIN codemap c ON c.kind = e.kind AND c.code = e.code AND c.system = coalesce(e.system, '')"


def _kept(
    con: Connection, rule: TensorRule, study: Study, names: Sequence[dict[str, str]], key: str
) -> tuple[list[Axis], list[bool]]:
    """Every axis, its labels sorted; and whether it is fixed (a list or top k) or only what co-occurs."""
    counted: dict[tuple[int, str], int] = {}
    if rule.top or rule.minimum_patients > 1:
        who = "(e.patient_id, e.visit_id)" if rule.top_by == "visits" else "e.patient_id"
        patients = {(r[0], r[1]): r[2] for r in con.execute(_frequency("e.patient_id", key)).fetchall()}
        counted = (
            patients
            if rule.top_by == "patients"
            else {(r[0], r[1]): r[2] for r in con.execute(_frequency(who, key)).fetchall()}
        )
    kept: list[Axis] = []
    fixed = []
    for m, (mode, titles) in enumerate(zip(rule.modes, names)):
        if mode in rule.vocabulary:
            axis = read_public_axis(mode, study.path(rule.vocabulary[mode]))
            listed = axis.labels or ()
            if titles and not set(titles) & set(listed):
                raise DataError(
                    f"mode {mode!r}: no code of {rule.vocabulary[mode]} occurs here",
                    faults=[f"the list has {min(listed)!r}, the tensor {min(titles)!r}"],
                    hint=f"spell the list as the tensor does (no dots), or [codes.{mode}] to = 'as-is'",
                )
            kept.append(axis)
        else:
            labels = sorted(titles)
            if counted:
                labels = [x for x in labels if patients.get((m, x), 0) >= rule.minimum_patients]
                labels = sorted(sorted(labels, key=lambda x: (-counted.get((m, x), 0), x))[: rule.top.get(mode)])
            kept.append(Axis(mode, tuple(labels), tuple(titles[x] for x in labels), "data"))
        fixed.append(mode in rule.vocabulary or mode in rule.top)
    empty = [a.name for a in kept if not a.labels]
    if empty:
        raise DataError(
            "no codes are left",
            faults=[f"mode {m!r}: every code was dropped" for m in empty],
            hint="see [codes] and minimum_patients",
        )
    return kept, fixed


def _frequency(who: str, key: str) -> str:
    return f"SELECT c.mode, c.label, count(DISTINCT {who}) FROM {MATCH} WHERE e.{key} IS NOT NULL GROUP BY 1, 2"


def _units(con: Connection, rule: TensorRule, modes: int, site: str | None) -> tuple[int, int]:
    """Table ``units`` (p, place, mode, code, n): equal events once, with their number; and ``people``, in order of name.

    A place is a visit or a day of a patient (numbered), or a time in microseconds.
    """
    place = {"visit": "e.visit_id", "day": "CAST(e.time AS DATE)"}.get(rule.window, "epoch_us(e.time)")
    where = f"{place} IS NOT NULL" + (f" AND e.site = {literal(site)}" if site is not None else "")
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE entering AS SELECT e.patient_id AS patient, {place} AS place, c.mode AS mode, "
        f"CAST(c.label AS INTEGER) AS code, CAST(count(*) AS DOUBLE) AS n FROM {MATCH} WHERE {where} GROUP BY ALL"
    )
    # Only a patient (and, where the place is a visit or a day, only a place) with every mode can have a value.
    by = "patient, place" if rule.hours is None else "patient"
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE complete AS SELECT {by} FROM entering GROUP BY {by} "
        f"HAVING bit_or(1 << CAST(mode AS INTEGER)) = {2**modes - 1}"
    )
    con.execute(
        "CREATE OR REPLACE TEMP TABLE people AS SELECT patient, CAST(row_number() OVER (ORDER BY patient) - 1 AS INTEGER) AS p "
        "FROM (SELECT DISTINCT patient FROM complete)"
    )
    number = "k.rowid" if rule.hours is None else "e.place"
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE units AS SELECT p, {number} AS place, e.mode, e.code, e.n FROM entering e "
        f"JOIN complete k USING ({by}) JOIN people USING (patient)"
    )
    counts = _one(con, "SELECT coalesce(sum(n), 0) FROM entering"), _one(con, "SELECT coalesce(sum(n), 0) FROM units")
    con.execute("DROP TABLE entering")
    return counts


def _joined(rule: TensorRule, modes: int) -> str:
    """The count itself: one row a cell."""
    cells = ", ".join(f"u{m}.code AS c{m}" for m in range(modes))
    value = f"sum({' * '.join(f'u{m}.n' for m in range(modes))})"
    if rule.cap is not None:
        value = f"least({value}, {float(rule.cap)!r})"
    if rule.hours is None:
        first = "(SELECT * FROM units WHERE mode = 0) u0"
        tables = "".join(
            f" JOIN (SELECT place, code, n FROM units WHERE mode = {m}) u{m} ON u{m}.place = u0.place"
            for m in range(1, modes)
        )
    else:
        width = round(rule.hours * 3_600_000_000)
        # Times within a window lie in the same or the next bucket of its width: an equality join instead of all pairs.
        first = f"(SELECT *, place // {width} AS bucket FROM units WHERE mode = 0) u0"
        tables = ""
        for m in range(1, modes):
            spread = (
                f"(SELECT u.*, place // {width} + d.shift AS bucket "
                f"FROM units u, (VALUES (-1), (0), (1)) d(shift) WHERE mode = {m})"
            )
            near = " AND ".join(f"abs(u{m}.place - u{k}.place) <= {width}" for k in range(m))
            tables += f" JOIN {spread} u{m} ON u{m}.p = u0.p AND u{m}.bucket = u0.bucket AND {near}"
    return f"SELECT u0.p AS p, {cells}, {value} AS value FROM {first}{tables} GROUP BY ALL"


def _tensor(columns: dict[str, Any], people: Sequence[str], vocabulary: Vocabulary) -> SparseTensor:
    """Lay the sorted cells out by patient; codes of an axis that is not fixed and never co-occur are left out."""
    p = np.asarray(columns.pop("p"))  # taken out one by one: each column is freed once it is recoded
    if not len(p):
        raise DataError(
            "nothing occurs together: the tensor would be empty",
            hint="a wider window, other modes, or fewer restrictions on codes",
        )
    first = np.flatnonzero(np.diff(p, prepend=-1))
    present = p[first]
    codes, axes = [], []
    for m, (axis, fixed) in enumerate(zip(vocabulary.axes, vocabulary.fixed)):
        c = np.asarray(columns.pop(f"c{m}"))
        if not fixed:
            seen = np.bincount(c, minlength=len(axis.labels or ())) > 0
            c = (np.cumsum(seen) - 1).astype(np.uint16 if seen.sum() <= 65_535 else np.int32)[c]
            axis = axis.take(np.flatnonzero(seen).tolist())
        codes.append(c)
        axes.append(axis)
    return SparseTensor.from_layout(
        np.arange(len(present)),
        np.append(first, len(p)).astype(np.int64),
        codes,
        np.asarray(columns.pop("value"), np.float64),
        (len(present), *(len(a.labels or ()) for a in axes)),
        (Axis("patient", tuple(people[i] for i in present)), *axes),
    )


def _one(con: Connection, sql: str) -> int:
    row = con.execute(sql).fetchone()
    return int(row[0]) if row else 0
