"""``polyclinic overlap``: count the patients at one, two, three ... hospitals of a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.studies.registry import read_study


def command(
    study: Annotated[Path, typer.Argument(help="The study file (study.toml).")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Patient-level epsilon of the counts. Default: exact counts.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the counts.")] = 1e-6,
    json_: Json = False,
) -> None:
    """Count by names of patients, in one process. Equal names mean one person."""
    from polyclinic.alignment.overlap import patient_overlap
    from polyclinic.studies.simulate import least_shown, sites_of

    rule = read_study(study)
    rule.rule()
    overlap = patient_overlap(sites_of(rule), privacy=Privacy(epsilon, delta) if epsilon else None)
    least = least_shown(rule)
    counts = overlap.shown(least)
    lines = [
        f"{f'fewer than {least}' if n is None else f'{n:,}'} patients at exactly {k} hospital{'s' if k > 1 else ''}"
        for k, n in counts.items()
    ]
    lines += ["Patients with one name count as one person."]
    lines += (
        ["The counts are exact: [privacy] of the study does not cover them"] if rule.privacy and not epsilon else []
    )
    lines += [overlap.words(least)]
    value = {"counts": counts, "most": overlap.most, "words": lines[-1]}
    say(value, json_, *lines, f"For [privacy]: max_sites_per_patient = {overlap.most}")
    _check(rule, overlap.most)


def _check(study: Study, most: int) -> None:
    """Refuse a guarantee that does not account for these patients."""
    accounted = (study.privacy.max_sites_per_patient or 1) if study.privacy else most
    if study.privacy and study.privacy.level == "patient" and accounted < most:
        raise ConfigError(
            f"[privacy] of study {study.name!r} accounts for patients of {accounted} hospital(s)",
            faults=[f"one patient is at up to {most} hospitals: epsilon does not hold for these patients"],
            hint=f"[privacy] max_sites_per_patient = {most}",
        )
