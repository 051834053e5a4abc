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
from polyclinic_papers.experiment import Result, draw, markdown, summary

__all__ = ["page", "results", "write_page"]

_KEYS: Final = {"name", "paper", "title", "mode", "version", "parameters", "seconds", *(f.name for f in fields(Result))}


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


RULE: Final = """\
Written by `polyclinic papers report` from the results of `polyclinic papers run all`. Every section of a paper's page ends with its version,
settings, number of seeds and command. Minutes are by the clock on a machine that was shared with other work.

## How a claim is judged

1. A claim compares a statistic with a bar. It *holds* if the whole 95 % interval over the seeds lies on the claimed side of the bar.
2. It *does not hold* if the whole interval lies on the other side. It is *undecided* if the interval includes the bar.
3. The same rule judges controls on the same data: the zero model, random factors, permuted labels. If a control gets the claim too, the verdict is *no signal*.
4. The verdict is also *no signal* if there is nothing to lose, for example if every AUC is about 0.5.
5. Claims about error compare explained energy, the share of the squared counts that a model explains. It is 0 for the zero model.

The claims are data: `papers/src/polyclinic_papers/claims/`. There are many intervals, and none is corrected for their number.
"""


def _overview(known: Mapping[str, Mapping[str, Any]]) -> str:
    """The rule, the main figure of every paper, and how many claims have which verdict."""
    out = ["# Results", "", "After this page you know which claims of the five papers hold here.", "", RULE]
    if told := summary(list(known.values())):
        out += ["## Main figures", "", told, ""]
    out += [
        "## Verdicts",
        "",
        "| paper | claims that hold | that do not | undecided | no signal | experiments | minutes |",
    ]
    out += ["|---|---|---|---|---|---|---|"]
    for paper in dict.fromkeys(CATALOGUE[n].paper for n in known):
        mine = [v for n, v in known.items() if CATALOGUE[n].paper == paper]
        counts = [sum(c["verdict"] == h for v in mine for c in v["claims"]) for h in VERDICTS]
        out.append(f"| {paper} | {' | '.join(map(str, counts))} | {len(mine)} | {_minutes(mine)} |")
    return "\n".join(out) + "\n"


def _pages(folder: Path, known: Mapping[str, Mapping[str, Any]], figures: str = "") -> dict[str, str]:
    """Prefix of a paper -> its page, with pictures where ``figures`` (a relative path) says where they are."""
    out: dict[str, list[str]] = {}
    for name, value in known.items():
        lines = out.setdefault(name.split("-")[0], [f"# Results: {value['paper']}"])
        lines += ["", markdown(value, "##")]
        if figures and value["curves"]:
            lines += ["", f"![{value['title']}]({figures}/{name}.svg)"]
    return {paper: "\n".join(lines) + "\n" for paper, lines in out.items()}


def page(folder: Path) -> str:
    """All results of a folder as one text: full results where there are any, else quick ones."""
    known = results(folder)
    return "\n".join([_overview(known), *_pages(folder, known).values()])


def write_page(folder: Path, to: Path) -> Path:
    """Write an overview of a folder's results, a page per paper beside it, and the figures into a folder of its name."""
    known = results(folder)  # first: it refuses what cannot be read before anything is written
    pages = {to.with_name(f"{to.stem}-{n}.md"): text for n, text in _pages(folder, known, to.stem).items()}
    index = "\n".join(["", "```{toctree}", ":maxdepth: 1", "", *(p.stem for p in pages), "```", ""])
    for name, found in known.items():
        draw(found, to.with_suffix("") / f"{name}.svg")
    for path, text in {**pages, to: _overview(known) + index}.items():
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return to


def _minutes(values: Sequence[Mapping[str, Any]]) -> str:
    known = [v["seconds"] for v in values if v["seconds"] is not None]
    return f"{sum(known) / 60:.1f}" + (f" and {len(values) - len(known)} not timed" if len(known) < len(values) else "")
