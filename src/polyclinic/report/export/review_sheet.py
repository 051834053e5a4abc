"""A blinded review sheet: clinicians judge and name phenotypes without seeing sites, outcomes, weights or each other.

Sheets are CSV files. ``write_sheet`` makes one reviewer's copy: the phenotypes in an order of its own, their codes, and
empty columns "meaningful?" and "name". ``agreement`` reads the filled-in copies.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.protocol.interfaces import seeds
from polyclinic.report.cards import PhenotypeCard
from polyclinic.util.atomic_files import atomic
from polyclinic.util.table import spreadsheet_cell

COLUMNS: Final = ("phenotype", "codes", "meaningful?", "name")
ANSWERS: Final = {"yes": 2, "y": 2, "possibly": 1, "maybe": 1, "no": 0, "n": 0}


@dataclass(frozen=True)
class Agreement:
    """What reviewers say together.

    Attributes
    ----------
    reviewers, phenotypes
        How many sheets, and how many phenotypes all of them judged.
    meaningful
        Mean share of judgements "yes" (a "possibly" counts half).
    observed
        Share of pairs of reviewers that give the same answer.
    kappa
        Fleiss' kappa: agreement beyond chance, 1 = perfect, 0 = chance; None with one reviewer or one answer only.
    names
        Phenotype -> the names that were given.
    """

    reviewers: int
    phenotypes: int
    meaningful: float
    observed: float | None
    kappa: float | None
    names: dict[int, tuple[str, ...]]


def write_sheet(cards: Sequence[PhenotypeCard], path: Path, *, reviewer: str, seed: int = 0, top: int = 8) -> Path:
    """Write one reviewer's blinded copy; the order depends on the reviewer's name, so that nobody can copy a column."""
    order = seeds(seed, "review", reviewer).permutation(len(cards))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for k in order:
        card = cards[k]
        codes = "; ".join(
            f"{mode}: " + ", ".join(f"{c.name} [{c.label}]" for c in listed[:top])
            for mode, listed in card.codes
            if listed
        )
        writer.writerow([card.number, spreadsheet_cell(codes), "", ""])
    with atomic(path) as temporary:
        temporary.write_text(out.getvalue(), encoding="utf-8")
    return path


def agreement(paths: Sequence[Path]) -> Agreement:
    """Read filled-in sheets: how many phenotypes are meaningful, and how far reviewers agree.

    "meaningful?" is one of yes, possibly, no. Every fault of every sheet is reported.
    """
    faults: list[str] = []
    sheets = [_read(p, faults) for p in paths]
    if not sheets:
        faults.append("no sheet was given")
    if faults:
        raise DataError(
            "review sheets cannot be read", faults=faults, hint="answer yes, possibly or no in 'meaningful?'"
        )
    common = sorted(set.intersection(*({k for k, (v, _) in s.items() if v is not None} for s in sheets)))
    if not common:
        raise DataError("no phenotype was judged on every sheet")
    votes = np.array([[s[k][0] for s in sheets] for k in common])
    table = np.stack([(votes == v).sum(1) for v in (0, 1, 2)], axis=1)
    n = len(sheets)
    observed = kappa = None
    if n > 1:
        agreements = (table * (table - 1)).sum(1) / (n * (n - 1))
        observed = float(agreements.mean())
        chance = float(np.square(table.sum(0) / table.sum()).sum())
        kappa = None if chance >= 1 else (observed - chance) / (1 - chance)
    names = {k: tuple(s[k][1] for s in sheets if s.get(k, (None, ""))[1]) for k in common}
    return Agreement(n, len(common), float(votes.mean() / 2), observed, kappa, names)


def _read(path: Path, faults: list[str]) -> dict[int, tuple[int | None, str]]:
    answers: dict[int, tuple[int | None, str]] = {}
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        faults.append(f"{path}: cannot be read ({e})")
        return answers
    for line, row in enumerate(rows, start=2):
        answer = (row.get("meaningful?") or "").strip().lower()
        try:
            number = int(row.get("phenotype") or "")
        except ValueError:
            faults.append(f"{path}, line {line}: phenotype {row.get('phenotype')!r} is not a number")
            continue
        if answer and answer not in ANSWERS:
            faults.append(f"{path}, line {line}: answer {answer!r}")
        answers[number] = (ANSWERS.get(answer), (row.get("name") or "").strip())
    return answers
