"""Charts as inline SVG: drawn here, so that a report needs no script to be seen, printed, or opened years from now.

Colours are CSS variables of the page (dark and light). Every chart has a title for screen readers; the page puts its
numbers beside it as a table. Texts are escaped by :class:`markupsafe.Markup`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from polyclinic.report.charts.pen import ChartAxis, Pen, frame, joined, ticks

LEVELS: Final = 9  # shades of a heat map
WORDS: Final = 34  # characters of a column's name


@dataclass(frozen=True)
class Series:
    """A line: its name and its points; None is a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x: str,
    y: str,
    log: bool = False,
    zero: bool = False,
    steps: bool = False,
    whole: bool = False,
) -> Markup:
    """Lines over rounds.

    Parameters
    ----------
    series
        At most six, told apart by colour and dash.
    title, x, y
        Words for people; ``title`` is what a screen reader says.
    log
        Logarithmic y (all values above zero), else linear.
    zero
        The y-axis starts at zero.
    steps
        Draw a staircase.
    whole
        Between two whole numbers of x there is nothing: no tick either.
    """
    lines = [(s.name, points) for s in series if (points := _finite(s))]
    if not lines:
        return Markup("")
    xs, ys = zip(*(p for _, points in lines for p in points))
    log = log and min(ys) > 0 and max(ys) / min(ys) > 20
    height = math.log10 if log else float
    low, high = height(min(ys)), height(max(ys))
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    end = max(xs) if max(xs) > min(xs) else min(xs) + 1
    marks = [v for v in ticks(min(xs), end) if not whole or v == round(v)]
    pen = Pen(440)
    bottom = 0.0 if zero and low >= 0 and not log else low - room
    across, up = frame(pen, ChartAxis(x, min(xs), end, marks), ChartAxis(y, bottom, high + room, log=log), 208)
    for n, (_, points) in enumerate(lines):
        places = [(across(a), up(height(b))) for a, b in points]
        pen.path(_stairs(places) if steps else joined(places), f"line s{n}")
        if len(places) == 1:
            pen.dot(*places[0], f"s{n}")
    legend = _legend([name for name, _ in lines]) if len(lines) > 1 else Markup("")
    return legend + pen.svg(title)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    signed: bool = False,
    cell: int = 22,
) -> Markup:
    """A grid of shaded cells with values from 0 to 1 (or -1 to 1, ``signed``), one line per row; None is hatched: not shown."""
    longest = min(max((len(c) for c in columns), default=1), WORDS)
    label = min(290, 14 + round(6.8 * max((len(r) for r in rows), default=1)))
    head = 14 + 6.4 * longest if longest > 3 else 22
    pen = Pen(max(label + cell * len(columns) + 8, 300), head + cell * len(rows) + 6)
    pen.box(label, head, cell * len(columns), cell * len(rows), "grid")
    for j, text in enumerate(columns):
        x = label + cell * (j + 0.5)
        if longest > 3:
            pen.text(x + 4, head - 6, text, turn=-90, most=WORDS)
        else:
            pen.text(x, head - 6, text, anchor="middle")
    for i, (text, line) in enumerate(zip(rows, values)):
        y = head + cell * i
        pen.text(label - 6, y + cell / 2 + 4, text, anchor="end", most=40)
        for j, v in enumerate(line):
            kind = "few" if v is None else shade(v, signed)
            if kind != "h0":
                pen.box(label + cell * j + 1, round(y) + 1, cell - 2, cell - 2, kind)
    return pen.svg(title, fixed=True)


def _finite(series: Series) -> list[tuple[float, float]]:
    return [(x, y) for x, y in series.points if y is not None and math.isfinite(y)]


def _legend(names: Sequence[str]) -> Markup:
    items = [Markup('<li class="s{}">{}</li>').format(n, name) for n, name in enumerate(names)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _stairs(at: Sequence[tuple[float, float]]) -> str:
    path = joined(at[:1])
    return path + "".join(f"H{u:.1f}V{v:.1f}" for u, v in at[1:])


def shade(value: float, signed: bool = False) -> str:
    """Class of a cell: h1 to h9 (n1 to n9 below zero), h0 for nothing."""
    level = min(LEVELS, round(LEVELS * math.sqrt(abs(value))))
    return "h0" if level == 0 else f"{'n' if signed and value < 0 else 'h'}{level}"
