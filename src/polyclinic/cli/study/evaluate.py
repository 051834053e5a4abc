"""``polyclinic evaluate RUN STUDY``: what follows the fit, of a stored model, as a study of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.console import Json, busy, say
from polyclinic.config import Study
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.gate.owner_rules import payers_of, policy_of
from polyclinic.privacy.guarantee import noisy

if TYPE_CHECKING:
    from polyclinic.analysis.findings import Findings
    from polyclinic.models.file import Learned
    from polyclinic.studies.run_folder import RunFolder


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder with a phenotype model.")],
    study: Annotated[Path, typer.Argument(help="Study file with sites, [people] and [evaluate].")],
    plan_only: Annotated[
        bool,
        typer.Option("--plan", help="With [privacy]: print the expected error of each figure. Spends nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a stored model on a study's sites: prevalence, Table 1, outcome, survival, unseen codes."""
    from polyclinic.models.file import load
    from polyclinic.studies.analyses import forecast_for, plan_of, refused
    from polyclinic.studies.run_folder import RunFolder

    run, asked = RunFolder(folder), Study.read(study)
    run.check_format()
    refused({n.name: policy_of(n) for n in asked.nodes()}, plan_of(asked).what)
    model = load(run.model())
    if plan_only:
        forecast = forecast_for(asked, model)
        say({"forecast": [dict(zip(forecast.columns, r)) for r in forecast.rows]}, as_json, repr(forecast))
        return
    findings = _evaluated(run, asked, model, quiet=as_json)
    path = run.path / "findings.json"
    value = findings.to_json()
    if path.is_file():  # what was found with the fit stays
        before = run.read_json(path)
        value |= {k: before[k] for k in ("replicability", "replicable") if before.get(k) is not None}
        value["missing"] = {k: v for k, v in findings.missing.items() if k != "replicate" or not value["replicability"]}
    run.write_json(path, value)
    say(value, as_json, repr(findings), f"written: {path}; polyclinic report {run.path} shows it")


def _evaluated(run: RunFolder, asked: Study, model: Learned, *, quiet: bool) -> Findings:
    """Run the analyses on the study's sites, with the agreement of every owner."""
    from secrets import token_hex

    from polyclinic.studies.analyses import run_acts
    from polyclinic.studies.owners import door_in_process, owners_of
    from polyclinic.studies.simulate import gathered

    with busy("reading the sites", quiet=quiet):
        who = gathered(asked)
    sites, run_id, nodes = who.sites, token_hex(16), asked.nodes()
    owners = owners_of(asked, sites, who.joined)
    name, parameters = ("evaluate", {}) if asked.method is None else (asked.method.name, asked.method.parameters)
    privacy = None if not noisy(asked.privacy) else Privacy(**asked.privacy.model_dump(exclude_none=True))
    gates = {}
    for s in sites:
        payers = payers_of(owners, s.name, run_id)
        gates[s.name] = door_in_process(s.name, asked.name, run.ledgers, payers, run=f"{run_id}-{s.name}")
        gates[s.name].admit(asked.name, name, privacy, [x.name for x in sites], s.patients)
    if not noisy(privacy):
        _agree(asked, run_id)
    with busy("evaluating", quiet=quiet):
        minimum = max([11, *(policy_of(n).min_cell for n in nodes)])
        aggregation = str(parameters.get("aggregation", "plain")) if privacy else "plain"
        findings = run_acts(asked, model, sites, doors=gates, minimum=minimum, aggregation=aggregation)
    for gate in gates.values():
        gate.close()
    return findings


def _agree(asked: Study, run_id: str) -> None:
    """Ask each owner about one more exact evaluation."""
    for node in asked.nodes():
        for payer in payers_of({"": (node,)}, "", run_id):
            payer.asks_exactly(run_id, f"node {node.name!r} does not take part in study {asked.name!r}")
