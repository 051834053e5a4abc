"""Subspace perturbation: sites agree on the sum by talking to neighbours only; there is no coordinator (paper S4).

Algorithm 1 of the paper with its errata. Every site masks its number with random duals that it shares with each neighbour
over an encrypted line; consensus (``pdmm``) removes them. Afterwards the first site's sum (by name) is flooded, compared
by every site with its own, and used by all, so that all states are bit-equal.

    hello    to neighbours   a fresh X25519 key and the plan (constant, masks, iterations), signed
    dual     to neighbours   signed, sealed: the 32-byte seed of the initial dual lambda_{i|j}; fresh every time (E4.7)
    value    to neighbours   sealed: y_i of a slot; no dual is ever sent afterwards (E4.3)
    average  to neighbours   sealed: the first site's result with its signature; everybody passes it on
    ask      to neighbours   sealed: "I missed the average"

Masks. Their size follows from the worst honest site's exact leak (E4.5); all lines are sealed, so an eavesdropper sees
nothing, but the size is chosen as if he saw all.

Exactness. float64 cannot hold a large mask and a small number at once (E4.4). Numbers therefore travel as whole numbers in
three digits of 21 bits (``fixedpoint.split``); the sum of digits is a whole number too, and once every node is within
``1 / (4 n 2^20)`` of the average (relative), rounding gives the sum EXACTLY: the same bits as ``masked``.

Drop-outs. Every site on the roster is needed; if one is lost the attempt is burnt. Nothing but masked values has left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.federation.envelope import Channel, Envelope, Identity, Party, agree, digest, introduce
from polyclinic.federation.protocol import Contribution, Exchange, Message, Roster, Step, Total
from polyclinic.federation.sums import graph, pdmm
from polyclinic.federation.sums.fixedpoint import LIMB, LIMBS, FixedPoint, join, split
from polyclinic.federation.sums.leak import Schedule, mask_sd
from polyclinic.federation.sums.masked import stream
from polyclinic.federation.sums.vector import flatten, only_added, unflatten
from polyclinic.privacy.masks import Masks
from polyclinic.privacy.release import Array

__all__ = ["Plan", "Subspace", "SubspaceNode", "gaussian"]

GraphName = Literal["auto", "complete", "ring", "geometric"]


@dataclass(frozen=True)
class Plan:
    """What all sites must do alike; follows from the public roster."""

    sites: tuple[str, ...]
    edges: graph.Edges
    constant: float  # c of equations (8), (9)
    sd: float  # of the initial duals, in units of the largest number
    tolerance: float  # of the average, in the same units
    slots: int  # synchronous: iterations; asynchronous: activations of all nodes together
    order: NDArray[np.int64] | None  # asynchronous: who is active, by number

    def active(self, slot: int, site: str) -> bool:
        """Whether a site computes in this slot."""
        return self.order is None or self.sites[self.order[slot]] == site

    @property
    def public(self) -> list[Any]:
        """The part that neighbours compare."""
        order = b"" if self.order is None else digest(self.order)
        return [self.constant, self.sd, self.tolerance, self.slots, order]


class Subspace:
    """Average consensus between neighbours with perturbed duals.

    Parameters
    ----------
    identities
        Signing keys of the parties that run here (see :class:`~polyclinic.federation.sums.masked.Masked`).
    network
        Graph for :meth:`enrol`: ``"complete"``, ``"ring"``, ``"geometric"`` or the edges themselves; ``"auto"`` is complete
        up to 16 sites and geometric above. Between hospitals the roster carries the edges.
    schedule
        ``"synchronous"``, or ``"asynchronous"``: one random node after the other, as in Algorithm 1.
    bits
        Largest excess leak of one number at the worst honest site, over what the sum itself tells.
    sd
        Mask size, in units of the largest number; None: from ``bits``.
    """

    name: ClassVar[str] = "subspace"
    reveals: ClassVar[Literal["each", "total"]] = "total"

    def __init__(
        self,
        identities: Mapping[str, Identity] | None = None,
        *,
        network: GraphName | Iterable[tuple[str, str]] = "auto",
        schedule: Schedule = "synchronous",
        bits: float = 1e-6,
        sd: float | None = None,
    ) -> None:
        self.identities = dict(identities or {})
        self.network, self.schedule, self.bits, self.sd = network, schedule, bits, sd
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def enrol(self, roster: Roster) -> Roster:
        """For one process: keys for everybody, neighbours if the roster names none, no coordinator, everybody needed."""
        if not set(roster.sites) <= set(self.identities):
            self.identities, _ = introduce(roster.sites)
        keys = {s: self.identities[s].public for s in roster.sites}
        n = len(roster.sites)
        edges = roster.edges or self._edges(roster)
        return replace(roster, coordinator=None, edges=edges, threshold=n, keys=keys)

    def _edges(self, roster: Roster) -> graph.Edges:
        names, network = roster.sites, self.network
        if not isinstance(network, str):
            return graph.given(names, network)
        if network == "ring":
            return graph.ring(names)
        if network == "complete" or (network == "auto" and len(names) <= 16):
            return graph.complete(names)
        rng = np.random.default_rng(np.frombuffer(digest(list(names)), np.uint32))
        for _ in range(100):
            edges = graph.geometric(names, rng)
            try:
                mask_sd(names, edges, roster.colluders, self.bits, self.schedule)
            except ConfigError:
                continue  # some site hangs on too few neighbours: draw again
            return edges
        raise ConfigError(f"no geometric graph of {len(names)} sites hides a site from {roster.colluders} colluders")

    def share(self, roster: Roster) -> float:
        """Each site adds ``1 / (threshold - colluders)`` of the noise variance."""
        return 1.0 / (roster.threshold - roster.colluders)

    def plan(self, roster: Roster, *, paid: bool = False) -> Plan:
        """Constant, masks and iterations for a roster; refuses what is not safe or cannot be computed in float64.

        A step that carries privacy noise (``paid``) gets the largest masks that float64 allows, since their leak is charged.
        """
        key = (roster.sites, roster.edges, roster.coordinator, roster.threshold, roster.colluders, paid)
        if key not in self._plans:
            self._plans[key] = self._plan(roster, paid and self.sd is None)
        return self._plans[key]

    def masks(self, roster: Roster) -> Masks:
        """What a privacy card charges for the masks' finite size: any change of all honest sites' digits, worst colluders."""
        plan, n = self.plan(roster, paid=True), len(roster.sites)
        return _masks(graph.adjacency(plan.sites, plan.edges).tobytes(), n, n - roster.colluders, plan.sd)

    def _plan(self, roster: Roster, largest: bool) -> Plan:
        names, n = tuple(sorted(roster.sites)), len(roster.sites)
        faults = []
        if n < 3:
            faults.append(f"{n} sites; with fewer than 3 the sum shows the other's contribution")
        if roster.coordinator is not None:
            faults.append(f"coordinator {roster.coordinator!r}; this sum has none")
        if not 1 <= roster.threshold - roster.colluders <= n:
            faults.append(f"threshold {roster.threshold} and {roster.colluders} colluders among {n} sites")
        if faults:
            raise ConfigError("a subspace sum is not safe with this roster", faults=faults)
        edges = graph.given(names, roster.edges)
        a = graph.adjacency(names, edges)
        needed = mask_sd(names, edges, roster.colluders, self.bits, self.schedule)
        tolerance = 1 / (4 * n * 2 ** (LIMB - 1))
        most = float(f"{0.45 * tolerance / pdmm.floor_of(a, 1.0):.2g}")
        sd = max(needed, most) if largest else needed if self.sd is None else self.sd
        if pdmm.floor_of(a, sd) > tolerance / 2:
            raise ConfigError(
                f"masks of sd {sd:.3g} are too large for float64: rounding leaves {pdmm.floor_of(a, sd):.2g}, "
                f"{tolerance / 2:.2g} is allowed",
                hint="allow more bits of leak, or use aggregation='masked', which leaks exactly nothing",
            )
        c, _ = pdmm.best_constant(a)
        if self.schedule == "synchronous":
            return Plan(names, edges, c, sd, tolerance, pdmm.iterations(a, c, sd, tolerance), None)
        order = pdmm.random_order(a, c, sd, tolerance, digest([list(names), sorted([list(e) for e in edges])]))
        return Plan(names, edges, c, sd, tolerance, len(order), order)

    def side(self, me: str, roster: Roster, step: Step, mine: Contribution | None) -> Exchange:
        """A site's side; there is no other."""
        only_added(step, self.name)
        if mine is None:
            raise ConfigError(f"{me!r} brings no contribution: a subspace sum has no coordinator")
        plan = self.plan(roster, paid=step.noise_sd > 0)
        words = FixedPoint.of(step, len(roster.sites)).encode(flatten(step, mine, me), me)
        return SubspaceNode(Envelope(me, roster, step, self.identities.get(me)), plan, split(words), self.share(roster))

    def together(self, roster: Roster, step: Step, parts: Mapping[str, Contribution]) -> Total:
        """All sites in one process at once: the same consensus, vectorised over nodes; the same bits, no messages."""
        only_added(step, self.name)
        plan, n = self.plan(roster, paid=step.noise_sd > 0), len(roster.sites)
        code = FixedPoint.of(step, n)
        s = np.array([split(code.encode(flatten(step, parts[x], x), x)) for x in plan.sites])
        a = graph.adjacency(plan.sites, plan.edges)
        at = {x: i for i, x in enumerate(plan.sites)}
        if plan.order is None:
            u, v = np.zeros_like(s), np.zeros_like(s)
            for edge in sorted(plan.edges):
                for i, j in (edge, edge[::-1]):  # z_{i|j}
                    z = pdmm.sign(i, j) * gaussian(secrets.token_bytes(32), s.shape[1], plan.sd)
                    u[at[i]] += z
                    v[at[j]] += z
            y = pdmm.synchronous(a, s, u, v, plan.constant, plan.slots)
        else:
            zs = np.zeros((n, n, s.shape[1]))
            for i, j in plan.edges:
                zs[at[i], at[j]] = gaussian(secrets.token_bytes(32), s.shape[1], plan.sd)
                zs[at[j], at[i]] = gaussian(secrets.token_bytes(32), s.shape[1], plan.sd)
            y, _ = pdmm.activate(a, s, zs, plan.constant, plan.order)
        digits = y * (n * 2 ** (LIMB - 1))
        if np.abs(digits - np.rint(digits)).max() > 0.25 or np.ptp(np.rint(digits), axis=0).any():
            raise ConfigError("consensus was not reached in the planned iterations", hint="report this graph")
        return unflatten(step, code.decode(join(digits[0])), n, self.share(roster))

    def letters(self, roster: Roster, step: Step) -> Iterator[tuple[Message, int]]:
        """A specimen of every letter that the sites would send each other, and how many of it: for counting bytes.

        Contents are zeros of the true length, so a specimen has exactly as many bytes on the wire as the letter.
        """
        plan, size, sealed = self.plan(roster, paid=step.noise_sd > 0), step.size + 1, 28  # nonce and tag
        slots = np.arange(plan.slots)
        for i, j in sorted(pair for e in plan.edges for pair in (e, e[::-1])):

            def letter(kind: str, body: dict[str, Any], i: str = i, j: str = j) -> Message:
                return Message(i, j, kind, step.round, step.name, roster.attempt, body)

            yield letter("hello", {"key": bytes(32), "plan": plan.public, "signature": bytes(64)}), 1
            yield letter("dual", {"sealed": bytes(sealed + 32), "signature": bytes(64)}), 1
            mine = slots if plan.order is None else np.flatnonzero(plan.order == plan.sites.index(i))
            for low, high in pairwise((0, 128, 256, 65_536, 2**32)):  # a number's length on the wire
                count = int(((mine >= low) & (mine < high)).sum())
                if count:
                    yield letter("value", {"slot": low, "sealed": bytes(sealed + 8 * LIMBS * size)}), count
            yield letter("average", {"slot": -1, "sealed": bytes(sealed + 8 * size + 64)}), 1


