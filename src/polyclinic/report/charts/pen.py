"""Draw marks as inline SVG in the page's CSS classes: colours follow its theme, and nothing needs a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

At = Callable[[float], float]


@dataclass
class Pen:
    """Collects marks and grows with them. Texts are escaped.

    Shapes of one class are one path and texts of one class one group, so that a page with many figures stays small.
    """

    width: float
    height: float = 0.0
    shapes: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[tuple[str, str], list[Markup]] = field(default_factory=dict)

    def text(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "start", *, most: int = 0, turn: int = 0
    ) -> None:
        """Words, cut after ``most`` characters and turned by ``turn`` degrees. Full names are in the table beside a figure."""
        short = words if not most or len(words) <= most else words[: most - 1].rstrip(" ,;") + "\N{HORIZONTAL ELLIPSIS}"
        place = 'transform="translate({} {})rotate({})"' if turn else 'x="{}" y="{}"'
        mark = Markup("<text " + place + ">").format(_short(x), _short(y), turn) + short + Markup("</text>")
        self.texts.setdefault((kind, anchor), []).append(mark)
        self.height = max(self.height, y + 6)

    def line(self, x: float, y: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self.path(joined([(x, y), (x2, y2)]), kind)

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle."""
        wide = _short(max(width, 0))
        self.path(f"M{_short(x)} {_short(y)}h{wide}v{_short(height)}h-{wide}z", kind)
        self.height = max(self.height, y + height + 1)

    def dot(self, x: float, y: float, kind: str) -> None:
        """A point: a line of no length with a round end."""
        self.path(f"M{_short(x)} {_short(y)}h0", f"dot {kind}")

    def path(self, d: str, kind: str) -> None:
        """Any path; ``d`` is made of numbers alone."""
        self.shapes.setdefault(kind, []).append(d)

    def svg(self, title: str, kind: str = "chart", *, fixed: bool = False) -> Markup:
        """The picture, with its title for screen readers; ``fixed``: it keeps its size on a small screen."""
        size = Markup(' width="{:.0f}" height="{:.0f}"').format(self.width, self.height) if fixed else Markup("")
        marks = [Markup('<path class="{}" d="{}"/>').format(k, "".join(d)) for k, d in self.shapes.items()]
        group = Markup('<g class="{}" text-anchor="{}">{}</g>')
        marks += [group.format(k, anchor, Markup("").join(t)) for (k, anchor), t in self.texts.items()]
        mark = Markup('<svg class="{}" viewBox="0 0 {:.0f} {:.0f}"{} role="img" aria-label="{}">{}</svg>')
        return mark.format(kind, self.width, self.height, size, title, Markup("").join(marks))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def joined(points: Sequence[tuple[float, float]]) -> str:
    """A path through points.

    >>> joined([(0, 1), (2, 3.25)])
    'M0 1 2 3.2'
    """
    return "M" + " ".join(f"{_short(x)} {_short(y)}" for x, y in points)


@dataclass(frozen=True)
class ChartAxis:
    """One axis of a chart: its title, its ends, and where its ticks are (None: round numbers)."""

    title: str
    low: float
    high: float
    marks: Sequence[float] | None = None
    log: bool = False  # values are decimal logarithms
    percent: bool = False

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Values and their labels."""
        if self.log:
            whole = [float(k) for k in range(math.ceil(self.low), math.floor(self.high) + 1)]
            return [(v, labels([10**v])[0]) for v in (whole or ticks(self.low, self.high))]
        values = ticks(self.low, self.high) if self.marks is None else list(self.marks)
        if self.percent:
            return [(v, f"{text} %") for v, text in zip(values, labels([100 * v for v in values]))]
        return list(zip(values, labels(values)))


def frame(pen: Pen, x: ChartAxis, y: ChartAxis, height: float, *, left: float | None = None) -> tuple[At, At]:
    """Grid, ticks and titles of a chart; returns where a value of x and of y stands.

    The left margin is as wide as the longest label, so that the title of the y axis stands free.
    """
    start = 28 + 7.0 * max((len(text) for _, text in y.ticks), default=1) if left is None else left
    across, up = axis(x.low, x.high, start, pen.width - 16), axis(y.low, y.high, 12 + height, 12)
    for v, text in y.ticks:
        pen.line(start, up(v), pen.width - 16, up(v), "rule")
        pen.text(start - 7, up(v) + 4, text, anchor="end")
    for v, text in x.ticks:
        pen.text(across(v), height + 29, text, anchor="middle")
    pen.text((start + pen.width - 16) / 2, height + 48, x.title, "axis", "middle")
    if y.title:
        pen.text(13, 12 + height / 2, y.title, "axis", "middle", turn=-90)
    return across, up


def axis(low: float, high: float, start: float, end: float) -> At:
    """Where a value stands on an axis; values outside stand at its ends."""
    span = (high - low) or 1.0
    return lambda v: start + (end - start) * (min(max(v, low), high) - low) / span


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


def labels(values: Sequence[float]) -> list[str]:
    """Labels of ticks: one unit and as many digits for all as tell them apart.

    >>> labels([0.2866, 0.2868]), labels([0, 20000, 40000]), labels([1e-5])
    (['0.2866', '0.2868'], ['0', '20k', '40k'], ['1e-05'])
    """
    top = max((abs(v) for v in values), default=0.0)
    if 0 < top < 1e-3:
        return [f"{v:.0e}" for v in values]
    unit, name = next(
        ((u, n) for u, n in ((1e9, "G"), (1e6, "M")) if top >= u), (1e3, "k") if top >= 1e4 else (1.0, "")
    )
    scaled = [v / unit for v in values]
    digits = next((d for d in range(6) if all(abs(round(s, d) - s) < 1e-7 * top / unit for s in scaled)), 6)
    return [f"{s:.{digits}f}{name}" if s else "0" for s in scaled]
