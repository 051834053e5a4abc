"""Small finished runs that the report's tests read: made once, by the real thing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.config import Study
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study


def _run(path: Path, patients: int, method: dict[str, object], **more: object) -> RunFolder:
    study = Study.parse(
        {
            "study": {"name": "icu", "seed": 1, "replicate": 0, "description": "What do units have in common?"},
            "data": {"dataset": "icu_network", "patients": patients},
            "method": {"aggregation": "plain", **method},
            **more,
        }
    )
    folder = RunFolder.create(path)
    run_study(study, make(study), folder)
    return folder


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Phenotypes without privacy noise; small enough that many counts must be hidden."""
    method = {"name": "localtf", "rank": 8, "rounds": 12}
    return _run(tmp_path_factory.mktemp("runs") / "plain", 600, method, evaluate={})


@pytest.fixture(scope="session")
def formal_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Phenotypes under patient-level differential privacy."""
    asked = {"epsilon": 8.0, "delta": 1e-5}
    place = tmp_path_factory.mktemp("runs") / "formal"
    return _run(place, 1500, {"name": "dpem", "rank": 10, "rounds": 4, "aggregation": "masked"}, privacy=asked)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[RunFolder], RunFolder]:
    """A copy of a run folder that a test may change."""

    def copy(run: RunFolder) -> RunFolder:
        return RunFolder(Path(shutil.copytree(run.path, tmp_path / "copy")))

    return copy
