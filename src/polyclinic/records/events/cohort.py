"""Who, when, which visits: the restrictions of a protocol, in one order, each counted.

opt-out, cohort, age and washout, study period, observation period, visit types, look-back. An index date is the first
day of the cohort; without a definition it is the start of a patient's first visit (of the types, in the study period).
A cohort by SQL is a file at the owner's node that the owner listed, and whose digest the study names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from polyclinic.config import CohortRule, Node, Study
from polyclinic.config.source import BUILT_IN
from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.records.databases.attrition import STEPS, Attrition, Stage
from polyclinic.records.databases.engine import Connection, literal, reading
from polyclinic.records.events.atlas import atlas_rows
from polyclinic.records.sources.base import OpenedSource
from polyclinic.records.sources.pushdown import TYPES, Members, why
from polyclinic.records.sources.tables import hash_of

ICD: Final = "('icd9cm', 'icd9proc', 'icd10', 'icd10cm', 'icd10pcs')"
# Of a source without visits (event files): a visit is as long as its events.
STAYS: Final = "SELECT patient_id, visit_id, min(time) AS starts, max(time) AS ends FROM canonical WHERE dropped IS NULL GROUP BY 1, 2"
USABLE: Final = "SELECT patient_id, nth, why, CAST(1 AS BIGINT) AS n FROM restricted WHERE dropped IS NULL"
# Rows that the database left out: the fate of the patient comes first, as it does here.
LEFT_OUT: Final = (
    f" UNION ALL SELECT p.patient_id, coalesce(m.fate.nth, p.nth), coalesce(m.fate.why, {why('p.nth')}), p.n "
    "FROM pushed p LEFT JOIN member m USING (patient_id) WHERE NOT p.empty"
)


def restricts(node: Node, study: Study | None) -> bool:
    """Whether a protocol takes anything away at all."""
    return node.exclude is not None or (study is not None and any((study.cohort, study.time, study.visits)))


def opt_out(con: Connection, node: Node) -> dict[str, str]:
    """The table ``optout`` (patient_id), read anew every time; returns the digest of the list."""
    con.execute("CREATE OR REPLACE TEMP TABLE optout (patient_id VARCHAR)")
    if node.exclude is None:
        return {}
    path = node.path(node.exclude.patients)
    if not path.is_file():
        raise ConfigError(f"{path}: no such list of patients", hint="[exclude] patients: a CSV file, one column")
    with reading("[exclude] patients"):
        con.execute(
            "INSERT INTO optout SELECT DISTINCT trim(COLUMNS(*)) FROM "
            f"read_csv({literal(str(path))}, header = true, all_varchar = true, columns = {{'patient': 'VARCHAR'}}, "
            "auto_detect = false, delim = ',', quote = '\"')"
        )
    return {"opt-out sha256": hash_of(path)}


def restrict(
    con: Connection, node: Node, study: Study | None, opened: OpenedSource
) -> tuple[tuple[Stage, ...], tuple[Attrition, ...]]:
    """Mark every row of ``canonical`` that a protocol leaves out with its reason (column ``dropped``); count them.

    Makes the table ``member`` (patient_id, index_date, why).
    """
    subject = "the protocol of the study"
    _check(node, study, opened)
    with reading(subject):
        _members(con, node, study, opened)
        _mark(con, study, opened)
        fates = USABLE + (LEFT_OUT if opened.pushed else "")
        rows = con.execute(f"SELECT nth, why, sum(n) FROM ({fates}) GROUP BY ALL").fetchall()
        last_steps = con.execute(f"SELECT patient_id, max(coalesce(nth, 99)) FROM ({fates}) GROUP BY 1").fetchnumpy()
        con.execute("DROP TABLE canonical")
        con.execute(
            "CREATE TABLE canonical AS SELECT * EXCLUDE (nth, why, dropped), coalesce(dropped, why) AS dropped FROM restricted"
        )
        con.execute("DROP TABLE restricted")
    total = sum(int(r[2]) for r in rows)
    steps_taken = _asked(node, study, opened)
    last = np.asarray(last_steps.popitem()[1]) if last_steps else np.zeros(0)
    steps, attrition = [], [Attrition("in the source", len(last), total)]
    for n, name in enumerate(STEPS):
        if name not in steps_taken:
            continue
        reasons = {str(r[1]): int(r[2]) for r in rows if r[0] == n}
        steps.append(Stage(name, total, total - sum(reasons.values()), reasons))
        total -= sum(reasons.values())
        attrition.append(Attrition(name, int((last > n).sum()), total))
    if total == 0:
        raise DataError(
            "no patient is left by the protocol of the study",
            faults=[f"{a.step}: {a.patients} patients, {a.rows} rows left" for a in attrition],
            hint="see [cohort], [time], [visits] of the study and [exclude] of the node",
        )
    return tuple(steps), tuple(attrition)


def _asked(node: Node, study: Study | None, opened: OpenedSource) -> set[str]:
    out = {"opt-out"} if node.exclude is not None else set()
    if study is None:
        return out
    c, t = study.cohort, study.time
    if c is not None or (t is not None and t.relative):
        out.add("cohort")
    if c is not None:
        out |= {"age"} if c.age else set()
        out |= {"washout"} if c.washout else set()
    if t is not None:
        out |= {"study period"} if t.start or t.end else set()
        out |= {"look-back"} if t.before is not None or t.after is not None or t.bins else set()
    if (c is not None or t is not None) and opened.observed is not None:
        out.add("observation period")
    return out | ({"visit types"} if study.visits else set())


def _check(node: Node, study: Study | None, opened: OpenedSource) -> None:
    """What the source would have to know and does not: all of it at once."""
    if study is None:
        return
    c, faults = study.cohort, []
    typed = study.visits is not None or bool(c and "visits" in c.first)
    if typed and not opened.typed:
        faults.append("[visits] types: its visits have no type")
    if c is not None:
        if c.age and opened.births is None:
            faults.append("[cohort] age: it has no year of birth")
        if c.definition is not None and opened.cohort is None:
            faults.append("[cohort] definition: it has no COHORT table")
        if c.atlas is not None and node.source.kind != "omop":
            faults.append("[cohort] atlas: it is not OMOP")
    if faults:
        raise ConfigError(
            f"site {node.name!r}: source {node.source.kind!r} lacks what the study asks for",
            faults=faults,
            hint="OMOP has all of these; or drop the section"
            if node.source.kind in BUILT_IN
            else "its OpenedSource may give them: visits with a column type and typed=True, births, cohort; or drop the section",
        )


def _in_types(con: Connection, types: Sequence[str], column: str) -> str:
    """SQL: a visit's type is one of these, or a descendant of one (OMOP)."""
    names = {x for t in types for x in TYPES.get(t.strip().lower(), (t.strip().lower(),))}
    hierarchy = con.execute("SELECT count(*) FROM duckdb_views() WHERE view_name = 'concept_ancestor'").fetchone()
    if hierarchy and hierarchy[0]:
        literals = ", ".join(map(literal, sorted(names)))
        names |= {
            str(r[0])
            for r in con.execute(
                "SELECT CAST(descendant_concept_id AS VARCHAR) FROM concept_ancestor "
                f"WHERE CAST(ancestor_concept_id AS VARCHAR) IN ({literals})"
            ).fetchall()
        }
    return f"coalesce(lower(trim(CAST({column} AS VARCHAR))) IN ({', '.join(map(literal, sorted(names)))}), false)"


