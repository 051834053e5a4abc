"""``polyclinic check``: every precondition of a hospital's node; nothing is sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError
from polyclinic.privacy.guarantee import noisy
from polyclinic.studies.registry import read_study


def command(
    node: Annotated[Path, typer.Argument(help="The hospital's node.toml.")],
    study: Annotated[Path | None, typer.Option(help="A study.toml: also checks its codes, tensor and limits.")] = None,
    json_: Json = False,
) -> None:
    """Check a hospital's node file and database: all faults at once, nothing is sent."""
    from polyclinic.node.doctor.probes import checkup

    asked = read_study(study) if study else None
    wrong, found = checkup(Node.read(node), asked)
    if asked is not None and noisy(asked.privacy) and asked.evaluate is not None and not wrong:
        found.findings.extend(_forecast(asked))
    faults = [*wrong, *found.faults]
    code = max(found.exit_code, ConfigError.exit_code if wrong else 0)
    value = {"ok": not faults, "faults": faults, "remarks": found.remarks, "findings": found.findings, **found.figures}
    marked = {"ok": found.findings, "remark": found.remarks, "FAULT": faults, "to do": dict.fromkeys(found.advice)}
    lines = [f"{mark:<7}{line}" for mark, lines in marked.items() for line in lines]
    verdict = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}" if faults else "ready"
    say(value, json_, *lines, f"{verdict}; nothing was sent")
    if faults:
        sys.exit(code)


def _forecast(study: Study) -> list[str]:
    """How far off the findings will be under the study's epsilon, a line a figure."""
    from polyclinic.studies.analyses import forecast_for

    out = []
    for r in forecast_for(study):
        told = (
            f"95 % of errors within {r['error_95']:.3g} {r['unit']}"
            if r["bought"] == "yes"
            else f"not bought: {r['reason']}"
        )
        out.append(f"findings at {r['patients']:,} patients: {r['figure']}: {told}")
    return out
