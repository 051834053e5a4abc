"""Carry a driver's asks to the sites and their answers back, many at a time, until the study has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import PeerLost, PolyclinicError
from polyclinic.node.admission.alignment import office
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.coordinator.site_registry import Sending
from polyclinic.node.enrolment.folders import FULL, CoordinatorFolder, alone, append_event, private, write_json
from polyclinic.node.flare.result import write_outcome
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.studies import registry
from polyclinic.util.threads import one_thread

TICK: Final = 0.05  # seconds after which the driver looks at the clock, whatever happens
SPARE: Final = 64 * 2**10  # bytes kept free, so that a full disk can still be written down
CANCEL: Final = "cancel"  # a file of the run folder: the study is to be cancelled
Carry = Callable[[Coordinator], Outcome | None]
Ask = Callable[[str, bytes, float], bytes | None]


def driver_of(order: StudyOrder, identity: Identity, folder: Path) -> Coordinator:
    """The driver of a study, with everything that it writes in the run folder."""
    method: Any = registry.ordered(order.parsed(private(private(folder) / "files")))
    log = partial(append_event, folder / "events.jsonl")

    def progress(p: Progress) -> None:
        append_event(folder / "progress.jsonl", **{**vars(p), "figures": dict(p.figures)})

    return Coordinator(order, method, identity, folder, log=log, progress=progress, office=office)


def lead(folder: CoordinatorFolder, order: StudyOrder, status: Mapping[str, object], carry: Carry) -> None:
    """Run one leg of a study from its checkpoint. However it ends stands in ``status.json`` of the run folder."""
    run = private(folder.run(order.id))
    spare = run / "spare"

    def write(state: str, **more: object) -> None:
        write_json(run / "status.json", {**status, "study": order.id, "state": state, **more})

    try:
        with alone(run / "lock", f"study {order.id!r}"), one_thread():
            write("running")
            spare.write_bytes(bytes(SPARE))
            for stray in run.glob(".*.ckpt.*"):  # a file that was being written when the process was killed
                stray.unlink(missing_ok=True)
            driver = driver_of(order, folder.identity(), run)
            outcome = carry(driver)
            if outcome is None:
                write("cancelled", told=driver.told)
                return
            write_outcome(run, outcome)
            write("finished", refused=driver.refused)
            (run / "state.ckpt").unlink(missing_ok=True)  # last: killed before this, the study ends once more, the same
    except PolyclinicError as e:
        append_event(run / "events.jsonl", event="stopped", code=e.code, what=e.what, reasons=list(e.faults))
        write("stopped", error=e.code, what=e.what, faults=list(e.faults), hint=e.hint, exit=e.exit_code)
    except Exception as e:
        spare.unlink(missing_ok=True)  # room for the words that say so
        if not isinstance(e, OSError) or e.errno not in FULL:
            what = f"{type(e).__name__}: {e}"
            append_event(run / "events.jsonl", event="failed", what=what)
            write("failed", what=what, exit=1)
            raise
        what = f"the coordinator cannot write to its disk ({e.strerror})"
        append_event(run / "events.jsonl", event="stopped", what=what)
        write("stopped", what=what, exit=1, hint="free space, then: polyclinic coordinator resume")
    finally:
        spare.unlink(missing_ok=True)


def carry(driver: Coordinator, ask: Ask, stopped: Callable[[], bool] = lambda: False) -> Outcome | None:
    """Run a study to its end; :class:`PeerLost` for a clean stop that can be resumed, None if it was cancelled.

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
        while driver.outcome is None and driver.told is None:
            if (driver.folder / CANCEL).exists():
                driver.cancel()
            elif stopped():
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
