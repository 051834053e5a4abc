"""``polyclinic align``: propose which common code a local code stands for, and use what the owner accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say
from polyclinic.config import CodeRule, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.studies.registry import read_study

EXACT = "The tables are exact: [privacy] of the study does not cover this sheet"


def command(
    study: Annotated[Path, typer.Argument(help="The study file (study.toml).")],
    out: Annotated[Path, typer.Option("--out", help="Sheet of pairs to write (CSV).")],
    local: Annotated[
        list[str] | None, typer.Option("--local", help="A hospital with codes of its own. Repeat for more.")
    ] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", help="Sheet with the owner's answers: keep the accepted pairs.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Patient-level epsilon of each table. Default: exact tables.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta of each table.")] = 1e-6,
    json_: Json = False,
) -> None:
    """Propose pairs of codes. A hospital's owner accepts or rejects each."""
    rule = read_study(study)
    rule.rule()
    if apply is not None:
        _apply(rule, apply, out, json_)
    else:
        next_line = f"Next: polyclinic align {study} --apply {out} --out confirmed.csv"
        _propose(rule, local or [], out, Privacy(epsilon, delta) if epsilon else None, json_, next_line)


def _propose(study: Study, local: list[str], out: Path, budget: Privacy | None, as_json: bool, next_line: str) -> None:
    from polyclinic.alignment.local_codes import align_codes
    from polyclinic.studies.code_pairs import known, unlisted
    from polyclinic.studies.simulate import least_shown, sites_of

    sites = sites_of(unlisted(study))
    if not local:
        shares = [
            f"{s.name}: {known(sites, [s.name]):.1%} of the codes in its records are known elsewhere" for s in sites
        ]
        raise ConfigError("no hospital with local codes is named", faults=shares, hint=f"--local {sites[0].name}")
    pairs = align_codes(sites, local, privacy=budget, seed=study.seed)
    if not len(pairs):
        raise DataError(f"no pair can be proposed for the codes of {', '.join(local)}", faults=[pairs.refused])
    least = least_shown(study)
    rows = (replace(p, patients="") if p.patients and int(p.patients) < least else p for p in pairs)
    replace(pairs, pairs=tuple(rows)).write(out)
    listed, mapped = pairs.coverage
    cost = f"Each table: patient-level epsilon {budget.epsilon:g}, delta {budget.delta:g}" if budget else EXACT
    value = {"pairs": len(pairs), "open": len(pairs.open), "coverage": [listed, mapped], "sheet": str(out)}
    say(
        value,
        as_json,
        f"{len(pairs)} pairs proposed for {len(pairs) + len(pairs.open)} local codes of {', '.join(local)}, in {out}",
        f"Codes in these records that other hospitals know: {listed:.1%}, with all proposals {mapped:.1%}",
        *([cost] if budget or study.privacy else []),
        "Nothing is renamed yet. The owner writes yes or no in column accept of every pair.",
        next_line,
    )


def _apply(study: Study, sheet: Path, out: Path, as_json: bool) -> None:
    from polyclinic.alignment.local_codes import CodePairs
    from polyclinic.studies.code_pairs import record, unlisted
    from polyclinic.studies.simulate import sites_of

    pairs = CodePairs.read(sheet)
    yes, no = pairs.answered("yes"), pairs.answered("no")
    modes = sorted({p.mode for p in yes})
    if not yes:
        answers = f"{len(no)} rejected, {len(pairs) - len(no)} without an answer"
        raise DataError(f"{sheet}: no pair is accepted", faults=[answers], hint="write yes in column accept")
    bare = unlisted(study)
    _check(bare, modes)
    pairs.bare().write(out)
    rules = {**bare.codes, **dict.fromkeys(modes, CodeRule(to=str(out.resolve())))}
    value = record(bare.model_copy(update={"codes": rules}), sites_of)
    lines = [f"{len(yes)} accepted, {len(no)} rejected, {len(pairs) - len(yes) - len(no)} without an answer (not used)"]
    if isinstance(shares := value.get("coverage"), list):
        lines.append(f"Codes in these records that other hospitals know: {shares[0]:.1%} before, {shares[1]:.1%} after")
    place = out.resolve()
    name = place.relative_to(study.folder) if place.is_relative_to(study.folder) else place
    lines += [f"Accepted pairs: {out}, sha256 {value['sha256']}", "Add to the study file:"]
    lines += [f'[codes.{m}]\nto = "{name}"' for m in modes]
    say({**value, "rejected": len(no), "sheet": str(out)}, as_json, *lines)


def _check(study: Study, modes: list[str]) -> None:
    """Refuse a study in which the pairs would rename nothing, or whose groups they would replace."""
    if study.data is not None:
        raise ConfigError("pairs rename codes in records, and [data] has none", hint="[[site]] node = 'north.toml'")
    groups = {m: study.codes[m].to for m in modes if m in study.codes and study.codes[m].to != "normal"}
    if groups:
        faults = [f"[codes.{m}] to = {to!r}" for m, to in groups.items()]
        raise ConfigError("codes are grouped already", faults=faults, hint="one map file for both: code,group,name")
