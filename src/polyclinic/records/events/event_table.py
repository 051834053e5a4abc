"""The canonical event table: patient, visit, time, kind, code; written once, read by everything after it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from polyclinic.config import Node, Study
from polyclinic.config.source import BUILT_IN
from polyclinic.errors import DataError
from polyclinic.records.attrition import Attrition, Stage
from polyclinic.records.engine import Connection, literal, reading
from polyclinic.records.events.cohort import early_members, opt_out, restrict, restricts
from polyclinic.records.sources.base import COLUMNS, SYSTEMS, OpenedSource, open_source, source_of
from polyclinic.records.sources.pushdown import Members, pushed_down

__all__ = ["EventTable", "read_events"]

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


def read_events(con: Connection, node: Node, path: Path, study: Study | None = None) -> tuple[EventTable, OpenedSource]:
    """Read a node's source into the event file ``path``; every row is used or dropped for a named reason.

    A study's protocol ([cohort], [time], [visits]) and the owner's [exclude] take out what is not asked for, or not allowed.
    """
    digests = opt_out(con, node)
    push = pushed_down(con, node, study, _early(con, node, study))
    opened = open_source(con, node, study.labels.outcome if study and study.labels else None, push)
    limited = restricts(node, study)
    if node.exclude is not None:  # labels and visits of who opted out are not looked at either
        opened = replace(
            opened,
            visits=opened.visits and WITHOUT.format(opened.visits),
            labels=opened.labels and WITHOUT.format(opened.labels),
        )
    what = source_of(node)
    with reading(f"{what}, its events"):
        columns = {str(d[0]): str(d[1]) for d in con.execute(f"DESCRIBE {opened.events}").fetchall()}
        if lacking := [c for c in ("origin", *COLUMNS, "dropped") if c not in columns]:
            raise DataError(
                f"{what}: its events lack {', '.join(lacking)}",
                hint=f"the query of events has the columns origin, {', '.join(COLUMNS)}, dropped; docs/howto/new-source.md",
            )
        timed = columns["time"].startswith(("TIMESTAMP", "DATE"))
        text = "regexp_replace(CAST(c.time AS VARCHAR), '(Z|[+-][0-9]{2}:?[0-9]{2})$', '')"
        time = "TRY_CAST(c.time AS TIMESTAMP)" if timed else f"TRY_CAST({text} AS TIMESTAMP)"
        possible = f"coalesce(isfinite({time}) AND year({time}) BETWEEN 1800 AND 2300, true)"
        life, joins = _lives(con, opened)
        query = CANONICAL.format(
            time=time, possible=possible, life=life.format(time=time), joins=joins, query=opened.events, value=VALUE
        )
        # Parquet can be scanned again at little cost; anything else is parsed once and kept in the scratch file.
        con.execute(f"CREATE OR REPLACE {'VIEW' if opened.cheap and not limited else 'TABLE'} canonical AS {query}")
        counted = con.execute(COUNTED).fetchall()
        there = {}
        for origin, sql in opened.rows.items():
            with reading(f"{what}, its rows of {origin!r}"):
                there[origin] = _one(con, sql)
        # What the database left out passed this step, unless it had no code.
        gone = dict.fromkeys(opened.rows, 0)
        if opened.pushed:
            nothing = NO_CONCEPT if push is not None and push.standard else "no code"
            for origin, empty, n in con.execute("SELECT origin, empty, sum(n) FROM pushed GROUP BY ALL").fetchall():
                there[origin] += int(n)
                gone[origin] += 0 if empty else int(n)
                if empty:
                    counted.append((origin, nothing, int(n), 0, 0, 0, None))
    if strangers := sorted({str(r[0]) for r in counted} - set(opened.rows)):
        raise DataError(
            f"{what}: origin {', '.join(map(repr, strangers))} of its events is not in rows",
            hint=f"rows counts every origin under its own name; there are: {', '.join(opened.rows)}",
        )
    for origin in opened.rows if node.source.kind not in BUILT_IN else ():
        given = sum(r[2] for r in counted if r[0] == origin)
        if given != there[origin]:
            raise DataError(
                f"{what}: its events have {given} rows of {origin!r}, its rows count {there[origin]}",
                hint="events gives every row once, with its reason in dropped where it is not used, and rows counts the same "
                "rows in another way: a row is missing in one of them, or joined with several others",
            )
    steps = tuple(
        Stage(
            f"read {origin}",
            there[origin],
            sum(r[2] for r in counted if r[0] == origin and r[1] is None) + gone[origin],
            _summed((r[1], r[2]) for r in counted if r[0] == origin and r[1] is not None),
        )
        for origin in opened.rows
    )
    rows = sum(s.rows_out for s in steps)
    faults = _faults({r[6] for r in counted if r[1] is None}, rows, steps)
    if faults:
        raise DataError(
            f"{what}: not usable",
            faults=faults,
            hint="correct the source; texts that mean 'no value' go in missing = [...]",
        )
    more: tuple[Stage, ...] = ()
    attrition: tuple[Attrition, ...] = ()
    if limited:
        more, attrition = restrict(con, node, study, opened)
        rows = attrition[-1].rows
        counted = con.execute(COUNTED).fetchall()
    used = [r for r in counted if r[1] is None]
    notes = {
        "events without time": sum(r[4] for r in used),
        "events without visit": sum(r[5] for r in used),
        **({"amounts are no numbers: the codes are kept": odd} if (odd := sum(r[3] for r in used)) else {}),
        **opened.repeated,
    }
    with reading(what):
        con.execute(
            f"COPY (SELECT {', '.join(COLUMNS)} FROM (SELECT * {CLEAN if odd else ''} FROM canonical) WHERE dropped IS NULL) "
            f"TO {literal(str(path))} (FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE 40960)"
        )
        if limited or not opened.cheap:
            con.execute("DROP TABLE canonical")
    return EventTable(path, (*steps, *more), {**opened.inputs, **digests}, rows, notes, attrition), opened


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


def _faults(systems: set[str | None], rows: int, steps: tuple[Stage, ...]) -> list[str]:
    faults = []
    unknown = sorted(s for s in systems if s is not None and s not in SYSTEMS)
    if unknown:
        faults.append(f"unknown code system {', '.join(map(repr, unknown))}; known: {', '.join(sorted(SYSTEMS))}")
    if rows == 0:
        reasons = "; ".join(f"{s.name}: {s.rows_in} rows" + _why(s) for s in steps)
        faults.append(f"no usable event at all ({reasons})")
    return faults


def _summed(reasons: Iterable[tuple[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for reason, n in reasons:
        out[reason] = out.get(reason, 0) + n
    return out


def _why(step: Stage) -> str:
    return "".join(f", {n} {reason}" for reason, n in step.dropped.items())


def _one(con: Connection, sql: str) -> int:
    row = con.execute(sql).fetchone()
    return int(row[0]) if row else 0
