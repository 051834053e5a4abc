"""``polyclinic simulate STUDY --out DIR``: run a study over several sites in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, console, follow, say


def command(
    study: Annotated[Path, typer.Argument(help="The study file (study.toml).")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in the folder.")] = False,
    threads: Annotated[int, typer.Option(help="Sites computed in parallel. The model is the same.")] = 2,
    as_json: Json = False,
) -> None:
    """Run a study over several sites in this process; checkpoints each round."""
    from polyclinic.node.run_study import simulate_to
    from polyclinic.studies.analyses import replication_words
    from polyclinic.studies.halvings import halvings
    from polyclinic.studies.registry import read_study

    what = read_study(study)
    halved = halvings(what)
    if not as_json:
        told = replication_words(what) if halved.number else f"not tested: {halved.words}"
        console.print(f"{'what comes back':<24} {told}")  # the words name [study]
    rounds = int(what.chosen().parameters.get("rounds", 100))
    try:
        with follow(f"{what.name}: {what.chosen().name}", rounds, quiet=as_json) as progress:
            folder = simulate_to(out, what, resume=resume, threads=threads, progress=progress)
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with: polyclinic simulate {study} --out {out} --resume")
        raise
    metrics = folder.read_json(folder.metrics)
    if as_json:
        say(metrics, as_json)
        return
    for key, value in metrics.items():
        if not isinstance(value, dict | list):
            console.print(f"{key:<24} {_told(value)}")
    small = folder.read_json(folder.study).get("small")
    if small:
        gone = [x for names in small["joined"].values() for x in names] or small["skipped"]
        became = f"joined into {len(small['joined'])}, so that none has" if small["joined"] else "left out:"
        console.print(
            f"{'small sites':<24} {len(gone)} {became} fewer than {small['minimum']} patients; see the report"
        )
    console.print(f"{'run folder':<24} {folder.path}")


def _told(value: object) -> str:
    """A figure as a person reads it; None is what was not taken, or is too few to show."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
