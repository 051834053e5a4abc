"""The class that FLARE runs at the coordinator: hands bytes between FLARE and the driver of a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from polyclinic.errors import PolyclinicError
from polyclinic.node.enrolment.folders import FULL, CoordinatorFolder, alone, append_event, write_json
from polyclinic.node.flare.carry import carry, driver_of
from polyclinic.node.flare.executor import ASK
from polyclinic.node.flare.frames import unspoken
from polyclinic.node.flare.result import write_outcome
from polyclinic.node.signed_study import read_order
from polyclinic.util.threads import one_thread

SPARE: Final = 64 * 2**10  # bytes kept free, so that a full disk can still be written down
COORDINATOR_FOLDER = "POLYCLINIC_COORDINATOR"  # the coordinator's folder; set by `coordinator start`


class StudyController(Controller):  # type: ignore[misc]
    """One leg of a study: from the checkpoint as far as it goes. Our own files say how the study stands, not FLARE's.

    Parameters
    ----------
    order
        The study as the coordinator signed it.
    """

    def __init__(self, order: str) -> None:
        super().__init__()
        unspoken()
        self._order = order

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clean."""

    def process_result_of_unknown_task(self, *args: object, **kwargs: object) -> None:
        """There are no tasks."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the leg; every end is written in ``status.json`` of the run folder."""
        folder = CoordinatorFolder(Path(os.environ[COORDINATOR_FOLDER]))
        order = read_order(self._order, folder.identity().public)
        run = folder.run(order.id)
        engine = fl_ctx.get_engine()

        def ask(site: str, data: bytes, timeout: float) -> bytes | None:
            s = Shareable()
            s["blob"] = data
            with engine.new_context() as ctx:
                replies = engine.send_aux_request(
                    targets=[site], topic=ASK, request=s, timeout=timeout, fl_ctx=ctx, optional=True
                )
            reply = replies.get(site) if isinstance(replies, dict) else None
            if reply is None or reply.get_return_code() != ReturnCode.OK:
                return None
            blob = reply.get("blob")
            return blob if isinstance(blob, bytes) else None

        def stopped() -> bool:
            return bool(abort_signal.triggered) or (run / "stop").exists()

        status = {"study": order.id, "job": str(fl_ctx.get_job_id())}
        spare = run / "spare"
        try:
            with alone(run / "lock", f"study {order.id!r}"), one_thread():
                write_json(run / "status.json", {**status, "state": "running"})
                spare.write_bytes(bytes(SPARE))
                for stray in run.glob(".*.ckpt.*"):  # a file that was being written when the process was killed
                    stray.unlink(missing_ok=True)
                driver = driver_of(order, folder.identity(), run)
                write_outcome(run, carry(driver, ask, stopped))
                write_json(run / "status.json", {**status, "state": "finished", "refused": driver.refused})
                # last: killed before this, the study ends once more, the same
                (run / "state.ckpt").unlink(missing_ok=True)
        except PolyclinicError as e:
            append_event(run / "events.jsonl", event="stopped", code=e.code, what=e.what, reasons=list(e.faults))
            report = {"error": e.code, "what": e.what, "faults": list(e.faults), "hint": e.hint, "exit": e.exit_code}
            write_json(run / "status.json", {**status, "state": "stopped", **report})
        except Exception as e:
            spare.unlink(missing_ok=True)  # room for the words that say so
            full, what = False, f"{type(e).__name__}: {e}"
            if isinstance(e, OSError) and e.errno in FULL:
                full, what = True, f"the coordinator cannot write to its disk ({e.strerror})"
            report = {"state": "stopped" if full else "failed", "what": what, "exit": 1}
            append_event(run / "events.jsonl", event=report["state"], what=what)
            hint = {"hint": "free space, then: polyclinic coordinator resume"} if full else {}
            write_json(run / "status.json", {**status, **report, **hint})
            if not full:
                raise
        finally:
            spare.unlink(missing_ok=True)
