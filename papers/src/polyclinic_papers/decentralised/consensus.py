"""One site's side of a consensus among neighbours: greet, share duals, iterate, adopt the flooded sum (see ``subspace``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.aggregation.fixed_point import FixedPoint, stream
from polyclinic.aggregation.vector import unflatten
from polyclinic.errors import MessageRefused
from polyclinic.privacy.release import Array
from polyclinic.protocol.interfaces import Message, Total
from polyclinic.protocol.wire.sealed import Channel, Party, SealedMessage, agree, digest, octets
from polyclinic_papers.decentralised import graph, pdmm
from polyclinic_papers.decentralised.digits import LIMB, join


@dataclass(frozen=True)
class MaskPlan:
    """What all sites must do alike; follows from the public roster."""

    sites: tuple[str, ...]
    edges: graph.Edges
    constant: float  # c of equations (8), (9)
    sd: float  # of the initial duals, in units of the largest number
    tolerance: float  # of the average, in the same units
    slots: int  # iterations

    @property
    def public(self) -> list[object]:
        """The part that neighbours compare."""
        return [self.constant, self.sd, self.tolerance, self.slots, b""]  # the last: of an order of nodes, once


def gaussian(seed: bytes, size: int, sd: float) -> Array:
    """Gaussian numbers that both ends of a line expand from one secret seed (ChaCha20, inverse distribution function)."""
    from scipy.special import ndtri

    uniform = ((stream(seed, size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(sd * ndtri(uniform))


class SubspaceNode(Party):
    """A hospital's side: greets its neighbours, shares duals, iterates, adopts the flooded sum."""

    def __init__(self, envelope: SealedMessage, plan: MaskPlan, digits: Array, share: float) -> None:
        super().__init__(envelope)
        self._plan, self._digits, self._share = plan, digits, share
        self._near = graph.neighbours(self.me, plan.edges)
        self._key = X25519PrivateKey.generate()
        self._seeds = {j: secrets.token_bytes(32) for j in self._near}  # of my duals lambda_{i|j}
        self._lines: dict[str, Channel] = {}
        self._duals: dict[str, bytes] = {}  # seeds of theirs, lambda_{j|i}
        self._early: dict[str, bytes] = {}  # duals that overtook their sender's hello; signed, so they are the sender's
        self._node: pdmm.PdmmNode | None = None
        self._slot = 0
        self._mine: Array | None = None
        self._own = np.zeros_like(digits)  # my latest y
        self._heard: dict[int, dict[str, Array]] = {}
        self._latest: dict[str, Array] = {}
        self._average: tuple[bytes, bytes] | None = None  # the flooded words and the first site's signature
        self._asked: set[str] = set()
        self._waited = 0

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, object]], list[Message]]]:
        return {"hello": self._on_hello, "dual": self._on_dual}

    def start(self) -> list[Message]:
        body = {"key": self._key.public_key().public_bytes_raw(), "plan": self._plan.public}
        return [self.envelope.seal(j, "hello", body) for j in self._near]

    # ---- letters

    def take(self, message: Message) -> list[Message]:
        """A signed hello or dual, or a sealed letter; those come only after both ends have greeted each other."""
        m, s = message, self.step
        where = f"message {m.kind!r} from {m.sender!r} to {m.to!r}"
        if m.kind in ("hello", "dual"):
            return super().take(m)
        if m.to != self.me or m.sender not in self._near:
            raise MessageRefused(f"{where}: not from a neighbour of {self.me!r}")
        if (m.round, m.step, m.attempt) != (s.round, s.name, self.roster.attempt):
            raise MessageRefused(f"{where} belongs to another sum (replayed or late)")
        act = {"value": self._on_value, "average": self._on_average, "ask": self._on_ask}.get(m.kind)
        body: Mapping[str, object] = m.body if isinstance(m.body, Mapping) else {}
        slot, sealed = body.get("slot"), body.get("sealed")
        if act is None or type(slot) is not int or not isinstance(sealed, bytes) or set(body) != {"slot", "sealed"}:
            raise MessageRefused(f"{where} is malformed")
        if m.sender not in self._lines:
            raise MessageRefused(f"{where} came before a hello")
        data = self._lines[m.sender].open(sealed, f"{m.kind} {slot}")
        if self._result == "aborted":
            raise MessageRefused(f"{where} came after this exchange was aborted")
        try:
            return act(m.sender, slot, data)
        except (ValueError, TypeError) as e:
            if isinstance(e, MessageRefused):
                raise
            raise MessageRefused(f"{where} is malformed", faults=[str(e)]) from e

    def _send(self, to: str, kind: str, data: bytes, slot: int = -1) -> Message:
        s = self.step
        body = {"slot": slot, "sealed": self._lines[to].seal(data, f"{kind} {slot}")}
        return Message(self.me, to, kind, s.round, s.name, self.roster.attempt, body)

    def _on_hello(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if sender not in self._near:
            raise MessageRefused(f"hello from {sender!r}, who is no neighbour of {self.me!r}")
        if digest(list(body["plan"])) != digest(self._plan.public):
            raise MessageRefused(
                f"{sender!r} has another plan (constant, mask sd, tolerance, slots) than {self.me!r}",
                faults=[f"theirs {body['plan'][:4]}", f"mine {self._plan.public[:4]}"],
                hint="use the same options and the same version everywhere",
            )
        key = agree(self._key, octets(body["key"]), self.envelope.context, "line", self.me, sender)
        self._lines[sender] = Channel(key, self.me, sender)
        out = []
        if len(self._lines) == len(self._near):
            for j in self._near:
                out.append(self.envelope.seal(j, "dual", {"sealed": self._lines[j].seal(self._seeds[j], "dual")}))
        if sender in self._early:
            self._duals[sender] = self._read_dual(sender, self._early.pop(sender))
        return out + self._begin()

    def _on_dual(self, sender: str, body: dict[str, Any]) -> list[Message]:
        sealed = octets(body["sealed"])
        if sender not in self._near:
            raise MessageRefused(f"dual from {sender!r}, who is no neighbour of {self.me!r}")
        if sender not in self._lines:
            self._early[sender] = sealed
            return []
        self._duals[sender] = self._read_dual(sender, sealed)
        return self._begin()

    def _read_dual(self, sender: str, sealed: bytes) -> bytes:
        seed = self._lines[sender].open(sealed, "dual")
        if len(seed) != 32:
            raise MessageRefused(f"dual from {sender!r} has {len(seed)} bytes, 32 are expected")
        return seed

    def _begin(self) -> list[Message]:
        if self._node is not None or len(self._duals) < len(self._near) or len(self._lines) < len(self._near):
            return []
        size, sd = self._digits.size, self._plan.sd
        mine = {j: gaussian(self._seeds[j], size, sd) for j in self._near}
        theirs = {j: gaussian(self._duals[j], size, sd) for j in self._near}
        self._node = pdmm.PdmmNode(self.me, self._digits, mine, theirs, self._plan.constant)
        self._seeds, self._digits = {}, np.zeros(0)
        return self._iterate()

    def _on_value(self, sender: str, slot: int, data: bytes) -> list[Message]:
        fresh = self._slot <= slot < self._plan.slots and sender not in self._heard.get(slot, {})
        if not fresh:
            raise MessageRefused(
                f"value of slot {slot} from {sender!r} was received before (replayed) or is out of turn"
            )
        value = np.frombuffer(data, "<f8")
        if value.size != self._own.size or not np.isfinite(value).all():
            raise MessageRefused(f"value from {sender!r}: {value.size} numbers, {self._own.size} expected, all finite")
        self._heard.setdefault(slot, {})[sender] = value
        return self._iterate()

    def _iterate(self) -> list[Message]:
        """Go through as many slots as the letters at hand allow."""
        out: list[Message] = []
        if self._node is None:
            return out
        while self._slot < self._plan.slots:
            if self._mine is None:
                self._own = self._mine = self._node.value()
                data = self._mine.astype("<f8").tobytes()
                out += [self._send(j, "value", data, self._slot) for j in self._near]
            heard = self._heard.get(self._slot, {})
            if any(j not in heard for j in self._near):
                return out
            self._node.absorb(self._mine, heard)
            self._latest.update(heard)
            self._heard.pop(self._slot, None)
            self._mine, self._slot = None, self._slot + 1
        return out + self._agree()

    # ---- the end

    def _words(self) -> bytes | None:
        """My own sum as whole numbers, or None if neighbours still disagree (E4.2) or a digit is not near a whole number."""
        gap = max(float(np.abs(self._own - y).max()) for y in self._latest.values())
        digits = self._own * (len(self.roster.sites) * 2 ** (LIMB - 1))
        if gap > 2 * self._plan.tolerance or float(np.abs(digits - np.rint(digits)).max()) > 0.25:
            return None
        return join(digits).astype("<u8").tobytes()

    def _agree(self) -> list[Message]:
        words = self._words()
        if words is None:
            self._result = "aborted"
            return []
        out: list[Message] = []
        if self.me == self._plan.sites[0]:
            out = self._adopt(words, self.envelope.sign("average", words))
        elif self._average is not None:  # it arrived before my last value
            out = self._check(*self._average)
        return out

    def _on_average(self, sender: str, slot: int, data: bytes) -> list[Message]:
        words, signature = data[:-64], data[-64:]
        self.envelope.verify(self._plan.sites[0], "average", words, signature)
        if self._average is not None and self._average[0] != words:
            raise MessageRefused(f"{self._plan.sites[0]!r} signed two different results")
        if isinstance(self._result, Total):
            return []  # another neighbour was faster
        self._average = (words, signature)
        return self._check(words, signature) if self._slot == self._plan.slots else []

    def _check(self, words: bytes, signature: bytes) -> list[Message]:
        if self._words() != words:
            raise MessageRefused(f"the result of {self._plan.sites[0]!r} is not what {self.me!r} found")
        return self._adopt(words, signature)

    def _adopt(self, words: bytes, signature: bytes) -> list[Message]:
        n = len(self.roster.sites)
        values = FixedPoint.of(self.step, n).decode(np.frombuffer(words, "<u8").astype(np.uint64))
        self._average = (words, signature)
        self._result = unflatten(self.step, values, n, self._share)
        self._node, self._duals = None, {}
        return [self._send(j, "average", words + signature) for j in self._near]

    def _on_ask(self, sender: str, slot: int, data: bytes) -> list[Message]:
        if sender in self._asked:
            raise MessageRefused(f"{sender!r} asked before (replayed)")
        self._asked.add(sender)
        if self._average is None or not isinstance(self._result, Total):
            return []
        return [self._send(sender, "average", self._average[0] + self._average[1])]

    def deadline(self) -> list[Message]:
        """Who missed only the flooded result asks for it once; everything else burns the attempt."""
        if self._result != "pending":
            return []
        self._waited += 1
        if self._waited == 1 and self._slot == self._plan.slots:
            return [self._send(j, "ask", b"") for j in self._near]
        self._result, self._node, self._duals, self._seeds = "aborted", None, {}, {}
        return []
