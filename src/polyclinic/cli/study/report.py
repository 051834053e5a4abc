"""``polyclinic report DIR``: what a run found, as one HTML file for people; tables, review sheets and cohorts on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.console import Json, busy, say
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.studies.run_folder import RunFolder


def command(
    folder: Annotated[Path, typer.Argument(help="Run folder of demo, simulate or coordinator.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write. Default: report.html in the folder.")
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Also write tables, model and citation.bib to exports/.")
    ] = False,
    ohdsi: Annotated[
        Path | None,
        typer.Option("--ohdsi", help="Also write results in the OHDSI results data model."),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option("--local", help="For this site's owner only: nothing is suppressed."),
    ] = None,
    sheet: Annotated[
        list[str] | None, typer.Option("--sheet", help="Write a blinded review sheet: review/NAME.csv.")
    ] = None,
    reviewed: Annotated[
        list[Path] | None, typer.Option("--reviewed", help="Completed sheets: print the agreement of reviewers.")
    ] = None,
    cohort: Annotated[
        str | None, typer.Option("--cohort", help="Write OMOP cohort rows of this site. Stays local.")
    ] = None,
    concept_sets: Annotated[
        bool,
        typer.Option("--concept-sets", help="Also write ATLAS concept sets to concept_sets/."),
    ] = False,
    tensor: Annotated[
        Path | None,
        typer.Option("--tensor", help="With --cohort: the site's tensor.npz."),
    ] = None,
    events: Annotated[Path | None, typer.Option("--events", help="With --cohort: the site's events.parquet.")] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as one HTML file."""
    from polyclinic.report.html import write_report
    from polyclinic.studies.run_folder import RunFolder

    run = RunFolder(folder)
    faults = [f"--sheet {name!r} is not a file name" for name in sheet or () if not name or Path(name).name != name]
    if faults:
        raise ConfigError("report: wrong options", faults=faults)
    run.check_format()
    made: dict[str, Any] = {}
    broken: list[str] = []
    if reviewed:
        from polyclinic.report.export.review_sheet import agreement

        made["agreement"] = asdict(agreement(reviewed))
        run.write_json(run.path / "review.json", made["agreement"])
    with busy("writing the report", quiet=as_json):
        if local is not None:
            from polyclinic.report.export.owner_view import write_local_report

            path = write_local_report(run, local, out=out, failed=broken.append)
        else:
            path = write_report(run, out=out, failed=broken.append)
    made |= {"report": str(path), "bytes": path.stat().st_size}
    asked: dict[str, tuple[bool, Callable[[], list[Path]]]] = {
        "exports": (export, lambda: _exports(run, as_json)),
        "ohdsi": (ohdsi is not None, lambda: _ohdsi(run, ohdsi or Path())),
        "concepts": (concept_sets, lambda: _concept_sets(run)),
        "sheets": (bool(sheet), lambda: _sheets(run, sheet or [])),
        "cohort": (cohort is not None, lambda: _cohort(run, cohort or "", tensor, events)),
    }
    made |= {name: [str(p) for p in write()] for name, (wanted, write) in asked.items() if wanted}
    say(made, as_json, *_lines(made, list(asked)))
    if broken:
        raise ConfigError(
            f"the report is written ({path}), but not all sections of others could be made",
            faults=broken,
            hint="mend the section, or uninstall its package; its tab says the same",
        )


def _exports(run: RunFolder, quiet: bool) -> list[Path]:
    from polyclinic.report.export.tables import export

    with busy("writing exports", quiet=quiet):
        return export(run)


def _ohdsi(run: RunFolder, out: Path) -> list[Path]:
    from polyclinic.report.export.ohdsi import write_ohdsi

    return write_ohdsi(run, out)


def _concept_sets(run: RunFolder) -> list[Path]:
    from polyclinic.report.export.ohdsi import write_concept_sets

    return write_concept_sets(run)


def _sheets(run: RunFolder, reviewers: list[str]) -> list[Path]:
    from polyclinic.report.cards import cards
    from polyclinic.report.contents import RunContents
    from polyclinic.report.export.review_sheet import write_sheet

    contents = RunContents.read(run)
    phenotypes = cards(contents) if contents.kind == "phenotypes" else ()
    return [write_sheet(phenotypes, run.path / "review" / f"{r}.csv", reviewer=r) for r in reviewers]


def _cohort(run: RunFolder, site: str, tensor: Path | None, events: Path | None) -> list[Path]:
    from polyclinic.report.export.omop_cohort import write_cohort

    return write_cohort(run, site, tensor, events=events, out=run.path / "sites" / site / "cohort")


def _lines(made: dict[str, Any], names: list[str]) -> list[str]:
    written = [n for n in names if n in made]
    lines = [f"report:    {made['report']}"]
    lines += [f"{n + ':':<10} {len(made[n])} files in {Path(made[n][0]).parent}" for n in written]
    if a := made.get("agreement"):
        kappa = "" if a["kappa"] is None else f", Fleiss' kappa {a['kappa']:.2f}"
        share = f"{a['meaningful']:.0%} meaningful{kappa}"
        lines.append(f"review:    {a['reviewers']} sheets, {a['phenotypes']} phenotypes, {share}")
    return lines
