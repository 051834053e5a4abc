"""``polyclinic dossier STUDY|RUN``: what an ethics board reads and signs, before a study and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, busy, say


def command(
    target: Annotated[str, typer.Argument(help="Study file, run folder, or (with --node) a study's name.")],
    node: Annotated[
        Path | None, typer.Option("--node", help="The hospital's node file: policy, retention, ledger.")
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", help="TOML with [institution]: controller, officer, legal_basis ...")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write. Default: the run folder, or here.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write dossier.html (printable) and dossier.json: protocol, Art. 30 record, DPIA and expert annexes, trail, model card."""
    from polyclinic.node.dossier.page import make_dossier, write_dossier
    from polyclinic.node.dossier.sources import gather

    with busy("writing the dossier", quiet=json_):
        made = make_dossier(gather(target, node=node, facts=facts))
        where = out if out is not None else Path(target) if Path(target).is_dir() else Path()
        page, data = write_dossier(made, where)
    value = {
        "dossier": str(page),
        "json": str(data),
        "stage": made.stage,
        "sha256": made.digest,
        "missing": list(made.missing),
        "to_be_written_by_hand": list(made.by_hand),
    }
    lines = [f"{page} ({made.stage} the study; SHA-256 of its JSON {made.digest[:16]}...)"]
    lines += [f"not complete, nothing is known about: {', '.join(made.missing)}"] if made.missing else []
    lines += [f"left to be written by hand: {', '.join(made.by_hand)} (or --facts FILE)"] if made.by_hand else []
    say(value, json_, *lines)
