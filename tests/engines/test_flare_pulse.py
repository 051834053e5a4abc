"""A site on a slow line is not a dead site."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from polyclinic.engines.flare import pulse
from polyclinic.engines.flare.pulse import Pulse


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulse]:
    """A site that said hello once and then nothing."""
    monkeypatch.setattr(pulse, "SILENT", 0.3)
    monkeypatch.setattr(pulse, "EVERY", 0.05)
    said = iter([{"state": "ready", "life": "a"}])
    made = Pulse(("north",), lambda site, seconds: next(said, None), lambda *_: None)
    until = time.monotonic() + 5
    while made.state("north") != "ready" and time.monotonic() < until:
        time.sleep(0.01)
    yield made
    made.stop()


def test_a_silent_site_is_lost_after_seconds(silent: Pulse) -> None:
    time.sleep(0.5)
    assert silent.state("north") == "lost"


def test_a_message_on_its_way_excuses_silence(silent: Pulse) -> None:
    with silent.carrying("north", int(pulse.SLOWEST)):  # two seconds more, for the question and an answer of its size
        time.sleep(0.5)
        assert silent.state("north") == "ready"
    assert silent.state("north") == "lost"
