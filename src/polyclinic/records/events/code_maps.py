"""Map files that a study brings: a code and its group, accepted pairs of codes, or a catalogue as its authors write it."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from polyclinic.errors import DataError

CodeMap = dict[tuple[int | None, str], tuple[str, str]]  # ICD version (None: not said) and code -> group and its name
Answer = Literal["yes", "no", ""]


@dataclass(frozen=True)
class CodePair:
    """A local code, the common code that it may stand for, the next best, and what the owner of the local codes answers.

    Attributes
    ----------
    patients
        Patients with the local code. Empty where too few, or where the table is noisy.
    chance
        Share of codes without a counterpart, or of pairs from permuted tables, with at least this score: the larger one.
    """

    mode: str
    local: str
    code: str
    local_name: str = ""
    name: str = ""
    patients: str = ""
    score: float = 0.0
    runner_up: str = ""
    runner_up_score: float = 0.0
    chance: float = 1.0
    accept: Annotated[Answer, BeforeValidator(lambda x: x.strip().lower() if isinstance(x, str) else x)] = ""


COLUMNS: Final = tuple(f.name for f in fields(CodePair))
PAIRS: Final = TypeAdapter(list[CodePair])


def read_pairs(path: str | Path) -> list[CodePair]:
    """Read the sheet of ``polyclinic align`` with the owner's answers."""
    try:
        return PAIRS.validate_python(_rows(path))
    except ValidationError as e:
        faults = [
            f"line {int(f['loc'][0]) + 2}: {f['loc'][1]}: {f['msg']} (got {f['input']!r})" for f in e.errors()[:5]
        ]
        hint = f"first line: {','.join(COLUMNS)}. Column accept: yes, no or empty"
        raise DataError(f"{path}: not a sheet of pairs of codes", faults=faults, hint=hint) from None


def is_sheet(path: Path) -> bool:
    """Whether a file is a sheet of pairs rather than a map of groups."""
    return bool(rows := _rows(path)) and "accept" in rows[0]


def accepted(path: Path, mode: str) -> list[CodePair]:
    """The pairs of one mode that the owner accepted, at least one."""
    pairs = [p for p in read_pairs(path) if p.accept == "yes" and p.mode == mode]
    if not pairs:
        hint = "write yes in column accept of every pair that is right, or remove the file from the study"
        raise DataError(f"{path}: no pair of {mode} codes is accepted", hint=hint)
    return pairs


def _rows(path: str | Path) -> list[dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as f:
            return list(csv.DictReader(f))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise DataError(f"{path}: cannot be read as a table of codes", faults=[str(e)]) from None


def read_map(path: Path, mode: str) -> CodeMap:
    """Read a CSV file ``code,group[,name]``, or the accepted pairs of a sheet. A code in two groups is a fault."""
    if is_sheet(path):
        rows = [{"code": p.local, "group": p.code, "name": p.name} for p in accepted(path, mode)]
    else:
        rows = _renamed(_rows(path))
    if not rows or not {"code", "group"} <= set(rows[0]):
        raise DataError(
            f"{path}: columns code and group are missing",
            hint="code,group[,name], one line a code; or a phecode map as its catalogue writes it (icd9, phecode ...)",
        )
    # Dots, blanks and case do not decide whether a code is found (PheWAS#43, PheWAS#68).
    # E878 and V570 are codes of both ICD versions: where the file says which, they are two codes.
    table: CodeMap = {}
    clash = []
    for r in rows:
        target = (r["group"].strip(), (r.get("name") or "").strip())
        key = _version(r.get("version")), _plain(r["code"])
        if table.setdefault(key, target) != target:
            clash.append(f"code {r['code']!r} is in groups {table[key][0]!r} and {target[0]!r}")
    if clash:
        raise DataError(f"{path}: codes in several groups", faults=clash[:20], hint="keep one group for a code")
    return table


def look_up(table: CodeMap, code: str, version: int | None) -> tuple[str, str] | None:
    """Return the group of a code: of its own ICD version; without one, only where the versions do not contradict each other."""
    key = _plain(code)
    if version is not None:
        return table.get((version, key)) or table.get((None, key))
    every = {g for g in (table.get((v, key)) for v in (None, 9, 10)) if g is not None}
    return every.pop() if len(every) == 1 else None


def _version(text: str | None) -> int | None:
    """The ICD version that a cell names, if it names one.

    >>> _version("ICD10CM"), _version("9"), _version("SNOMED"), _version(None)
    (10, 9, None, None)
    """
    match = re.fullmatch(r"(?:ICD)?[-_ ]?(9|10)[-_ ]?(?:CM|PCS|PROC)?", (text or "").strip().upper())
    return int(match[1]) if match else None


def _renamed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The phecode catalogue's own files have other names of columns: icd9, icd10cm or ICD; phecode; Phenotype.

    A code of several phecodes keeps the first, as in the catalogue's order; a drug map has drug and ingredient. The ICD
    version is in the name of the column, or in one of its own (flag, vocabulary_id).

    >>> _renamed([{"ICD10": "I50", "PheCode": "428", "Phenotype": "Heart failure"}])
    [{'code': 'I50', 'group': '428', 'name': 'Heart failure', 'version': '10'}]
    """
    headers = {k.strip().lower().replace(" ", "_"): k for k in rows[0] if k} if rows else {}
    version_column = next(
        (headers[c] for c in ("version", "icd_version", "flag", "vocabulary_id", "vocabulary") if c in headers), None
    )
    if {"code", "group"} <= set(headers):
        return [{**r, "version": r[version_column] or ""} for r in rows] if version_column is not None else rows
    names = {
        "code": ("icd", "icd9", "icd9cm", "icd10", "icd10cm", "icd_code", "code", "drug", "drug_name", "source_code"),
        "group": ("phecode", "phecodex", "ingredient", "ingredient_name"),
        "name": ("phenotype", "phecode_string", "phecode_description", "description"),
    }
    columns = {to: next((headers[c] for c in given if c in headers), None) for to, given in names.items()}
    if columns["code"] is None or columns["group"] is None:
        return rows
    header_version = re.sub(r"\D", "", columns["code"]) if columns["code"].strip().lower().startswith("icd") else ""
    out: dict[tuple[str, str], dict[str, str]] = {}
    for r in rows:
        cells = {to: (r[k] or "").strip() for to, k in columns.items() if k is not None}
        version = header_version or ((r[version_column] or "").strip() if version_column is not None else "")
        if version:
            cells["version"] = version
        if cells["group"]:
            out.setdefault((version, cells["code"]), cells)
    return list(out.values())


def _plain(code: str) -> str:
    return code.strip().upper().replace(".", "")
