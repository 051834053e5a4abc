"""Where the open data lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_path() -> Callable[[str], Path]:
    """Path of an open data set, or skip with the reason. ``POLYCLINIC_DATA`` names the folder."""
    base = Path(os.environ.get("POLYCLINIC_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

    def find(name: str) -> Path:
        path = base / name
        if not path.exists():
            pytest.skip(f"open data set {name!r} not found under {base} (set POLYCLINIC_DATA)")
        return path

    return find
