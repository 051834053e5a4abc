"""``polyclinic apply``: place a hospital's patients on phenotypes that were learned elsewhere. Nothing leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.console import Json, say
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError
from polyclinic.util.atomic_files import write_whole

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.phenotypes import Phenotypes
    from polyclinic.records.sites.site import Site


def command(
    model: Annotated[Path, typer.Argument(help="*.phenotypes, or a run folder.")],
    node: Annotated[Path, typer.Option(help="The hospital's node.toml.")],
    out: Annotated[Path, typer.Option(help="New folder for memberships.csv, coverage.json, cohort.csv.")],
    study: Annotated[Path | None, typer.Option(help="study.toml with [tensor], if the model has no rule.")] = None,
    cohort: Annotated[bool, typer.Option("--cohort", help="Also write OMOP cohort rows.")] = False,
    meds: Annotated[bool, typer.Option("--meds", help="Also write memberships as MEDS, a folder.")] = False,
    anndata: Annotated[bool, typer.Option("--anndata", help="Also write memberships.h5ad for AnnData.")] = False,
    min_coverage: Annotated[float, typer.Option(help="Minimum share of events with known codes.")] = 0.5,
    json_: Json = False,
) -> None:
    """Ingest by the model's own rule, place every patient, say how much was read. Nothing is sent."""
    from polyclinic.models.phenotypes.cohort import cohort_tables, memberships_table, write_anndata, write_meds
    from polyclinic.studies.run_folder import RunFolder

    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: the folder is not empty", hint="choose another --out")
    m = phenotypes_of(model)
    site, periods = records(m, node, study, out)
    placed, cover = m.transform(site, unseen="drop", coverage=True, min_coverage=min_coverage)
    folder = RunFolder.create(out, resume=True)
    subjects = site.counts().axes[0].labels or tuple(str(i) for i in range(site.patients))
    tables = {"memberships": memberships_table(placed, subjects)}
    if cohort:
        tables |= cohort_tables(m, placed, subjects, periods)
    for name, table in tables.items():
        write_whole(out / f"{name}.csv", table.to_csv())
    if meds:
        write_meds(out / "meds", m, placed, subjects, periods)
    if anndata:
        write_anndata(out / "memberships.h5ad", m, placed, subjects, periods)
    told = {
        "model": m.digest(),
        "site": site.name,
        "patients": site.patients,
        "events": cover.events,
        "read": cover.read,
        "total": cover.total,
        "codes": {k: {"known": a, "here": b} for k, (a, b) in cover.codes.items()},
        "unseen": {k: list(v) for k, v in cover.unseen.items()},
        "weight_seen": cover.weight.tolist(),
        "patients_without_an_event": cover.without,
    }
    folder.write_json(out / "coverage.json", told)
    end = f"{site.patients:,} patients placed on {m.rank} phenotypes, in {out}; nothing was sent"
    say(told, json_, repr(cover), end)


def phenotypes_of(path: Path) -> Phenotypes:
    """The phenotypes in a file or a run folder."""
    from polyclinic.models.phenotypes.phenotypes import Phenotypes
    from polyclinic.studies.run_folder import load

    m = load(path)
    if not isinstance(m, Phenotypes):
        raise ConfigError(
            f"{path} holds {m.kind}, not phenotypes", hint="pc.load(path).transform(features) places these"
        )
    return m


def records(m: Phenotypes, node: Path, study: Path | None, out: Path) -> tuple[Site, dict[str, Any]]:
    """A hospital's records by the model's own rule: its modes, window, count and grouping of codes; every code is kept,
    so that what the model does not know is counted. Also first and last day of every patient."""
    import tempfile

    from polyclinic.models.phenotypes.cohort import periods_of
    from polyclinic.records.ingest import ingest

    if study is not None:
        asked = Study.read(study)
        values = asked.to_json()
    else:
        asked, values = None, {k: dict(v) for k, v in m.origin.rule.items()}
    if not values.get("tensor"):
        raise ConfigError(
            "the model does not say how records became a tensor",
            hint="give --study study.toml with its [tensor] and [codes] sections",
        )
    # choices of codes: the model has made them
    chosen = ("top", "top_by", "vocabulary", "minimum_patients", "alignment")
    tensor = {k: v for k, v in values["tensor"].items() if k not in chosen}
    rule = {k: v for k, v in values.items() if k in ("codes", "cohort", "time", "visits")}
    made = {"study": {"name": "apply"}, "tensor": {**tensor, "minimum_patients": 1}, **rule}
    here = Node.read(node)
    parsed = Study.parse(made, where="the model's rule", folder=asked.folder if asked is not None else here.folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".apply-") as scratch:
        found = ingest(here, parsed, Path(scratch) / "data")
        return found.site, periods_of(Path(scratch) / "data" / "events.parquet")
