"""Shared fixtures: where the open data lies, and small networks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_path() -> Callable[[str], Path]:
    """Path of an open data set, or skip with the reason. ``POLYCLINIC_DATA`` names the folder."""
    base = Path(os.environ.get("POLYCLINIC_DATA", ROOT.parent / "shared" / "data"))

    def find(name: str) -> Path:
        path = base / name
        if not path.exists():
            pytest.skip(f"open data set {name!r} not found under {base} (set POLYCLINIC_DATA)")
        return path

    return find


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts anew in every test."""
    return np.random.default_rng(0)
