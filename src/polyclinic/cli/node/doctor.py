"""``polyclinic site doctor`` and ``coordinator doctor``: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyclinic.node.doctor.probe import Probe

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def site(
    node: Annotated[Path, typer.Option("--node", help="The hospital's node file.")] = Path("node.toml"),
    json_: Json = False,
) -> None:
    """Say what is wrong with this node and what to do; exit code 0 only if nothing is. No patient's data are sent."""
    from polyclinic.errors import ConfigError
    from polyclinic.node.doctor.probe import Probe
    from polyclinic.node.doctor.probes import site_probes
    from polyclinic.node.enrolment.folders import SiteFolder

    try:
        folder = SiteFolder.of(node)
    except ConfigError as e:
        _tell([Probe("settings", "fault", "; ".join((e.what, *e.faults)), e.hint or "polyclinic site init")], json_)
    else:
        _tell(site_probes(folder), json_)


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder.")],
    json_: Json = False,
) -> None:
    """Say what is wrong with this coordinator and what to do; exit code 0 only if nothing is."""
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
    from polyclinic.cli.console import console, say_json
    from polyclinic.node.doctor.probe import first_fault

    faults = sum(p.state == "fault" for p in probes)
    if json_:
        say_json({"ok": not faults, "probes": [p.to_json() for p in probes]})
    else:
        for p in probes:
            console.print(str(p), markup=False, soft_wrap=True)
        warnings = sum(p.state == "warning" for p in probes)
        console.print(f"{faults} faults, {warnings} warnings")
    worst = first_fault(probes)
    if worst is not None:
        raise typer.Exit(worst.exit)
