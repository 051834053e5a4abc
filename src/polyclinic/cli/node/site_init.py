"""``polyclinic site init`` and ``site erase``: a commented node file to start from, and the way to forget everything."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from polyclinic.cli.console import Json

TEMPLATE = """\
# node.toml: where this hospital's data are. It never leaves the hospital. Check it with: polyclinic check node.toml
[site]
name = {name}              # unique in the federation
folder = "site"            # tensors, caches, checkpoints; erase it with: polyclinic site erase node.toml

[source]
{source}

[policy]                   # what the owner of the data allows; checked before every release
min_patients = 20          # with fewer patients this site takes no part
min_cell = 11              # smaller counts are not shown in any report
min_sites = 3              # with fewer sites this site takes no part
review = "names"           # none | names | each: which releases wait for approval
# methods = ["trip", "dpem"]       # only these; without the line: all
# max_epsilon_per_study = 1.0      # patient-level bound of one study, re-runs included (at delta = 1e-6)
# max_epsilon_total = 4.0          # patient-level bound over all studies

# [ledger]                 # every release is written down before it leaves; default: beside this file
# [keys]                   # made by: polyclinic site join
"""


def command(
    omop: Annotated[str | None, typer.Option(help="OMOP database: postgresql://..., SQLite, DuckDB, folder.")] = None,
    kind: Annotated[str, typer.Option(help="files omop mimic3 mimic4 eicu synpuf fhir meds matrix.")] = "files",
    place: Annotated[str | None, typer.Option(help="Folder or file of the data.")] = None,
    name: Annotated[str, typer.Option(help="Name of the site.")] = "my-hospital",
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL of this kind instead.")] = False,
    json_: Json = False,
) -> None:
    """Write a commented node.toml. Passwords are not written."""
    from polyclinic.config import Node
    from polyclinic.errors import ConfigError
    from polyclinic.records.sources.base import sql_of

    if omop is not None:
        kind, place = "omop", omop
    if sql:
        _say({"kind": kind, "sql": sql_of(kind)}, json_, sql_of(kind))
        return
    text = TEMPLATE.format(name=_toml(name), source=_source(kind, place))
    Node.parse(tomllib.loads(text), where="the new node file")
    if out is None:
        _say({"site": name, "text": text}, json_, text)
        return
    if out.exists():
        raise ConfigError(f"{out}: exists already", hint="choose another name, or remove it first")
    out.write_text(text, encoding="utf-8")
    out.chmod(0o600)
    _say({"site": name, "node": str(out)}, json_, "")


def erase(
    node: Annotated[Path, typer.Argument(help="The hospital's node.toml.")],
    study: Annotated[str | None, typer.Option(help="Only this study: data, states, releases, results.")] = None,
    data: Annotated[bool, typer.Option("--data", help="Patient data of all studies.")] = False,
    results: Annotated[bool, typer.Option("--results", help="Results (memberships) of all studies.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="The whole folder with keys and pins (default).")] = False,
    by: Annotated[str, typer.Option(help="Who decides. Written to the ledger.")] = "owner",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Erase a study, its data or the whole node folder. The source data and the ledger stay."""
    from polyclinic.config import Node
    from polyclinic.errors import ConfigError
    from polyclinic.node.doctor.processes import alive, recorded
    from polyclinic.privacy.gate.owner_rules import ledger_of
    from polyclinic.privacy.ledger.entries import Erase
    from polyclinic.privacy.ledger.ledger import Ledger

    chosen = [w for w, on in (("study", study is not None), ("data", data), ("results", results), ("all", all_)) if on]
    if len(chosen) > 1:
        raise ConfigError(f"erase one thing at a time, not {' and '.join(chosen)}")
    read = Node.read(node)
    home, near = read.home.resolve(), read.folder.resolve()
    if home == near or near not in home.parents or home.is_symlink():
        raise ConfigError(
            f"{home} is not a folder of its own beside {node}", hint="erase it by hand, or give [site] folder a name"
        )
    if not home.exists():
        _say({"site": read.name, "folder": str(home), "erased": False}, json_, f"{home}: nothing there\n")
        return
    if any(alive(p) for p in recorded(home / "federation" / "pids")):
        raise ConfigError(f"site {read.name!r} is running", hint=f"polyclinic site stop --node {node}")
    # one that an earlier version began in the folder moves out; one put there by hand is refused
    book = ledger_of(read)
    if chosen and chosen != ["all"]:
        from polyclinic.node.admission.retention import erase as forget
        from polyclinic.node.enrolment.folders import SiteFolder

        if not yes:
            typer.confirm(f"erase {chosen[0]} {study or 'of all studies'} of {read.name}?", abort=True, err=json_)
        files = forget(SiteFolder.of(node), chosen[0], by=by, study=study or "")
        told = f"{read.name}: {files} files of {chosen[0]} {study or ''} erased; keys, pins and book stay\n"
        _say({"site": read.name, "what": chosen[0], "files": files, "erased": True}, json_, told)
        return
    files = sum(len(names) for _, _, names in os.walk(home))
    if not yes:
        typer.echo(
            f"{home}: {files} files go, the site's keys and pins among them; the book {book.path} stays", err=json_
        )
        if typer.prompt("type the site's name to erase them", err=json_) != read.name:
            raise typer.Abort
    shutil.rmtree(home)
    if book.path is not None and book.path.exists():  # its anchor went with the folder
        Ledger(book.path, site=read.name).write(Erase("all", files, by))
    _say({"site": read.name, "folder": str(home), "erased": True}, json_, f"{home}: erased\n")


def _say(value: Mapping[str, object], json_: bool, text: str) -> None:
    sys.stdout.write(json.dumps(value) + "\n" if json_ else text)


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _source(kind: str, place: str | None) -> str:
    lines = [f'kind = "{kind}"']
    if place and place.startswith(("postgresql://", "postgres://")):
        parts = urlsplit(place)
        user, _, host = parts.netloc.rpartition("@")
        bare = user.partition(":")[0]
        lines.append(f"url = {_toml(urlunsplit(parts._replace(netloc=f'{bare}@{host}' if bare else host)))}")
        hidden = 'password = "env:POLYCLINIC_DB_PASSWORD"   # read from the environment; or "file:PATH"'
        lines.append(hidden if ":" in user and user.partition(":")[2] else f"# {hidden}")
        lines.append('# schema = "cdm"           # default: public')
    elif kind in ("files", "meds"):
        lines.append(f"events = {_toml(place or 'events.csv')}       # CSV or Parquet; a folder or a pattern, too")
        if kind == "files":
            lines.append('# labels = "labels.csv"    # patient_id, label')
            lines.append('# columns = {code = "icd9"}  # canonical name -> name in your file')
            lines.append('# systems = {diagnosis = "icd9cm"}')
    elif kind == "matrix":
        lines.append(f"features = {_toml(place or 'features.csv')}   # one row a patient")
        lines.append('# label = "status"')
    elif place and Path(place).suffix in (".db", ".sqlite", ".sqlite3", ".duckdb"):
        lines.append(f"database = {_toml(place)}")
    else:
        lines.append(f"folder = {_toml(place or 'data')}          # CSV (also .gz) or Parquet, one file a table")
    if kind == "omop":
        lines.append('# codes = "source"         # the source\'s own codes instead of standard concepts')
        lines.append('# tables = {person = "our_person"}')
    return "\n".join(lines)
