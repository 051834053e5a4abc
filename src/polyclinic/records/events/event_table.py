"""The canonical event table: patient, visit, time, kind, code; written once, read by everything after it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from polyclinic.config import Node, Study
from polyclinic.config.source import BUILT_IN
from polyclinic.errors import DataError
from polyclinic.records.databases.attrition import Attrition, Stage
from polyclinic.records.databases.engine import Connection, literal, note_skipped, reading
from polyclinic.records.events.cohort import early_members, opt_out, restrict, restricts
from polyclinic.records.sources.base import COLUMNS, SYSTEMS, OpenedSource, open_source, source_of
from polyclinic.records.sources.pushdown import Members, Push, pushed_down
from polyclinic.records.sources.tables import hash_of

# Times are the hospital's own clock: an offset such as +01:00 is cut off, so that "the same day" means the local day.
# A date before 1800 or after 2300 is a fault of the keyboard; MIMIC moves its dates to the years 2100 to 2210.
CANONICAL: Final = """
SELECT origin,
       CAST(c.patient_id AS VARCHAR) AS patient_id, CAST(visit_id AS VARCHAR) AS visit_id,
       CASE WHEN {possible} THEN {time} END AS time,
       CAST(kind AS VARCHAR) AS kind, CAST(code AS VARCHAR) AS code, CAST(system AS VARCHAR) AS system,
       {value} AS value, CAST(description AS VARCHAR) AS description, CAST(site AS VARCHAR) AS site,
       CASE WHEN dropped IS NOT NULL THEN CAST(dropped AS VARCHAR)
            WHEN c.patient_id IS NULL OR trim(CAST(c.patient_id AS VARCHAR)) = '' THEN 'no patient'
            WHEN code IS NULL OR trim(CAST(code AS VARCHAR)) = '' THEN 'no code'
            WHEN kind IS NULL THEN 'no kind'
            {systems}
            WHEN c.time IS NOT NULL AND {time} IS NULL THEN 'time is not a date'
            WHEN NOT {possible} THEN 'impossible date'
            WHEN kind IN ('lab', 'abnormal_lab') AND value IS NOT NULL AND TRY_CAST(value AS DOUBLE) IS NULL THEN 'value is not a number'
            WHEN kind IN ('lab', 'abnormal_lab') AND NOT isfinite(TRY_CAST(value AS DOUBLE)) THEN 'value is not finite'
            {life} END AS dropped
