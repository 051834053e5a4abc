"""``polyclinic evaluate RUN STUDY``: what follows the fit, of a stored model, as a study of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder with a phenotype model.")],
    study: Annotated[
        Path, typer.Argument(help="A study file: its sites, [people] and [evaluate]; its method is not run.")
    ],
    plan_only: Annotated[
        bool,
        typer.Option("--plan", help="With [privacy]: print how far off each figure will be; nothing is read or spent."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Evaluate a stored model on a study's sites: prevalence, Table 1, outcome, survival, unseen codes."""
    from secrets import token_hex

    from polyclinic.cli.console import busy, console, say_json
    from polyclinic.config import Study
    from polyclinic.models import load
    from polyclinic.privacy.accounting.budget import Privacy
    from polyclinic.privacy.gate.owner_rules import payers_of, policy_of
    from polyclinic.protocol.patient_halves import names_of
    from polyclinic.studies.analyses import forecast_for, plan_of, refused, run_acts
    from polyclinic.studies.owners import door_in_process, owners_of
    from polyclinic.studies.run_folder import RunFolder
    from polyclinic.studies.simulate import gathered

    run, asked = RunFolder(folder), Study.read(study)
    plan = plan_of(asked)
    nodes = {n.name: n for n in asked.nodes()}
    refused({n: policy_of(node) for n, node in nodes.items()}, plan.what)
    model = load(run.model())
    if plan_only:
        told = forecast_for(asked, model)
        if as_json:
            say_json({"forecast": [dict(zip(told.columns, r)) for r in told.rows]})
        else:
            console.print(repr(told), markup=False, soft_wrap=True)
        return
    with busy("reading the sites", quiet=as_json):
        who = gathered(asked)
    sites, run_id = who.sites, token_hex(16)
    owners = owners_of(asked, sites, who.joined)
    doors = {}
    named = asked.method.name if asked.method is not None else "evaluate"
    privacy = None if asked.privacy is None else Privacy(**asked.privacy.model_dump(exclude_none=True))
    for s in sites:
        payers = payers_of(owners, s.name, run_id)
        doors[s.name] = door_in_process(s.name, asked.name, run.ledgers, payers, run=f"{run_id}-{s.name}")
        doors[s.name].admit(asked.name, named, privacy, [x.name for x in sites], s.patients)
    if privacy is None:  # one set of people of each owner, however many sites it was divided into
        for node in nodes.values():
            mine = [s for s in sites if any(n.name == node.name for n in owners[s.name])]
            people = sorted(n for s in mine for n in names_of(s))
            for payer in payers_of({"": (node,)}, "", run_id):
                payer.evaluates(run_id, people, f"node {node.name!r} does not take part in study {asked.name!r}")
    with busy("evaluating", quiet=as_json):
        minimum = max([11, *(policy_of(n).min_cell for n in nodes.values())])
        how = asked.method.parameters.get("aggregation", "plain") if asked.method is not None else "plain"
        found = run_acts(
            asked, model, sites, doors=doors, minimum=minimum, aggregation=str(how) if privacy else "plain"
        )
    for d in doors.values():
        d.close()
    path = run.path / "findings.json"
    value = found.to_json()
    if path.is_file():  # what came back was found with the fit, and stays
        before = run.read_json(path)
        value |= {k: before[k] for k in ("replicability", "replicable") if before.get(k) is not None}
        value["missing"] = {k: v for k, v in found.missing.items() if k != "replicate" or not value["replicability"]}
    run.write_json(path, value)
    if as_json:
        say_json(value)
        return
    console.print(repr(found), markup=False, soft_wrap=True)
    console.print(f"written: {path}; polyclinic report {run.path} shows it", markup=False, soft_wrap=True)
