"""Exports of a run: every table as CSV, the model as arrays and JSON, and how to cite it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.report.cards import cards
from polyclinic.report.citation import bibtex
from polyclinic.report.contents import RunContents
from polyclinic.report.spending import spending
from polyclinic.report.tables import tables
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic
from polyclinic.util.table import Table

CENSORED: Final = (
    "Codes that may not be shown have weight 0 here (hidden1..n), and kept says how much of every phenotype is left. This is "
    "not the model: patients placed by it would be placed wrongly. The whole model is in the run folder."
)


def export(folder: RunFolder, *, out: Path | None = None) -> list[Path]:
    """Write every table of a run, its model and its citation into ``exports/``; returns what was written.

    Nothing here counts 1 to 10 patients. Codes that may not be shown have weight 0 and are marked in ``hidden1..n``;
    ``kept`` says how much of every phenotype is left, and ``censored`` that it is not the model: that is in the run folder.

    Parameters
    ----------
    folder
        A finished run.
    out
        Where to; default ``exports`` in the folder.
    """
    run = RunContents.read(folder)
    place = folder.path / "exports" if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables(run, cards(run) if run.kind == "phenotypes" else (), spending(run)).items():
        written.append(write_csv(table, place / f"{name}.csv"))
    model = place / "outcome.npz"
    arrays = shareable_arrays(run)
    folder.write_arrays(model, arrays)
    described = place / "outcome.json"
    censored = any(k.startswith("hidden") for k in arrays)
    about = {k: v for k, v in run.outcome.items() if k != "history"}
    folder.write_json(described, {"censored": censored, **({"note": CENSORED} if censored else {}), **about})
    written += _model_file(run, arrays, place)
    bib = place / "citation.bib"
    with atomic(bib) as temporary:
        temporary.write_text(bibtex(str(run.outcome["method"])), encoding="utf-8")
    return [*written, model, described, bib]


def _model_file(run: RunContents, arrays: dict[str, Any], place: Path) -> list[Path]:
    """The run's model file as it may be passed on: with its hidden codes marked first of all, or not at all."""
    match run.model:
        case None:
            return []
        case Phenotypes() as whole if "kept" in arrays:
            factors = tuple(np.ascontiguousarray(arrays[f"factor{n}"]) for n in range(1, len(whole.factors) + 1))
            further = {**whole.origin.further, "kept": run.kept.tolist()}
            holed = replace(whole, factors=factors, origin=replace(whole.origin, censored=True, further=further))
            return [holed.save(place / "model.phenotypes")]
        case Groups() if not run.formal and not run.shown_groups[1].all():
            return []  # groups of few patients: without them the rest is no mixture, with them it may not be passed on
        case whole:
            return [whole.save(place / f"model.{whole.kind}")]


def shareable_arrays(run: RunContents) -> dict[str, Any]:
    """The model without what describes single patients: such codes and phenotypes are 0, such groups not a number.

    ``hidden1..n`` also marks codes that nobody has, so that nobody and few look alike.
    """
    if run.model is None:
        return {}
    released = {n: a for n, a in run.model.arrays().items() if not n.startswith("place_")}
    # names of outcome.npz: those of the estimators' attributes
    arrays: dict[str, Any] = released if run.kind == "phenotypes" else {f"{n}_": a for n, a in released.items()}
    if run.few and not run.formal:
        for n, (factor, few) in enumerate(zip(run.factors, run.few), start=1):
            hide = few | ~run.carried
            arrays |= {f"factor{n}": np.where(hide, 0.0, factor), f"hidden{n}": hide}
        arrays |= {"kept": run.kept, "censored": np.array(True)}
    if run.kind == "mixture" and not run.formal and not run.shown_groups[1].all():
        centre, share = run.shown_groups
        arrays = {
            "weights_": np.where(share, arrays["weights_"], np.nan),
            "means_": np.where(centre[:, None], arrays["means_"], np.nan),
        }  # spreads and their factors would give the hidden groups away
    return arrays


def write_csv(table: Table, path: Path) -> Path:
    """Write a table as CSV, complete or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(table.to_csv(), encoding="utf-8")
    return path
