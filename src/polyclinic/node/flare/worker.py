"""A study at a site, in one worker thread: bytes from FLARE to the site's half of the study, and back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from functools import partial
from typing import Final

from polyclinic.alignment.ecdh_ring import MOST
from polyclinic.errors import MessageRefused
from polyclinic.node.admission.admission import admit
from polyclinic.node.admission.alignment import SiteAligner
from polyclinic.node.admission.retention import let_go
from polyclinic.node.enrolment.folders import SiteFolder, append_event
from polyclinic.node.messages import Answer, Busy
from polyclinic.node.signed_study import StudyOrder
from polyclinic.node.site.record import Record
from polyclinic.node.site.worker import SiteStudy
from polyclinic.privacy.gate.owner_rules import ledger_of, witness_of
from polyclinic.privacy.ledger.rollback_check import RollbackCheck
from polyclinic.protocol.wire import encoding as wire
from polyclinic.util.threads import one_thread

PATIENCE: Final = 5.0  # seconds an ask waits for its answer before it says "busy"
READING: Final = 12  # paces from the owner's agreement until a site says that it is ready, at least
ASKS: Final = 16  # of the coordinator, worked on at a time
QUEUE: Final = (
    4 * wire.LIMIT
)  # bytes of neighbours' letters that wait while this site computes, shared by them; one message at least
LEAST: Final = 4096  # bytes that a batch of letters counts for: many small ones are as heavy


class Worker:
    """The thread, the clock and the patience that :class:`SiteStudy` has not.

    Parameters
    ----------
    order
        The signed study, already checked against the pinned coordinator.
    folder
        The site's folder; data paths and secrets come from its node file only.
    post
        Sends bytes to a neighbour; must not block for long.
    """

    def __init__(self, order: StudyOrder, folder: SiteFolder, post: Callable[[str, bytes], None]) -> None:
        self.order, self.folder = order, folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="study")
        self._tasks: dict[str, Future[Answer]] = {}
        self._lock, self._waiting = threading.Lock(), Counter[str]()  # bytes by neighbour
        self._room = max(QUEUE // len(order.sites), min(QUEUE, wire.LIMIT + 512))
        home, identity = folder.study(order.digest), folder.identity()
        keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
        book, known = ledger_of(folder.node), witness_of(folder.node)
        most = int(folder.node.keys.get("max_codes", MOST))
        self.study = SiteStudy(
            order,
            identity,
            Record(home),
            post=post,
            log=partial(append_event, folder.events),
            run=self._run,
            aligner=None if order.alignment is None else SiteAligner(order, identity, most),
            watch=RollbackCheck(
                identity.name, order.digest, keys, known, book, identity.sign, log=partial(append_event, folder.events)
            ),
            ended=partial(let_go, folder, order.digest),
        )
        least = float(folder.node.keys.get("pace", PATIENCE))  # the owner's: who orders a study could order exact times
        timed = order.formal and not folder.node.site.rehearsal
        self.pace = max(order.pace, least) if timed else 0.0
        self.loaded = self._pool.submit(self._open, max(order.reading, READING * least) if timed else 0.0)

    def _open(self, reading: float) -> None:
        """The study is looked at, admitted, and its data read; all of it in the background.

        How long reading took is an answer about records: a site says that it is ready at a public time.
        """
        try:
            with one_thread():
                if not self.study.over():
                    context = admit(self.order, self.folder, self.study.wait, self._away)
                    time.sleep(max(0.0, context.agreed + reading - time.monotonic()))
                    self.study.take_part(context)
        except Exception as e:  # whatever it was, the coordinator learns only that this site cannot take part
            self.study.refuse(e)

    def _away(self) -> None:
        """Let the coordinator hear that the database does not answer. This site tries again."""
        self.study.why = "away"

    def _run(self, id: str, job: Callable[[], Answer]) -> Answer:
        with self._lock:
            task = self._tasks.get(id)
            if task is None:
                self._tasks = {k: t for k, t in self._tasks.items() if not t.done()}
                if len(self._tasks) >= ASKS:
                    raise MessageRefused(f"{ASKS} asks are being answered; wait for them")
                if self.pace:
                    self.study.hold()
                task = self._tasks[id] = self._pool.submit(job)
        return self._paced(task) if self.pace else self._soon(task)

    def _soon(self, task: Future[Answer]) -> Answer:
        try:
            return task.result(PATIENCE)
        except Unfinished:
            return Busy()

    def _paced(self, task: Future[Answer]) -> Answer:
        """Answer one pace after the ask, also where the answer is there before; without an answer the site is busy."""
        time.sleep(self.pace)
        if not task.done():
            return Busy()
        self.study.shown = None
        return task.result()

    def answer(self, data: bytes) -> bytes:
        """Answer one ask of the coordinator; never raises."""
        return self.study.answer(data)

    def put(self, data: bytes) -> None:
        """A batch of letters from a neighbour, read when its turn comes; what does not fit into ITS queue is dropped."""
        neighbour, size = self.study.box.writer(data), max(len(data), LEAST)
        if neighbour is None:
            return
        with self._lock:
            if self._waiting[neighbour] + size > self._room:
                return
            self._waiting[neighbour] += size

        def take() -> None:
            with self._lock:
                self._waiting[neighbour] -= size
            self.study.put(data)

        self._pool.submit(take)
