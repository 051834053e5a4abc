"""Plain event files (CSV or Parquet) with a column map: the way in for any database that can export a table.

The format of its times is recognised where all rows allow one reading only.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import product
from typing import Final

from polyclinic.config import Node
from polyclinic.config.source import TableRule
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.engine import Connection, identifier, literal, numbers, reading
from polyclinic.records.sources.base import COLUMNS, OpenedSource
from polyclinic.records.sources.tables import describe, hash_of, open_file, quoted

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


REQUIRED: Final = ("patient_id", "visit_id", "time", "kind", "code")
NONE: Final = "CAST(NULL AS VARCHAR)"


def open_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """Open ``[source] events`` and ``labels``.

    ``columns`` maps a canonical name to the name in the file; ``"=text"`` is a constant, ``""`` says that there is no
    such column. ``wide`` describes kinds that are spread over several columns of one row (docs/howto/ingest.md).
    """
    source = node.source
    if not (source.events or any(t.key is None for t in source.parts)):
        raise ConfigError(f"node {node.name!r}: [source] events is missing", hint="name the event file")
    label_columns: Mapping[str, str] = {}
    if source.labels:
        open_file(con, node.path(source.labels), "raw labels", skip_faulty=node.skip_faulty)
        label_columns = describe(con, "raw labels")
    _check_map(node, label_columns)
    cheap = not source.parts and _open(con, node, source.events or "", "raw")
    repeated = _joined(con, node) if source.parts else {}
    present = describe(con, "raw")
    file = _name(node)
    faults: list[str] = []
    node = _with_time_format(con, node, present)
    cells = {c: _column(c, node, present, faults) for c in COLUMNS}
    faults += _missing_columns(node, file, present)
    hints = []
    if faults:
        lacking = next((c for c, sql in cells.items() if c in REQUIRED and sql == NONE), "code")
        hints.append(f"the columns there are {', '.join(present)}; map them: columns = {{{lacking} = 'their_name'}}")
    labels = _labels(node, label_columns, faults, hints) if source.labels else None
    if faults:
        raise DataError(f"site {node.name!r}: the event files lack columns", faults=faults, hint="; ".join(hints))
    events, rows = _queries(node, cells, present)
    birth = source.columns.get("birth", "birth")
    births = _births(quoted(birth), cells["patient_id"]) if birth in present else None
    return OpenedSource(
        events, rows, _visits(node, cells, present), cheap, _inputs(node), labels, births=births, repeated=repeated
    )


def _inputs(node: Node) -> dict[str, str]:
    """What was read, with the digests of its files."""
    files = {t.file: t.file for t in node.source.parts} or {"events": node.source.events or ""}
    digests = {f"{k} sha256": hash_of(node.path(f)) for k, f in files.items() if node.path(f).is_file()}
    return {"events": _name(node), **digests}


def _queries(node: Node, cells: Mapping[str, str], present: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The query of the events, and those that count the rows of each origin."""
    if node.source.wide:
        queries = {kind: _wide(kind, node, cells, present) for kind in node.source.wide}
        events = "\nUNION ALL\n".join(sql for sql, _ in queries.values())
        return events, {f"events.{kind}": count for kind, (_, count) in queries.items()}
    columns = ", ".join(f"{sql} AS {c}" for c, sql in cells.items())
    # The export of one of our own .sql files brings its reasons along.
    reason = "dropped" if {"origin", "dropped"} <= set(present) else NONE
    return f"SELECT 'events' AS origin, {columns}, {reason} AS dropped FROM raw", {"events": "SELECT count(*) FROM raw"}


def _with_time_format(con: Connection, node: Node, present: Mapping[str, str]) -> Node:
    """The node with the format of its times, where all rows allow one reading only."""
    time = node.source.columns.get("time", "time")
    texts = not present.get(time, "DATE").startswith(("DATE", "TIMESTAMP"))
    if not texts or node.source.time_format is not None or node.skip_faulty:
        return node
    times = f"SELECT {_cell(time, present, node.source.missing)} AS time FROM raw"
    return node.with_source(time_format=recognised(con, times))


