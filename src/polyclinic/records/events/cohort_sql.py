"""A cohort by SQL: only a file that lies at the owner's node, that the owner listed, and whose digest the study names."""

from __future__ import annotations

import json
from typing import Any

from polyclinic.config import CohortRule, Node
from polyclinic.errors import DataError, PolicyRefusal
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sources.tables import hash_of

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
