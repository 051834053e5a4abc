"""``polyclinic simulate STUDY --out DIR``: run a study over several sites in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.console import Json, console, follow, say
from polyclinic.studies.registry import read_study

if TYPE_CHECKING:
    from polyclinic.protocol.outcome import Progress


def command(
    study: Annotated[Path, typer.Argument(help="The study file (study.toml).")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in the folder.")] = False,
    threads: Annotated[int, typer.Option(help="Sites computed in parallel. The model is the same.")] = 2,
    as_json: Json = False,
) -> None:
    """Run a study over several sites in this process; checkpoints each round."""
    from polyclinic.node.flare.run_study import simulate_to
    from polyclinic.studies.analyses import replication_words
    from polyclinic.studies.halvings import halvings

    what = read_study(study)
    halved = halvings(what)
    plan = [f"Replication: {replication_words(what) if halved.number else f'not tested: {halved.words}'}"]
    rounds = int(what.chosen().parameters.get("rounds", 100))
    try:
        with follow(f"{what.name}: {what.chosen().name}", rounds, quiet=as_json) as progress:
            # The plan is printed when the run starts: a refusal comes before.
            def show(event: Progress) -> None:
                if plan and not as_json:
                    console.print(plan.pop())
                progress(event)

            folder = simulate_to(out, what, resume=resume, threads=threads, progress=show)
    except KeyboardInterrupt:
        console.print(f"Interrupted. To continue: polyclinic simulate {study} --out {out} --resume")
        raise
    if as_json:
        say(folder.read_json(folder.metrics), as_json)
        return
    from polyclinic.report.answer import in_words

    for line in in_words(folder):
        console.print(line)
    console.print(f"\nRun folder: {folder.path}\nNext: polyclinic report {folder.path}")
