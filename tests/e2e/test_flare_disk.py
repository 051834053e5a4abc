"""A disk that is really full (a small tmpfs), at a site and at the coordinator: a clear stop, and resume after space is freed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
sys.path.insert(0, str(Path(__file__).parent))

from flare_federation import At, Federation, running, same

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

TRIP = 'name = "trip"\nrank = 4\ntol = 0\nrounds = 30\naggregation = "plain"'


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a folder on a disk of its own; gives a function that fills it and one that frees it."""
    mounted = []

    def mount(path: Path, megabytes: int):
        path.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a disk cannot be mounted here ({done.stderr.strip()})")
        mounted.append(path)
        filler = path / "filler"

        def fill() -> None:
            with open(filler, "wb", buffering=0) as f:
                for size in (2**20, 2**12, 1):
                    try:
                        while True:
                            f.write(bytes(size))
                    except OSError:
                        continue

        return fill, lambda: filler.unlink(missing_ok=True)

    yield mount
    for path in mounted:
        for _ in range(20):
            if subprocess.run(["umount", str(path)], capture_output=True).returncode == 0:
                break
            time.sleep(0.5)


def test_full_disk_at_a_site_is_a_clear_stop_that_resumes(tmp_path, small_disk):
    """Ledger, checkpoint, releases and logs of the site are all on the disk that is full."""
    fill, free = small_disk(tmp_path / "south", 48)
    made = Federation(tmp_path)
    with running(made):
        study = made.study("disk", TRIP, head="deadline = 20\n")
        order = made.order(study)
        status = made.follow(order, At(4, fill))
        assert status["state"] == "stopped", (status, made.events(order))
        assert status["exit"] == 5
        assert any("'south'" in f and "cannot write to its disk (No space left" in f for f in status["faults"]), status
        free()
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))
        reference = made.in_process(study)
        assert same(made.outcome(order).public, reference.public)
        for name in made.names:
            charges = made.charges(name, "disk")
            assert len({(c.round, c.step, c.attempt) for c in charges}) == len(charges) == len(reference.releases), name


def test_full_disk_at_the_coordinator_is_a_clear_stop_that_resumes(tmp_path, small_disk):
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


def test_the_disk_of_these_tests_is_full(tmp_path, small_disk):
    fill, free = small_disk(tmp_path / "disk", 1)
    fill()
    with pytest.raises(OSError, match="No space left"):
        (tmp_path / "disk" / "x").write_bytes(b"x" * 5000)
    free()
    (tmp_path / "disk" / "x").write_bytes(b"x" * 5000)
    assert os.path.getsize(tmp_path / "disk" / "x") == 5000
