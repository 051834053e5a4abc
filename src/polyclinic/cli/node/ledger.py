"""``polyclinic ledger``: what a site has spent, whether the ledger is whole, and releases that wait for the owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.errors import ConfigError, LedgerError
from polyclinic.privacy.accounting.accountant import Unbounded
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.ledger.ledger import Ledger, SignedHead
from polyclinic.privacy.ledger.reader import verify_lines

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Show, verify or export a site's privacy ledger.")

Where = Annotated[Path, typer.Argument(help="A ledger (.jsonl), a node file (.toml), or a folder that holds ledgers.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Delta = Annotated[float, typer.Option("--delta", help="Delta at which epsilon is computed.", min=1e-300, max=0.5)]


def _files(path: Path) -> list[Path]:
    """The ledgers under a path; a ledger that is gone but left its head file is one too."""
    if path.suffix == ".toml":
        return [_of_node(path)]
    if path.is_dir():
        found = {*path.rglob("*.jsonl.head")}
        files = sorted({f.with_suffix("") for f in found})
        if not files:
            raise ConfigError(f"{path}: no ledger in this folder", hint="name the ledger.jsonl of a site")
        return files
    if not path.exists() and not path.with_name(path.name + ".head").exists():
        raise ConfigError(f"{path}: no such file", hint="name the ledger.jsonl of a site")
    return [path]


def _of_node(path: Path) -> Path:
    from polyclinic.config import Node
    from polyclinic.privacy.gate.owner_rules import ledger_of

    file = ledger_of(Node.read(path)).path
    assert file is not None
    return file


def _box(path: Path) -> Outbox:
    """The outbox of a node file, or the folder itself."""
    if path.suffix == ".toml":
        from polyclinic.config import Node
        from polyclinic.privacy.gate.owner_rules import outbox_of

        return Outbox(outbox_of(Node.read(path)))
    return Outbox(path)


def _summary(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """Per study and cohort: patient-level epsilon of what has a bound, and how many releases have none."""
    rows = []
    keys = sorted({(c.study, c.cohort) for c in ledger.charges()})
    for study, cohort in [*keys, *((None, c) for c in sorted({k[1] for k in keys}))]:
        charges = ledger.charges(study=study, cohort=cohort)
        unproven = [c for c in charges if c.adjacency != "patient" or not c.formal or isinstance(c.event, Unbounded)]
        bounded = ledger.epsilon(delta, study=study, cohort=cohort, bounded=True)
        rows.append(
            {
                "study": study,
                "cohort": cohort,
                "releases": len(charges),
                "epsilon": None if unproven else bounded,
                "epsilon_of_bounded_releases": bounded,
                "delta": delta,
                "adjacency": "patient",
                "without_patient_level_bound": len(unproven),
            }
        )
    return rows


@app.command()
def show(path: Where, delta: Delta = 1e-6, json_: Json = False) -> None:
    """Show what each study has spent."""
    ledgers = [(f, Ledger(f)) for f in _files(path)]
    if json_:
        from polyclinic.cli.console import say_json

        say_json(
            {"ledgers": [{"path": str(f), "head": vars(l.head), "studies": _summary(l, delta)} for f, l in ledgers]}
        )
        return
    from polyclinic.cli.console import console

    for file, ledger in ledgers:
        console.print(f"{file}: {ledger.head.count} entries", soft_wrap=True)
        for r in _summary(ledger, delta):
            name = f"study {r['study']}" if r["study"] is not None else "all studies"
            spent = f"patient-level epsilon {r['epsilon_of_bounded_releases']:.4g} at delta {delta:g}"
            without = r["without_patient_level_bound"]
            if without:
                spent = f"no patient-level bound: {without} of {r['releases']} releases had none (the others: {spent})"
            console.print(f"  {name}, cohort {r['cohort']}: {r['releases']} releases, {spent}", soft_wrap=True)


@app.command()
def verify(
    path: Where,
    against: Annotated[Path | None, typer.Option("--against", help="An earlier export, kept elsewhere.")] = None,
    key: Annotated[str | None, typer.Option(help="The book's public key, to check an export offline.")] = None,
    json_: Json = False,
) -> None:
    """Find any line that was edited, removed or reordered; exit code 4 if one was. An export (.json) is checked offline."""
    from polyclinic.cli.console import console, say_json

    faults: dict[str, list[str]] = {}
    if path.suffix == ".json":
        files = []
        for name, lines in _exported(path).items():
            files.append(Path(name))
            faults[name] = verify_lines(lines, key)
    else:
        anchors = _anchors(against)
        files = _files(path)
        for file in files:
            known = anchors.get(file.name) or (anchors.get("") if len(files) == 1 else None)
            faults[str(file)] = list(_open(path, file).verify(anchor=known))
    bad = {k: v for k, v in faults.items() if v}
    if json_:
        say_json({"whole": not bad, "ledgers": faults})
        if bad:
            raise typer.Exit(LedgerError.exit_code)
        return
    if bad:
        raise LedgerError(
            "a ledger does not hold together; no release may leave",
            faults=[f"{k}: {f}" for k, v in bad.items() for f in v],
            hint="restore the file from a backup and find out who changed it",
        )
    for file in files:
        console.print(f"{file}: whole")


def _open(given: Path, file: Path) -> Ledger:
    """A book with its anchor, where the node file tells it."""
    if given.suffix == ".toml":
        from polyclinic.config import Node
        from polyclinic.privacy.gate.owner_rules import ledger_of

        return ledger_of(Node.read(given))
    return Ledger(file)


def _exported(path: Path) -> dict[str, list[str]]:
    try:
        value = json.loads(path.read_text())
        return {str(x.get("path", path)): [str(y) for y in x["lines"]] for x in value.get("ledgers", [value])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{path}: not an export of a ledger ({e})") from e


@app.command()
def recover(
    path: Where,
    head: Annotated[
        list[Path] | None, typer.Option(help="A head that somebody else kept (an export, an anchor).")
    ] = None,
    by: Annotated[str, typer.Option(help="Who answers for the gap.")] = "",
    why: Annotated[str, typer.Option(help="What happened.")] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Set the damaged file aside and charge the lost lines.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show what is left of a damaged book and what was spent beyond it; with --write go on after a line that says so."""
    from polyclinic.cli.console import console, say_json
    from polyclinic.privacy.ledger import recovery

    (file,) = _files(path)
    ledger = _open(path, file)
    heads = [h for p in head or () for h in _anchors(p).values()] + _witnessed(path)
    found = recovery.what_is_left(ledger, heads)
    lost = "unknown: the cohort counts as spent" if found.spent is None else f"mu^2 {found.spent:.6g}"
    value: dict[str, object] = {
        "path": str(file),
        "lines_that_hold": found.good,
        "faults": list(found.faults),
        "known_lines": None if found.known is None else found.known.count,
        "spent_in_lost_lines": found.spent,
    }
    if write:
        gap = recovery.recover(ledger, found, by=by, why=why)
        value["gap"] = gap.count
    if json_:
        say_json(value)
        return
    console.print(f"{file}: {found.good} lines hold", soft_wrap=True)
    for f in found.faults:
        console.print(f"  - {f}", soft_wrap=True, markup=False)
    known = (
        "nobody kept a head"
        if found.known is None
        else f"the longest head that was kept knows {found.known.count} lines"
    )
    console.print(f"  {known}; spent beyond what is left: {lost}", soft_wrap=True)
    if write:
        console.print(
            "  the damaged file is set aside; a line says what was lost, who answers for it, and what it cost"
        )
    else:
        console.print(
            "  restore a backup, or: polyclinic ledger recover ... --write --by NAME --why TEXT", markup=False
        )