def _open(con: Connection, node: Node, name: str, view: str) -> bool:
    return open_file(con, node.path(name), view, skip_faulty=node.skip_faulty)


def _name(node: Node) -> str:
    """What the event table is called in an error."""
    return node.path(node.source.events).name if node.source.events else node.source.parts[0].file


def _joined(con: Connection, node: Node) -> dict[str, int]:
    """Make ``raw`` of several tables: rows of events below each other, then the columns of the others by their keys."""
    parts = {f"part {n}": rule for n, rule in enumerate(node.source.parts)}
    for view, rule in parts.items():
        _open_part(con, node, rule, view)
    events = [view for view, rule in parts.items() if rule.key is None]
    con.execute(f"CREATE OR REPLACE TABLE raw AS {' UNION ALL BY NAME '.join(f'FROM {quoted(v)}' for v in events)}")
    others = {view: rule for view, rule in parts.items() if view not in events}
    repeated: dict[str, int] = {}
    while others:
        view = _next_part(con, node, others)
        repeated |= _add_columns(con, node, others.pop(view), view)
    return repeated


def _next_part(con: Connection, node: Node, others: Mapping[str, TableRule]) -> str:
    """The first table whose key the events have by now."""
    present = describe(con, "raw")
    if view := next((v for v, rule in others.items() if rule.key in present), None):
        return view
    rule = next(iter(others.values()))
    raise DataError(
        f"site {node.name!r}: no event has the key of {rule.file}: {rule.key!r}",
        hint=f"the columns of events are {', '.join(present)}; rename theirs: columns = {{{rule.key} = 'theirs'}}",
    )


def _open_part(con: Connection, node: Node, rule: TableRule, view: str) -> None:
    """Open one table of several under the names that the source gives its columns, all cells text."""
    _open(con, node, rule.file, f"{view} as it is")
    present = describe(con, f"{view} as it is")
    _check_part(node, rule, present)
    renamed = {c.lower() for c in rule.columns}
    cells = {c: quoted(c) for c in present if c.lower() not in renamed}
    cells |= {c: literal(x[1:]) if x.startswith("=") else quoted(x) for c, x in rule.columns.items()}
    picked = ", ".join(f"CAST({sql} AS VARCHAR) AS {quoted(c)}" for c, sql in cells.items())
    con.execute(f"CREATE OR REPLACE VIEW {quoted(view)} AS SELECT {picked} FROM {quoted(view + ' as it is')}")


def _check_part(node: Node, rule: TableRule, present: Mapping[str, str]) -> None:
    """Refuse a table without its key, or without a column that is renamed."""
    theirs = {rule.key or "=": rule.key or "=", **rule.columns}.values()
    if missing := [c for c in theirs if not c.startswith("=") and c not in present]:
        raise DataError(
            f"site {node.name!r}: {rule.file} lacks columns",
            faults=[f"column {c} missing" for c in missing],
            hint=f"the columns there are {', '.join(present)}; [[source.tables]] columns = {{{missing[-1]} = 'theirs'}}",
        )


