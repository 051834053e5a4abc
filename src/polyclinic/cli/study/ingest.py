"""``polyclinic ingest``: a hospital's records become a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, console, say
from polyclinic.config import Node, Study


def command(
    node: Annotated[Path, typer.Argument(help="The hospital's node.toml.")],
    study: Annotated[Path, typer.Option(help="The study.toml.")],
    out: Annotated[Path, typer.Option(help="Folder for tensor.npz, events.parquet, labels.parquet, manifest.json.")],
    json_: Json = False,
) -> None:
    """Turn a hospital's records into a tensor; every row is used or dropped for a named reason. Nothing is sent."""
    from polyclinic.records.ingest import ingest
    from polyclinic.tensors.skew import Skew

    made = ingest(Node.read(node), Study.read(study), out)
    if json_:
        say(made.manifest, json_)
        return
    from rich.table import Table

    rows = Table("step", "rows in", "rows out", "dropped")
    for step in made.manifest["steps"]:
        why = "\n".join(f"{n:,} {reason}" for reason, n in step["dropped"].items())
        rows.add_row(step["step"], f"{step['rows_in']:,}", f"{step['rows_out']:,}", why)
    console.print(rows)
    if made.site.tensor is None:
        console.print(f"{made.site}, in {out}")
        return
    attrition = made.manifest["attrition"]
    if len(attrition) > 2:
        console.print(" -> ".join(f"{a['step']} {a['patients']:,} patients" for a in attrition))
    console.print(Skew(**made.manifest["skew"]).words())
    for mode in made.manifest["modes"]:
        share = mode["coverage"]["unmapped_share"]
        console.print(f"{mode['mode']}: {mode['codes']:,} codes ({mode['chosen']}); {share:.1%} of rows unmapped")
    several = made.manifest["sites"]["patients_at_several"]
    if several:
        console.print(f"{several:,} patients occur at several of the source's sites")
    labels = made.manifest["labels"]
    if labels:
        console.print(f"outcome {labels['outcome']}: {labels['positive']:,} of {labels['known']:,} patients")
    shape = " x ".join(f"{d:,}" for d in made.manifest["tensor"]["shape"])
    console.print(f"tensor {shape}, {made.manifest['tensor']['nnz']:,} nonzeros, in {out}")
