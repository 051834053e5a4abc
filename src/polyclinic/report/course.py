"""A phenotype's course: its weight over visits or times in order, drawn beside its codes."""

from __future__ import annotations

from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from polyclinic.report.charts import Series, line_chart
from polyclinic.tensors.axis import Axis

__all__ = ["ORDERED", "course_chart"]

ORDERED: Final = ("visit", "time")  # modes whose positions follow one another


def course_chart(axis: Axis, column: NDArray[np.float64], hidden: NDArray[np.bool_], name: str) -> Markup:
    """A line over the positions of an ordered mode, each its share of the phenotype; what may not be shown is left out.

    >>> "<path" in course_chart(Axis("time", ("0 to 29 days", "30 to 60 days")), np.array([1.0, 3.0]), np.zeros(2, bool), "x")
    True
    """
    total = float(np.abs(column).sum()) or 1.0
    points = [(float(t + 1), float(abs(v)) / total) for t, (v, gone) in enumerate(zip(column, hidden)) if not gone]
    if len(points) < 2:
        return Markup("")
    ends = f"1: {axis.describe(0)}; {len(column)}: {axis.describe(len(column) - 1)}"
    return line_chart(
        [Series(name, points)],
        title=f"Course of {name} over {axis.name}",
        x=f"{axis.name} ({ends})",
        y="share",
        zero=True,
    )
