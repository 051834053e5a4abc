"""Secure summation around a Hamiltonian cycle (Lin, Clifton, Zhu 2005): the baseline that paper S4 compares with.

The first site adds one random offset to its number and passes it on; every site adds its own; when the sum comes back the
first site takes the offset off and tells everybody. No site sees another's number, but two corrupt sites learn the sum of
the sites between them: one honest site between two corrupt ones is fully revealed (``leak``). Use ``subspace`` or
``masked`` for protection; this one is here for comparison.

    hello   to both neighbours   a fresh X25519 key, signed
    pass    to the next          sealed: offset plus the numbers so far, mod 2^64
    total   to the next          sealed: the sum, signed by the first site
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.aggregation.fixed_point import FixedPoint, Words, stream
from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.vector import flatten, only_added, unflatten
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.interfaces import Aggregator, AggregatorFacts, Contribution, Exchange, Message, Roster, Step
from polyclinic.protocol.wire.sealed import Channel, Identity, Party, SealedMessage, agree, digest, introduce
from polyclinic_papers.decentralised import graph

__all__ = ["Cycle", "CycleNode", "hamiltonian"]


def hamiltonian(names: Sequence[str], edges: graph.Edges, *, tries: int = 200) -> tuple[str, ...]:
    """A closed way through the graph that visits every site once, from the first by name; an error where none is found.

    Tries the sites in order of name first, then grows random paths by Posa's rotations. A heuristic: it can miss a cycle in
    a sparse graph, and never claims that there is none.

    >>> hamiltonian("12345", graph.given("12345", ["12", "23", "34", "45", "15", "13", "35"]))
    ('1', '2', '3', '4', '5')
    """
    return _hamiltonian(tuple(sorted(names)), edges, tries)


@lru_cache(maxsize=64)
def _hamiltonian(names: tuple[str, ...], edges: graph.Edges, tries: int) -> tuple[str, ...]:
    near = {s: graph.neighbours(s, edges) for s in names}
    if all(b in near[a] for a, b in zip(names, (*names[1:], names[0]))):
        return names
    rng = np.random.default_rng(np.frombuffer(digest([list(names), sorted([list(e) for e in edges])]), np.uint32))
    n = len(names)
    for _ in range(tries):
        path = [names[int(rng.integers(n))]]
        for _ in range(20 * n * n):
            end = path[-1]
            if len(path) == n and path[0] in near[end]:
                at = path.index(names[0])
                return tuple(path[at:] + path[:at])
            fresh = [s for s in near[end] if s not in path]
            if fresh:
                path.append(fresh[int(rng.integers(len(fresh)))])
                continue
            turns = [s for s in near[end] if s != path[-2]] if len(path) > 1 else []
            if not turns:
                break
            at = path.index(turns[int(rng.integers(len(turns)))])
            path[at + 1 :] = path[at + 1 :][::-1]  # rotation: the end becomes a neighbour's neighbour
    raise ConfigError(
        f"no Hamiltonian cycle was found through {n} sites and {len(edges)} edges in {tries} tries",
        hint="give the order yourself, add edges, or use aggregation='subspace', which needs no cycle",
    )


class Cycle(Aggregator):
    """Sum around a ring with one random offset.

    Parameters
    ----------
    identities
        Signing keys of the parties that run here.
    order
        The cycle; None: found in the roster's graph (complete if it names no edges).
    """

    facts: ClassVar[AggregatorFacts] = AggregatorFacts(
        "cycle",
        "total",
        "peers",
        tolerates_loss=False,
        pooled="two neighbours of a site in the cycle that pool what they see learn its contribution",
        saw={
            "the next site": "the running sum behind a random offset, {values}",
            "every site": "the sum over sites, {values}",
            "a coordinator": "there is none",
        },
    )

    def __init__(self, identities: Mapping[str, Identity] | None = None, *, order: Iterable[str] | None = None) -> None:
        self.identities = dict(identities or {})
        self.order = None if order is None else tuple(order)

    def enrol(self, roster: Roster) -> Roster:
        """For one process: keys for everybody, no coordinator, everybody needed."""
        if not set(roster.sites) <= set(self.identities):
            self.identities, _ = introduce(roster.sites)
        keys = {s: self.identities[s].public for s in roster.sites}
        return replace(roster, coordinator=None, threshold=len(roster.sites), keys=keys)

    def noise_share(self, roster: Roster) -> float:
        """Each site adds ``1 / (threshold - colluders)`` of the noise variance."""
        return 1.0 / (roster.threshold - roster.colluders)

    def way(self, roster: Roster) -> tuple[str, ...]:
        """The cycle of a roster."""
        edges = roster.edges or graph.complete(roster.sites)
        if self.order is None:
            return hamiltonian(roster.sites, edges)
        steps = list(zip(self.order, (*self.order[1:], self.order[0])))
        faults = [f"{a!r} and {b!r} are no neighbours" for a, b in steps if tuple(sorted((a, b))) not in edges]
        if sorted(self.order) != sorted(roster.sites):
            faults.append("the order does not visit every site once")
        if faults:
            raise ConfigError("the given order is no Hamiltonian cycle", faults=faults)
        return self.order

    def exchange(
        self, me: str, roster: Roster, step: Step, mine: Contribution | None, *, promises: Promises | None = None
    ) -> Exchange:
        """A site's side; there is no other."""
        only_added(step, self.name)
        few = max(3, roster.colluders + 2)
        if len(roster.sites) < few or roster.colluders < 1 or roster.coordinator is not None or mine is None:
            raise ConfigError(
                f"a cycle sum needs at least {few} sites, 1 colluder or more, no coordinator, and a contribution from everybody"
            )
        if promises is not None:  # everybody is needed: the list is the roster
            promises.sign(Promise(roster.attempt, roster.sites))
        words = FixedPoint.of(step, len(roster.sites)).encode(flatten(step, mine, me), me)
        envelope = SealedMessage(me, roster, step, self.identities.get(me))
        return CycleNode(envelope, self.way(roster), words, self.noise_share(roster))


