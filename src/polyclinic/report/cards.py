"""Phenotype cards: what a clinician looks at first. A suggested name, its codes, who has it, and what goes with it."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from polyclinic.analysis.replication.consensus import BACK
from polyclinic.analysis.simulated.shown_codes import NAMED
from polyclinic.report.charts.cells import rows_of
from polyclinic.report.charts.rows import natural
from polyclinic.report.charts.svg import Series, line_chart
from polyclinic.report.contents import RunContents
from polyclinic.report.names import ORDERED, CardCode, suggest_name
from polyclinic.tensors.axis import Axis

LISTED: Final = 15  # codes of a mode that a card lists
_BIN: Final = re.compile(r"(-?\d+) to -?\d+ days")
LEAST: Final = 0.005  # codes with a smaller share are not listed


@dataclass(frozen=True)
class AtSite:
    """A phenotype at one site: how many of its patients have it (None = not shown)."""

    site: str
    carriers: int | None
    prevalence: float | None

    @property
    def few(self) -> bool:
        """Between one and ten patients: nothing about them is shown."""
        return self.carriers is None

    @property
    def there(self) -> bool:
        """Whether the site has the phenotype in more than a few patients."""
        return bool(self.carriers)


@dataclass(frozen=True)
class PhenotypeCard:
    """Everything a report says about one phenotype; ``number`` counts from 1."""

    number: int
    name: str
    weight: float
    codes: tuple[tuple[str, tuple[CardCode, ...]], ...]  # mode, its codes
    suppressed: int  # codes that are not shown
    sites: tuple[AtSite, ...] = ()
    prevalence: float | None = None
    carriers: int | None = None
    contributors: float | None = None
    effect: Mapping[str, Any] | None = None  # its row of the outcome's effects
    too_few: bool = False  # it describes single patients, so its codes are not shown
    kept: float = 1.0  # share of the squared weight that shown codes hold, in the mode that has least of it
    least: str = ""  # that mode
    named: bool = True  # its codes may name it: those shown hold at least half of it in each mode
    reason: Literal["", "carriers", "few", "held", "noise", "noisy", "failed"] = ""  # why no name is suggested
    fault: str = ""  # which test of the halves it failed, and how
    hidden_share: tuple[float, ...] = ()  # per mode: share of the weight that hidden codes hold
    piece_of: int | None = None  # number of the phenotype that this is a piece of
    courses: tuple[tuple[str, str], ...] = ()  # ordered modes (visits, times) and the line of the phenotype over them

    @property
    def suggested(self) -> str:
        """The name that is suggested; empty where its codes may not name it, and where it failed the test of the halves."""
        return "" if self.reason else self.name

    @property
    def where(self) -> Literal["shared", "site-specific", "unknown"]:
        """Found at several sites, at one, or not known: not released, or too few patients elsewhere to say."""
        present = [s for s in self.sites if s.there]
        if len(present) > 1:
            return "shared"
        return "site-specific" if len(present) == 1 and not any(s.few for s in self.sites) else "unknown"

    def why(self, minimum: int) -> str:
        """Why no name is suggested, in words."""
        return {
            "": "",
            "carriers": f"fewer than {minimum} patients have it",
            "few": f"fewer than {minimum} patients have its strongest codes",
            "held": "two patients hold most of its strongest codes",
            "noise": "the known noise explains all of it",
            "noisy": "the known noise explains most of what its codes weigh",
            "failed": self.fault,
        }[self.reason]

    @property
    def place(self) -> str:
        """The same in words."""
        present = [s.site for s in self.sites if s.there]
        if not present:
            return ""
        if self.where == "unknown":
            return f"{present[0]} (elsewhere too few patients to show)"
        if len(present) == 1:
            return f"specific to {present[0]}"
        return (
            "shared by all sites"
            if len(present) == len(self.sites)
            else f"shared by {len(present)} of {len(self.sites)} sites"
        )


def cards(run: RunContents) -> tuple[PhenotypeCard, ...]:
    """One card per phenotype, heaviest first."""
    from polyclinic.report.replication import verdicts  # it imports this module's cards

    judgements = verdicts(run.findings)
    names = set(run.phenotypes.names)
    lifts = _lifts(run)
    out = []
    for r in range(run.rank):
        failure = judgements[r].words if judgements and judgements[r].failed else None
        out.append(_card(run, r, failure, names, lifts))
        names.add(out[-1].name)
    return tuple(replace(c, piece_of=k) for c, k in zip(out, _pieces(run)))


def _pieces(run: RunContents) -> list[int | None]:
    """Per phenotype the number of a heavier one that has the same codes of one mode; None: it is no piece.

    Without [privacy] the fit joined pieces already, by patients; with it only the codes may be compared.
    """
    if not run.findings.get("forecast"):
        return [None] * run.rank
    visible = [np.where(h, 0.0, f) for f, h in zip(run.factors, run.hidden)]
    unit = [v / np.maximum(np.linalg.norm(v, axis=0), 1e-300) for v in visible]
    alike = np.max([u.T @ u for u in unit], axis=0) >= BACK
    out: list[int | None] = []
    for r in range(run.rank):
        heavier = [k for k in range(r) if alike[r, k] and out[k] is None]
        out.append(heavier[0] + 1 if heavier else None)
    return out


def _lifts(run: RunContents) -> list[NDArray[np.float64]]:
    """Per mode (I_n, R): a code's part of a phenotype over its part of all phenotypes, from codes that may be shown."""
    visible = [np.where(h | ~run.carried, 0.0, np.abs(f)) for f, h in zip(run.factors, run.hidden)]
    sums = [np.maximum(v.sum(0), 1e-300) for v in visible]
    events = np.abs(run.phenotypes.weights) * np.prod(sums, axis=0)
    shares = [v / s for v, s in zip(visible, sums)]
    overall = [(s * events).sum(1, keepdims=True) / max(float(events.sum()), 1e-300) for s in shares]
    return [s / np.maximum(o, 1e-300) for s, o in zip(shares, overall)]