FROM ({query}) c{joins}
"""
# A result without a number says nothing; the code of a drug stays, whatever is written as its amount (NaN, until counted).
VALUE: Final = """CASE WHEN value IS NULL OR kind IN ('lab', 'abnormal_lab') OR isfinite(TRY_CAST(value AS DOUBLE)) THEN TRY_CAST(value AS DOUBLE)
            ELSE CAST('nan' AS DOUBLE) END"""
CLEAN: Final = "REPLACE (CASE WHEN isnan(value) THEN NULL ELSE value END AS value)"
LIFE: Final = """WHEN year({time}) < l.born THEN 'before the birth of the patient'
            WHEN CAST({time} AS DATE) > l.died + 60 THEN 'more than 60 days after the death of the patient'"""
# A formal study leaves out the row; any other refuses the source, because the spelling of a whole column is wrong.
UNKNOWN_SYSTEM: Final = f"WHEN system NOT IN ({', '.join(map(literal, sorted(SYSTEMS)))}) THEN 'unknown code system'"
NOT_NUMBERS: Final = "amounts are no numbers: the codes are kept"
NO_CONCEPT: Final = "concept_id 0: no standard concept"  # as in sql/omop.sql
COUNTED: Final = (
    "SELECT origin, dropped, count(*), count(*) FILTER (isnan(value)), count(*) FILTER (time IS NULL), "
    "count(*) FILTER (visit_id IS NULL), system "
    "FROM canonical GROUP BY ALL"
)
WITHOUT: Final = "SELECT * FROM ({}) WHERE CAST(patient_id AS VARCHAR) NOT IN (SELECT patient_id FROM optout WHERE patient_id IS NOT NULL)"


@dataclass(frozen=True)
class EventTable:
    """Events of one site, in a Parquet file that stays there.

    Parameters
    ----------
    path
        The file, with the columns of ``COLUMNS``.
    steps
        Row accounting of the reading, one step a source table.
    inputs
        What was read.
    rows
        Events in the file.
    notes
        Kind of remark -> number: events without time, without visit.
    attrition
        Patients and rows in the source, and left after each step of the protocol; empty where there is none.
    """

    path: Path
    steps: tuple[Stage, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)
    attrition: tuple[Attrition, ...] = ()

    def scan(self) -> str:
        """The table as a relation of the engine."""
        return f"read_parquet({literal(str(self.path))})"


class Tally(NamedTuple):
    """Canonical rows of one origin, reason to be dropped and code system."""

    origin: str
    dropped: str | None
    rows: int
    not_numbers: int = 0
    without_time: int = 0
    without_visit: int = 0
    system: str | None = None


def read_events(con: Connection, node: Node, path: Path, study: Study | None = None) -> tuple[EventTable, OpenedSource]:
    """Read a node's source into the event file ``path``. Every row is used or dropped for a named reason.

    A study's protocol ([cohort], [time], [visits]) and the owner's [exclude] take out what is not asked for, or not allowed.
    """
    digests = opt_out(con, node)
    if study is not None and study.cohort is not None and study.cohort.atlas is not None:
        digests["atlas sha256"] = hash_of(study.path(study.cohort.atlas))
    push = pushed_down(con, node, study, _early(con, node, study))
    opened = _opened(con, node, study, push)
    restricted = restricts(node, study)
    # Parquet can be scanned again at little cost. Anything else is parsed once and stays in the scratch file.
    stored = restricted or not opened.cheap
    source = source_of(node)
    with reading(f"{source}, its events"):
        con.execute(f"CREATE OR REPLACE {'TABLE' if stored else 'VIEW'} canonical AS {_canonical(con, opened, node)}")
    steps, tallies = _account(con, node, opened, push)
    rows = sum(s.rows_out for s in steps)
    attrition: tuple[Attrition, ...] = ()
    if restricted:
        protocol_steps, attrition = restrict(con, node, study, opened)
        steps, rows, tallies = (*steps, *protocol_steps), attrition[-1].rows, _tallies(con)
    notes = _notes(tallies)
    with reading(source):
        con.execute(
            f"COPY (SELECT {', '.join(COLUMNS)} FROM (SELECT * {CLEAN if NOT_NUMBERS in notes else ''} FROM canonical) "
            f"WHERE dropped IS NULL) TO {literal(str(path))} (FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE 40960)"
        )
        if stored:
            con.execute("DROP TABLE canonical")
    notes |= opened.repeated
    return EventTable(path, steps, {**opened.inputs, **digests}, rows, notes, attrition), opened


def _opened(con: Connection, node: Node, study: Study | None, push: Push | None) -> OpenedSource:
    """Open the source. Labels and visits of patients who opted out are not looked at either."""
    opened = open_source(con, node, study.labels.outcome if study and study.labels else None, push)
    if node.exclude is None:
        return opened
    visits, labels = (query and WITHOUT.format(query) for query in (opened.visits, opened.labels))
    return replace(opened, visits=visits, labels=labels)


def _account(
    con: Connection, node: Node, opened: OpenedSource, push: Push | None
) -> tuple[tuple[Stage, ...], list[Tally]]:
    """Account for every row of the source, and refuse a source that has none to use."""
    source = source_of(node)
    with reading(f"{source}, its events"):
        tallies = _tallies(con)
        # In eICU a stay that two patients claim is a row of each: a formal study cannot count rows in a second way.
        totals = dict(_rows_of(tallies, opened)) if node.skip_faulty else _totals(con, opened, source)
        pushed = _add_pushed(con, opened, push, tallies, totals)
    _check_origins(source, node.source.kind in BUILT_IN, tallies, totals)
    steps = _steps(tallies, totals, pushed)
    if node.skip_faulty:
        for reason, n in ((f"{s.name}: {reason}", n) for s in steps for reason, n in s.dropped.items()):
            note_skipped(con, reason, n)
    rows = sum(s.rows_out for s in steps)
    faults = _faults({t.system for t in tallies if t.dropped is None}, rows, steps, _a_time(con, opened, rows))
    if faults:
        raise DataError(
            f"{source}: not usable",
            faults=faults,
            hint="correct the source; [source] time_format = '%d.%m.%Y' says how times are written; texts that mean 'no value' go "
            "in missing = [...]",
        )
    return steps, tallies


def _notes(tallies: Sequence[Tally]) -> dict[str, int]:
    """Count what is remarkable in the rows that are used."""
    usable = [t for t in tallies if t.dropped is None]
    notes = {
        "events without time": sum(t.without_time for t in usable),
        "events without visit": sum(t.without_visit for t in usable),
    }
    not_numbers = sum(t.not_numbers for t in usable)
    return notes | ({NOT_NUMBERS: not_numbers} if not_numbers else {})


def _canonical(con: Connection, opened: OpenedSource, node: Node) -> str:
    """Return the query of the events in canonical columns, each with its reason to be dropped."""
    columns = {str(d[0]): str(d[1]) for d in con.execute(f"DESCRIBE {opened.events}").fetchall()}
    if missing := [c for c in ("origin", *COLUMNS, "dropped") if c not in columns]:
        raise DataError(
            f"{source_of(node)}: its events lack {', '.join(missing)}",
            hint=f"the query of events has the columns origin, {', '.join(COLUMNS)}, dropped; docs/howto/new-source.md",
        )
    text = "regexp_replace(CAST(c.time AS VARCHAR), '(Z|[+-][0-9]{2}:?[0-9]{2})$', '')"
    cell = "c.time" if columns["time"].startswith(("TIMESTAMP", "DATE")) else text
    time = f"TRY_CAST({cell} AS TIMESTAMP)"
    possible = f"coalesce(isfinite({time}) AND year({time}) BETWEEN 1800 AND 2300, true)"
    life, joins = _lives(con, opened)
    return CANONICAL.format(
        time=time,
        possible=possible,
        life=life.format(time=time),
        joins=joins,
        query=opened.events,
        value=VALUE,
        systems=UNKNOWN_SYSTEM if node.skip_faulty else "",
    )


def _tallies(con: Connection) -> list[Tally]:
    return [Tally(*row) for row in con.execute(COUNTED).fetchall()]


def _a_time(con: Connection, opened: OpenedSource, rows: int) -> str | None:
    """Return one time as the source writes it, where no row can be used."""
    row = (
        None
        if rows
        else con.execute(
            f"SELECT CAST(time AS VARCHAR) FROM ({opened.events}) WHERE time IS NOT NULL LIMIT 1"
        ).fetchone()
    )
    return str(row[0])[:30] if row else None


def _rows_of(tallies: Sequence[Tally], opened: OpenedSource) -> Mapping[str, int]:
    return {origin: sum(t.rows for t in tallies if t.origin == origin) for origin in opened.rows}


def _totals(con: Connection, opened: OpenedSource, source: str) -> dict[str, int]:
    """Count the rows of every origin, independently of the events."""
    totals = {}
    for origin, sql in opened.rows.items():
        with reading(f"{source}, its rows of {origin!r}"):
            row = con.execute(sql).fetchone()
            totals[origin] = int(row[0]) if row else 0
    return totals


def _add_pushed(
    con: Connection, opened: OpenedSource, push: Push | None, tallies: list[Tally], totals: dict[str, int]
) -> dict[str, int]:
    """Add the rows that the database left out. They count as read, unless they had no code."""
    pushed = dict.fromkeys(opened.rows, 0)
    if opened.pushed:
        reason = NO_CONCEPT if push is not None and push.standard else "no code"
        for origin, empty, n in con.execute("SELECT origin, empty, sum(n) FROM pushed GROUP BY ALL").fetchall():
            totals[origin] += int(n)
            if empty:
                tallies.append(Tally(origin, reason, int(n)))
            else:
                pushed[origin] += int(n)
    return pushed


def _check_origins(source: str, built_in: bool, tallies: Sequence[Tally], totals: Mapping[str, int]) -> None:
    """Refuse events of an unknown origin and, of another package's source, rows that do not add up."""
    if strangers := sorted({str(t.origin) for t in tallies} - set(totals)):
        raise DataError(
            f"{source}: origin {', '.join(map(repr, strangers))} of its events is not in rows",
            hint=f"rows counts every origin under its own name; there are: {', '.join(totals)}",
        )
    for origin, total in totals.items():
        events = sum(t.rows for t in tallies if t.origin == origin)
        if not built_in and events != total:
            raise DataError(
                f"{source}: its events have {events} rows of {origin!r}, its rows count {total}",
                hint="events gives every row once, with its reason in dropped where it is not used, and rows counts the same "
                "rows in another way: a row is missing in one of them, or joined with several others",
            )


