"""Carry a driver's asks to the sites and their answers back, many at a time, until the study has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import PeerLost
from polyclinic.node.admission.alignment import office
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.coordinator.site_registry import Sending
from polyclinic.node.enrolment.folders import append_event, private
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.studies import registry

TICK: Final = 0.05  # seconds after which the driver looks at the clock, whatever happens
Ask = Callable[[str, bytes, float], bytes | None]


def driver_of(order: StudyOrder, identity: Identity, folder: Path) -> Coordinator:
    """The driver of a study, with everything that it writes in the run folder."""
    method: Any = registry.ordered(order.parsed(private(private(folder) / "files")))
    log = partial(append_event, folder / "events.jsonl")

    def progress(p: Progress) -> None:
        append_event(folder / "progress.jsonl", **{**vars(p), "figures": dict(p.figures)})

    return Coordinator(order, method, identity, folder, log=log, progress=progress, office=office)


def carry(driver: Coordinator, ask: Ask, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Run a study to its end; :class:`PeerLost` for a clean stop that can be resumed.

    Parameters
    ----------
    ask
        Carries an ask to a site and brings the answer within so many seconds, or None.
    stopped
        True when the run must stop at the next chance (abort, shutdown).
    """
    pool = ThreadPoolExecutor(4 * len(driver.lines) + 4, thread_name_prefix="ask")
    flights: dict[Future[bytes | None], Sending] = {}
    try:
        while driver.outcome is None:
            if stopped():
                raise PeerLost("the run was stopped", hint="polyclinic coordinator resume")
            for s in driver.due(time.monotonic()):
                flights[pool.submit(ask, s.site, s.data, s.seconds)] = s
            if not flights:
                time.sleep(TICK)
            for f in wait(flights, TICK, FIRST_COMPLETED).done:
                driver.heard(flights.pop(f), f.result(), time.monotonic())
        return driver.outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
