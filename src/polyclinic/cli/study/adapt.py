"""``polyclinic adapt``: a hospital that was not in the study gets a page about itself. Nothing leaves."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.console import Json, say
from polyclinic.errors import ConfigError
from polyclinic.util.atomic_files import write_whole

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.local_comparison import Adapted


def command(
    model: Annotated[Path, typer.Argument(help="*.phenotypes, or a run folder.")],
    node: Annotated[Path, typer.Option(help="The hospital's node.toml.")],
    out: Annotated[Path, typer.Option(help="New folder for adapted.html, adapted.json, adapted.phenotypes.")],
    own: Annotated[str, typer.Option(help="Own phenotypes: auto, or a number.")] = "auto",
    study: Annotated[Path | None, typer.Option(help="study.toml with [tensor], if the model has no rule.")] = None,
    before: Annotated[Path | None, typer.Option(help="node.toml of this hospital's earlier records.")] = None,
    min_coverage: Annotated[float, typer.Option(help="Minimum share of events with known codes.")] = 0.5,
    json_: Json = False,
) -> None:
    """Compare this hospital with the network: fit, drift, own phenotypes."""
    from polyclinic.cli.study.apply import phenotypes_of, records
    from polyclinic.studies.run_folder import RunFolder

    if own != "auto" and not own.isdigit():
        raise ConfigError(f"--own {own!r} is neither 'auto' nor a number")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: the folder is not empty", hint="choose another --out")
    m = phenotypes_of(model)
    site, _ = records(m, node, study, out)
    earlier = None if before is None else records(m, before, study, out)[0]
    here = m.adapt(site, own="auto" if own == "auto" else int(own), min_coverage=min_coverage, before=earlier)
    folder = RunFolder.create(out, resume=True)
    told = {
        "model": m.digest(),
        "site": site.name,
        "patients": site.patients,
        "events_read": here.coverage.events,
        "fit": here.fits,
        "own": here.rank,
        "tried": {str(k): v for k, v in here.tried.items()},
        "phenotypes": [dict(r) for r in here.table()],
        "codes_changed": [dict(r) for r in here.codes],
    }
    folder.write_json(out / "adapted.json", told)
    here.phenotypes.save(out / "adapted.phenotypes")
    write_whole(out / "adapted.html", page(site.name, here))
    end = f"{out / 'adapted.html'}; for this hospital only, nothing was sent"
    tables = (repr(here.coverage), repr(here.table().from_one("phenotype")), repr(here.codes))
    say(told, json_, repr(here), *tables, end)


def page(name: str, here: Adapted) -> str:
    """The hospital's page about itself."""
    words = {
        "network": "of the study, where it was learned",
        "here": "of the shared phenotypes on these patients",
        "refit": "of the shared phenotypes, fitted anew here",
        "adapted": "with this hospital's own phenotypes",
    }
    fits = "".join(
        f"<tr><td>{words[k]}</td><td>{'not kept' if v is None else f'{v:.3f}'}</td></tr>" for k, v in here.fits.items()
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{escape(name)} beside the network</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{padding:.2rem .6rem;border-bottom:1px solid #ccc;text-align:left}</style>"
        f"<h1>{escape(name)} beside the network</h1>"
        "<p>For this hospital only: it is made of its patients' records and was not sent anywhere.</p>"
        f"<h2>Fit</h2><table>{fits}</table><h2>What the model could read</h2>{here.coverage._repr_html_()}"
        "<h2>Phenotypes</h2><p>Drift is 1 - product of cosines between a shared phenotype and its refit here; empty where "
        f"fewer than 11 patients carry it.</p>{here.table().from_one('phenotype')._repr_html_()}"
        f"<h2>Codes that changed most</h2>{here.codes._repr_html_()}</html>"
    )