@lru_cache(maxsize=64)
def _masks(raw: bytes, n: int, honest: int, sd: float) -> Masks:
    if honest < 2 or comb(n, honest) > 2000:
        return Masks(sd, 0.0)  # nobody to hide among, or not computed: no bound
    a, least = np.frombuffer(raw).reshape(n, n), np.inf
    for at in combinations(range(n), honest):
        b = a[np.ix_(at, at)]
        least = min(least, float(np.linalg.eigvalsh(np.diag(b.sum(1)) - b)[1]))
    return Masks(sd, max(least, 0.0), per_scalar=2 * sqrt(LIMBS * honest))


def gaussian(seed: bytes, size: int, sd: float) -> Array:
    """Gaussian numbers that both ends of a line expand from one secret seed (ChaCha20, inverse distribution function)."""
    from scipy.special import ndtri

    uniform = ((stream(seed, size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(sd * ndtri(uniform))


class SubspaceNode(Party):
    """A hospital's side: greets its neighbours, shares duals, iterates, adopts the flooded sum."""

    def __init__(self, envelope: Envelope, plan: Plan, digits: Array, share: float) -> None:
        super().__init__(envelope)
        self._plan, self._digits, self._share = plan, digits, share
        self._near = graph.neighbours(self.me, plan.edges)
        self._key = X25519PrivateKey.generate()
        self._seeds = {j: secrets.token_bytes(32) for j in self._near}  # of my duals lambda_{i|j}
        self._lines: dict[str, Channel] = {}
        self._duals: dict[str, bytes] = {}  # seeds of theirs, lambda_{j|i}
        self._early: dict[str, bytes] = {}  # duals that overtook their sender's hello; signed, so they are the sender's
        self._node: pdmm.Node | None = None
        self._slot = 0
        self._mine: Array | None = None
        self._own = np.zeros_like(digits)  # my latest y
        self._heard: dict[int, dict[str, Array]] = {}
        self._latest: dict[str, Array] = {}
        self._average: tuple[bytes, bytes] | None = None  # the flooded words and the first site's signature
        self._asked: set[str] = set()
        self._waited = 0

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, Any]], list[Message]]]:
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
        body: Mapping[str, Any] = m.body if isinstance(m.body, Mapping) else {}
        slot, sealed = body.get("slot"), body.get("sealed")
        if act is None or type(slot) is not int or not isinstance(sealed, bytes) or set(body) != {"slot", "sealed"}:
            raise MessageRefused(f"{where} is malformed")
        if m.sender not in self._lines:
            raise MessageRefused(f"{where} came before a hello")
        data = self._lines[m.sender].open(sealed, f"{m.kind} {slot}")
        if self._result == "burnt":
            raise MessageRefused(f"{where} came after this exchange was burnt")
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
        key = agree(self._key, bytes(body["key"]), self.envelope.context, "line", self.me, sender)
        self._lines[sender] = Channel(key, self.me, sender)
        out = []
        if len(self._lines) == len(self._near):
            for j in self._near:
                out.append(self.envelope.seal(j, "dual", {"sealed": self._lines[j].seal(self._seeds[j], "dual")}))
        if sender in self._early:
            self._duals[sender] = self._read_dual(sender, self._early.pop(sender))
        return out + self._begin()

    def _on_dual(self, sender: str, body: dict[str, Any]) -> list[Message]:
        sealed = bytes(body["sealed"])
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
        self._node = pdmm.Node(self.me, self._digits, mine, theirs, self._plan.constant)
        self._seeds, self._digits = {}, np.zeros(0)
        return self._iterate()

    def _on_value(self, sender: str, slot: int, data: bytes) -> list[Message]:
        fresh = self._slot <= slot < self._plan.slots and sender not in self._heard.get(slot, {})
        if not fresh or not self._plan.active(slot, sender):
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
            if self._plan.active(self._slot, self.me) and self._mine is None:
                self._own = self._mine = self._node.value()
                data = self._mine.astype("<f8").tobytes()
                out += [self._send(j, "value", data, self._slot) for j in self._near]
            heard = self._heard.get(self._slot, {})
            if any(j not in heard and self._plan.active(self._slot, j) for j in self._near):
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
            self._result = "burnt"
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
        self._result, self._node, self._duals, self._seeds = "burnt", None, {}, {}
        return []
