"""``polyclinic site doctor`` and ``coordinator doctor``: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.console import NODE, Json, NodeFile, say

if TYPE_CHECKING:
    from polyclinic.node.doctor.probe import Probe


def site(node: NodeFile = NODE, json_: Json = False) -> None:
    """Find faults of this node and name the fix. Exit code 0 if there are none. Sends no patient data."""
    from polyclinic.errors import ConfigError
    from polyclinic.node.doctor.probe import Probe
    from polyclinic.node.doctor.probes import site_probes
    from polyclinic.node.enrolment.folders import SiteFolder

    try:
        probes = site_probes(SiteFolder.of(node))
    except ConfigError as e:
        probes = [Probe("settings", "fault", "; ".join((e.what, *e.faults)), e.hint or "polyclinic site init")]
    _tell(probes, json_)


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder.")],
    json_: Json = False,
) -> None:
    """Find faults of this coordinator and name the fix. Exit code 0 if there are none."""
    from polyclinic.errors import ConfigError
    from polyclinic.node.doctor.probe import Probe
    from polyclinic.node.doctor.probes import coordinator_probes
    from polyclinic.node.enrolment.folders import CoordinatorFolder

    try:
        found = coordinator_probes(CoordinatorFolder(folder))
    except ConfigError as e:
        found = [Probe("settings", "fault", "; ".join((e.what, *e.faults)), e.hint)]
    _tell(found, json_)


def _tell(probes: Sequence[Probe], json_: bool) -> None:
    from polyclinic.node.doctor.probe import first_fault

    faults = sum(p.state == "fault" for p in probes)
    warnings = sum(p.state == "warning" for p in probes)
    value = {"ok": not faults, "probes": [p.to_json() for p in probes]}
    say(value, json_, *map(str, probes), f"{faults} faults, {warnings} warnings")
    worst = first_fault(probes)
    if worst is not None:
        raise typer.Exit(worst.exit)
