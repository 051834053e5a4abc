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

Drop-outs. Every site on the roster is needed; if one is lost the attempt is aborted. Nothing but masked values has left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb, sqrt
from typing import ClassVar, Literal

import numpy as np

from polyclinic.aggregation.fixed_point import FixedPoint
from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.vector import flatten, only_added, unflatten
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.protocol.interfaces import (
    Aggregator,
    AggregatorFacts,
    Contribution,
    Exchange,
    Message,
    Roster,
    Step,
    Total,
)
from polyclinic.protocol.wire.sealed import Identity, SealedMessage, digest, introduce
from polyclinic_papers.decentralised import graph, pdmm
from polyclinic_papers.decentralised.consensus import MaskPlan, SubspaceNode, gaussian
from polyclinic_papers.decentralised.digits import LIMB, LIMBS, join, split
from polyclinic_papers.decentralised.leakage import Masks, mask_sd

GraphName = Literal["auto", "complete", "ring", "geometric"]


class Subspace(Aggregator):
    """Average consensus between neighbours with perturbed duals.

    Parameters
    ----------
    identities
        Signing keys of the parties that run here (see :class:`~polyclinic.aggregation.secure.masked.Masked`).
    network
        Graph for :meth:`enrol`: ``"complete"``, ``"ring"``, ``"geometric"`` or the edges themselves; ``"auto"`` is complete
        up to 16 sites and geometric above. Between hospitals the roster carries the edges.
    bits
        Largest excess leak of one number at the worst honest site, over what the sum itself tells.
    sd
        Mask size, in units of the largest number; None: from ``bits``.
    """

    facts: ClassVar[AggregatorFacts] = AggregatorFacts(
        "subspace",
        "total",
        "peers",
        tolerates_loss=False,
        sentence="hides each site's contribution among its honest neighbours; the sums are exact and shown to all",
        saw={"neighbours": "masked messages and the average over sites, {values}", "a coordinator": "there is none"},
    )
    margin: ClassVar[float] = 0.01
    """One sum of 5,000 numbers at epsilon 1 takes 1e-6 of it up to 12 sites; what exceeds it is checked charge by charge."""

    def __init__(
        self,
        identities: Mapping[str, Identity] | None = None,
        *,
        network: GraphName | Iterable[tuple[str, str]] = "auto",
        bits: float = 1e-6,
        sd: float | None = None,
    ) -> None:
        self.identities = dict(identities or {})
        self.network, self.bits, self.sd = network, bits, sd
        self._plans: dict[tuple[object, ...], MaskPlan] = {}

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
                mask_sd(names, edges, roster.colluders, self.bits)
            except ConfigError:
                continue  # some site hangs on too few neighbours: draw again
            return edges
        raise ConfigError(f"no geometric graph of {len(names)} sites hides a site from {roster.colluders} colluders")

    def noise_share(self, roster: Roster) -> float:
        """Each site adds ``1 / (threshold - colluders)`` of the noise variance."""
        return 1.0 / (roster.threshold - roster.colluders)

    def plan(self, roster: Roster, *, paid: bool = False) -> MaskPlan:
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

    def leakage(self, roster: Roster, step: Step) -> tuple[Event, ...]:
        """What the masks' finite size leaks in one attempt; sums without noise have no epsilon to add it to."""
        return tuple(self.masks(roster).events(step)) if step.noise_sd else ()

    def _plan(self, roster: Roster, largest: bool) -> MaskPlan:
        names, n = tuple(sorted(roster.sites)), len(roster.sites)
        faults = []
        few = roster.colluders + 2
        if roster.colluders < 1:
            faults.append("0 colluders; at least 1: a curious site subtracts its own part and its own noise")
        if n < few:
            faults.append(f"{n} sites; with fewer than {few}, {few - 2} pooling site(s) see the other's contribution")
        if roster.coordinator is not None:
            faults.append(f"coordinator {roster.coordinator!r}; this sum has none")
        if not 2 <= roster.threshold - roster.colluders <= n:
            faults.append(f"threshold {roster.threshold} and {roster.colluders} colluders among {n} sites")
        if faults:
            raise ConfigError("a subspace sum is not safe with this roster", faults=faults)
        edges = graph.given(names, roster.edges)
        a = graph.adjacency(names, edges)
        needed = mask_sd(names, edges, roster.colluders, self.bits)
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
        return MaskPlan(names, edges, c, sd, tolerance, pdmm.iterations(a, c, sd, tolerance))

    def exchange(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Exchange:
        """A site's side; there is no other."""
        only_added(step, self.name)
        if mine is None:
            raise ConfigError(f"{me!r} brings no contribution: a subspace sum has no coordinator")
        plan = self.plan(roster, paid=step.noise_sd > 0)
        if promises is not None:  # everybody is needed: the list is the roster
            promises.sign(Promise(roster.attempt, roster.sites))
        words = FixedPoint.of(step, len(roster.sites)).encode(flatten(step, mine, me), me)
        return SubspaceNode(
            SealedMessage(me, roster, step, self.identities.get(me)), plan, split(words), self.noise_share(roster)
        )

    def aggregate_local(self, roster: Roster, step: Step, parts: Mapping[str, Contribution]) -> Total:
        """All sites in one process at once: the same consensus, vectorised over nodes; the same bits, no messages."""
        only_added(step, self.name)
        plan, n = self.plan(roster, paid=step.noise_sd > 0), len(roster.sites)
        code = FixedPoint.of(step, n)
        s = np.array([split(code.encode(flatten(step, parts[x], x), x)) for x in plan.sites])
        a = graph.adjacency(plan.sites, plan.edges)
        at = {x: i for i, x in enumerate(plan.sites)}
        u, v = np.zeros_like(s), np.zeros_like(s)
        for edge in sorted(plan.edges):
            for i, j in (edge, edge[::-1]):  # z_{i|j}
                z = pdmm.sign(i, j) * gaussian(secrets.token_bytes(32), s.shape[1], plan.sd)
                u[at[i]] += z
                v[at[j]] += z
        y = pdmm.synchronous(a, s, u, v, plan.constant, plan.slots)
        digits = y * (n * 2 ** (LIMB - 1))
        if np.abs(digits - np.rint(digits)).max() > 0.25 or np.ptp(np.rint(digits), axis=0).any():
            raise ConfigError("consensus was not reached in the planned iterations", hint="report this graph")
        return unflatten(step, code.decode(join(digits[0])), n, self.noise_share(roster))

    def message_sizes(
        self, roster: Roster, step: Step, size_of: Callable[[Message], int]
    ) -> Iterator[tuple[str, str, int]]:
        """Sender, receiver and bytes of all that the sites would have sent each other in :meth:`at_once`.

        Counted on specimens whose contents are zeros of the true length; letters between names of the same length are
        equally long, so each specimen is measured once.
        """
        plan, scalars, sealed = self.plan(roster, paid=step.noise_sd > 0), step.size + 1, 28  # nonce and tag
        bodies: dict[str, dict[str, object]] = {
            "hello": {"key": bytes(32), "plan": plan.public, "signature": bytes(64)},
            "dual": {"sealed": bytes(sealed + 32), "signature": bytes(64)},
            "average": {"slot": -1, "sealed": bytes(sealed + 8 * scalars + 64)},
        }
        classes = list(pairwise((0, 128, 256, 65_536, 2**32)))  # slots whose numbers are equally long on the wire
        value = bytes(sealed + 8 * LIMBS * scalars)
        sizes: dict[tuple[int, int], list[int]] = {}
        for i, j in sorted(pair for e in plan.edges for pair in (e, e[::-1])):
            lengths = len(i.encode()), len(j.encode())
            if lengths not in sizes:
                kinds = [*bodies.items(), *(("value", {"slot": low, "sealed": value}) for low, _ in classes)]
                letter = [Message(i, j, k, step.round, step.name, roster.attempt, body) for k, body in kinds]
                sizes[lengths] = [size_of(m) for m in letter]
            counts = [1, 1, 1, *(max(0, min(high, plan.slots) - low) for low, high in classes)]
            yield i, j, sum(n * size for n, size in zip(counts, sizes[lengths]))


@lru_cache(maxsize=64)
def _masks(raw: bytes, n: int, honest: int, sd: float) -> Masks:
    if honest < 2 or comb(n, honest) > 2000:
        return Masks(sd, 0.0)  # nobody to hide among, or not computed: no bound
    a, least = np.frombuffer(raw).reshape(n, n), np.inf
    for at in combinations(range(n), honest):
        b = a[np.ix_(at, at)]
        least = min(least, float(np.linalg.eigvalsh(np.diag(b.sum(1)) - b)[1]))
    return Masks(sd, max(least, 0.0), per_scalar=2 * sqrt(LIMBS * honest))
