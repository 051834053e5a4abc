"""What the papers claim, as data: the files in ``claims/`` say it, this reads them and judges by the figures.

One rule for all claims. The statistic is compared with a bar, with its whole 95 % interval:

    holds           high < bar        (of a claim "statistic < bar")
    does not hold   low >= bar
    undecided       low < bar <= high
    no signal       a control gets the claim too, or there is nothing to lose (the claim's ``signal`` rule is not met)

Controls take the place of the method that a claim speaks for: the zero model, random factors, permuted labels. An experiment
measures them on the same data. Claims about error compare explained energy, which is 0 for the zero model.
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

__all__ = ["VERDICTS", "Claim", "Rule", "Verdict", "judge", "verdicts"]

Verdict = Literal["holds", "does not hold", "undecided", "no signal"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "does not hold", "undecided", "no signal")
Controls = Mapping[str, Mapping[str, Any]]  # name of a control -> the figures that it changes
SIDES: Final = ("<=", ">=", "<", ">", "within", "is")
_KEYS: Final = {"claim", "paper", "ours", "holds", "reasons", "note", "asserted", "only_with", "signal"}


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and what became of it.

    ``rule`` and ``figures`` are what the verdict rests on, so that it can be read again without a run. ``asserted`` claims are
    tested in quick mode. ``controls`` are the verdicts of the same rule on the controls.
    """

    text: str
    paper: str
    ours: str
    verdict: Verdict
    why: str = ""
    asserted: bool = False
    rule: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    controls: Mapping[str, Verdict] = field(default_factory=dict)


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


def judge(where: str, controls: Controls, **figures: Any) -> list[Claim]:
    """The claims of a section (``"dpfact.rmse"``) or one of them (``"dpfact.cost.literal"``), judged by the figures.

    ``controls`` are laid over the figures. A claim has the controls that change a figure of its rule. Texts may name
    figures in braces. Claims with ``only_with = NAME`` are left out where that figure is None.
    """
    paper, _, path = where.partition(".")
    section, _, one = path.partition(".")
    known = _read(paper).get(section, {})
    chosen = known if not one else {one: known[one]} if one in known else {}
    if not chosen:
        raise ConfigError(f"no claims {where!r}", faults=[f"known in {paper}.toml: {', '.join(_read(paper))}"])
    return [
        _judged(c, figures, controls) for c in chosen.values() if figures.get(c.get("only_with", ""), True) is not None
    ]


def _judged(entry: Mapping[str, Any], figures: Mapping[str, Any], controls: Controls) -> Claim:
    lines, signal = _lines(entry["holds"]), _lines(entry.get("signal", []))
    names = {Rule.read(line).statistic.partition(".")[0] for line in [*lines, *signal]}
    measured = _verdict([*lines, *signal], figures)
    tried = {n: _verdict([*lines, *signal], {**figures, **c}) for n, c in controls.items() if names & c.keys()}
    gets_it_too = [n for n, v in tried.items() if v == measured == "holds"]
    verdict: Verdict = measured if not signal else _verdict(lines, figures)
    why = "" if verdict == "holds" else _reason(entry.get("reasons", ()), verdict, figures)
    if gets_it_too:
        verdict, why = "no signal", f"{' and '.join(gets_it_too)}: gets the claim too"
    elif signal and _verdict(signal, figures) != "holds":
        verdict, why = "no signal", f"there is nothing to lose: {' and '.join(signal)} is not met"
    return Claim(
        entry["claim"].format(**figures),
        entry.get("paper", "-").format(**figures),
        entry["ours"].format(**figures),
        verdict,
        ". ".join(t.format(**figures) for t in (why, entry.get("note", "")) if t),
        bool(figures.get("asserted", entry.get("asserted", False))),
        (*lines, *signal),
        {n: figures[n] for n in sorted(names)},
        tried,
    )


def _verdict(lines: Sequence[str], figures: Mapping[str, Any]) -> Verdict:
    return together([Rule.read(line).judge(figures) for line in lines])


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
                *_lines(entry.get("signal", [])),
                *(c for r in entry.get("reasons", ()) for c in _lines(r.get("if", []))),
            ]:
                Rule.read(line)
    if faults:
        raise ConfigError("a claims file is wrong", faults=faults)
    return found


def verdicts(default: Claim, literal: Claim) -> str:
    """Of a paper's main figure: the default's and the printed form's."""
    return f"default: {default.verdict}. Literal: {literal.verdict}"
