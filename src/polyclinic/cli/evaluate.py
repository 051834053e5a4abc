"""``polyclinic evaluate RUN STUDY``: what follows the fit, of a stored model, as a study of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    from polyclinic.cli.console import busy, console, say_json
    from polyclinic.engines.acts import forecast_for, plan_of, refused, run_acts
    from polyclinic.federation.halves import names_of
    from polyclinic.learned import load
    from polyclinic.privacy.budget import Privacy
    from polyclinic.privacy.door import Door
    from polyclinic.privacy.ledger import Ledger
    from polyclinic.privacy.owner import ledger_of, policy_of
    from polyclinic.run import RunFolder
    from polyclinic.simulation import sites_of
    from polyclinic.study import Study

    run, asked = RunFolder(folder), Study.read(study)
    plan = plan_of(asked)
    nodes = {n.name: n for n in asked.nodes()}
    refused({n: policy_of(node) for n, node in nodes.items()}, plan.what)
    model: Any = load(run.model())
    if plan_only:
        told = forecast_for(asked, model)
        if as_json:
            say_json({"forecast": [dict(zip(told.columns, r)) for r in told.rows]})
        else:
            console.print(repr(told), markup=False, soft_wrap=True)
        return
    with busy("reading the sites", quiet=as_json):
        sites = sites_of(asked)
    doors = {}
    named = asked.method.name if asked.method is not None else "evaluate"
    privacy = None if asked.privacy is None else Privacy(**asked.privacy.model_dump(exclude_none=True))
    for s in sites:
        node = nodes.get(s.name)
        doors[s.name] = Door(
            s.name,
            policy=None if node is None else policy_of(node),
            ledger=Ledger(run.ledgers / f"{s.name}.jsonl", site=s.name) if node is None else ledger_of(node),
            study=asked.name,
            cohort=s.name,
        )
        doors[s.name].admit(asked.name, named, privacy, [x.name for x in sites], s.patients)
        if privacy is None:
            doors[s.name].evaluates(names_of(s))
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
        value["missing"] = {k: v for k, v in value["missing"].items() if k != "replicate" or not value["replicability"]}
    run.write_json(path, value)
    if as_json:
        say_json(value)
        return
    console.print(repr(found), markup=False, soft_wrap=True)
    console.print(f"written: {path}; polyclinic report {run.path} shows it", markup=False, soft_wrap=True)
