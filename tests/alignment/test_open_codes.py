"""Local codes of open data: the joint model after alignment is the one on true codes (benchmarks/local_codes.py)."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "local_codes.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [200, 201])
@pytest.mark.parametrize(("name", "folder"), [("diabetes130", "diabetes130"), ("synpuf", "cms_desynpuf")])
def test_a_model_on_aligned_codes_is_the_model_on_true_codes(
    name: str, folder: str, seed: int, data_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(data_path(folder).parent))
    figures = runpy.run_path(str(SCRIPT))["joint"](f"{name}:0.3", seed)
    assert figures["fms"] >= 0.95, figures
    assert figures["fms without alignment"] < 0.9, figures
