"""A folder of runs, and a real release that waits for its owner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyclinic.config import Study
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.release import Contribution
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


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A folder whose site has two releases that wait."""
    box = Outbox(tmp_path / "site" / "outbox")
    for n in (1, 2):
        facts = {
            "study": "s",
            "method": "dpem",
            "site": "north",
            "round": n,
            "step": "statistics",
            "shapes": {"x": [2]},
        }
        box.put(f"r{n}", Contribution({"x": np.array([1.5, 2.5])}), {**facts, "how": "sum", "noise_sd": 0.0})
    return tmp_path
