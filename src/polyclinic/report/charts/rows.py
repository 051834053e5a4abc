"""Rows of the figures, from ``findings.json`` and ``study.json``: the report draws them as SVG, ``pc.plots`` with Altair.

Nothing is computed here that the run folder does not say. A count that may not be shown is None.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from polyclinic.analysis.replication.consensus import BACK, graded
from polyclinic.analysis.statistics.intervals import wilson
from polyclinic.report.charts.cells import rows_of

Interval = tuple[float, float, float]  # estimate, lower and upper 95 % limit
Found = Mapping[str, Any]
YEAR: Final = 365.25
# definition: a variance inflation factor above 10 is the usual sign of columns that cannot be told apart
INFLATED: Final = 10.0
GRADES: Final = ("replicated", "uncertain", "not replicated")


@dataclass(frozen=True)
class EffectRow:
    """One phenotype of the forest plot. ``ratio`` None: not estimated. ``shares``: prevalence by hospital."""

    number: int
    name: str
    codes: str = ""
    patients: int | None = None
    prevalence: Interval | None = None
    hospitals: str = ""
    ratio: Interval | None = None
    q: float | None = None
    crude: float | None = None
    shares: tuple[float | None, ...] = ()
    uncertain: bool = False  # whether it replicated
    noisy: bool = False
    inflation: float | None = None

    @property
    def sure(self) -> bool:
        """Whether the adjusted p-value is below 0.05: colour follows it, never the interval."""
        return self.q is not None and self.q < 0.05

    @property
    def inseparable(self) -> bool:
        """Whether other phenotypes have the same patients or all others, so that no adjusted odds ratio belongs to it alone."""
        return not self.sure and (self.inflation or 0.0) > INFLATED

    @property
    def reversed(self) -> bool:
        """Whether adjustment moves the odds ratio to the other side of 1, and its interval excludes 1."""
        if self.ratio is None or self.crude is None:
            return False
        value, low, high = self.ratio
        return (value > 1) != (self.crude > 1) and not low <= 1 <= high


@dataclass(frozen=True)
class SiteRow:
    """One phenotype at one hospital: patients with it, of how many; None: not shown."""

    number: int
    name: str
    site: str
    carriers: int | None
    patients: int | None

    @property
    def prevalence(self) -> Interval | None:
        """Share with Wilson's interval."""
        if self.carriers is None or not self.patients:
            return None
        return (self.carriers / self.patients, *wilson(self.carriers, self.patients))


@dataclass(frozen=True)
class SurvivalGroup:
    """One curve: (time, share, low, high), and patients at risk by time (None: 1 to 10)."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    at_risk: Mapping[float, int | None]


@dataclass(frozen=True)
class CalibrationRow:
    """Patients of similar predicted risk: the mean prediction, the observed share with its interval."""

    predicted: float
    observed: float
    low: float
    high: float


@dataclass(frozen=True)
class ReplicationRow:
    """One phenotype in two halves of the patients: cosine with its interval, held-out correlation ``r``, grade."""

    number: int
    name: str
    cosine: float
    low: float | None
    high: float | None
    r: float | None
    grade: str


@dataclass(frozen=True)
class FlowBox:
    """One box of the patient flow. ``lost``: how many the step left out."""

    words: str
    patients: int | None
    lost: str = ""
    noisy: bool = False
    released: bool = True
    name: str = ""
    between: str = ""  # the range of a count that is not shown

    @property
    def count(self) -> str:
        """The number as it is printed."""
        if not self.released:
            return "not released"
        return (
            self.between or "not shown"
            if self.patients is None
            else f"{'about ' if self.noisy else ''}{self.patients:,}"
        )


def grade(row: Mapping[str, Any]) -> str:
    """Replicated, uncertain or not replicated; as the run folder says it, else by the same rule."""
    low, linked = BACK if row["low"] is None else row["low"], None if row["rho"] is None else True
    return str(row.get("grade") or graded(row["halves"], low, row["rho"], linked))


def tested_rows(found: Found) -> list[dict[str, Any]]:
    """Rows of the replication table; background is no phenotype."""
    return [r for r in rows_of(found.get("replicability")) if r["phenotype"] not in (found.get("background") or ())]


def replication_rows(found: Found, names: Sequence[str]) -> list[ReplicationRow]:
    """Every phenotype that was tested, as it came."""
    return [
        ReplicationRow(r["phenotype"] + 1, names[r["phenotype"]], r["halves"], r["low"], r["high"], r["rho"], grade(r))
        for r in tested_rows(found)
    ]


def effect_rows(found: Found, names: Sequence[str], codes: Sequence[str] = ()) -> list[EffectRow]:
    """Every phenotype with its prevalence and its adjusted odds ratio, highest odds first."""
    outcome = found.get("outcome") or {}
    effects = {r["phenotype"]: r for r in rows_of(outcome.get("effects"))}
    tested = {r["phenotype"]: r for r in tested_rows(found)}
    rows = []
    for people in rows_of(found.get("prevalence")):
        k = people["phenotype"]
        if k in (found.get("background") or ()):
            continue
        effect, where = effects.get(k, {}), tested.get(k, {})
        estimated = effect.get("odds_ratio") is not None
        rows.append(
            EffectRow(
                k + 1,
                names[k],
                codes[k] if codes else "",
                people["patients"],
                None if people["share"] is None else (people["share"], people["low"], people["high"]),
                "" if where.get("carried") is None else f"{where['carried']} of {where['sites']}",
                (effect["odds_ratio"], effect["low"], effect["high"]) if estimated else None,
                effect.get("q"),
                effect.get("crude"),
                uncertain=bool(where) and grade(where) == GRADES[1],
                noisy=bool(found.get("forecast")),
                inflation=effect.get("inflation"),
            )
        )
    return sorted(rows, key=lambda r: -r.ratio[0] if r.ratio else 0.0)


def site_rows(presence: Mapping[str, Any], names: Sequence[str]) -> list[SiteRow]:
    """Every phenotype at every hospital whose counts were released, hospitals in natural order."""
    sites = presence.get("sites") or {}
    order = sorted(range(len(sites)), key=lambda k: natural(list(sites)[k]))
    sizes = list(sites.items())
    return [
        SiteRow(r + 1, name, sizes[k][0], presence["carriers"][r][k], sizes[k][1])
        for r, name in enumerate(names)
        for k in order
    ]


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which "site 9" comes before "site 10".

    >>> sorted(["site 10", "site 9", "a"], key=natural)
    ['a', 'site 9', 'site 10']
    """
    return [(int(part or 0) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]+)", name)]


