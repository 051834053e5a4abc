"""The hostile world lies with the attacks; between the halves signs of life come faster than over a network."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "attacks"))


@pytest.fixture(autouse=True)
def fast_pulse(monkeypatch):
    from polyclinic.federation import attendance

    monkeypatch.setattr(attendance, "EVERY", 0.1)
    monkeypatch.setattr(attendance, "GRACE", 3.0)
