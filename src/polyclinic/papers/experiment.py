"""An experiment: what a paper reported, what we get, and whether its claim holds."""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyclinic import __version__
from polyclinic.errors import ConfigError
from polyclinic.tensors.files import atomic

__all__ = ["Claim", "Experiment", "Lab", "Result", "markdown", "mean_sd", "page", "parameters", "run"]

Mode = Literal["quick", "full"]


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and what became of it.

    ``holds`` is None where the paper's figure cannot be compared (the reason says why, with the erratum's number).
    ``asserted`` claims are tested in quick mode.
    """

    text: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""
    asserted: bool = False


@dataclass(frozen=True)
class Result:
    """A table, curves for a figure, and claims."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    claims: Sequence[Claim] = ()
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    x: str = "round"
    y: str = ""
    note: str = ""


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

    def __getitem__(self, key: str) -> Any:
        return self.parameters[key]

    @property
    def seeds(self) -> range:
        """Repetitions; fixed."""
        return range(int(self.parameters.get("seeds", 5)))

    def part(self, key: str, work: Callable[..., Any]) -> Any:
        """Do a part once: its result is kept in the folder, so that an interrupted experiment goes on where it was."""
        if self.folder is None:
            return work()
        mark = hashlib.sha256(json.dumps([__version__, self.parameters], sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / self.name / "parts" / f"{mark}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        if path.is_file():
            return json.loads(path.read_text())["value"]
        value = json.loads(json.dumps(work(), default=_plain))
        with atomic(path) as temporary:
            temporary.write_text(json.dumps({"key": key, "value": value}))
        return value


def parameters(name: str, mode: Mode) -> dict[str, Any]:
    """The experiment's parameters from ``parameters.toml``: ``[NAME.full]`` over which ``[NAME.quick]`` is laid in quick mode."""
    known = tomllib.loads((files("polyclinic.papers") / "parameters.toml").read_text(encoding="utf-8"))
    if name not in known:
        raise ConfigError(f"no parameters of experiment {name!r}", faults=[f"known: {', '.join(known)}"])
    section = known[name]
    return {**section.get("full", {}), **(section.get("quick", {}) if mode == "quick" else {})}


def run(experiment: Experiment, mode: Mode, folder: Path) -> dict[str, Any]:
    """Run an experiment and write its JSON, Markdown and (if matplotlib is there) figure."""
    begun = time.perf_counter()
    lab = Lab(experiment.name, mode, folder)
    result = experiment.run(lab)
    value = {
        "name": experiment.name,
        "paper": experiment.paper,
        "title": experiment.title,
        "mode": mode,
        "parameters": lab.parameters,
        "seconds": time.perf_counter() - begun,
        **asdict(result),
    }
    place = folder / experiment.name
    plain = json.loads(json.dumps(value, default=_plain))
    for ending, text in ((".json", json.dumps(plain, indent=1)), (".md", markdown(plain))):
        with atomic(place / f"{mode}{ending}") as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    _draw(plain, place / f"{mode}.png")
    return dict(plain)


def markdown(value: Mapping[str, Any]) -> str:
    """The experiment as a page section: table, claims with paper and ours side by side."""
    out = [f"## {value['title']} (`{value['name']}`, {value['mode']})", ""]
    out += ["| " + " | ".join(value["columns"]) + " |", "|" + "---|" * len(value["columns"])]
    out += ["| " + " | ".join(_cell(c) for c in row) + " |" for row in value["rows"]]
    if value["claims"]:
        out += ["", "| claim | paper says | we get | holds | why different |", "|---|---|---|---|---|"]
        for c in value["claims"]:
            holds = {True: "yes", False: "**no**", None: "not comparable"}[c["holds"]]
            why = c["why"] or ("**not explained**" if c["holds"] is False else "")
            out.append(f"| {c['text']} | {c['paper']} | {c['ours']} | {holds} | {why} |")
    if value["note"]:
        out += ["", value["note"]]
    settings = ", ".join(f"{k} = {v}" for k, v in value["parameters"].items())
    out += [
        "",
        f"Parameters: {settings}. `polyclinic papers run {value['name']}"
        + (" --quick`" if value["mode"] == "quick" else "`"),
    ]
    return "\n".join(out)


def page(folder: Path) -> str:
    """All results of a folder as one page: full results where there are any, else quick ones."""
    from polyclinic.papers.catalogue import CATALOGUE

    out = ["# The five papers, table by table", ""]
    paper = ""
    for name, experiment in CATALOGUE.items():
        found = next((p for p in (folder / name / "full.json", folder / name / "quick.json") if p.is_file()), None)
        if found is None:
            continue
        if experiment.paper != paper:
            paper = experiment.paper
            out += [f"# {paper}", ""]
        out += [markdown(json.loads(found.read_text(encoding="utf-8"))), ""]
    return "\n".join(out) + "\n"


def mean_sd(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over repetitions, as text.

    >>> mean_sd([1.0, 2.0, 3.0])
    '2.0000 ± 1.0000'
    """
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return f"{np.mean(known):.4f} ± {sd:.4f}"


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _draw(value: Mapping[str, Any], path: Path) -> None:
    if not value["curves"]:
        return
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, curve in value["curves"].items():
        axes.plot(range(1, len(curve) + 1), curve, label=name)
    axes.set_xlabel(value["x"])
    axes.set_ylabel(value["y"])
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
