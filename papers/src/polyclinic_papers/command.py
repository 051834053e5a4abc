"""``polyclinic papers list|run|report``: the five papers, table by table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli import application

__all__ = ["app"]

app = application("Reproduce the five papers: list, run, report.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", help="Folder of results.")]


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="An array of objects.")] = False) -> None:
    """List experiments with paper, table or figure, and data."""
    from polyclinic_papers.catalogue import CATALOGUE

    rows = [{"name": e.name, "paper": e.paper, "title": e.title, "data": e.data} for e in CATALOGUE.values()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from polyclinic.cli.console import console

    wide = max(len(r["name"]) for r in rows)
    for r in rows:
        console.print(
            f"{r['name']:<{wide}} {r['paper']:<11} {r['title']}"
            + ("" if r["data"] == "generated" else f" (needs {r['data']})"),
            soft_wrap=not console.is_terminal,  # piped, an experiment is a line
            markup=False,
        )


@app.command("run")
def run_(
    name: Annotated[str, typer.Argument(help="An experiment, a paper (dpfact, localtf, trip, unpsl, em), or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, seconds instead of minutes.")] = False,
    out: Out = Path("runs/papers"),
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
) -> None:
    """Run experiments. Interrupted ones continue."""
    from polyclinic.cli.console import console
    from polyclinic.errors import DataError
    from polyclinic_papers.catalogue import find
    from polyclinic_papers.experiment import markdown, run, summary, took

    results: list[dict[str, Any]] = []
    for experiment in find(name):
        try:
            found = run(experiment, "quick" if quick else "full", out)
        except DataError as e:
            if len(find(name)) == 1:
                raise
            console.print(f"{experiment.name}: skipped, {e.what}")
            continue
        results.append(found)
        if not as_json:
            console.print(markdown(found), soft_wrap=True, markup=False)
            console.print(f"{took(found)}, {out / experiment.name}\n")
    if as_json:
        sys.stdout.write(json.dumps(results) + "\n")
    elif told := summary(results):
        console.print(f"## Main figure\n\n{told}", soft_wrap=True, markup=False)


@app.command("report")
def report_(
    out: Out = Path("runs/papers"),
    to: Annotated[Path | None, typer.Option("--to", help="Page to write. Default: papers.md in --out.")] = None,
) -> None:
    """Render all results of the folder as one page."""
    from polyclinic.cli.console import console
    from polyclinic_papers.results import write_page

    console.print(str(write_page(out, to or out / "papers.md")), soft_wrap=True, markup=False)
