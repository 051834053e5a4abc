"""The class that FLARE runs at a site: hands bytes between FLARE and the site's half of a study. It is the only class a job may name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from polyclinic.errors import PolyclinicError
from polyclinic.node.enrolment.folders import SiteFolder, append_event
from polyclinic.node.flare.frames import unspoken
from polyclinic.node.flare.worker import Worker
from polyclinic.node.messages import Status, encode_answer
from polyclinic.node.refusals import Why, why_of
from polyclinic.node.signed_study import read_order

__all__ = ["ASK", "NODE", "PUT", "StudyExecutor"]

ASK, PUT = "pc.ask", "pc.put"
NODE = "POLYCLINIC_NODE"  # path of the node file; set by `site start`, never by a job


class StudyExecutor(Executor):  # type: ignore[misc]
    """Runs studies, not code.

    Parameters
    ----------
    order
        The study as the coordinator signed it.
    """

    def __init__(self, order: str) -> None:
        super().__init__()
        unspoken()
        self._order = order
        self._worker: Worker | None = None
        self._refusal: Why = "malformed"
        self._engine: Any = None
        self.register_event_handler(EventType.START_RUN, self._start)

    def _start(self, event: str, fl_ctx: FLContext) -> None:
        self._engine = fl_ctx.get_engine()
        folder = SiteFolder.of(Path(os.environ[NODE]))
        try:
            order = read_order(self._order, bytes.fromhex(folder.read_invite()["coordinator"]))
            self._worker = Worker(order, folder, self._post)
        except PolyclinicError as e:
            self._refusal = why_of(e)
            job = str(fl_ctx.get_job_id())
            append_event(
                folder.events, event="refused", study=f"job {job}", code=e.code, what=e.what, reasons=list(e.faults)
            )
        self._engine.register_aux_message_handler(ASK, self._on_ask)
        self._engine.register_aux_message_handler(PUT, self._on_put)

    def _on_ask(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        if self._worker is None:
            reply["blob"] = encode_answer(Status("refused", why=self._refusal))
        else:
            blob = request.get("blob")
            reply["blob"] = self._worker.answer(blob if isinstance(blob, bytes) else b"")
        return reply

    def _on_put(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        blob = request.get("blob")
        if self._worker is not None and isinstance(blob, bytes):
            self._worker.put(blob)
        return make_reply(ReturnCode.OK)

    def _post(self, to: str, data: bytes) -> None:
        """Send to a neighbour and do not wait; the letters inside are sealed by us (FLARE's own ``secure`` is not, here)."""
        s = Shareable()
        s["blob"] = data
        with self._engine.new_context() as fl_ctx:
            self._engine.send_aux_request(targets=[to], topic=PUT, request=s, timeout=0.0, fl_ctx=fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """There are no tasks: everything is an ask."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
