"""A hospital's end: takes orders and asks out of the inbox, answers them with the site's half of the study."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import ConfigError, MessageRefused, PolyclinicError
from polyclinic.node.admission.admission import asked
from polyclinic.node.admission.retention import seconds
from polyclinic.node.courier.mailbox import Mailbox
from polyclinic.node.courier.sealed_file import SealedFile, fresh_id, own_key
from polyclinic.node.enrolment.folders import SiteFolder, append_event, at_work, private, read_json, write_json
from polyclinic.node.flare.worker import Worker
from polyclinic.node.messages import Answer, Busy, Status, encode_answer
from polyclinic.node.refusals import why_of
from polyclinic.node.signed_study import COORDINATOR, read_order
from polyclinic.protocol.wire import encoding as wire

TRIES: Final = 25  # of one letter; its sum has long been tried anew by then
KEPT: Final = 4096  # ids of letters that were taken
LYING: Final = 64  # receipts that may lie in the outbox; one that is missed is given again


@dataclass
class LetterWaiting:
    """A letter without a receipt."""

    parcel: SealedFile
    path: Path | None
    sent: float
    tries: int = 1


class LetterBox:
    """Of one site, to and from the others.

    Parameters
    ----------
    box
        The site's two folders.
    writing
        Held while a file is written: letters are sent by the studies' threads.
    resend
        Seconds after which a letter without a receipt is written again.
    """

    def __init__(self, box: Mailbox, writing: threading.Lock, resend: float) -> None:
        self.box, self.writing, self.resend = box, writing, resend
        self._waiting: dict[str, LetterWaiting] = {}
        self._taken: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._receipts: deque[Path | None] = deque()

    def send(self, study: str, to: str, data: bytes) -> None:
        """Write a letter for a neighbour."""
        with self.writing:
            parcel = SealedFile(self.box.me, to, "post", study, fresh_id(), data)
            self._waiting[parcel.id] = LetterWaiting(parcel, self.box.put(parcel), time.monotonic())

    def take(self, parcel: SealedFile) -> bool:
        """Give a receipt, each time; True if the letter was not read before."""
        key = parcel.sender, parcel.id
        known = key in self._taken
        self._taken[key] = None
        while len(self._taken) > KEPT:
            self._taken.popitem(last=False)
        with self.writing:
            data = wire.encode({"receipt": parcel.id})
            self._receipts.append(
                self.box.put(SealedFile(self.box.me, parcel.sender, "receipt", parcel.study, parcel.id, data))
            )
            while len(self._receipts) > LYING:
                self.box.withdraw(self._receipts.popleft())
        return not known

    def arrived(self, receipt: SealedFile) -> None:
        """A receipt came; only the addressee's own counts."""
        with self.writing:
            found = self._waiting.get(receipt.id)
            if found is not None and found.parcel.to == receipt.sender:
                self.box.withdraw(found.path)
                del self._waiting[receipt.id]

    def again(self) -> None:
        """Write anew what has no receipt."""
        now = time.monotonic()
        with self.writing:
            for id, w in list(self._waiting.items()):
                if now - w.sent <= self.resend:
                    continue
                self.box.withdraw(w.path)
                if w.tries >= TRIES:
                    del self._waiting[id]
                else:
                    w.path, w.sent, w.tries = self.box.put(w.parcel), now, w.tries + 1

    def unreceipted(self) -> dict[str, int]:
        """How many letters wait for a receipt, by addressee."""
        with self.writing:
            to = [w.parcel.to for w in self._waiting.values()]
        return {n: to.count(n) for n in sorted(set(to))}


AT_ONCE: Final = 8  # asks of all studies that are worked on at a time
ASKS: Final = 8 * AT_ONCE  # that wait for their turn; who asks more asks again later
STUDIES: Final = 64  # that run here at a time


def branch_box(folder: SiteFolder) -> Mailbox:
    """The site's mailbox: its own keys, the coordinator of its invite, the sites that its owner pinned."""
    rule = folder.node.courier
    if rule is None:
        raise ConfigError(
            f"{folder.node.name!r} has no courier",
            hint='write [courier] inbox = "in", outbox = "out" in node.toml; folders that you synchronise',
        )
    home = private(folder.path / "courier")
    pins = read_json(folder.pins) if folder.pins.exists() else {}
    pinned = {n: bytes.fromhex(k) for n, k in pins.items() if n != folder.node.name}
    pinned[COORDINATOR] = bytes.fromhex(folder.read_invite()["coordinator"])
    return Mailbox(
        folder.node.name,
        folder.identity(),
        own_key(home / "courier.key"),
        folder.node.path(rule.inbox),
        folder.node.path(rule.outbox),
        home,
        pinned,
        partial(append_event, folder.events),
    )


