"""``polyclinic site doctor`` and ``coordinator doctor``: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import NODE, Json, NodeFile, say
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder
from polyclinic.node.probe import Probe, first_fault
from polyclinic.studies.registry import read_study


def site(
    node: NodeFile = NODE,
    study: Annotated[Path | None, typer.Option(help="A study.toml: also checks its data as the study would.")] = None,
    json_: Json = False,
) -> None:
    """Find faults of this node and name the fix. Exit code 0 if there are none. Sends no patient data."""
    from polyclinic.node.admission.membership import undecided
    from polyclinic.node.doctor.probes import site_probes

    def look() -> list[Probe]:
        folder = SiteFolder.of(node)
        return site_probes(folder, undecided(folder) if study is None else [(study.stem, read_study(study))])

    _tell(look, json_)


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder.")],
    json_: Json = False,
) -> None:
    """Find faults of this coordinator and name the fix. Exit code 0 if there are none."""
    from polyclinic.node.doctor.probes import coordinator_probes

    _tell(lambda: coordinator_probes(CoordinatorFolder(folder)), json_)


def _tell(look: Callable[[], Sequence[Probe]], json_: bool) -> None:
    try:
        probes = look()
    except ConfigError as e:
        probes = [Probe("settings", "fault", "; ".join((e.what, *e.faults)), e.hint or "polyclinic check node.toml")]
    faults = sum(p.state == "fault" for p in probes)
    warnings = sum(p.state == "warning" for p in probes)
    value = {"ok": not faults, "probes": [p.to_json() for p in probes]}
    say(value, json_, *map(str, probes), f"{faults} faults, {warnings} warnings")
    worst = first_fault(probes)
    if worst is not None:
        raise typer.Exit(worst.exit)
