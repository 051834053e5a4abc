"""What a report must hide, why, and what would help: said at the top, so that nobody takes a gap for a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polyclinic.report.cards import PhenotypeCard
from polyclinic.report.contents import RunContents

CCS: Final = "'ccs' or 'rubric'"
GROUPS: Final = "a CSV of groups, such as ingredients or classes"


@dataclass(frozen=True)
class Hiding:
    """One paragraph each: what is hidden and why; what would help."""

    headline: str
    why: str
    helps: tuple[str, ...]


def hiding(run: RunContents, cards: Sequence[PhenotypeCard]) -> Hiding | None:
    """What this report hides by the small-cell rule; None where it hides nothing (or under a formal guarantee: noise)."""
    if not cards or run.formal or run.owner is not None or not run.presence:
        return None
    unnamed = [c for c in cards if not c.named]
    codes = sum(c.suppressed for c in cards)
    if not unnamed and not codes:
        return None
    least = run.minimum
    head = (
        f"{len(unnamed)} of {len(cards)} phenotypes cannot be named here."
        if unnamed
        else f"{codes} lesser {'code' if codes == 1 else 'codes'} of the {len(cards)} phenotypes {'is' if codes == 1 else 'are'} not shown."
    )
    reason = (
        f"A code is shown if at least {least} patients have it and carry the phenotype, and no two patients hold more than "
        "half of its weight; otherwise it would describe single patients."
    )
    if run.phenotypes.shown:
        reason += " Codes that the known noise explains are not shown, either."
    if unnamed:
        numbers = [(sum(c.too_few for c in unnamed), f"fewer than {least} patients carry it")]
        numbers.append(
            (
                sum(c.reason == "few" for c in unnamed),
                f"its strongest codes are held by fewer than {least} patients",
            )
        )
        numbers.append((sum(c.reason == "held" for c in unnamed), "two patients hold most of its strongest codes"))
        numbers.append(
            (sum(c.reason == "noisy" for c in unnamed), "the known noise explains most of what its codes weigh")
        )
        counted = "; ".join(f"{n} because {text}" for n, text in numbers if n)
        reason += f" Of the {len(unnamed)} without a name: {counted}." if counted else ""
    return Hiding(head, reason, tuple(_helps(run, unnamed)) if unnamed else ())


def _helps(run: RunContents, unnamed: Sequence[PhenotypeCard]) -> list[str]:
    study, parameters = run.study["study"], run.outcome["parameters"]
    out = []
    if parameters.get("weighting") == "none":
        out.append(
            "[method] weighting = \N{LEFT DOUBLE QUOTATION MARK}saturating\N{RIGHT DOUBLE QUOTATION MARK}, "
            "so that no few patients make a phenotype"
        )
    if any(c.reason == "held" for c in unnamed):
        out.append("[tensor] count = 'presence', so that a patient's repeated visits weigh as one")
    grouped = study.get("codes") or {}
    loose = [m for m in (study.get("tensor") or {}).get("modes", ()) if m not in grouped]
    for mode in loose:
        icd = any(word in mode for word in ("diag", "condition", "procedure"))
        out.append(f"coarser codes: [codes.{mode}] to = {CCS if icd else GROUPS}")
    out.append(f"fewer phenotypes (rank is {run.rank}), more patients, or more sites")
    out.append("the owner of a site sees all of its own: polyclinic report RUN --local SITE")
    return out
