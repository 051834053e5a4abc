"""``coordinator submit --wait SECONDS|no``: the study is followed by a process of its own; this one looks on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from polyclinic.node.doctor.processes import Recorded, alive, launch
from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.flare.coordinator_service import progress, state_of
from polyclinic.node.signed_study import StudyOrder

__all__ = ["look_on"]

ENDED: Final = ("finished", "stopped", "failed")


def look_on(
    folder: CoordinatorFolder, order: StudyOrder, seconds: float, tell: Callable[[dict[str, object]], None]
) -> dict[str, object]:
    """Start the follower, then look on for so many seconds; how the study stands then."""
    run, note = (
        folder.run(order.id),
        folder.pids / f"follow-{order.id}.json",
    )  # `coordinator stop` ends what is noted there
    if not alive(Recorded.read(note)):
        argv = ["-m", "polyclinic.cli", "coordinator", "resume", str(folder.path.resolve()), order.id, "--json"]
        launch(argv, env=dict(os.environ), log=run / "follow.log", note=note)
    shown, end = len(progress(run)), time.monotonic() + seconds
    while True:
        fresh = progress(run)
        for event in fresh[shown:]:
            tell(event)
        shown = max(shown, len(fresh))
        value = state_of(folder, order)
        over = value["state"] in ENDED and not alive(Recorded.read(note))  # the follower also publishes what was found
        if over or time.monotonic() >= end:
            return value if over or value["state"] not in ENDED else {**value, "state": "ending"}
        time.sleep(0.2)