def _card(
    run: RunContents, r: int, failure: str | None, names: Container[str], lifts: list[NDArray[np.float64]]
) -> PhenotypeCard:
    """Make the card of one phenotype. ``names`` are those of other phenotypes already."""
    too_few = not run.carried[r]
    codes, suppressed, shares = _codes(run, r, too_few, lifts)
    hidden_by = _reason(run, r)
    reason = hidden_by or ("failed" if failure is not None else "")
    name = f"Background {r + 1}" if r in run.background else f"Phenotype {r + 1}"
    if run.phenotypes.names and run.phenotypes.names[r]:  # a person's own name
        name = run.phenotypes.names[r]
    elif not reason and r not in run.background:  # where all its names are taken, its number tells it apart
        suggestion = suggest_name(codes)
        name = suggest_name(codes, avoid=names) or (f"{suggestion} ({r + 1})" if suggestion else name)
    carriers, share = _patients(run, r)
    contributors = run.presence.get("contributors")
    least = int(run.kept[r].argmin())
    return PhenotypeCard(
        r + 1,
        name,
        float(run.phenotypes.weights[r]),
        codes,
        suppressed,
        _at_sites(run, r),
        share,
        carriers,
        contributors[r] if contributors is not None else None,
        next((e for e in run.effects if e["phenotype"] == r and e["odds_ratio"] is not None), None),
        too_few,
        float(run.kept[r, least]),
        run.axes[least].name,
        not hidden_by,
        reason,
        failure or "" if reason == "failed" else "",
        shares,
        courses=() if too_few else _courses(run, r, name),
    )


def _patients(run: RunContents, r: int) -> tuple[int | None, float | None]:
    """How many patients have the phenotype, and their share: of all patients, or of an owner's own."""
    people = (
        None if run.owner else next((p for p in rows_of(run.findings.get("prevalence")) if p["phenotype"] == r), None)
    )
    if people is not None:
        return people["patients"], people["share"]
    count = run.presence["totals"][r] if run.presence else None
    return count, None if count is None or not run.patients else count / run.patients