def _add_columns(con: Connection, node: Node, rule: TableRule, view: str) -> dict[str, int]:
    """Give the events in ``raw`` the columns of one more table, and return how many of its rows repeat a key.

    Where both name the patient, a row belongs to the events of that patient only: numbers of visits may begin again with
    each patient, and in a formal study no row decides about the events of another patient.
    """
    present, mine, key = describe(con, "raw"), describe(con, view), str(rule.key)
    patient = node.source.columns.get("patient_id", "patient_id")
    by_patient = patient in mine and patient != key and (patient in present or node.skip_faulty)
    group = [same_id(quoted(c)) for c in ((key, patient) if by_patient else (key,))]
    both = [quoted(c) for c in mine if c in present]
    filled = ", ".join(f"coalesce(e.{c}, t.{c}) AS {c}" for c in both)
    same = f"{same_id(f'e.{quoted(key)}')} = {same_id(f't.{quoted(key)}')}"
    if by_patient and patient in present:
        same += f" AND coalesce({same_id(f'e.{quoted(patient)}')} = {same_id(f't.{quoted(patient)}')}, true)"
    with reading(f"site {node.name!r}, its tables"):
        (repeats,) = numbers(
            con,
            f"SELECT count({group[0]}) - count(DISTINCT ({', '.join(group)})) FILTER ({group[0]} IS NOT NULL) FROM {quoted(view)}",
        )
        con.execute(
            f"CREATE OR REPLACE TABLE raw AS SELECT e.* REPLACE ({filled}), t.* EXCLUDE ({', '.join(both)}) FROM raw e LEFT JOIN "
            f"(FROM {quoted(view)} p QUALIFY row_number() OVER (PARTITION BY {', '.join(group)} ORDER BY p::VARCHAR) = 1) t ON {same}"
        )
    return {f"rows of {rule.file} repeat a {rule.key}: one of each is used": repeats} if repeats else {}


def same_id(sql: str) -> str:
    """An identifier as a text: a table that went through a spreadsheet or a data frame writes 123 as 123.0.

    >>> import duckdb
    >>> duckdb.sql("SELECT " + same_id("' 123.0'") + ", " + same_id("'A1.0'")).fetchall()
    [('123', 'A1.0')]
    """
    text = f"trim(CAST({sql} AS VARCHAR))"
    return f"CASE WHEN {text} LIKE '%.0' THEN regexp_replace({text}, '^([0-9]+)[.]0+$', '\\1') ELSE {text} END"


def _check_map(node: Node, label_columns: Container[str]) -> None:
    """Refuse a map of unknown columns. [people] may name any column of the table of labels."""
    canonical = (*COLUMNS, "label", "birth")
    unknown = [c for c, name in node.source.columns.items() if c not in canonical and name not in label_columns]
    if unknown:
        raise ConfigError(
            f"node {node.name!r}: wrong map",
            faults=[f"columns.{c}: unknown" for c in unknown],
            hint=f"known: {', '.join(canonical)}, and what is a column of [source] labels",
        )


def _missing_columns(node: Node, file: str, present: Container[str]) -> list[str]:
    """Return the faults of columns that [source] names beside the canonical ones."""
    source = node.source
    mentioned = [(repr(c), f"of wide.{kind}", c) for kind, wide in source.wide.items() for c in wide.columns]
    mentioned += [(repr(source.label), "(label)", source.label)] if source.label else []
    mentioned += [(birth, "(birth)", birth) for c, birth in source.columns.items() if c == "birth"]
    return [f"{file}: column {words} {role} missing" for words, role, c in mentioned if c not in present]


def _labels(node: Node, present: Mapping[str, str], faults: list[str], hints: list[str]) -> str:
    """Return the query of the table of labels."""
    source = node.source
    columns = {c: source.columns.get(c, c) for c in ("patient_id", "label")}
    if columns["patient_id"] not in present:
        columns["patient_id"] = "patient_id"  # the map may be meant for the event file only
    file = node.path(source.labels or "").name
    missing = [c for c, name in columns.items() if name not in present]
    if missing:
        hints.append(f"{file} has {', '.join(present)}: columns = {{{missing[-1]} = 'their_name'}}")
    faults += [f"{file}: column {columns[c]} missing" for c in missing]
    cells = [
        f"{(same_id if c == 'patient_id' else str)(_cell(name, present, source.missing))} AS {c}"
        for c, name in columns.items()
        if name in present
    ]
    if source.positive and not missing:
        yes = ", ".join(map(literal, source.positive))
        cells[-1] = f"CAST({_cell(columns['label'], present, source.missing)} AS VARCHAR) IN ({yes}) AS label"
    return f'SELECT {", ".join(cells)} FROM "raw labels"'


