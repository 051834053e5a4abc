"""A folder of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.config import Study
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of different methods."""
    root = tmp_path_factory.mktemp("web")
    for name, method in (("first", "localtf"), ("second", "sumals")):
        study = Study.parse(
            {
                "study": {"name": f"icu {name}", "seed": 1, "replicate": 0},
                "data": {"dataset": "icu_network", "patients": 240},
                "method": {"name": method, "rank": 4, "rounds": 4, "aggregation": "plain"},
            }
        )
        run_study(study, make(study), RunFolder.create(root / name))
    return root