def _between(column: str, study: Study) -> str:
    t = study.time
    parts = [f"{column} >= DATE '{t.start}'"] if t and t.start else []
    parts += [f"{column} <= DATE '{t.end}'"] if t and t.end else []
    return " AND ".join(parts) or "true"


def _stays(con: Connection, opened: OpenedSource) -> str:
    """Query: the visits with their days; of a patient without a visit that has a day (DE-SynPUF), those of the events."""
    if opened.visits is None:
        return STAYS
    events = con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'canonical'").fetchone()
    if opened.typed or events == (0,):
        return opened.visits
    dated = (
        "SELECT CAST(patient_id AS VARCHAR) AS patient_id, CAST(visit_id AS VARCHAR) AS visit_id, TRY_CAST(starts AS TIMESTAMP) "
        f"AS starts, TRY_CAST(ends AS TIMESTAMP) AS ends FROM ({opened.visits}) WHERE TRY_CAST(starts AS DATE) IS NOT NULL"
    )
    return f"WITH dated AS ({dated}) FROM dated UNION ALL FROM ({STAYS}) ANTI JOIN dated USING (patient_id)"


def _entries(con: Connection, node: Node, study: Study, opened: OpenedSource) -> str:
    """Query: patient_id, day; the days from which on a patient could be looked at."""
    c = study.cohort
    if c is not None and c.definition is not None:
        return f"SELECT patient_id, TRY_CAST(starts AS DATE) AS day FROM ({opened.cohort}) WHERE definition = {c.definition}"
    if c is not None and c.sql is not None:
        query = owners_query(con, node, c)
        return f"SELECT CAST(subject_id AS VARCHAR) AS patient_id, TRY_CAST(cohort_start_date AS DATE) AS day FROM ({query})"
    if c is not None and c.atlas is not None:
        return atlas_rows(con, node, study.path(c.atlas))
    first = dict(c.first) if c is not None else {}
    types = first.pop("visits", study.visits.types if study.visits else ())
    type_condition = _in_types(con, types, "v.type") if types else "true"
    query = (
        "SELECT CAST(v.patient_id AS VARCHAR) AS patient_id, TRY_CAST(v.starts AS DATE) AS day, "
        f"CAST(v.visit_id AS VARCHAR) AS visit_id FROM ({_stays(con, opened)}) v WHERE {type_condition}"
    )
    for kind, codes in first.items():
        plain = [x.strip().upper().replace(".", "") for x in codes]
        begins = " OR ".join(f"starts_with(plain, {literal(x)})" for x in plain)
        literals = ", ".join(map(literal, plain))
        query = (
            f"SELECT q.* FROM ({query}) q SEMI JOIN (SELECT patient_id, visit_id FROM (SELECT *, "
            f"replace(upper(trim(code)), '.', '') AS plain FROM canonical WHERE dropped IS NULL AND kind = {literal(kind)}) "
            f"WHERE plain IN ({literals}) OR (system IN {ICD} AND ({begins}))) e USING (patient_id, visit_id)"
        )
    return query


