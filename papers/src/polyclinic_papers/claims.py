"""What the papers claim, as data: the files in ``claims/`` say it, this reads them and judges by the figures.

A claim holds where its statistic lies on the claimed side of the bar with its whole 95 % interval, does not hold where it lies on the
other side with all of it, and is undecided where the interval includes the bar:

    holds           high < bar        (of a claim "statistic < bar")
    does not hold   low >= bar
    undecided       low < bar <= high
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from polyclinic.errors import ConfigError
from polyclinic_papers.interval import Interval

__all__ = ["VERDICTS", "Claim", "Rule", "Verdict", "judge"]

Verdict = Literal["holds", "does not hold", "undecided"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "does not hold", "undecided")
SIDES: Final = ("<=", ">=", "<", ">", "within", "is")
_KEYS: Final = {"claim", "paper", "ours", "holds", "reasons", "note", "asserted", "only_with"}


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and what became of it.

    ``rule`` and ``figures`` are what the verdict rests on, so that it can be read again without a run. ``asserted`` claims are
    tested in quick mode.
    """

    text: str
    paper: str
    ours: str
    verdict: Verdict
    why: str = ""
    asserted: bool = False
    rule: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A statistic, a side and a bar: ``gap < 0``, ``found >= bar``, ``gap.mean within 0.01``, or a name that must be true.

    >>> Rule.read("gap < 0").judge({"gap": Interval(-2.0, -3.0, -1.0, 5)})
    'holds'
    >>> Rule.read("gap < 0").judge({"gap": Interval(-1.0, -3.0, 1.0, 5)})
    'undecided'
    """

    statistic: str
    side: str = ""
    bar: str = ""

    @classmethod
    def read(cls, text: str) -> Rule:
        """From a line of a claims file."""
        found = re.fullmatch(rf"\s*([\w.]+)(?:\s*({'|'.join(SIDES)})\s*([\w.+-]+))?\s*", text)
        if found is None:
            raise ConfigError(
                f"no rule: {text!r}", hint=f"write STATISTIC SIDE BAR with a side of {', '.join(SIDES)}, or a name"
            )
        return cls(found[1], found[2] or "", found[3] or "")

    def judge(self, figures: Mapping[str, Any]) -> Verdict:
        """The verdict on this rule; several intervals (one a rank, say) must all lie on the side."""
        value = _figure(figures, self.statistic)
        if not self.side:
            return "holds" if value else "does not hold"
        bar = _number(figures, self.bar)
        several = value if isinstance(value, list | tuple) else [value]
        return together([_side(v, self.side, bar) for v in several])


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of rules that must all hold."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "undecided" if "undecided" in verdicts else "holds"


def _side(value: Interval | float, side: str, bar: float) -> Verdict:
    low, high = (value.low, value.high) if isinstance(value, Interval) else (float(value), float(value))
    yes, no = {
        "<": (high < bar, low >= bar),
        "<=": (high <= bar, low > bar),
        ">": (low > bar, high <= bar),
        ">=": (low >= bar, high < bar),
        "within": (-bar < low and high < bar, low >= bar or high <= -bar),
        "is": (low == high == bar, high < bar or low > bar),
    }[side]
    return "holds" if yes else "does not hold" if no else "undecided"


def _figure(figures: Mapping[str, Any], name: str) -> Any:
    """A figure by its name, or a part of it (``gap.mean``)."""
    head, _, part = name.partition(".")
    if head not in figures:
        raise ConfigError(f"no figure {head!r} was measured", faults=[f"measured: {', '.join(figures)}"])
    value = figures[head]
    return getattr(value, part) if part else value


def _number(figures: Mapping[str, Any], text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(_figure(figures, text))


def judge(where: str, **figures: Any) -> list[Claim]:
    """The claims of a section (``"dpfact.rmse"``) or one of them (``"dpfact.cost.literal"``), judged by the figures.

    Texts may name figures in braces. Claims with ``only_with = NAME`` are left out where that figure is None.
    """
    paper, _, path = where.partition(".")
    section, _, one = path.partition(".")
    known = _read(paper).get(section, {})
    chosen = known if not one else {one: known[one]} if one in known else {}
    if not chosen:
        raise ConfigError(f"no claims {where!r}", faults=[f"known in {paper}.toml: {', '.join(_read(paper))}"])
    return [_judged(c, figures) for c in chosen.values() if figures.get(c.get("only_with", ""), True) is not None]


def _judged(entry: Mapping[str, Any], figures: Mapping[str, Any]) -> Claim:
    lines = _lines(entry["holds"])
    verdict = together([Rule.read(line).judge(figures) for line in lines])
    why = "" if verdict == "holds" else _reason(entry.get("reasons", ()), verdict, figures)
    told = "; ".join(t.format(**figures) for t in (why, entry.get("note", "")) if t)
    names = {Rule.read(line).statistic.partition(".")[0] for line in lines}
    return Claim(
        entry["claim"].format(**figures),
        entry.get("paper", "-").format(**figures),
        entry["ours"].format(**figures),
        verdict,
        told,
        bool(figures.get("asserted", entry.get("asserted", False))),
        tuple(lines),
        {n: figures[n] for n in sorted(names)},
    )


def _reason(reasons: Sequence[Mapping[str, Any]], verdict: Verdict, figures: Mapping[str, Any]) -> str:
    """The first reason all of whose conditions are met."""
    said = {**figures, "failed": verdict == "does not hold", "undecided": verdict == "undecided"}
    for reason in reasons:
        if all(Rule.read(c).judge(said) == "holds" for c in _lines(reason.get("if", []))):
            return str(reason["say"])
    return ""


def _lines(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


@cache
def _read(paper: str) -> dict[str, dict[str, dict[str, Any]]]:
    """A paper's file, checked: every claim has its keys, and every rule can be read."""
    text = (files("polyclinic_papers") / "claims" / f"{paper}.toml").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(text)
    faults = []
    for section, claims in found.items():
        for name, entry in claims.items():
            at = f"{paper}.toml [{section}.{name}]"
            faults += [f"{at}: {key} is missing" for key in ("claim", "ours", "holds") if key not in entry]
            faults += [f"{at}: {key} is unknown" for key in entry if key not in _KEYS]
            for line in [
                *_lines(entry.get("holds", [])),
                *(c for r in entry.get("reasons", ()) for c in _lines(r.get("if", []))),
            ]:
                Rule.read(line)
    if faults:
        raise ConfigError("a claims file is wrong", faults=faults)
    return found
