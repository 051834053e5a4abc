"""Co-occurrence: from events as integers to patients x codes x codes (the rule, exactly).

Events occur together in a place: the same visit, the same calendar day, anywhere in a patient's records, or with all their
times at most a window apart. For a patient and one code of every mode, the value of a cell is, by ``[tensor] count``,

* ``visits``: the number of different visits in which the codes occur together (of days, where the place is a day);
* ``days``: the same with days; ``presence``: 1; ``product``: the number of ways to take one event of each mode.

Values above ``cap`` become ``cap``. The patients of the tensor are those with at least one value; docs/howto/ingest.md
works an example by hand. Patients are independent: they are counted in slices, so that memory is that of one slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.config import TensorRule
from polyclinic.errors import DataError
from polyclinic.records.databases.attrition import Stage
from polyclinic.records.databases.engine import Connection, note_skipped, numbers, reading
from polyclinic.records.events.vocabulary import ModeCoverage, Vocabulary, choose_codes
from polyclinic.records.events.window_sql import lonely
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["ModeCoverage", "NothingTogether", "Vocabulary", "choose_codes", "count_together", "repeats"]

SLICE: Final = 1_000_000  # combinations of codes laid out at a time
# limit: of memory. With more combinations of one patient, a formal study would not count the others either
HEAVY: Final = 2**25
SLICES: Final = 24  # at most so many: each looks through all events
PACKED: Final = 2**62  # combinations of a slice's patients and codes that one number can name
Cells = list[NDArray[np.generic]]  # patients, how many cells each has, codes of every mode, values


class NothingTogether(DataError):
    """No patient has one code of every mode in a place: there is no tensor."""

    entering: int = 0
    """How many events found no partner: all of them."""


def count_together(
    con: Connection, rule: TensorRule, vocabulary: Vocabulary, *, site: str | None = None, each_alone: bool = False
) -> tuple[SparseTensor, Stage]:
    """Count what occurs together; returns the tensor and the accounting of events that found no partner.

    Parameters
    ----------
    site
        Only events of this value of the site column.
    each_alone
        A formal study: a patient with more combinations than memory holds is left out.
    """
    sizes, offsets = [len(a.labels or ()) for a in vocabulary.axes], [0]
    if rule.side_by_side:
        offsets = np.cumsum([0, *sizes[:-1]]).tolist()
        axes, sizes = (Axis.side_by_side(vocabulary.axes),), [sum(sizes)]
        vocabulary = replace(vocabulary, axes=axes, fixed=(all(vocabulary.fixed),))
    with reading("events"):
        entering, counted = _units(
            con, offsets, rule, len(sizes), None if site is None else vocabulary.sites.index(site)
        )
        heavy = HEAVY if each_alone else math.inf
        parts = [_reduced(*part, sizes, rule) for part in _slices(con, rule, len(sizes), heavy)]
        con.execute(f"DROP {'VIEW' if entering == counted else 'TABLE'} unit")
        if site is None:
            con.execute("DROP TABLE fact")
    dropped = {lonely(rule): entering - counted} if entering > counted else {}
    step = Stage("count together" if site is None else f"count together at {site}", entering, counted, dropped)
    if not any(len(part[0]) for part in parts):
        empty_error = NothingTogether(
            "nothing occurs together: the tensor would be empty",
            hint="a wider window, other modes, or fewer restrictions on codes",
        )
        empty_error.entering = entering
        raise empty_error
    return _tensor(parts, vocabulary), step


def repeats(con: Connection, rule: TensorRule) -> float:
    """About which share of the events says again what another said in the same visit (or day, or at the same time)."""
    place = "w" if rule.hours is None else "p, t"
    rows, different = con.execute(
        f"SELECT count(*), approx_count_distinct(hash({place}, mode, code)) FROM fact"
    ).fetchone() or (0, 0)
    return max(0.0, round(1 - different / rows, 2)) if rows else 0.0


def _units(con: Connection, offsets: list[int], rule: TensorRule, modes: int, site: int | None) -> tuple[int, int]:
    """Table ``unit`` (p, w, t, mode, code) of events that can have a partner; how many events entered, and how many are left."""
    condition = "" if site is None else f" WHERE f.s = {int(site)}"
    unchanged = con.execute(
        "SELECT count(*) = (SELECT count(DISTINCT (mode, code)) FROM fact) AND bool_and(label = code) FROM chosen"
    ).fetchone()
    source = (
        f"SELECT f.p, f.w, f.t, f.mode, f.code FROM fact f{condition}"
        if unchanged and unchanged[0]  # every code is kept where it is
        else f"SELECT f.p, f.w, f.t, f.mode, c.code FROM fact f JOIN chosen c ON c.mode = f.mode AND c.label = f.code{condition}"
    )
    if rule.side_by_side:
        source = f"SELECT p, w, t, 0 AS mode, CAST(code + {offsets}[CAST(mode AS INTEGER) + 1] AS INTEGER) AS code FROM ({source})"
    # Only a patient (and, where the place is a visit or a day, only a place) with every mode can have a value.
    place = "w" if rule.placed else "p"
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE places AS SELECT {place}, count(*) AS n, bit_or(1 << CAST(mode AS INTEGER)) = {2**modes - 1} "
        f"AS whole FROM ({source}) GROUP BY {place}"
    )
    counts = (
        numbers(con, "SELECT coalesce(sum(n), 0) FROM places")[0],
        numbers(con, "SELECT coalesce(sum(n), 0) FROM places WHERE whole")[0],
    )
    if counts[0] == counts[1]:
        con.execute(f"CREATE TEMP VIEW unit AS {source}")
    else:
        con.execute(
            f"CREATE TEMP TABLE unit AS SELECT * FROM ({source}) SEMI JOIN (SELECT {place} FROM places WHERE whole) USING ({place})"
        )
    con.execute("DROP TABLE places")
    return counts


def _slices(con: Connection, rule: TensorRule, modes: int, heavy: float) -> Iterator[tuple[dict[str, Any], bool]]:
    """Combinations of codes, patient by patient, some patients at a time; True where each row is a whole cell."""
    place = "w" if rule.placed else "p"
    # How many combinations a patient has, from above: the product of the numbers of events of each mode in a place.
    counts = ", ".join(f"count(*) FILTER (mode = {m}) AS n{m}" for m in range(modes))
    size = " * ".join(f"CAST(n{m} AS DOUBLE)" for m in range(modes))
    load = con.execute(
        f"SELECT p, sum({size}) AS n FROM (SELECT p, {place}, {counts} FROM unit GROUP BY ALL) GROUP BY p ORDER BY p"
    ).fetchnumpy()
    people, sizes = np.asarray(load["p"]), np.asarray(load["n"])
    out = people[sizes > heavy].tolist()
    note_skipped(con, f"patients with more than {heavy:,} combinations of codes", len(out))
    people, sizes = people[sizes <= heavy], sizes[sizes <= heavy]
    if not len(people):
        return
    reach = np.cumsum(sizes)
    others = f" AND p NOT IN ({', '.join(map(str, out))})" if out else ""
    edges = np.flatnonzero(np.diff(reach // max(SLICE, reach[-1] / SLICES), prepend=-1))
    for first, last in zip(edges, [*edges[1:], len(people)], strict=True):
        between = {"first": int(people[first]), "last": int(people[last - 1])}
        yield (
            con.execute(_joined(rule, modes, "p BETWEEN $first AND $last" + others), between).fetchnumpy(),
            rule.hours is not None,
        )


def _joined(rule: TensorRule, modes: int, span: str) -> str:
    """The combinations of some patients: p, c0 ... and, where it is not one a row, value."""
    cells = ", ".join(f"u{m}.code AS c{m}" for m in range(modes))
    product = " * ".join(f"u{m}.n" for m in range(modes))
    summed = rule.count in ("visits", "days")
    if rule.hours is not None:
        value = (
            f"least({', '.join(f'count(DISTINCT u{m}.w)' for m in range(modes))})"
            if summed
            else "1"
            if rule.count == "presence"
            else f"sum({product})"
        )
        return (
            f"SELECT u0.p AS p, {cells}, CAST({value} AS DOUBLE) AS value FROM {_near(rule, modes, span)} GROUP BY ALL"
        )
    if rule.placed:
        key, n = "w", "CAST(count(*) AS DOUBLE)" if rule.count == "product" else "1"
        value = f", {product} AS value" if rule.count == "product" else ""
    else:
        key, n = "p", "CAST(count(DISTINCT w) AS DOUBLE)" if summed else "CAST(count(*) AS DOUBLE)"
        least = ", ".join(f"u{m}.n" for m in range(modes))
        value = f", least({least}) AS value" if summed else f", {product} AS value" if rule.count == "product" else ""
    mode_query = f"SELECT p, {key} AS place, code, {n} AS n FROM unit WHERE mode = {{}} AND {span} GROUP BY ALL"
    tables = f"({mode_query.format(0)}) u0" + "".join(
        f" JOIN ({mode_query.format(m)}) u{m} ON u{m}.place = u0.place" for m in range(1, modes)
    )
    return f"SELECT u0.p AS p, {cells}{value} FROM {tables}"


def _near(rule: TensorRule, modes: int, span: str) -> str:
    """Events whose times lie at most a window apart, first to last."""
    width = round((rule.hours or 0) * 3_600_000_000)
    columns = "p, t, code, w" if rule.count in ("visits", "days") else "p, t, code"
    mode_query = f"SELECT {columns}, t // {width} AS bucket, CAST(count(*) AS DOUBLE) AS n FROM unit WHERE mode = {{}} AND {span} GROUP BY ALL"
    tables = f"({mode_query.format(0)}) u0"
    for m in range(1, modes):
        # Times within a window lie in the same or the next bucket of its width: an equality join instead of all pairs.
        spread = f"(SELECT u.* REPLACE (bucket + d.shift AS bucket) FROM ({mode_query.format(m)}) u, (VALUES (-1), (0), (1)) d(shift))"
        within = " AND ".join(f"abs(u{m}.t - u{k}.t) <= {width}" for k in range(m))
        tables += f" JOIN {spread} u{m} ON u{m}.p = u0.p AND u{m}.bucket = u0.bucket AND {within}"
    return tables


def _reduced(columns: dict[str, Any], whole: bool, sizes: Sequence[int], rule: TensorRule) -> Cells:
    """Cells in order: rows of the same patient and codes become one, their values added (or counted)."""
    p, codes = np.asarray(columns.pop("p")), [np.asarray(columns.pop(f"c{m}")) for m in range(len(sizes))]
    value = np.asarray(columns.pop("value"), np.float64) if "value" in columns else None
    low = int(p.min(initial=0))
    radix = [int(p.max(initial=0)) - low + 1, *sizes]
    if np.prod(np.array(radix, object)) < PACKED:
        key = p.astype(np.int64) - low
        for c, size in zip(codes, sizes):
            key = key * size + c
        if value is None:
            key.sort()
        else:
            order = np.argsort(key, kind="stable")
            key, value = key[order], value[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        remainder = key[first]
        codes = []
        for size in sizes[::-1]:
            remainder, c = np.divmod(remainder, size)
            codes.insert(0, c.astype(np.uint16 if size <= 65_535 else np.int32))
        people = remainder + low
        length = len(key)
    else:  # more combinations of codes than a number can hold
        order = np.lexsort((*codes[::-1], p))
        p, codes = p[order], [c[order] for c in codes]
        value = None if value is None else value[order]
        changed = np.append(True, np.any([np.diff(x) != 0 for x in (p, *codes)], axis=0))
        first = np.flatnonzero(changed)
        people, codes, length = p[first], [c[first] for c in codes], len(p)
    if rule.count == "presence":
        values = np.ones(len(first))
    elif value is None:
        values = np.diff(np.append(first, length)).astype(np.float64)
    else:
        values = value if whole else np.add.reduceat(value, first) if len(first) else value
    if rule.cap is not None:
        values = np.minimum(values, rule.cap)
    short = values.astype(np.float32)  # half the memory until the tensor is laid out, where nothing is lost by it
    starts = np.flatnonzero(np.diff(people, prepend=-1))
    sizes_of = np.diff(np.append(starts, len(people)))
    return [people[starts], sizes_of, *codes, short if np.array_equal(short, values) else values]


def _taken(parts: list[Cells], n: int, kind: type[np.generic] | None = None) -> NDArray[np.generic]:
    """One column of all parts, which let go of it."""
    out = np.empty(sum(len(x[n]) for x in parts), kind or parts[0][n].dtype)
    position = 0
    for x in parts:
        out[position : position + len(x[n])] = x[n]
        position += len(x[n])
        x[n] = x[n][:0]
    return out


def _tensor(parts: list[Cells], vocabulary: Vocabulary) -> SparseTensor:
    """Lay the cells out by patient; codes of an axis that is not fixed and never co-occur are left out."""
    present = _taken(parts, 0)
    indptr = np.append(0, np.cumsum(_taken(parts, 1))).astype(np.int64)
    codes, axes = [], []
    for m, (axis, fixed) in enumerate(zip(vocabulary.axes, vocabulary.fixed)):
        c = _taken(parts, m + 2)
        if not fixed:
            occurs = np.bincount(c, minlength=len(axis.labels or ())) > 0
            if not occurs.all():
                c = (np.cumsum(occurs) - 1).astype(np.uint16 if occurs.sum() <= 65_535 else np.int32)[c]
                axis = axis.take(np.flatnonzero(occurs).tolist())
        codes.append(c)
        axes.append(axis)
    values = _taken(parts, len(codes) + 2, np.float64)
    return SparseTensor.from_layout(
        np.arange(len(present)),
        indptr,
        codes,
        values,
        (len(present), *(len(a.labels or ()) for a in axes)),
        (Axis("patient", tuple(vocabulary.people[present].tolist())), *axes),
    )