def _column(name: str, node: Node, present: Mapping[str, str], faults: list[str]) -> str:
    """The SQL of one canonical column."""
    source = node.source
    # a study's split goes before the node's own site column: it would else be divided by another column than it says
    mapped = source.split if name == "site" and source.split else source.columns.get(name, name)
    if name == "system" and mapped not in present and source.systems:
        cases = " ".join(f"WHEN {literal(k)} THEN {literal(s)}" for k, s in source.systems.items())
        kind = source.columns.get("kind", "kind")
        subject = literal(kind[1:]) if kind.startswith("=") else identifier(kind) if kind in present else "NULL"
        return f"CASE {subject} {cases} END"
    if mapped.startswith("="):
        return literal(mapped[1:])
    if mapped not in present:
        spread = source.wide and name in ("kind", "code", "time")
        if mapped and (
            name in source.columns or (name == "site" and source.split) or (name in REQUIRED and not spread)
        ):
            faults.append(f"{_name(node)}: column {mapped} missing")
        return NONE
    cell = _cell(mapped, present, source.missing)
    if name in ("patient_id", "visit_id"):
        return same_id(cell)
    return time_cell(cell, source.time_format) if name == "time" else cell


def _births(column: str, patient: str) -> str:
    """Year of birth: a year, or the year of a date, the first that a patient's rows say."""
    text = f"trim(CAST({column} AS VARCHAR))"
    year = f"coalesce(TRY_CAST({text} AS INTEGER), year(TRY_CAST({text} AS TIMESTAMP)))"
    return f"SELECT {patient} AS patient_id, min({year}) AS year FROM raw GROUP BY 1"


def _cell(column: str, present: Mapping[str, str], missing: tuple[str, ...]) -> str:
    sql = quoted(column)
    if present[column] == "VARCHAR" and missing:
        return f"CASE WHEN {sql} IN ({', '.join(map(literal, missing))}) THEN NULL ELSE {sql} END"
    return sql


def _wide(kind: str, node: Node, picked: Mapping[str, str], present: Mapping[str, str]) -> tuple[str, str]:
    """Query of one wide kind, and the query that counts its cells."""
    columns_rule = node.source.wide[kind]
    cells = ", ".join(
        f"{{'name': {literal(c)}, 'cell': CAST({_cell(c, present, node.source.missing)} AS VARCHAR)}}"
        for c in columns_rule.columns
    )
    negatives = ", ".join(map(literal, columns_rule.without)) or "NULL"
    code = "cell.name" if columns_rule.code == "column" else "cell.cell"
    system = literal(node.source.systems[kind]) if kind in node.source.systems else "CAST(NULL AS VARCHAR)"
    keep = ", ".join(f"{picked[c]} AS {c}" for c in ("patient_id", "visit_id", "time", "site"))
    sql = f"""
SELECT {literal(f"events.{kind}")} AS origin, patient_id, visit_id, time, {literal(kind)} AS kind, {code} AS code,
       {system} AS system, CAST(NULL AS VARCHAR) AS value, CAST(NULL AS VARCHAR) AS description, site,
       CASE WHEN cell.cell IS NULL THEN 'empty cell'
            WHEN cell.cell IN ({negatives}) THEN 'cell says it did not happen' END AS dropped
FROM (SELECT {keep}, unnest([{cells}]) AS cell FROM raw)"""
    return sql, f"SELECT count(*) * {len(columns_rule.columns)} FROM raw"


def _visits(node: Node, picked: Mapping[str, str], present: Mapping[str, str]) -> str | None:
    """One row a row of the file, where it has an outcome column."""
    label = node.source.label
    if not label:
        return None
    outcome = f"CAST({_cell(label, present, node.source.missing)} AS VARCHAR)"
    if node.source.positive:
        outcome = f"({outcome} IN ({', '.join(map(literal, node.source.positive))}))"
    return (
        f"SELECT {picked['patient_id']} AS patient_id, {picked['visit_id']} AS visit_id, {picked['time']} AS starts, "
        f"{picked['time']} AS ends, NULL AS died, {picked['site']} AS site, {outcome} AS {identifier(label)} FROM raw"
    )