def site_state(folder: SiteFolder) -> dict[str, Any]:
    """How a site's courier stands, as another process sees it: what lies in its folders, whose cards came, what it last wrote."""
    box = branch_box(folder)
    box.look_for_cards()
    kept = box.home / "state.json"
    last = read_json(kept) if kept.exists() else {}
    return {
        "site": folder.node.name,
        "state": "running" if at_work(box.home / "lock") else "stopped",
        **box.waiting(),
        "refused": last.get("refused", []),
        "studies": last.get("studies", []),
        "without_receipt": last.get("without_receipt", {}),
    }


class Patient(Worker):
    """A worker that says "busy" to nobody: that word would cost a whole trip of the carrier."""

    def _run(self, id: str, job: Callable[[], Answer]) -> Answer:
        while isinstance(answer := super()._run(id, job), Busy):
            pass
        return answer


@dataclass
class CourierSite:
    """Serves studies through the folders of ``[courier]``."""

    folder: SiteFolder
    box: Mailbox
    workers: dict[str, Worker] = field(default_factory=dict)
    _refused: dict[str, bytes] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, thread_name_prefix="courier"))
    _flying: dict[tuple[str, str], Future[None]] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _answers: dict[str, Any] = field(default_factory=dict)  # study -> files of answers that may still lie in the outbox

    def __post_init__(self) -> None:
        rule = self.folder.node.courier
        self.letters = LetterBox(self.box, self._writing, 60.0 if rule is None else rule.resend)

    def once(self) -> int:
        """Take what came; returns how many files were taken."""
        found = self.box.take()
        for p in found:
            if p.kind == "receipt":
                self.letters.arrived(p)
            elif p.kind == "post":
                worker = self._known(p.study)
                if worker is not None and self.letters.take(p):
                    worker.put(p.data)
            elif p.sender != COORDINATOR:
                self.box.log(event="message refused", what=f"{p.kind} from {p.sender!r}, who is not the coordinator")
            elif p.kind == "order":
                self._order(p)
            elif p.kind == "ask":
                self._ask(p)
        self._flying = {k: f for k, f in self._flying.items() if not f.done()}
        self.letters.again()
        return len(found)

    def _order(self, p: SealedFile) -> None:
        if p.study in self.workers or p.study in self._refused:
            return
        if sum(not w.study.ended_here for w in self.workers.values()) >= STUDIES:
            self.box.log(event="message refused", what=f"an order while {STUDIES} studies run here; it may come again")
            return
        try:
            order = read_order(p.data.decode("ascii", "replace"), self.box.pinned[COORDINATOR])
            if order.digest != p.study:
                raise MessageRefused("an order under another order's name")
            kept = private(self.folder.study(order.digest)) / "order.json"
            # before the first answer: the coordinator then sends it no more
            write_json(kept, {"order": order.encode()})
            self.workers[order.digest] = Patient(order, self.folder, partial(self.letters.send, order.digest))
        except PolyclinicError as e:
            self._refused[p.study] = encode_answer(Status("refused", why=why_of(e)))
            append_event(
                self.folder.events,
                event="refused",
                study=p.study[:12],
                code=e.code,
                what=e.what,
                reasons=list(e.faults),
            )

    def _known(self, study: str) -> Worker | None:
        """The study's worker; after a restart of this process it is made anew from the order that is on disk."""
        if study not in self.workers:
            order = next((o for o in asked(self.folder) if o.digest == study), None)
            if order is not None:
                self.workers[study] = Patient(order, self.folder, partial(self.letters.send, study))
        return self.workers.get(study)

    def _ask(self, p: SealedFile) -> None:
        if (p.study, p.id) in self._flying:  # the same ask, sealed again, while it is being answered
            return
        if len(self._flying) >= ASKS:
            return
        worker = self._known(p.study)
        if worker is None and p.study not in self._refused:
            return  # its order has not come yet: the coordinator sends both again
        self._flying[p.study, p.id] = self._pool.submit(self._answer, p, worker)

    def _answer(self, p: SealedFile, worker: Worker | None) -> None:
        data = self._refused[p.study] if worker is None else worker.answer(p.data)
        with self._writing:
            path = self.box.put(SealedFile(self.box.me, COORDINATOR, "answer", p.study, p.id, data))
            old = self._answers.setdefault(p.study, [])
            old.append(path)
            while len(old) > 4 * AT_ONCE:  # answered long ago; the coordinator asks again for what it has not got
                self.box.withdraw(old.pop(0))

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Serve until stopped."""
        rule = self.folder.node.courier
        assert rule is not None
        append_event(self.folder.events, event="courier", inbox=str(self.box.inbox), outbox=str(self.box.outbox))
        looked = 0.0
        while not stopped():
            self.once()
            if time.monotonic() - looked > 5.0:
                looked = time.monotonic()
                now = {"studies": sorted(self.workers), "without_receipt": self.letters.unreceipted()}
                write_json(self.box.home / "state.json", {**self.box.waiting(), **now})
                self.box.forget_sent(seconds(self.folder.node.site.resume_for) or float("inf"))
            time.sleep(rule.every)
