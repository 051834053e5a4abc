"""The class that FLARE runs at the coordinator: hands bytes between FLARE and the driver of a study."""

from __future__ import annotations

import os
from pathlib import Path

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.flare.carry import carry, lead
from polyclinic.node.flare.executor import ASK
from polyclinic.node.flare.frames import unspoken
from polyclinic.node.signed_study import read_order

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

        lead(folder, order, {"job": str(fl_ctx.get_job_id())}, lambda driver: carry(driver, ask, stopped))
