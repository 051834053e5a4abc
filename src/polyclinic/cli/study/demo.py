"""``polyclinic demo``: six intensive care units learn phenotypes together, and what it cost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.console import Json, console, follow, say

if TYPE_CHECKING:
    from polyclinic.config import Study
    from polyclinic.studies.run_folder import RunFolder

COLUMNS = ("model", "sees", "fit", "rmse_full", "rmse_observed", "fms_to_truth", "auc", "rounds", "bytes_up", "seconds")


def command(
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")] = Path("runs/demo"),
    patients: Annotated[int, typer.Option(help="Generated patients over six units.")] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of the generated network and of every model.")] = 0,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of MIMIC-III tables to use instead.")] = None,
    as_json: Json = False,
) -> None:
    """Fit every method on six generated hospitals, write a report."""
    from polyclinic.studies.run_folder import RunFolder

    folder = RunFolder.create(out)
    rows, title = _compare(folder, patients, seed, data, quiet=as_json)
    private = _private_rows(folder, seed, quiet=as_json) if data is None else []
    folder.write_json(folder.path / "comparison.json", {"title": title, "models": rows, "patient_level": private})
    report = _report(folder)
    if as_json:
        say({"models": rows, "patient_level": private, "folder": str(folder.path), "report": report}, as_json)
        return
    _print(title, rows)
    if private:
        _print_private(private)
    console.print(f"\nrun folder: {folder.path}")
    if report:
        console.print(f"report:     {report}")


def _compare(
    folder: RunFolder, patients: int, seed: int, data: Path | None, quiet: bool
) -> tuple[list[dict[str, Any]], str]:
    """The same sites through every method; the main one (TRIP, masked sums) writes the run folder."""
    import polyclinic as pc
    from polyclinic.analysis.simulated.summary import to_truth
    from polyclinic.studies.registry import make
    from polyclinic.studies.simulate import run_study, sites_of

    study = _study(patients, seed, data)
    sites = sites_of(study)
    rank = study.chosen().parameters["rank"]
    rows: list[dict[str, Any]] = []

    def row(name: str, sees: str, model: Any, seconds: float) -> None:
        figures = {**model.quality(sites), **to_truth(model.result_, sites.truth)}
        traffic = model.traffic_
        rows.append(
            {
                "model": name,
                "sees": sees,
                **{k: figures.get(k) for k in ("fit", "rmse_full", "rmse_observed", "fms_to_truth")},
                "auc": _areas(model, sites)[0],
                "rounds": traffic.rounds,
                "bytes_up": traffic.bytes_up,
                "bytes_down": traffic.bytes_down,
                "seconds": seconds,
            }
        )

    method = make(study)
    begun = time.perf_counter()
    with follow("TRIP over masked sums", method.params.rounds, quiet=quiet) as progress:
        run_study(study, method, folder, sites=sites, progress=progress)
    row("TRIP", "masked sums", method.model_, time.perf_counter() - begun)
    others: list[tuple[str, str, Any]] = [
        ("SumALS", "masked sums", pc.SumALS(rank=rank, seed=seed, aggregation="masked")),
        ("LocalTF", "each site's factors", pc.LocalTF(rank=rank, seed=seed)),
        ("DPFact", "each site's factors", pc.DPFact(rank=rank, seed=seed)),
        ("local, averaged once", "each site's factors", pc.LocalModel(rank=rank, seed=seed)),
        ("CPALS, pooled", "every patient", pc.CPALS(rank=rank, seed=seed)),
    ]
    for name, sees, model in others:
        begun = time.perf_counter()
        with follow(name, model.params.rounds, quiet=quiet) as progress:
            model.fit(sites, progress=progress)
        row(name, sees, model, time.perf_counter() - begun)
    empty = dict.fromkeys(COLUMNS)
    rows.append({**empty, "model": "frozen random factors", "sees": "nothing", "auc": _areas(method.model_, sites)[1]})
    names = ", ".join(s.name for s in sites)
    return (
        rows,
        f"{sum(s.patients for s in sites):,} patients at {len(sites)} sites ({names}), rank {rank}, seed {seed}; TRIP was fitted on two halves of the patients, too",
    )


def _areas(model: Any, sites: Any) -> tuple[float | None, float | None]:
    """AUC of the outcome by phenotypes and by random factors, as the report gives it; None without an outcome."""
    import polyclinic as pc

    try:
        outcome = pc.evaluate(model, sites, what=("outcome",)).outcome
    except pc.errors.ConfigError:
        return None, None
    if outcome is None or outcome.auc is None:
        return None, None
    return outcome.auc.value, next(r["auc"] for r in outcome.baselines if r["model"] == "frozen random factors")


def _study(patients: int, seed: int, data: Path | None) -> Study:
    from polyclinic.config import Study

    method = {"name": "trip", "rank": 14, "aggregation": "masked"}
    if data is None:
        generated = {"dataset": "icu_network", "patients": patients, "people": True}
        follow = {"time": "days", "event": "died", "grid": "7d", "until": "182d"}
        known = {"age": [0, 1, 50, 70, 120], "sex": True, "survival": follow}
        asked = "Which combinations of procedures and diagnoses do six intensive care units have in common?"
        identity = {"name": "demo", "seed": seed, "description": asked}
        return Study.parse({"study": identity, "data": generated, "method": method, "people": known, "evaluate": {}})
    return Study.parse(_mimic(data, seed))


def _private_rows(folder: RunFolder, seed: int, quiet: bool) -> list[dict[str, Any]]:
    """Patient-level differential privacy on 20,000 generated patients: what it costs in phenotypes."""
    import polyclinic as pc
    from polyclinic.analysis.simulated.summary import to_truth

    sites = pc.datasets.planted_counts(patients=20_000, seed=seed, sites=6)
    rows = []
    for epsilon in (1.0, 8.0, None):
        privacy = None if epsilon is None else pc.Privacy(epsilon=epsilon, delta=1e-6)
        model = pc.DPEM(rank=30, seed=seed, aggregation="masked", privacy=privacy)
        begun = time.perf_counter()
        with follow("DPEM, patient-level privacy", model.params.rounds or 8, quiet=quiet) as progress:
            model.fit(sites, progress=progress)
        card = model.privacy_
        rows.append(
            {
                "model": "DPEM",
                "guarantee": card.headline,
                **to_truth(model.result_, sites.truth),
                "auc": _areas(model, sites)[0],
                "seconds": time.perf_counter() - begun,
            }
        )
    return rows


def _report(folder: RunFolder) -> str | None:
    from importlib.util import find_spec

    if find_spec("polyclinic.report.html") is None:
        return None
    from polyclinic.report.html import write_report

    return str(write_report(folder))


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    table.add_column("model")
    table.add_column("coordinator\nsees", min_width=11)
    heads = ("fit", "RMSE\nall", "RMSE\nnonz.", "FMS to\ntruth", "mort.\nAUC", "rounds", "MB up", "s")
    for name in heads:  # whole at 80 columns: a figure that is cut says nothing
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        table.add_row(
            r["model"],
            r["sees"],
            *(_number(r[k], 3) for k in ("fit", "rmse_full", "rmse_observed", "fms_to_truth", "auc")),
            str(r["rounds"] or "-"),
            _number(r["bytes_up"] / 1e6 if r["bytes_up"] else None, 2),
            _number(r["seconds"], 1),
        )
    console.print(table)
    console.print(
        "AUC: outcome of held-out patients (40 %), factors learned on the other 60 %. It alone proves little."
    )


def _print_private(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title="\n20,000 generated patients at 6 sites, masked sums, rank 30", title_justify="left")
    for name in ("model", "privacy"):
        table.add_column(name)
    for name in ("FMS to truth", "precision", "outcome AUC (simulation only)", "s"):
        table.add_column(name, justify="right")
    for r in rows:
        table.add_row(
            r["model"],
            r["guarantee"],
            *(_number(r[k], 3) for k in ("fms_to_truth", "precision_to_truth", "auc")),
            _number(r["seconds"], 1),
        )
    console.print(table)
    if rows[-1]["fms_to_truth"] < max(r["fms_to_truth"] for r in rows):
        console.print(
            "The last line has no noise and ends lower: EM ends in a local optimum, and which one is chance. "
            "Noise does not improve a model; without privacy use TRIP or SumALS."
        )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mimic(data: Path, seed: int) -> dict[str, Any]:
    """Return a study of a hospital's own MIMIC-III tables, one site an intensive care unit.

    Drugs and abnormal laboratory results of the same day (TRIP's data), outcome death in hospital.

    Parameters
    ----------
    data
        Folder of MIMIC-III tables, such as the open demo of 100 patients.
    """
    return {
        "study": {"name": "mimic3", "seed": seed, "description": "Phenotypes of intensive care units."},
        "tensor": {
            "modes": ["drug", "abnormal_lab"],
            "window": "day",
            "cap": 3,  # TRIP truncates counts at three
            "top": {"drug": 200, "abnormal_lab": 100},
        },
        "labels": {"outcome": "mortality"},
        "sites": {"source": {"kind": "mimic3", "folder": str(data.resolve())}, "split": True},
        "method": {"name": "trip", "rank": 8, "aggregation": "masked"},
    }
