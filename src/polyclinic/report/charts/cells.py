"""How a table of findings.json is read, and how its numbers are written in a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rows_of(table: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The rows by column; none where there is no table."""
    return [] if not table else [dict(zip(table["columns"], r)) for r in table["rows"]]


def called(names: Sequence[str], r: int | None) -> str:
    """A phenotype by number and name."""
    if r is None:
        return "everybody"
    return f"{r + 1} {names[r]}" if r < len(names) and names[r] else f"phenotype {r + 1}"


def span(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval."""
    return "\N{EN DASH}" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def p_value(value: float | None) -> str:
    """A p value."""
    if value is None:
        return "\N{EN DASH}"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
