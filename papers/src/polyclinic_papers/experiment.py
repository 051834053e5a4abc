"""An experiment: what a paper reported, what we get, and whether its claim holds."""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyclinic import __version__
from polyclinic.errors import ConfigError
from polyclinic.util.atomic_files import atomic
from polyclinic_papers.claims import Claim

__all__ = ["Experiment", "Lab", "Result", "draw", "markdown", "parameters", "run", "summary", "took"]

Mode = Literal["quick", "full"]


@dataclass(frozen=True)
class Result:
    """A table, curves for a figure, and claims.

    ``curves`` are drawn over ``at`` (numbers, or names for bars; by default 1, 2, ...) with ``spread`` (standard deviations)
    as error bars; ``log`` names the logarithmic axes (``"x"``, ``"y"``, ``"xy"``). ``main`` is for a paper's main figure:
    what the paper says, ours, the literal version, the verdict.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    claims: Sequence[Claim] = ()
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    x: str = "round"
    y: str = ""
    note: str = ""
    at: Sequence[Any] = ()
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    log: str = ""
    main: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of one paper."""

    name: str
    paper: str
    title: str
    run: Callable[[Lab], Result]
    data: str = "generated"


class Lab:
    """Where an experiment works: its parameters and seeds, and a folder that makes it resumable part by part."""

    def __init__(self, name: str, mode: Mode, folder: Path | None = None) -> None:
        self.name, self.mode, self.folder = name, mode, folder
        self.parameters = parameters(name, mode)
        self.before: float | None = 0.0  # seconds of parts that an earlier run did; None: not kept
        self._counted: set[str] = set()  # parts met in this run: each counts once
        self._within: list[dict[str, float]] = []  # of every part now being done: those done inside it

    def __getitem__(self, key: str) -> Any:
        return self.parameters[key]

    @property
    def repetitions(self) -> int:
        """How often everything is repeated: seeds, splits or trials."""
        return int(next((self.parameters[k] for k in ("seeds", "repeats", "trials") if k in self.parameters), 1))

    @property
    def seeds(self) -> range:
        """Repetitions; fixed."""
        return range(int(self.parameters.get("seeds", 5)))

    def tune(
        self, name: str, settings: Sequence[Mapping[str, Any]], loss: Callable[..., float | None]
    ) -> dict[str, Any]:
        """The setting of least loss; every method of a comparison gets equally many, on a seed that no figure uses."""
        found = [self.part(f"tune {name} {json.dumps(s, default=str)}", lambda s=s: loss(**s)) for s in settings]
        best = min(range(len(found)), key=lambda i: float("inf") if found[i] is None else found[i])
        return dict(settings[best])

    def part(self, key: str, work: Callable[..., Any]) -> Any:
        """Do a part once: its result is kept in the folder, so that an interrupted experiment goes on where it was."""
        if self.folder is None:
            return work()
        mark = hashlib.sha256(json.dumps([__version__, self.parameters], sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / self.name / "parts" / f"{mark}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        kept = _kept(path)
        if kept is not None:
            self._count(path.name, kept)
            return kept["value"]
        self._within.append({})
        begun = time.perf_counter()
        try:
            value = json.loads(json.dumps(work(), default=_plain))
        finally:
            seconds, within = time.perf_counter() - begun, self._within.pop()
        with atomic(path) as temporary:
            temporary.write_text(json.dumps({"key": key, "seconds": seconds, "within": within, "value": value}))
        self._counted.add(path.name)
        for outer in self._within:
            outer[path.name] = seconds - sum(within.values())
        return value

    def _count(self, name: str, kept: Mapping[str, Any]) -> None:
        """Add what an earlier run spent on a part, less those inside it that are counted already."""
        if name in self._counted:
            return
        if "seconds" not in kept:
            self.before = None
            return
        within = kept.get("within", {})
        known = sum(v for part, v in within.items() if part in self._counted)
        self._counted |= {name, *within}
        if self.before is not None:
            self.before += kept["seconds"] - known


def _kept(path: Path) -> dict[str, Any] | None:
    """A part done before; one that is damaged is done anew."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return kept if isinstance(kept, dict) and "value" in kept else None


def parameters(name: str, mode: Mode) -> dict[str, Any]:
    """The experiment's parameters from ``parameters.toml``: ``[NAME.full]`` over which ``[NAME.quick]`` is laid in quick mode."""
    known = tomllib.loads((files("polyclinic_papers") / "parameters.toml").read_text(encoding="utf-8"))
    if name not in known:
        raise ConfigError(f"no parameters of experiment {name!r}", faults=[f"known: {', '.join(known)}"])
    section = known[name]
    return {**section.get("full", {}), **(section.get("quick", {}) if mode == "quick" else {})}


def run(experiment: Experiment, mode: Mode, folder: Path) -> dict[str, Any]:
    """Run an experiment and write its JSON, Markdown and (if matplotlib is there) figure."""
    begun = time.perf_counter()
    lab = Lab(experiment.name, mode, folder)
    result = experiment.run(lab)
    if mode == "quick" and lab.repetitions < 2:
        main = {k: v.replace("does not hold", "undecided (one repetition)") for k, v in result.main.items()}
        result = replace(result, claims=[_once(c) for c in result.claims], main=main)
    value = {
        "name": experiment.name,
        "paper": experiment.paper,
        "title": experiment.title,
        "mode": mode,
        "version": __version__,
        "parameters": lab.parameters,
        "seconds": None if lab.before is None else time.perf_counter() - begun + lab.before,
        **asdict(result),
    }
    place = folder / experiment.name
    plain = json.loads(json.dumps(value, default=_plain))
    for ending, text in ((".json", json.dumps(plain, indent=1)), (".md", markdown(plain))):
        with atomic(place / f"{mode}{ending}") as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    draw(plain, place / f"{mode}.svg")
    return dict(plain)


def _once(claim: Claim) -> Claim:
    """A claim that fails on one repetition is not refuted."""
    if claim.verdict != "does not hold":
        return claim
    why = "; ".join(filter(None, ("one repetition decides nothing: run it in full", claim.why)))
    return replace(claim, verdict="undecided", why=why)


def markdown(value: Mapping[str, Any], level: str = "##") -> str:
    """The experiment as a page section: table, claims with paper and ours side by side."""
    out = [f"{level} {value['title']} (`{value['name']}`, {value['mode']})", ""]
    out += ["| " + " | ".join(map(_cell, value["columns"])) + " |", "|" + "---|" * len(value["columns"])]
    out += ["| " + " | ".join(_cell(c) for c in row) + " |" for row in value["rows"]]
    if value["claims"]:
        out += ["", "| claim | paper says | we get | verdict | why different |", "|---|---|---|---|---|"]
        for c in value["claims"]:
            failed = c["verdict"] == "does not hold"
            why = _cell(c["why"]) or ("**worse than the paper, and we have no explanation**" if failed else "")
            verdict = "does **not** hold" if failed else c["verdict"]
            out.append(f"| {_cell(c['text'])} | {_cell(c['paper'])} | {_cell(c['ours'])} | {verdict} | {why} |")
    if value["note"]:
        out += ["", value["note"]]
    settings = ", ".join(f"{k} = {v}" for k, v in value["parameters"].items())
    out += [
        "",
        f"Version {value['version']}. Parameters: {settings}; {took(value)}. `polyclinic papers run {value['name']}"
        + (" --quick`" if value["mode"] == "quick" else "`"),
    ]
    return "\n".join(out)


def summary(values: Sequence[Mapping[str, Any]]) -> str:
    """The main figure of each paper among these results, as a table."""
    mains = [(v["paper"], v["main"]) for v in values if v["main"]]
    if not mains:
        return ""
    keys = list(mains[0][1])
    lines = ["| paper | " + " | ".join(keys) + " |", "|" + "---|" * (len(keys) + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, [paper, *m.values()])) + " |" for paper, m in mains)])


