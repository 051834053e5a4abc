"""``polyclinic replicate STUDY``: which phenotypes come back and hold together, and how many would by chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, busy, say
from polyclinic.errors import ConfigError
from polyclinic.privacy.guarantee import noisy
from polyclinic.studies.registry import make, read_study


def command(
    study: Annotated[Path, typer.Argument(help="Study file. All sites are read in this process.")],
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=20, help="Number of split-half repeats.")] = 1,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also run on permuted codes (false positive rate).")
    ] = True,
    as_json: Json = False,
) -> None:
    """Fit a study's method on everybody and on halves, judge every phenotype, and do the same where there is nothing to find."""
    from polyclinic.analysis.replication.replicate import replicate
    from polyclinic.studies.simulate import sites_of

    asked = read_study(study)
    if noisy(asked.privacy):
        raise ConfigError(
            f"study {asked.name!r} has [privacy]: a control costs privacy budget",
            hint="run the study itself; [study] replicate = 1 pays once for both halves",
        )
    alone = asked.study.model_copy(update={"replicate": 0})
    method = make(asked.model_copy(update={"evaluate": None, "study": alone}))
    with busy("reading the sites", quiet=as_json):
        sites = sites_of(asked)
    with busy("fitting on everybody and on halves", quiet=as_json):
        found = replicate(method, sites, repeats, key=asked.study.key or asked.name, control=control)
    rows = [dict(zip(found.table.columns, r)) for r in found.table.rows]
    value = {"replicable": found.count, "phenotypes": len(found.table), "table": rows}
    false = None if found.control is None else sum(bool(r["replicable"]) for r in found.control)
    text = repr(replace(found, table=found.table.from_one("phenotype")))
    say(value | {"control": false, "false_rate": found.false_rate}, as_json, text)