def _steps(tallies: Sequence[Tally], totals: Mapping[str, int], pushed: Mapping[str, int]) -> tuple[Stage, ...]:
    """Account for the rows of every origin."""
    rows_used = dict(pushed)
    dropped: dict[str, dict[str, int]] = {origin: {} for origin in totals}
    for t in tallies:
        if t.dropped is None:
            rows_used[t.origin] += t.rows
        else:
            dropped[t.origin][t.dropped] = dropped[t.origin].get(t.dropped, 0) + t.rows
    return tuple(Stage(f"read {origin}", n, rows_used[origin], dropped[origin]) for origin, n in totals.items())


def _early(con: Connection, node: Node, study: Study | None) -> Callable[[Container[str]], Members | None] | None:
    """How a database of OMOP tables is told who takes part, once its small tables are here."""
    if study is None or node.source.kind != "omop" or node.source.url is None:
        return None
    from polyclinic.records.sources.omop import told

    return lambda there: early_members(con, node, study, told(there))


def _lives(con: Connection, opened: OpenedSource) -> tuple[str, str]:
    """The table ``life`` (patient_id, born, died) and how it is joined, where the source knows lives."""
    if opened.births is None or opened.deaths is None:
        return "", ""
    con.execute(
        "CREATE OR REPLACE TEMP TABLE life AS SELECT patient_id, max(born) AS born, max(died) AS died FROM ("
        f"SELECT CAST(patient_id AS VARCHAR) AS patient_id, TRY_CAST(year AS INTEGER) AS born, CAST(NULL AS DATE) AS died FROM "
        f"({opened.births}) UNION ALL SELECT CAST(patient_id AS VARCHAR), NULL, TRY_CAST(day AS DATE) FROM ({opened.deaths})) "
        "GROUP BY 1"
    )
    return LIFE, " LEFT JOIN life l ON l.patient_id = CAST(c.patient_id AS VARCHAR)"


def _faults(systems: set[str | None], rows: int, steps: tuple[Stage, ...], sample: str | None) -> list[str]:
    faults = []
    unknown = sorted(s for s in systems if s is not None and s not in SYSTEMS)
    if unknown:
        faults.append(f"unknown code system {', '.join(map(repr, unknown))}; known: {', '.join(sorted(SYSTEMS))}")
    if rows == 0:
        undated = sum(s.dropped.get("time is not a date", 0) for s in steps)
        faults += [f"times are not dates: {sample!r}"] if sample and undated else []
        reasons = "; ".join(f"{s.name}: {s.rows_in} rows" + _why(s) for s in steps)
        faults.append(f"no usable event at all ({reasons})")
    return faults


def _why(step: Stage) -> str:
    return "".join(f", {n} {reason}" for reason, n in step.dropped.items())
