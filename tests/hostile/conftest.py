"""Between the halves signs of life come faster than over a network."""

import pytest


@pytest.fixture(autouse=True)
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.federation import attendance

    monkeypatch.setattr(attendance, "EVERY", 0.1)
    monkeypatch.setattr(attendance, "GRACE", 3.0)