def _codes(
    run: RunContents, r: int, too_few: bool, lifts: list[NDArray[np.float64]]
) -> tuple[tuple[tuple[str, tuple[CardCode, ...]], ...], int, tuple[float, ...]]:
    """Return the codes of every mode that may be shown, how many may not, and the share of weight of hidden codes."""
    modes, suppressed, shares = [], 0, []
    for axis, factor, hide, lift in zip(run.axes, run.factors, run.hidden, lifts):
        secret = np.ones(len(factor), bool) if too_few else hide[:, r]
        column = np.abs(factor[:, r])
        for mode, rows in axis.modes(len(factor)):
            own, hidden = column[rows], secret[rows]
            total = float(own.sum()) or 1.0
            order = [i for i in np.argsort(-own, kind="stable")[:LISTED] if own[i] / total >= LEAST]
            visible = [rows[i] for i in order if not hidden[i]]
            suppressed += len(order) - len(visible)
            codes = (
                CardCode(
                    axis.code(i), axis.describe(i), float(factor[i, r]), float(column[i]) / total, float(lift[i, r])
                )
                for i in visible
            )
            modes.append((mode, tuple(codes)))
            shares.append(float(own.sum() if too_few else own[hidden].sum()) / total)
    return tuple(modes), suppressed, tuple(shares)


def _at_sites(run: RunContents, r: int) -> tuple[AtSite, ...]:
    """Return how many patients have the phenotype at every site."""
    sites = run.presence.get("sites") or {}
    rows = zip(sites.items(), run.presence["carriers"][r]) if sites else ()
    found = (AtSite(s, carriers, None if carriers is None or not n else carriers / n) for (s, n), carriers in rows)
    return tuple(sorted(found, key=lambda a: natural(a.site)))


def _courses(run: RunContents, r: int, name: str) -> tuple[tuple[str, str], ...]:
    """The phenotype over every ordered mode."""
    modes = zip(run.axes, run.factors, run.hidden)
    return tuple(
        (a.name, course_chart(a, f[:, r], h[:, r] & (f[:, r] != 0), name)) for a, f, h in modes if a.name in ORDERED
    )


def course_chart(axis: Axis, column: NDArray[np.float64], hidden: NDArray[np.bool_], name: str) -> Markup:
    """A line over the positions of an ordered mode, each its share of the phenotype; what may not be shown is left out.

    >>> "<path" in course_chart(Axis("time", ("0 to 29 days", "30 to 60 days")), np.array([1.0, 3.0]), np.zeros(2, bool), "x")
    True
    """
    total = float(np.abs(column).sum()) or 1.0
    days = [_BIN.fullmatch(axis.describe(t)) for t in range(len(column))]
    dated = all(days)  # bins of days are drawn where they begin, visits one by one
    positions = [float(d[1]) if dated and d is not None else t + 1.0 for t, d in enumerate(days)]
    points = [(x, float(abs(v)) / total) for x, v, gone in zip(positions, column, hidden) if not gone]
    if len(points) < 2:
        return Markup("")
    ends = f"1: {axis.describe(0)}; {len(column)}: {axis.describe(len(column) - 1)}"
    return line_chart(
        [Series(name, points)],
        title=f"Trajectory of {name} over {axis.name}",
        x=f"days since the index date ({len(column)} bins, drawn where they begin)"
        if dated
        else f"{axis.name} ({ends})",
        y="share",
        zero=True,
        whole=True,
    )


def _reason(run: RunContents, r: int) -> Literal["", "carriers", "few", "held", "noise", "noisy"]:
    """Why a phenotype may not be named: the codes that may be shown hold less than half of it in some mode."""
    if not run.carried[r]:
        return "carriers"
    if run.formal:  # the weights of codes that are not shown are noise: they are no part of the phenotype
        return "" if any((~h[:, r]).any() for h in run.hidden) else "noise"
    least = int(np.argmin(run.kept[r]))
    if run.kept[r, least] >= NAMED:
        return ""
    square = np.square(run.factors[least][:, r]) * run.hidden[least][:, r]
    if run.phenotypes.shown and float(square[~run.phenotypes.shown[least][:, r]].sum()) > float(square.sum()) / 2:
        return "noisy"
    if least >= len(run.held):
        return "few"
    by_two = float(square[run.held[least][:, r]].sum())
    return "held" if by_two > float(square.sum()) / 2 else "few"
