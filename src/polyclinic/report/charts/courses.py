"""A phenotype's course: its weight over visits or times in order, drawn beside its codes."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from polyclinic.report.charts.svg import Series, line_chart
from polyclinic.tensors.axis import Axis

__all__ = ["ORDERED", "course_chart"]

_BIN: Final = re.compile(r"(-?\d+) to -?\d+ days")
ORDERED: Final = ("visit", "time")  # modes whose positions follow one another


def course_chart(axis: Axis, column: NDArray[np.float64], hidden: NDArray[np.bool_], name: str) -> Markup:
    """A line over the positions of an ordered mode, each its share of the phenotype; what may not be shown is left out.

    >>> "<path" in course_chart(Axis("time", ("0 to 29 days", "30 to 60 days")), np.array([1.0, 3.0]), np.zeros(2, bool), "x")
    True
    """
    total = float(np.abs(column).sum()) or 1.0
    days = [_BIN.fullmatch(axis.describe(t)) for t in range(len(column))]
    dated = all(days)  # bins of days are drawn where they begin, visits one by one
    at = [float(d[1]) if dated and d is not None else t + 1.0 for t, d in enumerate(days)]
    points = [(x, float(abs(v)) / total) for x, v, gone in zip(at, column, hidden) if not gone]
    if len(points) < 2:
        return Markup("")
    ends = f"1: {axis.describe(0)}; {len(column)}: {axis.describe(len(column) - 1)}"
    return line_chart(
        [Series(name, points)],
        title=f"Course of {name} over {axis.name}",
        x=f"days since the index date ({len(column)} bins, drawn where they begin)"
        if dated
        else f"{axis.name} ({ends})",
        y="share",
        zero=True,
        whole=True,
    )
