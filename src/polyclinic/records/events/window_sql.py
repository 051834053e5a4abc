"""Where events occur together, as SQL: the place of an event by ``[tensor] window`` and ``count``."""

from __future__ import annotations

from polyclinic.config import TensorRule


def tick(rule: TensorRule, of: str = "") -> str:
    """The visit or day of an event that is counted; NULL where the event cannot take part.

    A window of hours, or the whole patient, counts visits (or days); an event without a visit counts as one of its day.
    """
    visit, day = f"{of}visit_id", f"CAST({of}time AS DATE)"
    if rule.window == "visit":
        return f"({visit} || ' ' || {day})" if rule.count == "days" else visit
    if rule.window == "day":
        return day
    first, second = (
        (f"'d' || {day}", f"'v' || {visit}") if rule.count == "days" else (f"'v' || {visit}", f"'d' || {day}")
    )
    either = f"coalesce({first}, {second}, '')"
    return either if rule.window == "patient" else f"CASE WHEN {of}time IS NOT NULL THEN {either} END"


def lacks(rule: TensorRule) -> str:
    """Why an event without a place cannot take part."""
    if rule.window == "visit":
        return "no visit" if rule.count != "days" else "no visit or no time"
    return "no time"


def lonely(rule: TensorRule) -> str:
    """Why an event that takes part has no value."""
    return f"no partner in the same {rule.window}" if rule.placed else "the patient lacks a mode"
