"""The page of all results: what the papers say, what we get, and why they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import DataError
from polyclinic.util.atomic_files import atomic
from polyclinic_papers.catalogue import CATALOGUE
from polyclinic_papers.claims import VERDICTS, Claim
from polyclinic_papers.experiment import Result, draw, markdown

__all__ = ["page", "results", "write_page"]

_KEYS: Final = {"name", "paper", "title", "mode", "parameters", "seconds", *(f.name for f in fields(Result))}


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every experiment's result in a folder, by name: the full one where there is one, else the quick one."""
    found, damaged = {}, []
    for name in CATALOGUE:
        path = next((p for m in ("full", "quick") if (p := folder / name / f"{m}.json").is_file()), None)
        if path is None:
            continue
        value = _read(path)
        if value is None:
            again = f"polyclinic papers run {name}{' --quick' if path.stem == 'quick' else ''} --out {folder}"
            damaged.append(f"{path}: run it again with `{again}`")
        else:
            found[name] = value
    if damaged:
        raise DataError(
            "results that cannot be read",
            faults=damaged,
            hint="run these experiments again; parts that are whole are not done again",
        )
    if not found:
        raise DataError(
            f"no results to report in {folder}",
            faults=[
                f"{folder}: no such folder" if not folder.is_dir() else f"{folder}/NAME/full.json or quick.json: none"
            ],
            hint=f"polyclinic papers run all --quick --out {folder} makes them; or name their folder with --out",
        )
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """A result as written by :func:`polyclinic_papers.experiment.run`; None where it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    whole = isinstance(value, dict) and value.keys() >= _KEYS and all(map(_is_claim, value["claims"]))
    return dict(value) if whole else None


def _is_claim(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= {f.name for f in fields(Claim)}


def page(folder: Path, figures: str = "") -> str:
    """All results of a folder as one page: full results where there are any, else quick ones.

    ``figures`` is where the page finds the pictures (a relative path); without it they are left out.
    """
    known = results(folder)
    out = ["# Results, table by table", ""]
    out += [
        "What the papers say, what this program gets, and why they differ. Written by `polyclinic papers report` from the",
        "results of `polyclinic papers run all`; every section ends with the command that repeats it. A claim holds when",
        "its 95 % interval over the seeds lies wholly on the claimed side, does not hold when it lies wholly on the other, and is",
        "undecided when the interval includes the bar; there are many intervals, and none is corrected for their number. The claims",
        "are data: `papers/src/polyclinic_papers/claims/`. Minutes are by the clock, on two cores that were shared with other work.",
        "",
        "| paper | claims that hold | that do not | undecided | experiments | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for paper in dict.fromkeys(CATALOGUE[n].paper for n in known):
        mine = [v for n, v in known.items() if CATALOGUE[n].paper == paper]
        counts = [sum(c["verdict"] == h for v in mine for c in v["claims"]) for h in VERDICTS]
        out.append(f"| {paper} | {' | '.join(map(str, counts))} | {len(mine)} | {_minutes(mine)} |")
    paper = ""
    for name, value in known.items():
        if value["paper"] != paper:
            paper = value["paper"]
            out += ["", f"## {paper[0].upper()}{paper[1:]}"]
        out += ["", markdown(value, "###")]
        if figures and (folder / name / f"{value['mode']}.svg").is_file():
            out += ["", f"![{value['title']}]({figures}/{name}.svg)"]
    return "\n".join(out) + "\n"


def write_page(folder: Path, to: Path) -> Path:
    """Write the page of a folder's results, and its figures into a folder of the same name beside it."""
    text = page(folder, to.stem)  # first: it refuses what cannot be read before anything is written
    for name, found in results(folder).items():
        draw(found, to.with_suffix("") / f"{name}.svg")
    with atomic(to) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return to


def _minutes(values: Sequence[Mapping[str, Any]]) -> str:
    known = [v["seconds"] for v in values if v["seconds"] is not None]
    return f"{sum(known) / 60:.1f}" + (f" and {len(values) - len(known)} not timed" if len(known) < len(values) else "")
