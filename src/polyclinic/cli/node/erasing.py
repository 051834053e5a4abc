"""``polyclinic site erase`` and ``site forget``: delete what a node keeps of studies."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import NODE, Json, NodeFile, Sure, say, sure
from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.node.enrolment.processes import alive, recorded
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.entries import Erase
from polyclinic.privacy.ledger.ledger import Ledger


def erase(
    node: Annotated[Path, typer.Argument(help="The hospital's node.toml.")],
    study: Annotated[str | None, typer.Option(help="Only this study: data, states, releases, results.")] = None,
    results: Annotated[bool, typer.Option("--results", help="Results (memberships) of all studies.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="The whole folder, the site's keys and pins too.")] = False,
    yes: Sure = False,
    json_: Json = False,
) -> None:
    """Erase the patient data of all studies. Keys stay without --all, source data and ledger always."""
    from polyclinic.node.admission.retention import erase as delete
    from polyclinic.node.dossier.review import operating_system_user

    options = [w for w, on in (("study", study is not None), ("results", results), ("all", all_)) if on]
    if len(options) > 1:
        raise ConfigError(f"erase one thing at a time, not {' and '.join(options)}")
    source, user, what = Node.read(node), operating_system_user(), (options or ["data"])[0]
    home = _erasable(source, node)
    if not home.exists():
        say({"site": source.name, "folder": str(home), "erased": False}, json_, f"{home}: nothing there")
        return
    # a ledger that an earlier version began in the folder moves out, and one put there by hand is refused
    book = ledger_of(source)
    if what != "all":
        sure(f"erase {what} {study or 'of all studies'} of {source.name}?", yes, json_)
        files = delete(SiteFolder.of(node), what, by=user, study=study or "")
        text = f"{source.name}: {files} files erased ({what} {study or 'of all studies'}). Keys, pins and ledger stay"
    else:
        files = sum(len(names) for _, _, names in os.walk(home))
        if not yes:
            typer.echo(f"{home}: {files} files go, also keys and pins. The site must join anew", err=json_)
            if typer.prompt("type the site's name to erase them", err=json_) != source.name:
                raise typer.Abort
        shutil.rmtree(home)
        if book.path is not None and book.path.exists():  # its anchor went with the folder
            Ledger(book.path, site=source.name).write(Erase("all", files, user))
        text = f"{home}: erased. The ledger {book.path} stays"
    say({"site": source.name, "what": what, "folder": str(home), "files": files, "erased": True}, json_, text)


def forget(
    patient: Annotated[str, typer.Argument(help="Identifier as the source writes it. -: read it from standard input.")],
    node: NodeFile = NODE,
    yes: Sure = False,
    json_: Json = False,
) -> None:
    """Forget one patient: delete stored data, leave the person out of later studies, print a statement."""
    from polyclinic.node.admission.forgetting import forget as delete
    from polyclinic.node.admission.forgetting import holding, statement
    from polyclinic.node.dossier.review import operating_system_user

    os.umask(0o077)
    folder, name = SiteFolder.of(node), sys.stdin.readline().strip() if patient == "-" else patient
    ends = ", ".join(o.id for o in holding(folder, name)) or "none"
    sure(
        f"studies that end at {folder.node.name}: {ends}. Stored scores of all studies are deleted. Go on?", yes, json_
    )
    done = delete(folder, name, by=operating_system_user())
    left = [str(p) for p in done.left]
    value = {
        "site": done.site,
        "studies": done.studies,
        "files": done.files,
        "statement": statement(done),
        "left": left,
    }
    say(value, json_, *statement(done), *(f"look at this file, the same letters are in it: {p}" for p in left))


def _erasable(source: Node, node: Path) -> Path:
    """Return the node's folder, if it is one of its own and no process works there."""
    home, near = source.home.resolve(), source.folder.resolve()
    if home == near or near not in home.parents or home.is_symlink():
        raise ConfigError(
            f"{home} is not a folder of its own next to {node}", hint="erase it by hand, or give [site] folder a name"
        )
    if any(alive(p) for p in recorded(home / "federation" / "pids")):
        raise ConfigError(f"site {source.name!r} is running", hint=f"polyclinic site stop --node {node}")
    return home
