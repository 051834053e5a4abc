"""Courses over time from a hospital's files to the page: MIMIC's items by day, Medicare claims by quarter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.report.html import write_report
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study

Find = Callable[[str], Path]


def page(asked: dict[str, Any], folder: Path) -> tuple[pc.Phenotypes, str]:
    """Run a study as the command does, and write its report."""
    study = pc.Study.parse(asked, folder=folder)
    run = RunFolder.create(folder / "run")
    run_study(study, make(study), run)
    model = run.read_model()
    assert isinstance(model, pc.Phenotypes)
    return model, write_report(run).read_text()


def asked(name: str, modes: list[str], bins: str, **more: Any) -> dict[str, Any]:
    return {
        "study": {"name": name, "seed": 1},
        "tensor": {"modes": modes, "window": "day"},
        "time": {"bins": bins},
        "method": {"name": "parafac2", "rank": 3, "aggregation": "masked", "rounds": 25},
        **more,
    }


@pytest.mark.slow
def test_mimic_items_by_day_from_files_to_report(data_path: Find, tmp_path: Path) -> None:
    source = {"kind": "mimic3", "folder": str(data_path("mimic3_demo"))}
    study = asked("items by day", ["abnormal_lab", "time"], "1d", sites={"source": source, "split": True})
    model, html = page(study, tmp_path)
    assert [a.name for a in model.axes] == ["abnormal_lab", "time"]
    assert model.axes[1].labels == tuple(f"{d} to {d} days" for d in range(12))
    course = np.asarray(model.factors[1])
    assert (course >= 0).all() and course.max() < 2.5 * np.median(course)  # no bin is an artefact of its width
    assert len(re.findall("Trajectory of .{3,80} over time", html)) == 3 and "days since the index date" in html


@pytest.mark.slow
def test_claims_by_quarter_from_files_to_report(data_path: Find, tmp_path: Path) -> None:
    nodes = []
    for k in (1, 2, 3):
        folder = data_path("cms_desynpuf") / f"sample_0{k}"
        text = f'[site]\nname = "sample {k}"\n[source]\nkind = "synpuf"\nfolder = "{folder}"\n'
        (tmp_path / f"n{k}.toml").write_text(text)
        nodes.append(f"n{k}.toml")
    study = asked("claims", ["diagnosis", "time"], "91d", sites={"nodes": nodes})
    study["codes"] = {"diagnosis": {"to": "rubric"}}
    model, html = page(study, tmp_path)
    assert model.axes[1].labels is not None and model.axes[1].labels[0] == "0 to 90 days"
    course = np.asarray(model.factors[1])
    assert (
        course.shape == (12, 3) and (course > 0).all()
    )  # days count from a patient's first claim: every quarter has some
    assert html.count("Trajectory of ") >= 3
