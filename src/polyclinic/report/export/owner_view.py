"""The owner's own view of a run: everything about the own patients, on the owner's machine, and for nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.models.phenotypes.cohort import CARRIES, shares
from polyclinic.privacy.small_cells import effective_contributors
from polyclinic.report.contents import RunContents
from polyclinic.report.html import render
from polyclinic.report.section import log_failure
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic


def write_local_report(
    folder: RunFolder, site: str, *, out: Path | None = None, failed: Callable[[str], None] = log_failure
) -> Path:
    """Write a site's own report, uncensored, stamped, readable by its owner only; returns its path.

    Parameters
    ----------
    folder
        A finished run.
    site
        Whose report. Its memberships must be in the folder: they are at the site and in a simulation, never with a
        coordinator.
    out
        Where to; default ``sites/SITE/report.html`` in the folder.
    failed
        Is told of every section of others that could not be made.
    """
    path = folder.path / "sites" / site / "report.html" if out is None else out
    text = render(local_view(RunContents.read(folder), site), failed=failed)
    with atomic(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
    os.chmod(path, 0o600)
    return path


def local_view(run: RunContents, site: str) -> RunContents:
    """The run as the site's owner may see it: every code of the model, and every count of the own patients."""
    memberships_file = run.path / "sites" / site / "memberships.npz"
    faults = [] if run.kind == "phenotypes" else [f"the run learned {run.kind}, not phenotypes"]
    if not memberships_file.is_file():
        site_names = sorted(p.parent.name for p in (run.path / "sites").glob("*/memberships.npz"))
        faults.append(f"{site!r} has no memberships in this folder; there are: {', '.join(site_names) or 'none'}")
    if faults:
        raise ConfigError(
            f"no report of site {site!r} for its owner",
            faults=faults,
            hint="run it where the site's own run folder is; a coordinator has no patient's memberships",
        )
    with np.load(memberships_file, allow_pickle=False) as z:
        loadings = np.abs(np.asarray(z["memberships"], np.float64))
    counts = (shares(run.phenotypes, loadings) >= CARRIES).sum(0)
    rank = loadings.shape[1]
    presence: dict[str, object] = {
        "minimum": 1,
        "carries": CARRIES,
        "sites": {site: len(loadings)},
        "carriers": [[int(c)] for c in counts],
        "totals": [int(c) for c in counts],
        "contributors": [round(float(x), 1) for x in effective_contributors(loadings)],
        "carried": [True] * rank,
    }
    return replace(run, presence=presence, few=(), held=(), owner=site)
