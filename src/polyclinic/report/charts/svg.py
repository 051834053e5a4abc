"""Charts as inline SVG: drawn here, so that a report needs no script to be seen, printed, or opened years from now.

Colours are CSS variables of the page (dark and light). Every chart has a title for screen readers; the page puts its
numbers beside it as a table. Texts are escaped by :class:`markupsafe.Markup`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

__all__ = ["Series", "heat_map", "interval", "line_chart", "scatter", "ticks"]

WIDTH: Final = 440
HEIGHT: Final = 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 40
LEVELS: Final = 9  # shades of a heat map


@dataclass(frozen=True)
class Series:
    """A line: its name and its points; None is a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values.

    >>> ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


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
    box = _Box.around(xs, [height(v) for v in ys], zero=zero and not log)
    parts = [_frame(box, x=x, y=y, log=log, whole=whole)]
    for n, (_, points) in enumerate(lines):
        places = [box.at(a, height(b)) for a, b in points]
        path = _stairs(places) if steps else "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(Markup('<path class="line s{}" d="M{}"/>').format(n, Markup(path)))
        if len(places) == 1:
            parts.append(Markup('<circle class="dot s{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(n, *places[0]))
    legend = _legend([name for name, _ in lines]) if len(lines) > 1 else Markup("")
    return legend + _svg(parts, WIDTH, HEIGHT, title)


def scatter(
    points: Sequence[tuple[float, float, float, float]] | Sequence[tuple[float, float]], *, title: str, x: str, y: str
) -> Markup:
    """Points in the unit square, joined (ROC) or with intervals (calibration), and the diagonal."""
    if not points:
        return Markup("")
    box = _Box(0.0, 1.0, 0.0, 1.0, width=320, height=300)
    a, b = box.at(0, 0), box.at(1, 1)
    parts = [
        _frame(box, x=x, y=y),
        Markup('<line class="guide" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(*a, *b),
    ]
    curve = [box.at(p[0], p[1]) for p in points]
    parts.append(
        Markup('<path class="line s0" d="M{}"/>').format(Markup("L".join(f"{u:.1f} {v:.1f}" for u, v in curve)))
    )
    for p, (u, v) in zip(points, curve):
        if len(p) == 4:
            low, high = box.at(p[0], p[2])[1], box.at(p[0], p[3])[1]
            parts.append(
                Markup('<line class="whisker" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                    u, low, high
                )
            )
        parts.append(
            Markup('<circle class="dot s0" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>').format(
                u, v, ", ".join(f"{k:.3g}" for k in p)
            )
        )
    return _svg(parts, box.width, box.height, title)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    hints: Sequence[str] | None = None,
    signed: bool = False,
    cell: int = 22,
) -> Markup:
    """A grid of shaded cells with values from 0 to 1 (or -1 to 1, ``signed``); None is hatched: not shown.

    Parameters
    ----------
    rows, columns
        Labels; columns are short (numbers), ``hints`` say them in full.
    values
        One line per row.
    """
    label = min(290, 14 + round(6.8 * max((len(r) for r in rows), default=1)))
    head = 12 + 6 * max((len(c) for c in columns), default=1) if max(map(len, columns), default=0) > 3 else 22
    width, height = label + cell * len(columns) + 8, head + cell * len(rows) + 6
    parts: list[Markup] = []
    for j, text in enumerate(columns):
        u = label + cell * (j + 0.5)
        turn = Markup(' transform="rotate(-90 {:.1f} {})"').format(u + 4, head - 6) if head > 22 else Markup("")
        shift = 4 if head > 22 else 0
        anchor = "start" if head > 22 else "middle"
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}"{}>{}<title>{}</title></text>').format(
                u + shift, head - 6, anchor, turn, text, hints[j] if hints else text
            )
        )
    for i, (text, line) in enumerate(zip(rows, values)):
        y = head + cell * i
        short = text if len(text) <= 40 else text[:39] + "\N{HORIZONTAL ELLIPSIS}"
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}<title>{}</title></text>').format(
                label - 6, y + cell / 2 + 4, short, text
            )
        )
        for j, v in enumerate(line):
            shade = "few" if v is None else _shade(v, signed)
            if shade == "h0":
                continue
            words = "too few patients to show" if v is None else f"{v:.2f}"
            parts.append(
                Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}, {}: {}</title></rect>').format(
                    shade,
                    label + cell * j + 1,
                    y + 1,
                    cell - 2,
                    cell - 2,
                    text,
                    hints[j] if hints else columns[j],
                    words,
                )
            )
    grid = Markup('<rect class="grid" x="{}" y="{}" width="{}" height="{}"/>').format(
        label, head, cell * len(columns), cell * len(rows)
    )
    return _svg([grid, *parts], width, height, title, fixed=True)