def early_members(con: Connection, node: Node, study: Study, opened: OpenedSource) -> Members | None:
    """Who takes part and from when, before any event is there: where visits or the COHORT table decide. None: not told.

    A patient who is two rows of ``person`` is told apart only later, so nothing is decided for a table with such.
    """
    with reading("the protocol of the study"):
        repeated = con.execute("SELECT count(person_id) - count(DISTINCT person_id) FROM person").fetchone()
        if repeated is None or repeated[0]:
            return None
        persons = "SELECT DISTINCT CAST(person_id AS VARCHAR) AS patient_id FROM person WHERE person_id IS NOT NULL"
        _members(con, node, study, opened, persons)
        rows = con.execute(
            "SELECT patient_id, CAST(index_date AS VARCHAR), CAST(seen_from AS VARCHAR), CAST(seen_to AS VARCHAR) "
            "FROM member WHERE fate IS NULL AND isfinite(index_date) ORDER BY 1"
        ).fetchall()
    return Members(tuple(rows))


def _members(con: Connection, node: Node, study: Study | None, opened: OpenedSource, people: str | None = None) -> None:
    """Table ``member``: every patient (of ``people``; those with events) with the index date, and the step (nth) and reason
    (why) of who is left out."""
    relative = study is not None and (study.cohort is not None or bool(study.time and study.time.relative))
    if study is not None and relative:
        con.execute(
            "CREATE OR REPLACE TEMP TABLE entered AS SELECT patient_id, min(day) AS index_date FROM "
            f"({_entries(con, node, study, opened)}) WHERE day BETWEEN DATE '1800-01-01' AND DATE '2300-12-31' "
            f"AND {_between('day', study)} GROUP BY 1"
        )
    else:
        con.execute("CREATE OR REPLACE TEMP TABLE entered (patient_id VARCHAR, index_date DATE)")
    born = opened.births or "SELECT CAST(NULL AS VARCHAR) AS patient_id, CAST(NULL AS INTEGER) AS year WHERE false"
    spans = (
        opened.observed
        or "SELECT CAST(NULL AS VARCHAR) AS patient_id, CAST(NULL AS DATE) AS starts, CAST(NULL AS DATE) AS ends WHERE false"
    )
    con.execute(
        "CREATE OR REPLACE TEMP TABLE spans AS SELECT CAST(patient_id AS VARCHAR) AS patient_id, TRY_CAST(starts AS DATE) AS "
        f"starts, TRY_CAST(ends AS DATE) AS ends FROM ({spans})"
    )
    c = study.cohort if study is not None else None
    cases = ["WHEN o.patient_id IS NOT NULL THEN {'nth': 0, 'why': 'opted out'}"]
    if relative:
        cases.append("WHEN e.index_date IS NULL THEN {'nth': 1, 'why': 'not in the cohort'}")
    if c is not None and c.age:
        old = "year(e.index_date) - b.year"
        cases.append(f"WHEN {old} IS NULL THEN {{'nth': 2, 'why': 'age is not known'}}")
        cases.append(
            f"WHEN {old} NOT BETWEEN {c.age[0]} AND {c.age[1]} THEN {{'nth': 2, 'why': 'not of the age at the index date'}}"
        )
    # Where nobody wrote down since when a patient is observed, it is since the first visit.
    since = "s.starts" if opened.observed is not None else "f.day"
    first = "SELECT CAST(NULL AS VARCHAR) AS patient_id, CAST(NULL AS DATE) AS day WHERE false"
    if opened.observed is None and c is not None and c.washout:
        first = (
            "SELECT CAST(patient_id AS VARCHAR) AS patient_id, min(TRY_CAST(starts AS DATE)) AS day FROM "
            f"({_stays(con, opened)}) GROUP BY 1"
        )
    if c is not None and c.washout:
        cases.append(
            f"WHEN e.index_date - {since} < {c.washout} OR {since} IS NULL "
            "THEN {'nth': 3, 'why': 'observed too shortly before the index date'}"
        )
    pushed_patients = " UNION SELECT patient_id FROM pushed WHERE NOT empty" if opened.pushed else ""
    people = people or f"SELECT DISTINCT patient_id FROM canonical WHERE dropped IS NULL{pushed_patients}"
    con.execute(
        "CREATE OR REPLACE TEMP TABLE member AS SELECT p.patient_id, e.index_date, s.starts AS seen_from, s.ends AS seen_to, "
        f"CASE {' '.join(cases)} END AS fate FROM ({people}) p "
        "LEFT JOIN optout o USING (patient_id) LEFT JOIN entered e USING (patient_id) LEFT JOIN "
        f"(SELECT CAST(patient_id AS VARCHAR) AS patient_id, any_value(TRY_CAST(year AS INTEGER)) AS year FROM ({born}) "
        "GROUP BY 1) b USING (patient_id) LEFT JOIN (SELECT n.patient_id, min(n.starts) AS starts, max(n.ends) AS ends "
        "FROM spans n JOIN entered e USING (patient_id) WHERE e.index_date BETWEEN n.starts AND n.ends GROUP BY 1) s "
        f"USING (patient_id) LEFT JOIN ({first}) f USING (patient_id)"
    )