class CycleNode(Party):
    """A hospital's place on the ring."""

    def __init__(self, envelope: SealedMessage, way: tuple[str, ...], words: Words, share: float) -> None:
        super().__init__(envelope)
        at = way.index(self.me)
        self._first, self._before, self._next = way[0], way[at - 1], way[(at + 1) % len(way)]
        self._words, self._share = words, share
        self._key = X25519PrivateKey.generate()
        self._offset = stream(secrets.token_bytes(32), words.size)  # uniform mod 2^64; used by the first site only
        self._lines: dict[str, Channel] = {}
        self._early: dict[str, Message] = {}
        self._passed = False

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, Any]], list[Message]]]:
        return {"hello": self._on_hello, "pass": self._on_pass, "total": self._on_total}

    def start(self) -> list[Message]:
        body = {"key": self._key.public_key().public_bytes_raw()}
        return [self.envelope.seal(j, "hello", body) for j in (self._before, self._next)]

    def take(self, message: Message) -> list[Message]:
        """Letters that overtook a hello wait for it."""
        body = self.envelope.open(message)
        if message.kind in ("pass", "total") and len(self._lines) < 2:
            if message.sender != self._before or message.kind in self._early:
                raise MessageRefused(f"message {message.kind!r} from {message.sender!r} is out of turn")
            self._early[message.kind] = message
            return []
        return self.handle(message, body)

    def _on_hello(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if sender not in (self._before, self._next):
            raise MessageRefused(f"hello from {sender!r}, who is no neighbour of {self.me!r} on the cycle")
        key = agree(self._key, bytes(body["key"]), self.envelope.context, "line", self.me, sender)
        self._lines[sender] = Channel(key, self.me, sender)
        if len(self._lines) < 2:
            return []
        out = self._hand_on(self._words + self._offset) if self.me == self._first else []
        early, self._early = self._early, {}
        for m in early.values():
            out += self.take(m)
        return out

    def _hand_on(self, words: Words) -> list[Message]:
        self._passed = True
        sealed = self._lines[self._next].seal(words.astype("<u8").tobytes(), "pass")
        return [self.envelope.seal(self._next, "pass", {"sealed": sealed})]

    def _read(self, sender: str, sealed: bytes, label: str, tail: int = 0) -> tuple[Words, bytes]:
        if sender != self._before:
            raise MessageRefused(f"{label!r} from {sender!r}: only {self._before!r} hands on to {self.me!r}")
        data = self._lines[sender].open(bytes(sealed), label)
        words = np.frombuffer(data[: len(data) - tail], "<u8").astype(np.uint64)
        if words.size != self._words.size:
            raise ValueError(f"{words.size} numbers, {self._words.size} expected")
        return words, data[len(data) - tail :]

    def _on_pass(self, sender: str, body: dict[str, Any]) -> list[Message]:
        words, _ = self._read(sender, body["sealed"], "pass")
        if self.me != self._first:
            return self._hand_on(words + self._words)
        total = words - self._offset
        return self._finish(total, self.envelope.sign("total", total))

    def _on_total(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if not self._passed:
            raise MessageRefused(f"a total before {self.me!r} had added its number")
        words, signature = self._read(sender, body["sealed"], "total", 64)
        self.envelope.verify(self._first, "total", words, signature)
        return self._finish(words, signature)

    def _finish(self, total: Words, signature: bytes) -> list[Message]:
        n = len(self.roster.sites)
        self._result = unflatten(self.step, FixedPoint.of(self.step, n).decode(total), n, self._share)
        if self._next == self._first:
            return []
        sealed = self._lines[self._next].seal(total.astype("<u8").tobytes() + signature, "total")
        return [self.envelope.seal(self._next, "total", {"sealed": sealed})]

    def deadline(self) -> list[Message]:
        """Everybody on the ring is needed."""
        if self._result == "pending":
            self._result = "aborted"
        return []
