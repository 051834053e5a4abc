"""What a report says about replication: which phenotypes come back and hold together, in words, in order, and first of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyclinic.report.cards import PhenotypeCard
from polyclinic.report.cells import called, rows_of, span
from polyclinic.util.table import Table

__all__ = ["ENOUGH", "Verdict", "by_flags", "first_words", "replication", "verdicts"]

ENOUGH = 500  # patients: a half of 250 shows (z >= 3) a link of r = 0.19, and real records have links of 0.1 to 0.3


@dataclass(frozen=True)
class Verdict:
    """What is known about one phenotype's replication, in words."""

    replicable: bool
    failed: bool  # it was tested and did not pass, with patients enough to pass; neither: undecided
    words: str
    reason: str
    brief: str  # both answers, for a cell
    flags: tuple[int, int] = (0, 0)  # how many of the two it passed; whether it holds together


def verdicts(found: Mapping[str, Any], patients: int | None = None) -> tuple[Verdict, ...]:
    """Per phenotype whether it comes back and holds together, as the card says it; empty where it was not tested.

    Where none of fewer than ENOUGH patients' phenotypes passes, all are undecided, not refuted.
    """
    out = []
    undecided = f"undecided: {patients} patients are too few to tell" if _too_few(found, patients) else ""
    for r in rows_of(found.get("replicability")):
        in_halves = f"comes back in halves: {r['comes_back']} ({_likeness(r)})"
        if r["holds_together"] is None:
            verdict = f"{r['comes_back']}, not tested"
            not_replicated = r["comes_back"] != "yes" and not undecided
            reason = _elsewhere(r) if not_replicated else "not tested"
            flags = (int(r["comes_back"] == "yes"), 0)
            out.append(
                Verdict(
                    False,
                    not_replicated,
                    f"{in_halves}; whether it holds together was not tested",
                    reason,
                    verdict,
                    flags,
                )
            )
            continue
        holds = f"holds together in unseen patients: {'yes' if r['holds_together'] else 'no'} (r = {r['rho']:.2f})"
        faults = [] if r["comes_back"] == "yes" else [_elsewhere(r)]
        faults += [] if r["holds_together"] else ["its codes do not go together in patients nobody looked at"]
        associated = bool(r["holds_together"])
        brief = "undecided" if undecided else f"{r['comes_back']}, {'yes' if associated else 'no'}"
        flags = (int(r["comes_back"] == "yes") + associated, int(associated))
        failed = not r["replicable"] and not undecided
        words = f"{in_halves}; {holds}{'' if r['replicable'] or not undecided else f' ({undecided})'}"
        out.append(Verdict(bool(r["replicable"]), failed, words, "; ".join(faults), brief, flags))
    return tuple(out)


def first_words(found: Mapping[str, Any], patients: int | None = None) -> str:
    """The first sentence of a report: how many phenotypes may be believed."""
    table = found.get("replicability")
    if not table:
        return ""
    n, total = found["replicable"], len(table["rows"]) - len(found.get("background", ()))
    if _too_few(found, patients):
        return (
            f"None of the {total} phenotypes can be shown to come back: {patients} patients are too few for that (about {ENOUGH} "
            "are needed). Read them as descriptions of these records, not as findings."
        )
    if not n and (only_halves := _only_back(table)) is not None:
        came = "None of" if not only_halves else f"{only_halves} of"
        verb = "comes" if only_halves <= 1 else "come"
        return (
            f"{came} the {total} phenotypes {verb} back in another half of the patients; whether what comes back holds together was not "
            "tested, because it could not be read under the budget: read them as descriptions of these records, not as findings."
        )
    if not n:
        return (
            f"None of the {total} phenotypes comes back in another half of the patients and holds together: "
            "read them as descriptions of these records, not as findings."
        )
    return f"{n} of {total} phenotypes come back in another half of the patients and hold together in patients nobody looked at."


def _only_back(table: Mapping[str, Any]) -> int | None:
    """How many come back where none was asked whether it holds together; None: some were."""
    rows = rows_of(table)
    if any(r["holds_together"] is not None for r in rows):
        return None
    return sum(bool(r["comes_back"] == "yes") for r in rows)


def _elsewhere(row: Mapping[str, Any]) -> str:
    return f"another half of the patients gives another phenotype ({row['halves']:.2f})"


def _too_few(found: Mapping[str, Any], patients: int | None) -> bool:
    return not found.get("replicable") and patients is not None and patients < ENOUGH


def by_flags(found: Mapping[str, Any], cards: Sequence[PhenotypeCard]) -> list[PhenotypeCard]:
    """Those that pass both tests, then one (holding together first), then none; inside each by weight, as they came."""
    judgements = verdicts(found)
    if not judgements:
        return list(cards)
    return sorted(cards, key=lambda c: tuple(-f for f in judgements[c.number - 1].flags))


def replication(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows = [
        [
            called(names, r["phenotype"]),
            "yes" if r["replicable"] else "no",
            f"{r['comes_back']} ({_likeness(r)})",
            "not tested"
            if r["holds_together"] is None
            else f"{'yes' if r['holds_together'] else 'no'} (r = {r['rho']:.2f})",
            "\N{EN DASH}" if r["carried"] is None else f"{r['carried']} of {r['sites']}",
        ]
        for r in rows_of(found["replicability"])
    ]
    words = [
        first_words(found),
        (
            "The method was fitted anew on two halves of every hospital's patients, drawn by a keyed hash. A phenotype comes back "
            "if the two halves agree on it (cosine of at least 0.8; in brackets with what other halvings would give, 95 %), and holds together if patients whom that fit did not see, and "
            "who have its codes of one kind, also have its codes of the other. Agreement alone proves nothing: frequencies come "
            "back, too. Pieces of one phenotype were joined first, so there may be fewer than were asked for. The phenotypes shown "
            "are the mean of the matched fits."
        ),
    ]
    columns = ["phenotype", "replicable", "comes back", "holds together", "hospitals with 11 or more"]
    return words, [("What comes back", Table(columns, rows))]


def _likeness(row: Mapping[str, Any]) -> str:
    """The cosine between halves with its interval; an older run may have none."""
    between = "" if row["low"] is None else f", {span(row['low'], row['high'])}"
    return f"{row['halves']:.2f}{between}"