def _mark(con: Connection, study: Study | None, opened: OpenedSource) -> None:
    """Table ``restricted``: ``canonical`` with the step (nth) and reason (why) that takes a row out."""
    t = study.time if study is not None else None
    day = "CAST(c.time AS DATE)"
    cases = ["WHEN m.fate IS NOT NULL THEN m.fate"]
    joins = ""
    relative = study is not None and (study.cohort is not None or bool(t and t.relative))
    if study is not None and t is not None and (t.start or t.end):
        cases.append(f"WHEN {day} IS NULL THEN {{'nth': 4, 'why': 'no time'}}")
        cases.append(f"WHEN NOT ({_between(day, study)}) THEN {{'nth': 4, 'why': 'outside the study period'}}")
    if study is not None and (study.cohort is not None or t is not None) and opened.observed is not None:
        in_period = (
            f"{day} BETWEEN m.seen_from AND m.seen_to"
            if relative
            else f"EXISTS (SELECT 1 FROM spans n WHERE n.patient_id = c.patient_id AND {day} BETWEEN n.starts AND n.ends)"
        )
        cases.append(
            f"WHEN NOT coalesce({in_period}, false) THEN {{'nth': 5, 'why': 'outside the observation period'}}"
        )
    if study is not None and study.visits is not None:
        joins += (
            f" LEFT JOIN (SELECT DISTINCT CAST(patient_id AS VARCHAR) AS patient_id, CAST(visit_id AS VARCHAR) AS visit_id FROM "
            f"({opened.visits}) v WHERE {_in_types(con, study.visits.types, 'v.type')}) k "
            "ON k.patient_id = c.patient_id AND k.visit_id = c.visit_id"
        )
        cases.append("WHEN k.visit_id IS NULL THEN {'nth': 6, 'why': 'not of a visit of these types'}")
    if t is not None and (t.before is not None or t.after is not None or t.bins):
        since = f"({day} - m.index_date)"
        low, high = t.window
        ends = [f"{since} >= {low}"] if low is not None else []
        ends += [f"{since} <= {high}"] if high is not None else []
        cases.append(
            f"WHEN NOT coalesce({' AND '.join(ends)}, false) THEN {{'nth': 7, 'why': 'outside the look-back'}}"
        )
    con.execute(
        f"CREATE OR REPLACE TABLE restricted AS SELECT * EXCLUDE (fate), fate.nth AS nth, fate.why AS why FROM (SELECT c.*, "
        f"CASE WHEN c.dropped IS NOT NULL THEN NULL {' '.join(cases)} END AS fate FROM canonical c LEFT JOIN member m "
        f"ON m.patient_id = c.patient_id{joins})"
    )