def calibration_rows(found: Found) -> list[CalibrationRow]:
    """Groups of patients by predicted risk."""
    return [CalibrationRow(*r) for r in (found.get("outcome") or {}).get("calibration") or ()]


def survival_groups(one: Mapping[str, Any]) -> tuple[list[SurvivalGroup], str]:
    """The curves of one phenotype (or of everybody), and the unit of their times."""
    rows = rows_of(one["curve"])
    years = max((r["time"] for r in rows), default=0.0) > 3 * YEAR
    unit = YEAR if years else 1.0
    words = {"carriers": "with", "others": "without", "everybody": "all"}
    groups = []
    for key in dict.fromkeys(r["group"] for r in rows):
        own = [r for r in rows if r["group"] == key]
        points = tuple((round(r["time"] / unit, 2), r["survival"], r["low"], r["high"]) for r in own)
        groups.append(
            SurvivalGroup(words.get(key, key), points, dict(zip((p[0] for p in points), (r["at_risk"] for r in own))))
        )
    return groups, "years" if years else "days"


def flow_boxes(study: Mapping[str, Any], found: Found, minimum: int = 11) -> list[FlowBox]:
    """Patients left after each step, from the source to the outcome. The same boxes in every study."""
    boxes = [
        FlowBox(
            b["words"],
            b["patients"],
            noisy=bool(b.get("noisy")),
            released=b.get("released", True),
            name=b.get("box", ""),
        )
        for b in study.get("flow") or ()
    ]
    total = next((b.patients for b in boxes if b.name == "takes_part" and not b.noisy), None)
    out = boxes[:1]
    for before, box in itertools.pairwise(boxes):
        last = box is boxes[-1] and bool(found.get("outcome"))
        out.append(replace(box, lost="" if last else _lost(before, box, minimum)))
    return [replace(b, between=_between(b, total, minimum)) for b in out]


def _lost(before: FlowBox, box: FlowBox, minimum: int) -> str:
    """How many patients a step left out."""
    if before.noisy or box.noisy or before.patients is None or box.patients is None or before.patients == box.patients:
        return ""
    gone = before.patients - box.patients
    return f"left out: {gone:,}" if gone >= minimum else f"left out: fewer than {minimum}"


def _between(box: FlowBox, total: int | None, minimum: int) -> str:
    """What is known of a hidden count: 1 to ``minimum`` - 1 patients separate it from those who take part."""
    if box.patients is not None or not box.released or total is None:
        return ""
    ranges = {"source": (total + 1, total + minimum - 1), "outcome_known": (total - minimum + 1, total - 1)}
    return "{:,} to {:,}".format(*ranges[box.name]) if box.name in ranges else ""