def took(value: Mapping[str, Any]) -> str:
    """How long an experiment took, all parts together, by the clock."""
    return "time not kept" if value["seconds"] is None else f"{value['seconds']:.0f} s"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return re.sub(r"([|$*])", r"\\\1", text)  # what Markdown would read as a cell's end, a formula or stress


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


def draw(value: Mapping[str, Any], path: Path) -> None:
    """The curves of a result as a figure; nothing where it has none, or matplotlib is not there."""
    if not value["curves"]:
        return
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    with plt.rc_context(
        {"svg.hashsalt": value["name"], "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        names = [str(v) for v in value["at"]]
        bars = bool(names) and not all(isinstance(v, int | float) for v in value["at"])
        for k, (name, curve) in enumerate(value["curves"].items()):
            spread = value["spread"].get(name)
            if bars:
                width = 0.8 / len(value["curves"])
                axes.bar(
                    [i + (k + 0.5) * width - 0.4 for i in range(len(curve))], curve, width, yerr=spread, label=name
                )
                continue
            at = value["at"] or range(1, len(curve) + 1)
            few = "o-" if len(curve) <= 12 else "-"
            if spread:
                axes.errorbar(at, curve, yerr=spread, fmt=few, capsize=2, label=name)
            else:
                axes.plot(at, curve, few, label=name)
        if bars:
            axes.set_xticks(
                range(len(names)),
                names,
                rotation=20 if max(map(len, names)) > 8 else 0,
                ha="right" if max(map(len, names)) > 8 else "center",
            )
        if "x" in value["log"]:
            axes.set_xscale("log")
            if 0 < len(value["at"]) <= 10:
                axes.set_xticks(value["at"], [f"{v:g}" for v in value["at"]])
                axes.minorticks_off()
        if "y" in value["log"]:
            axes.set_yscale("log")
        axes.set_xlabel(value["x"])
        axes.set_ylabel(value["y"])
        axes.legend(frameon=False, fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