COLUMNS = ("subject_id", "cohort_start_date", "cohort_end_date")


def owners_query(con: Connection, node: Node, rule: CohortRule) -> str:
    """The query of the owner's file, as a subquery of three columns.

    It is one SELECT over the source's own tables: nothing else is read, nothing is written.
    """
    paths = [str(x) for x in node.policy.get("cohorts", ())]
    file = next(
        (p for p in map(node.path, paths) if p.is_file() and hash_of(p) == rule.sha256),
        None,
    )
    if file is None:
        raise PolicyRefusal(
            f"site {node.name!r}: the study's cohort {rule.sql!r} is not one that this site runs",
            faults=[f"no file of [policy] cohorts has the digest {str(rule.sha256)[:16]}..."],
            hint="the owner reads the SQL, puts it at the node and lists it: [policy] cohorts = ['hf.sql']",
        )
    text = file.read_text(encoding="utf-8").strip().rstrip(";")
    tree = _parsed(con, text, file.name)
    names: set[str] = set()
    faults: list[str] = []
    _walk(tree, names, faults, set())
    views = {
        str(r[0]).lower() for r in con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    }
    faults += [f"table {n!r} is not one of this source" for n in sorted(names) if n not in views]
    if faults:
        raise DataError(f"{file.name}: not a query over the source's tables", faults=faults)
    columns = [str(r[0]).lower() for r in con.execute(f"DESCRIBE {text}").fetchall()]
    if sorted(columns) != sorted(COLUMNS):
        raise DataError(
            f"{file.name}: its columns are {', '.join(columns)}", hint=f"SELECT {', '.join(COLUMNS)} FROM ..."
        )
    return text


def _parsed(con: Connection, text: str, name: str) -> object:
    row = con.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    if tree.get("error") or len(tree.get("statements", ())) != 1:
        raise DataError(
            f"{name}: not one SELECT statement", faults=[str(tree.get("error_message", ""))[:200]], hint="one SELECT"
        )
    return tree["statements"][0]


def _walk(node: object, tables: set[str], faults: list[str], known: set[str]) -> None:
    """Names of all tables that are read; functions that read files are faults."""
    if isinstance(node, dict):
        inner = known | {
            str(e["key"]).lower() for e in (node.get("cte_map") or {}).get("map", ()) if isinstance(e, dict)
        }
        if node.get("type") == "TABLE_FUNCTION":
            faults.append("reads something else than a table (a table function)")
        if node.get("type") == "BASE_TABLE" and str(node.get("table_name", "")).lower() not in inner:
            tables.add(str(node.get("table_name", "")).lower())
        if node.get("type") == "BASE_TABLE" and (node.get("schema_name") or node.get("catalog_name")):
            faults.append(f"names a schema: {node.get('schema_name') or node.get('catalog_name')}")
        for value in node.values():
            _walk(value, tables, faults, inner)
    elif isinstance(node, list):
        for value in node:
            _walk(value, tables, faults, known)
