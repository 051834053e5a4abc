"""OMOP ``cohort`` rows for "patients in phenotype r": written at the site, for the site; never part of a report."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from polyclinic.errors import ConfigError, DataError
from polyclinic.models.phenotypes.cohort import cohort_tables, periods_of
from polyclinic.report.cards import cards
from polyclinic.report.contents import RunContents
from polyclinic.report.export.tables import write_csv
from polyclinic.studies.run_folder import RunFolder
from polyclinic.tensors.sparse import SparseTensor


def write_cohort(
    folder: RunFolder, site: str, tensor: Path | None = None, *, events: Path | None = None, out: Path
) -> list[Path]:
    """Write ``cohort`` and ``cohort_definition`` of one site's own patients, readable by their owner only.

    Parameters
    ----------
    folder
        A finished run of phenotypes.
    site
        Whose patients; their memberships must be in the folder (they are, at the site or in a simulation).
    tensor
        The site's ``tensor.npz`` as ``polyclinic ingest`` wrote it: its patient axis names the subjects. None: as the
        run of ``simulate`` keeps them beside the memberships, for their owner.
    events
        ``events.parquet`` of the same site: start and end are a patient's first and last event. Without it those that the
        run of ``simulate`` kept for the owner (the index date of the study's ``[cohort]`` is the start); else both are empty
        (NULL), to be filled in by the site.
    out
        Folder to write into.

    Returns
    -------
    list of Path
        The CSV files.
    """
    run = RunContents.read(folder)
    memberships_file = folder.path / "sites" / site / "memberships.npz"
    faults = [] if run.kind == "phenotypes" else [f"the run learned {run.kind}, not phenotypes"]
    faults += [] if memberships_file.is_file() else [f"{memberships_file}: not there"]
    if faults:
        raise ConfigError(f"no cohort of site {site!r} can be written", faults=faults)
    with np.load(memberships_file, allow_pickle=False) as z:
        memberships = np.abs(z["memberships"])
        kept_names = tuple(str(x) for x in z["patients"]) if "patients" in z.files else None
        days = [(str(a) or None, str(b) or None) for a, b in z["period"]] if "period" in z.files else []
    if tensor is not None:
        subjects = SparseTensor.load(tensor).axes[0].labels
    elif kept_names is not None:  # a simulation names patients after their site, too
        subjects = tuple(x.removeprefix(f"{site}/") for x in kept_names)
    else:
        raise ConfigError(
            f"{memberships_file}: does not name its patients",
            hint="give the site's own tensor.npz: report --cohort SITE --tensor FILE",
        )
    if subjects is None or len(subjects) != len(memberships):
        raise DataError(
            f"{tensor}: {0 if subjects is None else len(subjects)} named patients, the run has {len(memberships)}",
            hint="give the tensor.npz that this site ran the study on",
        )
    phenotypes = cards(run)
    cohort = cohort_tables(
        run.phenotypes,
        memberships,
        subjects,
        periods_of(events) if events is not None else dict(zip(subjects, days)) if tensor is None else {},
        names=[c.name for c in phenotypes],
        about=[f"explained by phenotype {c.number} of {run.name}" for c in phenotypes],
    )
    out.mkdir(parents=True, exist_ok=True)
    os.chmod(out, 0o700)
    written = [write_csv(table, out / f"{name}.csv") for name, table in cohort.items()]
    for path in written:
        os.chmod(path, 0o600)
    return written
