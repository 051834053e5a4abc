"""Between the halves the wire is a function call: signs of life come faster than over a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ingested import reading_once


@pytest.fixture(autouse=True)
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.node.coordinator import site_registry as attendance

    monkeypatch.setattr(attendance, "EVERY", 0.1)
    monkeypatch.setattr(attendance, "GRACE", 3.0)


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The same records are read once for all studies of them."""
    with reading_once():
        yield
