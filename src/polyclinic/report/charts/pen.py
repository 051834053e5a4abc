"""Draw marks as inline SVG in the page's CSS classes: colours follow its theme, and nothing needs a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

At = Callable[[float], float]


@dataclass
class Pen:
    """Collects marks and grows with them. Texts are escaped."""

    width: float
    height: float = 0.0
    marks: list[Markup] = field(default_factory=list)

    def mark(self, tag: str, words: str | Markup = "", **attributes: object) -> None:
        """One element; numbers have one decimal, attributes that are empty are left out."""
        said = Markup("").join(
            Markup(' {}="{}"').format(k.rstrip("_").replace("_", "-"), _short(v))
            for k, v in attributes.items()
            if v != ""
        )
        self.marks.append(Markup("<{0}{1}>{2}</{0}>" if words else "<{0}{1}/>").format(Markup(tag), said, words))

    def text(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "", *, most: int = 0, turn: int = 0
    ) -> None:
        """Words, cut after ``most`` characters (the rest is in the tooltip), turned by ``turn`` degrees."""
        short = words if not most or len(words) <= most else words[: most - 1].rstrip(" ,;") + "\N{HORIZONTAL ELLIPSIS}"
        full = Markup("{}<title>{}</title>").format(short, words) if short != words else short
        angle = f"rotate({turn} {_short(x)} {_short(y)})" if turn else ""
        self.mark("text", full, x=x, y=y, class_=kind, text_anchor=anchor, transform=angle)
        self.height = max(self.height, y + 6)

    def line(self, x: float, y: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self.mark("line", class_=kind, x1=x, y1=y, x2=x2, y2=y2)

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, radius: float = 0, hint: str = ""
    ) -> None:
        """A rectangle with a tooltip."""
        self.mark("rect", _title(hint), class_=kind, x=x, y=y, width=max(width, 0), height=height, rx=radius or "")
        self.height = max(self.height, y + height + 1)

    def dot(self, x: float, y: float, kind: str, hint: str = "") -> None:
        """A point with a tooltip."""
        self.mark("circle", _title(hint), class_=kind, cx=x, cy=y, r=4)

    def path(self, d: str, kind: str) -> None:
        """Any path; ``d`` is made of numbers alone."""
        self.mark("path", class_=kind, d=d)

    def svg(self, title: str, kind: str = "chart", *, fixed: bool = False) -> Markup:
        """The picture, with its title for screen readers; ``fixed``: it keeps its size on a small screen."""
        size = Markup(' width="{:.0f}" height="{:.0f}"').format(self.width, self.height) if fixed else Markup("")
        mark = Markup('<svg class="{}" viewBox="0 0 {:.0f} {:.0f}"{} role="img" aria-label="{}">{}</svg>')
        return mark.format(kind, self.width, self.height, size, title, Markup("").join(self.marks))


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _title(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup("")


def joined(points: Sequence[tuple[float, float]]) -> str:
    """A path through points.

    >>> joined([(0, 1), (2, 3.25)])
    'M0 1L2 3.2'
    """
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


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
