"""A disk that is really full (a small tmpfs), at a site and at the coordinator: a clear stop, and resume after space is freed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import At, Federation, running, same

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

TRIP = 'name = "trip"\nrank = 4\ntol = 0\nrounds = 30\naggregation = "plain"'


def test_full_disk_at_a_site_is_a_clear_stop_that_resumes(tmp_path: Path, small_disk: Any) -> None:
    """Ledger, checkpoint, releases and logs of the site are all on the disk that is full."""
    fill, free = small_disk(tmp_path / "south", 48)
    made = Federation(tmp_path)
    with running(made):
        study = made.study("disk", TRIP, head="deadline = 20\n")
        order = made.order(study)
        status = made.follow(order, At(4, fill))
        assert status["state"] == "stopped", (status, made.events(order))
        assert status["exit"] == 5
        assert any("'south'" in f and "disk: it cannot write" in f for f in status["faults"]), (
            status
        )  # one word, no more
        free()
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))
        reference = made.in_process(study)
        assert same(made.outcome(order).public, reference.public)
        for name in made.names:
            charges = made.charges(name, "disk")
            assert len({(c.round, c.step, c.attempt) for c in charges}) == len(charges) == len(reference.releases), name


def test_full_disk_at_the_coordinator_is_a_clear_stop_that_resumes(tmp_path: Path, small_disk: Any) -> None:
    from polyclinic.errors import PolyclinicError

    fill, free = small_disk(tmp_path / "coordinator", 48)
    made = Federation(tmp_path)
    with running(made):
        study = made.study("disk", TRIP, head="deadline = 20\n")
        order = made.order(study)
        try:
            status = made.follow(order, At(4, fill))
            said = f"{status['what']}"
        except PolyclinicError as e:
            said = str(e)
        assert "cannot write to its disk (No space left on device)" in said
        free()
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))
        reference = made.in_process(study)
        assert same(made.outcome(order).public, reference.public)
        for name in made.names:
            assert len(made.charges(name, "disk")) == len(reference.releases), name


def test_the_disk_of_these_tests_is_full(tmp_path: Path, small_disk: Any) -> None:
    fill, free = small_disk(tmp_path / "disk", 1)
    fill()
    with pytest.raises(OSError, match="No space left"):
        (tmp_path / "disk" / "x").write_bytes(b"x" * 5000)
    free()
    (tmp_path / "disk" / "x").write_bytes(b"x" * 5000)
    assert os.path.getsize(tmp_path / "disk" / "x") == 5000