def _witnessed(path: Path) -> list[SignedHead]:
    """Heads of this site's own book that other sites showed it."""
    if path.suffix != ".toml":
        return []
    from polyclinic.config import Node
    from polyclinic.privacy.gate.owner_rules import witness_of

    node = Node.read(path)
    return [k.head for k in witness_of(node).about(node.name)]


def _anchors(path: Path | None) -> dict[str, SignedHead]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text())
        ledgers = value.get("ledgers", [value])
        made = {Path(x.get("path", "")).name: SignedHead.from_json(x.get("head", x)) for x in ledgers}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path}: not an export of a ledger ({e})") from e
    return {**made, "": next(iter(made.values()))} if len(made) == 1 else made


@app.command()
def export(
    path: Where,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="The same; an export is always JSON.")] = False,
) -> None:
    """Write everything as JSON, with the head to keep elsewhere."""
    from polyclinic.cli.console import console, say_json

    value = {"ledgers": [{"path": str(f), **Ledger(f).export()} for f in _files(path)]}
    if out is None:
        say_json(value)
        return
    from polyclinic.tensors.io import atomic

    with atomic(out) as temporary:
        temporary.write_text(json.dumps(value, indent=1))
    if json_:
        say_json({"written": str(out)})
    else:
        console.print(f"written: {out}")


Box = Annotated[Path, typer.Argument(help="The node file of a site (.toml), or its outbox folder.")]


@app.command()
def pending(path: Box, json_: Json = False) -> None:
    """List releases that wait for the owner."""
    from polyclinic.cli.console import console, say_json

    found = _box(path).all()
    if json_:
        say_json({"releases": [{"id": p.id, "state": p.state, "by": p.decided_by, **p.facts} for p in found]})
        return
    for p in found:
        console.print(str(p))
    if not found:
        console.print("nothing waits")


@app.command()
def read(path: Box, id: Annotated[str, typer.Argument(help="Which release.")], json_: Json = False) -> None:
    """Show exactly the values that would leave."""
    from polyclinic.cli.console import console, say_json

    arrays = _box(path).read(id).arrays
    if json_:
        say_json({"id": id, "arrays": {k: v.tolist() for k, v in arrays.items()}})
        return
    for name, a in arrays.items():
        console.print(f"{name} {a.shape}:\n{a}")


@app.command()
def approve(
    path: Box,
    id: Annotated[str, typer.Argument(help="Which release.")],
    by: Annotated[str, typer.Option("--by", help="Who decides.")],
    reject: Annotated[bool, typer.Option("--reject", help="Reject it instead.")] = False,
    json_: Json = False,
) -> None:
    """Approve a release, or reject it; a decision is final."""
    from polyclinic.cli.console import console, say_json

    done = _box(path).decide(id, approve=not reject, by=by)
    if json_:
        say_json({"id": done.id, "state": done.state, "by": done.decided_by})
    else:
        console.print(str(done))
