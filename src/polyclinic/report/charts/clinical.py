"""Figures of the findings as SVG: forest plot, survival, replication, calibration, prevalence by hospital, patient flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from polyclinic.analysis.replication.consensus import BACK, HELD_OUT
from polyclinic.report.charts.pen import ChartAxis, Pen, axis, frame, joined
from polyclinic.report.charts.rows import (
    GRADES,
    CalibrationRow,
    EffectRow,
    FlowBox,
    Interval,
    ReplicationRow,
    SiteRow,
    SurvivalGroup,
)
from polyclinic.report.charts.svg import shade

RATIOS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 10, 20)  # ticks of an odds ratio's axis
BOXES: Final = 8  # more hospitals than this are told as a number
NAME: Final = 14  # characters of a hospital's name
DASH: Final = "\N{EN DASH}"
MARK: Final = " \N{DAGGER}"  # adjustment reverses the crude odds ratio


def forest(rows: Sequence[EffectRow], *, sites: Sequence[str] = ()) -> Markup:
    """Phenotype, prevalence, hospitals, and the odds ratio on a logarithmic axis; colour by adjusted p-value."""
    if not rows:
        return Markup("")
    boxes = len(sites) if 0 < len(sites) <= BOXES and all(len(r.shares) == len(sites) for r in rows) else 0
    estimated = any(r.ratio for r in rows)
    longest = min(max((len(name) for name in sites[:boxes]), default=0), NAME)
    pen, first, step = Pen(1120), 36 + 4.2 * longest if boxes else 32.0, 30
    pen.text(0, 14, "Phenotype (leading codes)", "head")
    pen.text(400, 14, "Prevalence (95 % CI)", "head")
    if boxes or any(r.hospitals for r in rows):
        pen.text(580, 14, "Hospitals", "head")
    for n, name in enumerate(sites[:boxes]):
        pen.text(592 + 20 * n, first - 6, name, "small", turn=-40, most=NAME)
    widest = max([0.05, *(r.prevalence[2] for r in rows if r.prevalence)])
    for n, row in enumerate(rows):
        y = first + step * n + 12
        pen.text(0, y, f"{row.number}{' (uncertain)' if row.uncertain else ''} {row.name}", "name", most=54)
        pen.text(0, y + 14, row.codes, "small", most=70)
        _prevalence(pen, row, y, widest)
        _hospitals(pen, row, y, sites[:boxes])
    if estimated:
        _ratios(pen, rows, first, step)
    return pen.svg("Prevalence, hospitals and odds ratio of each phenotype", "chart wide")


def _prevalence(pen: Pen, row: EffectRow, y: float, widest: float) -> None:
    if row.prevalence is None:
        pen.text(400, y + 4, "not shown")
        return
    share, low, high = row.prevalence
    pen.box(400, y - 9, 130 * share / widest, 9, "bar")
    pen.line(400 + 130 * max(low, 0) / widest, y - 4.5, 400 + 130 * high / widest, y - 4.5, "mark")
    patients = "" if row.patients is None else f", n {'about' if row.noisy else '='} {row.patients:,}"
    pen.text(400, y + 14, f"{100 * share:.1f} % ({100 * max(low, 0):.1f}{DASH}{100 * high:.1f}){patients}", "small")


def _hospitals(pen: Pen, row: EffectRow, y: float, sites: Sequence[str]) -> None:
    if not sites:
        pen.text(580, y + 4, row.hospitals)
    for n, share in enumerate(row.shares[: len(sites)]):
        pen.box(580 + 20 * n, y - 8, 16, 16, f"cell {'few' if share is None else shade(share)}")


def _ratios(pen: Pen, rows: Sequence[EffectRow], first: float, step: float) -> None:
    """The right part of a forest plot. An interval that leaves the axis is cut there."""
    known = [r.ratio for r in rows if r.ratio]
    low = min([0.5, *(max(r[1], RATIOS[0]) for r in known)])
    high = max([2.0, *(min(r[2], RATIOS[-1]) for r in known)])
    at = axis(math.log(low) - 0.08, math.log(high) + 0.08, 740, 980)
    end = first + step * len(rows)
    pen.text(740, 14, "Odds ratio (95 % CI)", "head")
    for v in (v for v in RATIOS if low * 0.99 <= v <= high * 1.01):
        pen.line(at(math.log(v)), first - 6, at(math.log(v)), end - 6, "one" if v == 1 else "rule")
        pen.text(at(math.log(v)), end + 8, f"{v:g}", anchor="middle")
    pen.text(at(0) - 8, end + 24, "\N{LEFTWARDS ARROW} lower odds", anchor="end")
    pen.text(at(0) + 8, end + 24, "higher odds \N{RIGHTWARDS ARROW}")
    for n, row in enumerate(rows):
        y = first + step * n + 12
        if row.ratio is None or row.inseparable:
            pen.text(994, y + 4, "cannot be told apart" if row.ratio else "not shown")
            continue
        side = ("up" if row.ratio[0] > 1 else "down") if row.sure else "flat"
        a, b, c = (at(math.log(v)) for v in row.ratio)
        pen.line(b, y, c, y, f"ci {side}")
        pen.box(a - 4.5, y - 4.5, 9, 9, f"point {side}")
        words = f"{_ratio(row.ratio)}{' *' if row.sure else ''}{MARK if row.reversed else ''}"
        pen.text(994, y + 4, words, "name" if row.sure else "tick")


def _ratio(ratio: Interval) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f}{DASH}{ratio[2]:.2f})"


def survival(groups: Sequence[SurvivalGroup], *, unit: str, title: str) -> Markup:
    """Curves with 95 % bands over one time axis, and below it the numbers at risk, as journals ask for.

    Points are the ends of the grid's steps, joined by straight lines (a life table): inside a step nothing is known.
    """
    points = [p for g in groups for p in g.points]
    if not points:
        return Markup("")
    end, lowest = max(p[0] for p in points), min(p[2] for p in points)
    floor = 0.0 if lowest < 0.4 else math.floor(20 * lowest) / 20
    grid = sorted(set.intersection(*(set(g.at_risk) for g in groups))) or sorted(groups[0].at_risk)
    pen, times = Pen(560), grid[:: math.ceil(len(grid) / 6)]  # ends of steps, where patients at risk are counted
    starts = f" (axis starts at {100 * floor:.0f} %)" if floor else ""
    time, share = ChartAxis(f"{unit}{starts}", 0.0, end, times), ChartAxis("", floor, 1.0, percent=True)
    across, up = frame(pen, time, share, 210, left=92)
    pen.text(0, 284, "At risk", "head")
    for n, g in enumerate(groups):
        curve = g.points if g.points[0][0] == 0 else ((0.0, 1.0, 1.0, 1.0), *g.points)
        band = [(across(t), up(h)) for t, _, _, h in curve] + [(across(t), up(b)) for t, _, b, _ in reversed(curve)]
        pen.path(joined(band) + "Z", f"band s{n}")
        pen.path(joined([(across(t), up(s)) for t, s, _, _ in curve]), f"line s{n}")
        y = 284 + 18 * (n + 1)
        pen.path(f"M0 {y - 4:.1f}h16", f"line s{n}")
        pen.text(22, y, g.name, most=10)
        for t in times:
            count = g.at_risk.get(t, 0)
            pen.text(across(t), y, "<11" if count is None else f"{count:,}" if count else "", anchor="middle")
    return pen.svg(title)


def calibration(rows: Sequence[CalibrationRow]) -> Markup:
    """Observed share against predicted risk, in groups of patients; the diagonal is perfect."""
    if not rows:
        return Markup("")
    most = max([0.05, *(max(r.predicted, r.high) for r in rows)])
    pen = Pen(440)
    across, up = frame(pen, ChartAxis("predicted risk", 0, most), ChartAxis("observed share (95 % CI)", 0, most), 260)
    pen.line(across(0), up(0), across(most), up(most), "guide")
    pen.path(joined([(across(r.predicted), up(r.observed)) for r in rows]), "line s0")
    for r in rows:
        pen.line(across(r.predicted), up(r.low), across(r.predicted), up(r.high), "whisker")
        pen.dot(across(r.predicted), up(r.observed), "s0")
    return pen.svg("Calibration: observed share against predicted risk")


def replication(rows: Sequence[ReplicationRow]) -> Markup:
    """Cosine between halves with its interval against the held-out correlation; the gates are lines."""
    tested = [r for r in rows if r.r is not None]
    if not tested:
        return Markup("")
    values = [r.r for r in tested if r.r is not None]
    low, high = min(0.0, *values) - 0.02, max(0.2, *values) + 0.08
    pen = Pen(560)
    similar, linked = ChartAxis("cosine between halves (95 % CI)", 0, 1), ChartAxis("held-out correlation r", low, high)
    across, up = frame(pen, similar, linked, 254)
    pen.line(across(BACK), up(high), across(BACK), up(low), "guide")
    pen.line(across(0), up(HELD_OUT), across(1), up(HELD_OUT), "guide")
    numbers: list[tuple[float, float]] = []
    kinds = dict(zip(GRADES, ("s0", "s1", "s5")))
    for row in tested:
        y, kind = up(row.r or 0.0), kinds[row.grade]
        pen.line(across(row.low or row.cosine), y, across(row.high or row.cosine), y, f"ci {kind}")
        pen.dot(across(row.cosine), y, kind)
        x = across(row.cosine)
        if all(abs(x - u) > 18 or abs(y - v) > 16 for u, v in numbers):  # the table names those in a crowd
            pen.text(x, y - 7, str(row.number), anchor="middle")
            numbers.append((x, y))
    return pen.svg("Replication of each phenotype: cosine between halves and held-out correlation")


def by_hospital(rows: Sequence[SiteRow]) -> Markup:
    """Prevalence with its interval, one column a hospital, one line a phenotype; hatched where it is not shown."""
    sites, names = list(dict.fromkeys(r.site for r in rows)), dict.fromkeys((r.number, r.name) for r in rows)
    if not rows or len(sites) > 2 * BOXES:
        return Markup("")
    pen, step = Pen(1120), 20
    width = (1120 - 330) / len(sites)
    top = max([0.05, *(r.prevalence[2] for r in rows if r.prevalence)])
    bottom = 30 + step * len(names)
    for n, site in enumerate(sites):
        x = 330 + width * n
        pen.text(x, 14, site, "head", most=int(width / 7))
        pen.line(x, 22, x, bottom, "rule")
        pen.text(x, bottom + 16, "0")
        pen.text(x + width - 14, bottom + 16, f"{100 * top:.0f} %", anchor="end")
    lines = {number: 36 + step * k for k, (number, _) in enumerate(names)}
    for number, name in names:
        pen.text(0, lines[number] + 4, f"{number} {name}", most=52)
    for r in rows:
        x, y = 330 + width * sites.index(r.site), lines[r.number]
        if r.prevalence is None:
            pen.box(x + 2, y - 6, width - 18, 12, "few")
            continue
        share, low, high = ((width - 14) * v / top for v in r.prevalence)
        pen.line(x + low, y, x + high, y, "ci down")
        pen.dot(x + share, y, "s0")
    return pen.svg("Prevalence of each phenotype at each hospital", "chart wide")


def flow(boxes: Sequence[FlowBox]) -> Markup:
    """Who is left after each step, left to right; what a step left out stands below its box."""
    pen, gap = Pen(1120), 20.0
    width = (pen.width - gap * (len(boxes) - 1)) / max(len(boxes), 1)
    for n, b in enumerate(boxes):
        x = n * (width + gap)
        pen.box(x + 0.5, 0.5, width - 1, 50, "box")
        pen.text(x + 12, 21, b.count, "big")
        pen.text(x + 12, 40, b.words, most=int(width / 6.1))
        if n:
            pen.path(f"M{x - gap + 3:.1f} 25h{gap - 7:.1f}m-6 -4l6 4l-6 4", "arrow")
        if b.lost:
            pen.text(x + 12, 67, b.lost)
    return pen.svg("Patient flow: " + ", ".join(f"{b.count} {b.words}" for b in boxes), "chart wide")
