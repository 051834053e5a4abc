"""What the coordinator says of a study that nobody works on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from polyclinic.node.enrolment.folders import CoordinatorFolder, alone, at_work, write_json
from polyclinic.node.enrolment.processes import record
from polyclinic.node.flare import coordinator_service as coordinator


@pytest.fixture
def folder(tmp_path: Path) -> CoordinatorFolder:
    """A coordinator whose server runs, with a study that was running when it was last heard of, a minute ago."""
    made = CoordinatorFolder(tmp_path)
    record(made.pids / "server.json", os.getpid())
    run = tmp_path / "runs" / "study"
    run.mkdir(parents=True)
    write_json(run / "order.json", {})
    write_json(run / "status.json", {"study": "study", "state": "running"})
    os.utime(run / "status.json", (time.time() - 60,) * 2)
    return made


def _state(folder: CoordinatorFolder) -> str:
    return str(coordinator._runs(folder)[0]["state"])


def test_a_study_that_nobody_works_on_is_interrupted(folder: CoordinatorFolder) -> None:
    assert _state(folder) == "interrupted"


def test_a_study_at_work_is_running(folder: CoordinatorFolder) -> None:
    lock = folder.path / "runs" / "study" / "lock"
    with alone(lock, "study"):
        assert at_work(lock) and _state(folder) == "running"
    assert not at_work(lock) and _state(folder) == "interrupted"


def test_between_two_legs_a_study_is_still_running(folder: CoordinatorFolder) -> None:
    (folder.path / "runs" / "study" / "events.jsonl").write_text("")
    assert _state(folder) == "running"
