"""The exchange that is open at a site, and its letters: to neighbours in batches, to the coordinator with the next answer.

A letter that comes before its sum opens is kept, within limits for each neighbour that no other can use up: a batch is signed
(``node.site.batch``). One that its receiver refuses is dropped and written down.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.errors import MessageRefused, PolyclinicError
from polyclinic.node.messages import Key
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.protocol.interfaces import Exchange, Message, Step
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import digest, octets

SIGNATURE: Final = 64


def _signed(order: str, sender: str, to: str, body: bytes | memoryview) -> bytes:
    return digest(["polyclinic/batch/1", order, sender, to, hashlib.sha256(body).digest()])


def seal_batch(sign: Callable[[bytes], bytes], order: str, sender: str, to: str, letters: Sequence[bytes]) -> bytes:
    """Letters to one site, signed by the sender for it and for this order."""
    body, name = wire.encode(list(letters)), sender.encode()
    return b"".join([bytes([len(name)]), name, sign(_signed(order, sender, to, body)), body])


def open_batch(data: bytes, keys: Mapping[str, str], order: str, me: str) -> tuple[str, memoryview]:
    """Who signed a batch for this site and order, and its body, not read yet; refused where nobody of the order did.

    Parameters
    ----------
    keys
        Verification keys of the order's parties, hexadecimal.
    """
    if len(data) > wire.LIMIT + 512:
        raise MessageRefused(f"messages of {len(data):,} bytes exceed the limit of {wire.LIMIT:,}")
    end = 1 + (data[0] if data else 0)
    body = memoryview(data)[end + SIGNATURE :]
    try:
        sender = data[1:end].decode()
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys[sender]))
        key.verify(data[end : end + SIGNATURE], _signed(order, sender, me, body))
    except (InvalidSignature, KeyError, ValueError):
        raise MessageRefused("messages that no site of this study signed for this one") from None
    return sender, body


EARLY: Final = 64  # letters from one site that are kept before their sum opens ...
BYTES: Final = wire.LIMIT  # ... and bytes of them


@dataclass(frozen=True)
class Open:
    """The exchange that is open."""

    key: Key
    steps: frozenset[tuple[int, str]]  # rounds and names under which its letters go
    side: Exchange
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
        self.open: Open | None = None
        self.dropped = 0
        self._out: list[bytes] = []  # letters that wait for the coordinator
        self.early: deque[Message] = deque()
        self._weight: Counter[str] = Counter()  # bytes of early messages by site

    def start(self, now: Open) -> None:
        """Open an exchange; letters of it that were there before are read."""
        self.open, self._out = now, []
        out = now.side.start()
        early, self.early = [m for m in self.early if self._fits(m)], deque()
        self._weight.clear()
        for m in early:
            out += self._receive(m)
        self._dispatch(out)

    def mail(self, letters: tuple[bytes, ...], late: bool) -> None:
        """Letters that the coordinator brought; ``late``: who has not written by now is late."""
        assert self.open is not None
        out = self.open.side.deadline() if late else []
        for raw in letters:
            out += self._receive(wire.decode_message(raw, self.protocol))
        self._dispatch(out)

    def put(self, data: bytes) -> None:
        """A batch of letters from a neighbour; never raises."""
        try:
            if not self.protocol:
                return
            sender, body = self._opened(data)
            out: list[Message] = []
            for raw in wire.decode(body):
                m = wire.decode_message(octets(raw), self.protocol)
                if m.sender != sender:
                    raise MessageRefused(f"{sender!r} sent a message under the name of {m.sender[:100]!r}")
                if self._fits(m):
                    out += self._receive(m)
                else:
                    self._keep(m, len(raw))
            self.count("received", len(data))
            self._dispatch(out)
        except Exception as e:  # whatever a neighbour wrote is no fault of this site's
            self._drop(
                str(e)[:200] if isinstance(e, PolyclinicError) else f"messages of an unknown form: {type(e).__name__}"
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
            raise MessageRefused("messages of an unknown site")
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
            if m.to != self.me:
                raise MessageRefused(f"a message to {m.to!r}, which is not here")
            return self.open.side.receive(m)
        except MessageRefused as e:
            self._drop(e.what)
            return []

    def _drop(self, what: str) -> None:
        self.dropped += 1
        if self.dropped <= 100:  # a hostile neighbour must not fill the disk
            self.log(event="message refused", study=self.order.id, what=what)

    def _keep(self, m: Message, size: int) -> None:
        site = m.sender  # one of the order: it signed the batch
        if m.to != self.me:
            raise MessageRefused("a message from or to an unknown site")
        if sum(e.sender == site for e in self.early) >= EARLY or self._weight[site] + size > BYTES:
            raise MessageRefused(f"too many messages of {site!r} before their sum opens")
        self._weight[site] += size
        self.early.append(m)

    def _dispatch(self, out: list[Message]) -> None:
        """Letters to neighbours go out, one batch for each host; letters to the coordinator wait for its next ask."""
        batches: dict[str, list[bytes]] = {}
        for m in out:
            batches.setdefault(m.to, []).append(wire.encode_message(m, self.protocol))
        self._out += batches.pop(COORDINATOR, [])
        for to, letters in sorted(batches.items()):
            self.count("sent", sum(map(len, letters)))
            self.post(to, seal_batch(self.sign, self.order.digest, self.me, to, letters))
