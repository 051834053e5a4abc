"""Letters between hospitals, where a sum has no coordinator: each is sent again until its receipt comes, and read once.

An ask of the coordinator is written again by the coordinator; a letter between two sites has nobody else to do that. So whoever takes
one answers with a receipt, and whoever sent it writes it again until then::

    post       site -> site     sealed letters of the sum that is open
    receipt    site -> site     the id of a post that was taken
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyclinic.node.courier.mailbox import Mailbox
from polyclinic.node.courier.sealed_file import SealedFile, fresh_id
from polyclinic.protocol.wire import encoding as wire

__all__ = ["LetterBox"]

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
