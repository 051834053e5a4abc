"""``polyclinic audit``: attack our own privacy with made-up patients."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.console import Json, console, say
from polyclinic.config import Study
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.studies.registry import find, make
from polyclinic.util.atomic_files import write_whole


def command(
    study: Annotated[Path | None, typer.Argument(help="Study file whose method is audited. Default: dpem.")] = None,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Patient-level epsilon to ask for, without a study.")
    ] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Delta to ask for, without a study.")] = 1e-6,
    method: Annotated[str, typer.Option("--method", help="Method, without a study.")] = "dpem",
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds, without a study.")] = None,
    canaries: Annotated[
        int, typer.Option("--canaries", help="Number of canaries (synthetic patients).", min=50, max=20_000)
    ] = 500,
    patients: Annotated[int, typer.Option("--patients", help="Other patients.", min=1)] = 1000,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the selection of patients, not of the noise.", min=0)
    ] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="Noise of a real federation (extra 'exact').")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write audit.json into this (run) folder too.")] = None,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="Run known attacks on every method instead of canaries.")
    ] = False,
    insider: Annotated[
        int | None,
        typer.Option("--insider", help="Attack as one of N hospitals under secure aggregation.", min=3),
    ] = None,
    lost: Annotated[int, typer.Option("--lost", help="With --insider: sites that drop out of every sum.", min=0)] = 0,
    json_: Json = False,
) -> None:
    """Audit privacy with canaries through the real method and release gate. Exit code 1 if it fails."""
    if attacks:
        return _attacks(seed, json_)
    from polyclinic.auditing.run import Insider, audit
    from polyclinic.privacy.accounting.mechanisms import ExactNoise

    if study is not None:
        made: Any = make(Study.read(study))
    else:
        more = {} if rounds is None else {"rounds": rounds}
        made = find(method)(privacy=Privacy(epsilon, delta), **more)
    result = audit(
        made,
        canaries=canaries,
        patients=patients,
        seed=seed,
        noise=ExactNoise() if exact else None,
        insider=None if insider is None else Insider(insider, lost),
    )
    if out is not None:
        import json

        write_whole(out / "audit.json", json.dumps({**result.to_dict(), "summary": result.summary()}, indent=1))
    say(result.to_dict(), json_, str(result))
    if not result.passed:
        raise typer.Exit(1)


def _attacks(seed: int, as_json: bool) -> None:
    """Run every known attack and say whether each went as the cards claim; exit code 1 if one did not."""
    from rich.table import Table

    from polyclinic.auditing.attacks import every_attack

    found = []
    for attack in every_attack(seed):
        found.append(attack)
        if not as_json:
            console.print(f"{attack.name}, against {attack.against}: {'succeeds' if attack.succeeded else 'fails'}")
    say({"attacks": [{**asdict(a), "as_expected": a.as_expected} for a in found]}, as_json)
    if not as_json:
        table = Table("attack", "against", "outcome", "claim stands", "what was recovered")
        for a in found:
            table.add_row(
                a.name, a.against, "succeeds" if a.succeeded else "fails", "yes" if a.as_expected else "NO", a.detail
            )
        console.print(table)
    if not all(a.as_expected for a in found):
        raise typer.Exit(1)
