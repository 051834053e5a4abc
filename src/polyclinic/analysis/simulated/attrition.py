"""Who was left out, step by step: the row accounting of the sources as it may be shown, small counts removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from polyclinic.analysis.simulated.presence import MINIMUM


class AttritionStep(TypedDict):
    """One step of a source as it may be shown."""

    step: str
    rows_in: int
    rows_out: int
    dropped: dict[str, int | None]
    rounded: bool


def attrition(
    steps: Mapping[str, Sequence[Mapping[str, Any]]], *, minimum: int = MINIMUM
) -> dict[str, list[AttritionStep]]:
    """Per source its steps in order: what came in, what went on, and what was dropped by reason.

    A count from 1 to ``minimum`` - 1 becomes None. What went on is rounded to tens where such a count, or the only
    other number that gives it away, would follow from it; so are the rows that then come into the next step.

    Examples
    --------
    >>> attrition({"a": [{"step": "read", "rows_in": 100, "rows_out": 96, "dropped": {"no code": 4}}]})["a"]
    [{'step': 'read', 'rows_in': 100, 'rows_out': 100, 'dropped': {'no code': None}, 'rounded': True}]
    """
    steps_of: dict[str, list[AttritionStep]] = {}
    for source, listed in steps.items():
        rows: list[AttritionStep] = []
        previous = -1
        for s in listed:
            too_few = any(0 < n < minimum for n in s["dropped"].values())
            came = int(s["rows_in"])
            if rows and rows[-1]["rounded"] and came == previous:
                came = round(came, -1)
            previous = int(s["rows_out"])
            rows.append(
                {
                    "step": s["step"],
                    "rows_in": came,
                    "rows_out": round(previous, -1) if too_few else previous,
                    "dropped": {k: None if 0 < n < minimum else n for k, n in s["dropped"].items() if n},
                    "rounded": too_few,
                }
            )
        steps_of[source] = rows
    return steps_of
