"""The exchange that is open at a site, and its letters: to neighbours in batches, to the coordinator with the next answer.

A letter that comes before its sum opens is kept, within limits for each neighbour that no other can use up: a batch is signed
(``node.site.batch``). One that its receiver refuses is dropped and written down.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from polyclinic.errors import MessageRefused, PolyclinicError
from polyclinic.node.messages import Key
from polyclinic.node.signed_study import COORDINATOR, StudyOrder, host
from polyclinic.node.site.batch import open_batch, seal_batch
from polyclinic.protocol.interfaces import Exchange, Message, Step
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import octets

__all__ = ["Inbox", "Open"]

EARLY: Final = 64  # letters from one node to another that are kept before their sum opens ...
BYTES: Final = wire.LIMIT  # ... and bytes of them from one site, for each node that a site hosts


@dataclass(frozen=True)
class Open:
    """The exchange that is open."""

    key: Key
    steps: frozenset[tuple[int, str]]  # rounds and names under which its letters go
    sides: dict[str, Exchange]  # by node
    step: Step | None = None  # of a sum


class Inbox:
    """Letters of one study at one site.

    Parameters
    ----------
    order, me, sign
        The study, the site's name, and its signature.
    post
        Sends bytes to a neighbour; must not block for long.
    log
        Writes an event into the owner's log.
    count
        Told of bytes that were "sent" to neighbours or "received".
    """

    def __init__(
        self,
        order: StudyOrder,
        me: str,
        sign: Callable[[bytes], bytes],
        post: Callable[[str, bytes], None],
        log: Callable[..., None],
        count: Callable[[str, int], None],
    ) -> None:
        self.order, self.me, self.sign, self.post, self.log, self.count = order, me, sign, post, log, count
        self.protocol = ""  # name and version of the method, once the site takes part
        self.nodes: Collection[str] = ()  # that live here
        self.open: Open | None = None
        self.dropped = 0
        self._out: list[bytes] = []  # letters that wait for the coordinator
        self.early: deque[Message] = deque()
        self._weight: Counter[str] = Counter()  # of early letters: how many from whom to whom, and bytes by site

    def start(self, now: Open) -> None:
        """Open an exchange; letters of it that were there before are read."""
        self.open, self._out = now, []
        out = [m for side in now.sides.values() for m in side.start()]
        early, self.early = [m for m in self.early if self._fits(m)], deque()
        self._weight.clear()
        for m in early:
            out += self._receive(m)
        self._dispatch(out)

    def mail(self, letters: tuple[bytes, ...], late: bool) -> None:
        """Letters that the coordinator brought; ``late``: who has not written by now is late."""
        assert self.open is not None
        out = [m for side in self.open.sides.values() for m in side.deadline()] if late else []
        for raw in letters:
            out += self._receive(wire.decode_message(raw, self.protocol))
        self._dispatch(out)

    def put(self, data: bytes) -> None:
        """A batch of letters from a neighbour; never raises."""
        try:
            if not self.nodes:
                return
            sender, body = self._opened(data)
            out: list[Message] = []
            for raw in wire.decode(body):
                m = wire.decode_message(octets(raw), self.protocol)
                if host(m.sender) != sender:
                    raise MessageRefused(f"{sender!r} sent a letter under the name of {m.sender[:100]!r}")
                if self._fits(m):
                    out += self._receive(m)
                else:
                    self._keep(m, len(raw))
            self.count("received", len(data))
            self._dispatch(out)
        except Exception as e:  # whatever a neighbour wrote is no fault of this site's
            self._drop(
                str(e)[:200]
                if isinstance(e, PolyclinicError)
                else f"letters that no reader foresaw: {type(e).__name__}"
            )

    def writer(self, data: bytes) -> str | None:
        """The neighbour that signed a batch for this site; None, and written down, if none did."""
        try:
            return self._opened(data)[0]
        except MessageRefused as e:
            self._drop(e.what)
            return None

    def _opened(self, data: bytes) -> tuple[str, memoryview]:
        sender, body = open_batch(data, self.order.keys, self.order.digest, self.me)
        if sender not in self.order.sites or sender == self.me:
            raise MessageRefused("letters of a stranger")
        return sender, body

    def empty(self) -> tuple[bytes, ...]:
        """Letters to the coordinator; they leave with the answer."""
        out, self._out = tuple(self._out), []
        return out

    def _fits(self, m: Message) -> bool:
        now = self.open
        return now is not None and m.attempt == now.key[1] and (m.round, m.step) in now.steps

    def _receive(self, m: Message) -> list[Message]:
        assert self.open is not None
        try:
            if m.to not in self.open.sides:
                raise MessageRefused(f"a letter to {m.to!r}, who is not here")
            return self.open.sides[m.to].receive(m)
        except MessageRefused as e:
            self._drop(e.what)
            return []

    def _drop(self, what: str) -> None:
        self.dropped += 1
        if self.dropped <= 100:  # a hostile neighbour must not fill the disk
            self.log(event="message refused", study=self.order.id, what=what)

    def _keep(self, m: Message, size: int) -> None:
        site, pair = host(m.sender), f"{m.sender} {m.to}"
        if site not in self.order.sites or site == self.me or m.to not in self.nodes:
            raise MessageRefused("a letter of a stranger, or to one")
        if self._weight[pair] >= EARLY or self._weight[site] + size > BYTES * self.order.per_site:
            raise MessageRefused(f"too many letters of {site!r} before their sum opens")
        self._weight[pair] += 1
        self._weight[site] += size
        self.early.append(m)

    def _dispatch(self, out: list[Message]) -> None:
        """Letters to neighbours go out, one batch for each host; letters to the coordinator wait for its next ask."""
        batches: dict[str, list[bytes]] = {}
        queue = deque(out)
        while queue:
            m = queue.popleft()
            if host(m.to) == self.me:  # two nodes under one roof
                queue.extend(self._receive(m))
            else:
                batches.setdefault(host(m.to), []).append(wire.encode_message(m, self.protocol))
        self._out += batches.pop(COORDINATOR, [])
        for to, letters in sorted(batches.items()):
            self.count("sent", sum(map(len, letters)))
            self.post(to, seal_batch(self.sign, self.order.digest, self.me, to, letters))
