"""``polyclinic ledger``: what a site has spent, whether the ledger is whole, and what a release holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli import application
from polyclinic.cli.console import Json, say
from polyclinic.config import Node
from polyclinic.errors import ConfigError, LedgerError
from polyclinic.privacy.accounting.accountant import Unbounded
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.owner_rules import ledger_of, outbox_of, witness_of
from polyclinic.privacy.ledger import recovery
from polyclinic.privacy.ledger.ledger import Ledger, SignedHead
from polyclinic.privacy.ledger.reader import verify_lines
from polyclinic.util.atomic_files import write_whole

app = application(no_args_is_help=True, help="Show, verify or export a site's privacy ledger.")

Where = Annotated[Path, typer.Argument(help="A ledger (.jsonl), a node file (.toml), or a folder that holds ledgers.")]
Delta = Annotated[float, typer.Option("--delta", help="Delta at which epsilon is computed.", min=1e-300, max=0.5)]


def _files(path: Path) -> list[Path]:
    """The ledgers under a path; a ledger that is gone but left its head file is one too."""
    if path.suffix == ".toml":
        file = ledger_of(Node.read(path)).path
        assert file is not None
        return [file]
    if path.is_dir():
        files = sorted({f.with_suffix("") for f in path.rglob("*.jsonl.head")})
        if not files:
            raise ConfigError(f"{path}: no ledger in this folder", hint="name the ledger.jsonl of a site")
        return files
    if not path.exists() and not path.with_name(path.name + ".head").exists():
        raise ConfigError(f"{path}: no such file", hint="name the ledger.jsonl of a site")
    return [path]


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
    studies = [(f, ledger.head, _summary(ledger, delta)) for f, ledger in ledgers]
    lines = []
    for file, head, rows in studies:
        lines.append(f"{file}: {head.count} entries")
        for r in rows:
            name = f"study {r['study']}" if r["study"] is not None else "all studies"
            spent = f"patient-level epsilon {r['epsilon_of_bounded_releases']:.4g} at delta {delta:g}"
            without = r["without_patient_level_bound"]
            if without == r["releases"]:
                spent = "none with a patient-level bound"
            elif without:
                spent = f"{without} without a patient-level bound, the others with {spent}"
            lines.append(f"  {name}, cohort {r['cohort']}: {r['releases']} releases, {spent}")
    value = [{"path": str(f), "head": vars(head), "studies": rows} for f, head, rows in studies]
    say({"ledgers": value}, json_, *lines)


@app.command()
def verify(
    path: Where,
    against: Annotated[Path | None, typer.Option("--against", help="An earlier export, kept elsewhere.")] = None,
    key: Annotated[str | None, typer.Option(help="The ledger's public key, to check an export offline.")] = None,
    json_: Json = False,
) -> None:
    """Find edited, removed or reordered lines. Exit code 4 if there are any."""
    faults: dict[str, list[str]] = {}
    if path.suffix == ".json":
        faults = {name: verify_lines(lines, key) for name, lines in _exported(path).items()}
    else:
        anchors = _anchors(against)
        files = _files(path)
        for file in files:
            known = anchors.get(file.name) or (anchors.get("") if len(files) == 1 else None)
            faults[str(file)] = _faults(_open(path, file), known, path)
    bad = {k: v for k, v in faults.items() if v}
    say({"whole": not bad, "ledgers": faults}, json_, *([] if bad else [f"{file}: verified" for file in faults]))
    if bad and json_:
        raise typer.Exit(LedgerError.exit_code)
    if bad:
        raise LedgerError(
            "ledger check failed: releases are blocked",
            faults=[f"{k}: {f}" for k, v in bad.items() for f in v],
            hint="restore the file from a backup and find out who changed it",
        )


def _faults(ledger: Ledger, anchor: SignedHead | None, path: Path) -> list[str]:
    """What is wrong with a ledger by itself, and by the heads that other sites sent."""
    by_others = [f for head in _witnessed(path) for f in ledger.against(head, "another party")]
    return sorted({*ledger.verify(anchor=anchor), *by_others})


def _open(given: Path, file: Path) -> Ledger:
    """Return a ledger with its anchor, where the node file names one."""
    return ledger_of(Node.read(given)) if given.suffix == ".toml" else Ledger(file)


def _exported(path: Path) -> dict[str, list[str]]:
    try:
        value = json.loads(path.read_text())
        return {str(x.get("path", path)): [str(y) for y in x["lines"]] for x in value.get("ledgers", [value])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{path}: not an export of a ledger ({e})") from e


@app.command()
def recover(
    path: Where,
    head: Annotated[list[Path] | None, typer.Option(help="A signed head that another party kept.")] = None,
    by: Annotated[str, typer.Option(help="Who answers for the gap.")] = "",
    why: Annotated[str, typer.Option(help="What happened.")] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Move the damaged file away and charge the lost lines.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show what is left of a damaged ledger. --write continues it."""
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
        value["gap"] = recovery.recover(ledger, found, by=by, why=why).count
        end = "The damaged file was moved away. A line records what was lost, who answers for it, and its cost."
    else:
        end = "Restore a backup, or run: polyclinic ledger recover ... --write --by NAME --why TEXT"
    known = "no signed head was kept"
    if found.known is not None:
        known = f"the longest signed head that was kept counts {found.known.count} lines"
    lines = [f"{file}: lines that verify: {found.good}", *(f"  - {f}" for f in found.faults)]
    say(value, json_, *lines, f"  {known}", f"  spent in the lost lines: {lost}", f"  {end}")


def _witnessed(path: Path) -> list[SignedHead]:
    """Return the heads of this site's ledger that other sites sent."""
    if path.suffix != ".toml":
        return []
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
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: standard output.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Same as without it.")] = False,
) -> None:
    """Write the ledger as JSON with its signed head."""
    value = {"ledgers": [{"path": str(f), **Ledger(f).export()} for f in _files(path)]}
    if out is None:
        say(value, True)
        return
    write_whole(out, json.dumps(value, indent=1))
    say({"written": str(out)}, json_, f"written: {out}")


@app.command()
def read(
    node: Annotated[Path, typer.Argument(help="The node file of a site.")],
    id: Annotated[str, typer.Argument(help="Which release.")],
    json_: Json = False,
) -> None:
    """Show the exact values of a release."""
    arrays = Outbox(outbox_of(Node.read(node))).read(id).arrays
    value = {"id": id, "arrays": {k: v.tolist() for k, v in arrays.items()}}
    say(value, json_, *(f"{name} {a.shape}:\n{a}" for name, a in arrays.items()))
