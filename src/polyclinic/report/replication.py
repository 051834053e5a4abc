"""What a report says about replication: the grade of every phenotype, always with its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polyclinic.analysis.replication.consensus import BACK, HELD_OUT, PARTLY
from polyclinic.report.cards import PhenotypeCard
from polyclinic.report.charts.cells import called, rows_of, span
from polyclinic.report.charts.rows import GRADES, grade, tested_rows
from polyclinic.util.table import Table

UNDECIDED: Final = "undecided"
ENOUGH: Final = (
    500  # patients: a half of 250 shows (z >= 3) a link of r = 0.19, and real records have links of 0.1 to 0.3
)


@dataclass(frozen=True)
class Verdict:
    """The replication of one phenotype. ``failed``: not replicated, with patients enough to replicate."""

    grade: str
    failed: bool
    words: str


def verdicts(found: Mapping[str, Any]) -> tuple[Verdict, ...]:
    """Per phenotype its grade with cosine and correlation; empty where replication was not tested."""
    few = too_few(found)
    return tuple(
        Verdict(grade(r), grade(r) == GRADES[2] and not few, f"{UNDECIDED if few else grade(r)}: {_size(r)}")
        for r in rows_of(found.get("replicability"))
    )


def first_words(found: Mapping[str, Any], hospitals: int = 0) -> str:
    """How many phenotypes replicated; the first sentence of a report."""
    grades = [grade(r) for r in tested_rows(found)]
    if not grades:
        return ""
    total, passed, unsure = len(grades), grades.count(GRADES[0]), grades.count(GRADES[1])
    where = f" at {hospitals} hospitals" if hospitals > 1 else ""
    people = f"{found['patients']:,} patients{where}" if found.get("patients") else "the patients"
    text = f"{passed or 'None'} of {total} phenotypes replicated when {people} were split in half."
    if unsure:
        text += f" {unsure} {'is' if unsure == 1 else 'are'} uncertain."
    if too_few(found):
        return f"{text} {found['patients']:,} patients are too few to decide (about {ENOUGH} are needed)."
    return text if passed else f"{text} Read them as descriptions of these records, not as findings."


def _size(row: Mapping[str, Any]) -> str:
    """Cosine with its interval, and the held-out correlation."""
    interval = "" if row["low"] is None else f" ({span(row['low'], row['high'])})"
    link = "r not tested" if row["rho"] is None else f"r = {row['rho']:.2f}"
    return f"cosine {row['halves']:.2f}{interval}, {link}"


def too_few(found: Mapping[str, Any]) -> bool:
    """Whether none replicated and the patients are too few to call that a result."""
    passed = any(grade(r) == GRADES[0] for r in tested_rows(found))
    return not passed and 0 < (found.get("patients") or 0) < ENOUGH


def by_grade(found: Mapping[str, Any], cards: Sequence[PhenotypeCard]) -> list[PhenotypeCard]:
    """Replicated phenotypes first, then uncertain ones; inside each by weight, as they came."""
    judged = verdicts(found)
    grades = [GRADES.index(v.grade) for v in judged] or [0] * len(cards)
    return sorted(cards, key=lambda c: (grades[c.number - 1], c.piece_of or c.number, c.number))


def replication(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows = [
        [
            called(names, r["phenotype"]),
            UNDECIDED if too_few(found) else grade(r),
            r["halves"],
            span(r["low"], r["high"]),
            "not tested" if r["rho"] is None else round(r["rho"], 3),
            "\N{EN DASH}" if r["carried"] is None else f"{r['carried']} of {r['sites']}",
        ]
        for r in rows_of(found["replicability"])
    ]
    words = [
        first_words(found),
        (
            "The method was fitted again on two halves of every hospital's patients, drawn by a keyed hash. A phenotype is "
            f"replicated if the cosine between the halves is at least {BACK:g}, its lower 95 % limit is at least {PARTLY:g}, and the "
            f"held-out correlation r is at least {HELD_OUT:g}. It is uncertain if only the lower limit fails, or if r is "
            "less than half of the median r of the phenotypes that pass. The correlation is between a "
            "phenotype's codes of two kinds, in patients whom that fit did not see. Agreement between halves is not evidence by "
            "itself, because frequent codes agree too. Pieces of one phenotype were joined first."
        ),
    ]
    columns = [
        "phenotype",
        "grade",
        "cosine",
        "95 % CI",
        "held-out r",
        "hospitals where the halves' models find 11 or more patients",
    ]
    return words, [("Replication", Table(columns, rows))]
