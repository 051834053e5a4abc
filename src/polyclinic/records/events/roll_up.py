"""Roll-up of OMOP standard concepts by the site's own vocabulary tables: ingredients, ATC levels, listed ancestors, ICD groups."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.engine import Connection, literal, reading
from polyclinic.records.events.codes import Code, Group, group_of_icd

TO: Final = re.compile(r"ingredient|atc:([1-5])|ancestors:(.+)")
LEVELS: Final = ("ATC 1st", "ATC 2nd", "ATC 3rd", "ATC 4th", "ATC 5th")
BY_ICD: Final = ("rubric", "icd9", "icd10", "ccs", "ccsr", "chapter", "block")
SYSTEMS: Final = {"ICD10CM": "icd10cm", "ICD9CM": "icd9cm", "ICD10": "icd10"}


def is_roll_up(to: str, code: Code) -> bool:
    """Whether a rule needs the vocabulary tables of the site for this code. Other codes do not decide it."""
    return TO.fullmatch(to) is not None or (to in BY_ICD and code.system == "omop")


def roll_up(con: Connection, codes: Sequence[Code], to: str, folder: Path) -> list[list[Group]]:
    """Return the groups of every standard concept: none, one, or several (a drug of two ingredients, nested ancestors)."""
    con.execute("CREATE OR REPLACE TEMP TABLE rolled (code VARCHAR)")
    con.executemany("INSERT INTO rolled VALUES (?)", [[c.code] for c in codes])
    with reading("the vocabulary tables"):
        groups = _by_icd(con, to) if to in BY_ICD else _by_ancestors(con, to, folder)
    con.execute("DROP TABLE rolled")
    return [groups.get(c.code, []) for c in codes]


def _by_ancestors(con: Connection, to: str, folder: Path) -> dict[str, list[Group]]:
    _need(con, to, "concept_ancestor")
    match = TO.fullmatch(to)
    if match and match[1]:
        label, condition = (
            "a.concept_code",
            f"a.vocabulary_id = 'ATC' AND a.concept_class_id = {literal(LEVELS[int(match[1]) - 1])}",
        )
    elif match and match[2]:
        label, condition = (
            "CAST(a.concept_id AS VARCHAR)",
            f"CAST(a.concept_id AS VARCHAR) IN ({_listed(folder / match[2])})",
        )
    else:
        label = "CAST(a.concept_id AS VARCHAR)"
        condition = "a.vocabulary_id IN ('RxNorm', 'RxNorm Extension') AND a.concept_class_id = 'Ingredient'"
    rows = con.execute(
        f"SELECT DISTINCT r.code, {label}, a.concept_name FROM rolled r "
        "JOIN concept_ancestor n ON CAST(n.descendant_concept_id AS VARCHAR) = r.code "
        f"JOIN concept a ON CAST(a.concept_id AS VARCHAR) = CAST(n.ancestor_concept_id AS VARCHAR) WHERE {condition} ORDER BY 1, 2"
    ).fetchall()
    groups = defaultdict(list)
    for code, target, name in rows:
        groups[code].append(Group(target, name or target))
    return groups


def _by_icd(con: Connection, to: str) -> dict[str, list[Group]]:
    """The group that more than half of the ICD codes have that map to a concept."""
    _need(con, to, "concept_relationship")
    rows = con.execute(
        "SELECT DISTINCT r.code, i.vocabulary_id, i.concept_code FROM rolled r "
        "JOIN concept_relationship m ON CAST(m.concept_id_2 AS VARCHAR) = r.code AND m.relationship_id = 'Maps to' "
        "JOIN concept i ON CAST(i.concept_id AS VARCHAR) = CAST(m.concept_id_1 AS VARCHAR) "
        f"WHERE i.vocabulary_id IN ({', '.join(map(literal, SYSTEMS))}) ORDER BY ALL"
    ).fetchall()
    targets = defaultdict(list)
    for code, vocabulary, icd in rows:
        targets[code].append(group_of_icd(icd, SYSTEMS[vocabulary], to))
    out = {}
    for code, several in targets.items():
        best, n = (
            Counter(g for g in several if g.label is not None).most_common(1)[0]
            if any(g.label for g in several)
            else (None, 0)
        )
        out[code] = [best] if best is not None and 2 * n > len(several) else []
    return out


def _need(con: Connection, to: str, table: str) -> None:
    present = con.execute(f"SELECT count(*) FROM duckdb_views() WHERE view_name = '{table}'").fetchone()
    rows = con.execute(f"SELECT count(*) FROM (FROM {table} LIMIT 1)").fetchone() if present != (0,) else None
    if not rows or not rows[0]:
        raise DataError(
            f"[codes] to = {to!r}: the source has no rows in table {table}",
            hint="it is one of the OMOP vocabulary tables: export it with the others, or write codes as they are: to = 'as-is'",
        )


def _listed(path: Path) -> str:
    """The concepts of a list, as SQL literals."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such list of ancestors", hint="a CSV file with the column concept_id, next to the study"
        )
    with open(path, newline="", encoding="utf-8-sig") as f:
        ids = [(r.get("concept_id") or "").strip() for r in csv.DictReader(f)]
    if not any(ids):
        raise DataError(f"{path}: no column concept_id", hint="one concept a line under the header concept_id")
    return ", ".join(literal(x) for x in ids if x)
