"""``polyclinic site init``: a commented node file to start from."""

from __future__ import annotations

import json
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
folder = "site"            # tensors, caches, checkpoints; delete patient data: polyclinic site erase node.toml

[source]
{source}

[policy]                   # what the owner of the data allows; checked before every release
min_patients = 20          # exact studies: with fewer patients this site takes no part
min_cell = 11              # smaller counts are not shown in any report
min_sites = 3              # with fewer sites this site takes no part
review = "names"           # none | names | each: which releases wait for approval
# methods = ["trip", "dpem"]       # only these; without the line: all
# max_epsilon_per_study = 1.0      # patient-level bound of one study, re-runs included (at delta = 1e-6)
# max_epsilon_total = 4.0          # patient-level bound over all studies

# [ledger]                 # every release is written down before it leaves; default: next to this file
# [keys]                   # made by: polyclinic site join
"""


def command(
    omop: Annotated[str | None, typer.Option(help="OMOP database: address, SQLite, DuckDB or folder.")] = None,
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


def _say(value: Mapping[str, object], json_: bool, text: str) -> None:
    sys.stdout.write(json.dumps(value) + "\n" if json_ else text)


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _server(address: str) -> list[str]:
    """The address of a database without its password, and where the password is read from."""
    odbc = address.startswith("odbc:")
    words = ";".join(w for w in address.split(";") if not (odbc and w.lower().startswith("pwd=")))
    parts = urlsplit(words)
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    url = urlunsplit(parts._replace(netloc=f"{name}@{host}" if name else host))
    hidden = 'password = "env:POLYCLINIC_DB_PASSWORD"   # read from the environment; or "file:PATH"'
    return [
        f"url = {_toml(url)}",
        hidden if password or words != address else f"# {hidden}",
        '# schema = "cdm"           # default: public, or the one of the user',
    ]


def _source(kind: str, place: str | None) -> str:
    from polyclinic.config.source import SERVERS

    lines = [f'kind = "{kind}"']
    if place and place.partition(":")[0] in SERVERS:
        lines += _server(place)
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
