"""``polyclinic demo``: six intensive care units learn phenotypes together, and what it cost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.console import Json, console, follow, say
from polyclinic.config import Study
from polyclinic.studies.registry import make

if TYPE_CHECKING:
    from polyclinic.studies.run_folder import RunFolder


def command(
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")] = Path("runs/demo"),
    patients: Annotated[int, typer.Option(help="Generated patients over six units.")] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of the generated network and of every model.")] = 0,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of MIMIC-III tables to use instead.")] = None,
    as_json: Json = False,
) -> None:
    """Fit and compare methods on generated hospitals, write a report."""
    from polyclinic.report.html import write_report
    from polyclinic.studies.run_folder import RunFolder

    folder = RunFolder.create(out)
    rows, title = _compare(folder, patients, seed, data, quiet=as_json)
    private = _private_rows(seed, quiet=as_json) if data is None else []
    features = _feature_rows(seed) if data is None else []
    found = {"models": rows, "patient_level": private, "features": features}
    folder.write_json(folder.path / "comparison.json", {"title": title, **found})
    report = str(write_report(folder))
    if as_json:
        say({**found, "folder": str(folder.path), "report": report}, as_json)
        return
    _print(title, rows)
    if private:
        _print_private(private)
        _print_features(features)
    console.print(f"\nrun folder: {folder.path}\nreport:     {report}")


def _compare(
    folder: RunFolder, patients: int, seed: int, data: Path | None, quiet: bool
) -> tuple[list[dict[str, Any]], str]:
    """The same sites through every method; the study's own, over masked sums, writes the run folder."""
    import polyclinic as pc
    from polyclinic.analysis.simulated.summary import to_truth
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
                "rounds": traffic.rounds,
                "bytes_up": traffic.bytes_up,
                "bytes_down": traffic.bytes_down,
                "seconds": seconds,
            }
        )

    method = make(study)
    begun = time.perf_counter()
    with follow("masked sums", method.params.rounds, quiet=quiet) as progress:
        run_study(study, method, folder, sites=sites, progress=progress)
    title = type(method.model_).__name__
    row(title, "masked sums", method.model_, time.perf_counter() - begun)
    others: list[tuple[str, str, Any]] = [
        *([] if title == "TRIP" else [("TRIP", "masked sums", pc.TRIP(rank=rank, seed=seed, aggregation="masked"))]),
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
    names = ", ".join(s.name for s in sites)
    return (
        rows,
        f"{sum(s.patients for s in sites):,} patients at {len(sites)} sites ({names}), rank {rank}, seed {seed}. {title} was also fitted on two halves of the patients, which counts in its bytes and seconds",
    )


def _study(patients: int, seed: int, data: Path | None) -> Study:
    method = {"name": "trip", "rank": 14, "aggregation": "masked"}
    if data is None:
        generated = {"dataset": "icu_network", "patients": patients, "people": True}
        follow = {"time": "days", "event": "died", "grid": "7d", "until": "182d"}
        known = {"age": [0, 1, 50, 70, 120], "sex": True, "survival": follow}
        asked = "Which combinations of procedures and diagnoses do six intensive care units have in common?"
        identity = {"name": "demo", "seed": seed, "description": asked}
        return Study.parse({"study": identity, "data": generated, "method": method, "people": known, "evaluate": {}})
    return Study.parse(_mimic(data, seed))


def _private_rows(seed: int, quiet: bool) -> list[dict[str, Any]]:
    """Patient-level differential privacy on 20,000 generated patients: what it costs in phenotypes."""
    import polyclinic as pc
    from polyclinic.analysis.simulated.summary import to_truth
    from polyclinic.report.words import badge

    sites = pc.datasets.planted_counts(patients=20_000, seed=seed, sites=6)
    rows = []
    for epsilon in (1.0, 8.0):
        privacy = pc.Privacy(epsilon=epsilon, delta=1e-6)
        model = pc.DPEM(rank=30, seed=seed, aggregation="masked", privacy=privacy)
        begun = time.perf_counter()
        with follow("DPEM, patient-level privacy", model.params.rounds or 8, quiet=quiet) as progress:
            model.fit(sites, progress=progress)
        rows.append(
            {
                "model": "DPEM",
                "guarantee": badge(model.privacy_),
                **to_truth(model.result_, sites.truth),
                "seconds": time.perf_counter() - begun,
            }
        )
    return rows


def _feature_rows(seed: int) -> list[dict[str, Any]]:
    """Patient similarity and a private mixture: how well 1,200 held-out patients of three hospitals are put into groups."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score
    from sklearn.neighbors import KNeighborsClassifier

    import polyclinic as pc
    from polyclinic.report.words import badge

    rng = np.random.default_rng(seed)
    group = rng.integers(3, size=(3, 2400))  # hospital, patient
    x = rng.normal(size=(*group.shape, 40))
    x[..., :2] += 4 * np.array([[0, 0], [1, 0], [0, 1]])[group]  # the other 38 columns are noise
    labelled = [pc.Site(n, features=f[:100], labels=g[:100]) for n, f, g in zip("ABC", x, group)]
    many = [pc.Site(n, features=f[:2000, :4]) for n, f in zip("ABC", x)]
    known, label = x[:, :100].reshape(-1, 40), group[:, :100].ravel()
    new, truth = x[:, 2000:].reshape(-1, 40), group[:, 2000:].ravel()
    metric = pc.UnPSL(seed=seed).fit_sites(labelled, rounds=4, aggregation="masked")
    nearest = KNeighborsClassifier(5)
    right = nearest.fit(known, label).score(new, truth)
    rows = [{"model": "5 nearest, Euclidean distance", "guarantee": "records in one place", "right": right}]
    right = nearest.fit(metric.transform(known), label).score(metric.transform(new), truth)
    rows.append({"model": "5 nearest, UnPSL", "guarantee": badge(metric.privacy_), "right": right})
    for privacy in (None, pc.Privacy(epsilon=4.0, delta=1e-6)):
        model = pc.GaussianMixture(n_components=3, radius=12.0, aggregation="masked", seed=seed, privacy=privacy).fit(
            many
        )
        right = adjusted_rand_score(truth, model.predict(new[:, :4]))
        rows.append({"model": "Gaussian mixture", "guarantee": badge(model.privacy_), "right": right})
    return rows


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    texts = {"model": "model", "sees": "coordinator\nsees"}
    figures = {"fit": ("fit", 3), "rmse_full": ("RMSE\nall", 3), "rmse_observed": ("RMSE\nnonz.", 3)}
    figures |= {"fms_to_truth": ("FMS to\ntruth", 3), "rounds": ("rounds", 0)}
    sizes = [{**r, "bytes_up": r["bytes_up"] / 1e6 if r["bytes_up"] else None} for r in rows]
    _table(title, sizes, texts, {**figures, "bytes_up": ("MB up", 2), "seconds": ("s", 1)})


def _print_private(rows: list[dict[str, Any]]) -> None:
    figures = {"fms_to_truth": ("FMS to\ntruth", 3), "precision_to_truth": ("precision", 3)}
    figures |= {"seconds": ("s", 1)}
    title = "\n20,000 generated patients at 6 sites, masked sums, rank 30"
    _table(title, rows, {"model": "model", "guarantee": "privacy"}, figures)


def _print_features(rows: list[dict[str, Any]]) -> None:
    title = "\n3 hospitals with 3 groups of patients in generated features, masked sums, 1,200 held-out patients"
    _table(title, rows, {"model": "model", "guarantee": "privacy"}, {"right": ("right", 3)})
    console.print("Right: share of correct labels (nearest neighbours), adjusted Rand index (mixture).")


def _table(title: str, rows: list[dict[str, Any]], texts: dict[str, str], figures: dict[str, tuple[str, int]]) -> None:
    """Print rows; ``figures``: key, heading and digits. A heading is whole at 80 columns: a figure that is cut says nothing."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    for heading in texts.values():
        table.add_column(heading, min_width=11 if "\n" in heading else None)
    for heading, _ in figures.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        numbers = ("-" if r[k] is None else f"{r[k]:.{digits}f}" for k, (_, digits) in figures.items())
        table.add_row(*(r[k] for k in texts), *numbers)
    console.print(table)


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
        "method": {"rank": 8, "aggregation": "masked"},
    }
