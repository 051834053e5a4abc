"""``polyclinic model``: look into a model file, compare two, check that nothing was changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli import application
from polyclinic.cli.console import Json, console, say
from polyclinic.config.node import Node
from polyclinic.errors import DataError
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.compare import Difference

app = application(no_args_is_help=True)
FileArgument = Annotated[Path, typer.Argument(help="A model file (*.phenotypes, *.groups ...), or a run folder.")]


@app.command()
def show(
    file: FileArgument, top: Annotated[int, typer.Option(help="Codes of each mode.")] = 5, json_: Json = False
) -> None:
    """Show a model's privacy card and content."""
    from polyclinic.models.model_card import sensitivity
    from polyclinic.models.phenotypes.phenotypes import Phenotypes
    from polyclinic.studies.run_folder import load

    m = load(file)
    table = m.top(top) if isinstance(m, Phenotypes) else m.table()
    if json_:
        say(
            {
                "kind": m.kind, "method": m.method, "rank": m.rank, "digest": m.digest(), "read_first": sensitivity(m),
                "parameters": dict(m.parameters), "privacy": m.card.to_dict(), "rule": dict(m.origin.rule),
                "receipts": {n: _unsealed(h) for n, h in m.origin.receipts.items()}, "versions": dict(m.origin.versions), "table": [dict(r) for r in table],
            },
            json_,
        )  # fmt: skip
        return
    for text in (sensitivity(m), repr(m), str(m.card)):
        console.print(text)
    _print(table.from_one("phenotype", "group", "class"))


@app.command()
def diff(first: FileArgument, second: FileArgument, json_: Json = False) -> None:
    """Compare two models: matched phenotypes and settings."""
    from polyclinic.models.phenotypes.compare import compare
    from polyclinic.studies.run_folder import load

    found = compare(load(first), load(second))
    say(told(found), json_)
    if not json_:
        show_difference(found)


@app.command()
def verify(
    file: FileArgument,
    node: Annotated[Path | None, typer.Option(help="Your node.toml: compare your receipt with your ledger.")] = None,
    json_: Json = False,
) -> None:
    """Check digests and signatures of a model file. Runs no code of the file. Exit code 3 if it was changed."""
    from polyclinic.models.receipts import receipts
    from polyclinic.studies.run_folder import load

    m = load(file)  # reading is verifying: a file with one other byte is refused
    found = receipts(m)
    owner = None if node is None else Node.read(node)
    mine = [] if owner is None else [r for r in found if r.site == owner.name]
    faults = [f for r in found for f in r.faults()]
    if owner is not None:
        faults += [f for r in mine for f in r.faults(ledger_of(owner))]
        faults += [] if mine else [f"{owner.name}: the file has no receipt of this site"]
    if json_:
        told = {r.site: {**_unsealed(m.origin.receipts[r.site]), "state": r.state} for r in found}
        value = {"file": str(file), "whole": not faults, "kind": m.kind, "digest": m.digest(), "receipts": told}
        say(value | ({"faults": faults} if faults else {}), json_)
    if faults:
        raise DataError(
            f"{file}: its receipts do not verify",
            faults=faults,
            hint="ask the coordinator of the study for the file again",
        )
    if json_:
        return
    lines = [f"  ledger of {r}{', and in your ledger' if r in mine else ''}" for r in found]
    lines = lines or ["  no receipts: fitted in one process, or by a release that wrote none"]
    say({}, json_, f"{file}: verified. {m.kind}, SHA-256 {m.digest()}", *lines)


def _unsealed(head: Any) -> dict[str, object]:
    """Return a head without what only the ledger's owner can read."""
    return {k: v for k, v in dict(head).items() if k != "sealed"}


def told(found: Difference) -> dict[str, object]:
    """A difference as plain values."""
    return {
        "same": found.same,
        "match": found.match,
        "phenotypes": [dict(r) for r in found.pairs],
        "codes": {k: {"both": v[0], "first": v[1], "second": v[2]} for k, v in found.codes.items()},
        "settings": [dict(r) for r in found.settings],
    }


def show_difference(found: Difference) -> None:
    """A difference for people."""
    console.print("the numbers are the same" if found.same else "the numbers differ")
    if found.match is not None:
        console.print(f"mean match of phenotypes: {found.match:.3f}")
        _print(found.pairs.from_one("first", "second"))
    for mode, (both, one, two) in found.codes.items():
        console.print(f"{mode}: {both} codes in both, {one} only in the first, {two} only in the second")
    if len(found.settings):
        _print(found.settings)


def _print(table: Table) -> None:
    from rich.table import Table as RichTable

    out = RichTable(*table.columns)
    for row in table.rows:
        out.add_row(*("" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    console.print(out)