def interval(value: float, low: float, high: float, bounds: tuple[float, float], *, title: str) -> Markup:
    """One row of a forest plot: a dot with its interval on a common scale, and the line of no effect at zero."""
    width, height = 190, 22
    a, b = bounds

    def at(v: float) -> float:
        return 4 + (width - 8) * (min(max(v, a), b) - a) / (b - a)

    side = "up" if low > 0 else "down" if high < 0 else "flat"
    return Markup(
        '<svg class="interval {side}" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{t}">'
        '<line class="guide" x1="{z:.1f}" x2="{z:.1f}" y1="0" y2="{h}"/>'
        '<line class="whisker" x1="{l:.1f}" x2="{r:.1f}" y1="11" y2="11"/><circle cx="{v:.1f}" cy="11" r="4.5"/></svg>'
    ).format(side=side, w=width, h=height, t=title, z=at(0.0), l=at(low), r=at(high), v=at(value))


# ---- parts


@dataclass(frozen=True)
class _Box:
    left: float
    right: float
    low: float
    high: float
    width: int = WIDTH
    height: int = HEIGHT

    @classmethod
    def around(cls, xs: Sequence[float], ys: Sequence[float], *, zero: bool) -> _Box:
        low, high = min(ys), max(ys)
        room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        first, right = min(xs), max(xs)
        return cls(first, right if right > first else first + 1, 0.0 if zero and low >= 0 else low - room, high + room)

    def at(self, x: float, y: float) -> tuple[float, float]:
        u = LEFT + (x - self.left) / (self.right - self.left) * (self.width - LEFT - RIGHT)
        v = self.height - BOTTOM - (y - self.low) / (self.high - self.low) * (self.height - TOP - BOTTOM)
        return u, v


def _frame(box: _Box, *, x: str, y: str, log: bool = False, whole: bool = False) -> Markup:
    parts = []
    marks = ticks(box.low, box.high, 6)
    if log:
        marks = [float(k) for k in range(math.ceil(box.low), math.floor(box.high) + 1)] or marks
    for v in marks:
        w = box.at(box.left, v)[1]
        parts.append(
            Markup(
                '<line class="rule" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text class="tick" x="{3}" y="{4:.1f}" '
                'text-anchor="end">{5}</text>'
            ).format(LEFT, box.width - RIGHT, w, LEFT - 7, w + 4, _number(10**v if log else v))
        )
    for v in ticks(box.left, box.right, 5):
        if whole and v != round(v):
            continue
        u = box.at(v, box.low)[0]
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                u, box.height - BOTTOM + 17, _number(v)
            )
        )
    middle = TOP + (box.height - TOP - BOTTOM) / 2
    parts.append(
        Markup(
            '<text class="axis" x="{:.0f}" y="{}" text-anchor="middle">{}</text>'
            '<text class="axis" x="13" y="{:.0f}" text-anchor="middle" transform="rotate(-90 13 {:.0f})">{}</text>'
        ).format(LEFT + (box.width - LEFT - RIGHT) / 2, box.height - 5, x, middle, middle, y)
    )
    return Markup("").join(parts)


def _svg(parts: Sequence[Markup], width: float, height: float, title: str, *, fixed: bool = False) -> Markup:
    size = Markup('width="{:.0f}" height="{:.0f}"').format(width, height) if fixed else Markup("")
    return Markup('<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" {} role="img" aria-label="{}">{}</svg>').format(
        width, height, size, escape(title), Markup("").join(parts)
    )


def _finite(series: Series) -> list[tuple[float, float]]:
    return [(x, y) for x, y in series.points if y is not None and math.isfinite(y)]


def _legend(names: Sequence[str]) -> Markup:
    items = [Markup('<li class="s{}">{}</li>').format(n, name) for n, name in enumerate(names)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _stairs(at: Sequence[tuple[float, float]]) -> str:
    path = f"{at[0][0]:.1f} {at[0][1]:.1f}"
    return path + "".join(f"H{u:.1f}V{v:.1f}" for u, v in at[1:])


def _shade(value: float, signed: bool) -> str:
    level = min(LEVELS, round(LEVELS * math.sqrt(abs(value))))
    return "h0" if level == 0 else f"{'n' if signed and value < 0 else 'h'}{level}"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e9 or (0 < size < 1e-3):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if size >= 10 * unit or (size >= unit and name == "M"):
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"
