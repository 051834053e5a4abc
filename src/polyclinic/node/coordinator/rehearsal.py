"""A study between hosts in one process: the coordinator and the sites' halves as they are, their asks and letters function calls.

Time is a counter, so that a deadline costs nothing; what an engine would write is in a folder that goes afterwards.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from polyclinic.errors import PeerLost
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.node.site.context import SiteContext
from polyclinic.node.site.record import Record
from polyclinic.node.site.worker import SiteStudy
from polyclinic.plugins import plug
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.aggregators import NAMES, by_name
from polyclinic.protocol.interfaces import Aggregator, Method
from polyclinic.protocol.loop import roster_for
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.records.sites.site import Site

DEADLINE: Final = 20.0  # seconds that the coordinator waits for a sum
TICK: Final = 0.25  # seconds from one look of the coordinator to the next
LAST: Final = 40 * DEADLINE  # by then a study has ended, or stopped with words


class Rehearsal:
    """One study of all sites, carried by function calls.

    Parameters
    ----------
    adder
        Whose class the study names; it is plugged in for the length of the run.
    method, sites
        What is fitted, and at whom.
    """

    def __init__(self, adder: Aggregator, method: Method, sites: Sequence[Site]) -> None:
        self.adder, self.method, self.sites = adder, method, {s.name: s for s in sites}
        self.said: list[str] = []  # what went wrong at a site, from its own log
        self._post: deque[tuple[str, bytes]] = deque()

    def run(self, *, silent: str = "", after: int = 1, quorum: int | None = None) -> Outcome:
        """To the end; :class:`PeerLost` where the coordinator stops, AssertionError where it would go on for ever.

        Parameters
        ----------
        silent
            A site that answers nobody any more once ``after`` sums were taken.
        quorum
            Sites that every sum needs; all by default.
        """
        name = self.adder.name
        with ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if name not in NAMES:
                stack.enter_context(plug("polyclinic.sums", name, type(self.adder)))
            keys = {n: Identity.generate(n) for n in (*self.sites, COORDINATOR)}
            order = self._order(keys, quorum or len(self.sites))
            here = {n: self._site(n, order, keys[n], home / n) for n in self.sites}
            coordinator = Coordinator(order, self.method, keys[COORDINATOR], home / "run")
            (home / "run").mkdir()
            now = 0.0
            while coordinator.outcome is None:
                gone = silent if silent and coordinator.number >= after else ""
                for sent in coordinator.due(now):
                    answer = None if sent.site == gone else here[sent.site].answer(sent.data)
                    coordinator.heard(sent, answer, now)
                self._carry({n: s for n, s in here.items() if n != gone})
                now += TICK
                if now > LAST:
                    raise AssertionError(f"sum {coordinator.number} has no end between hosts{self._why()}")
            return coordinator.outcome

    def fit(self) -> Outcome:
        """The same where nobody is lost: it must come to its end."""
        try:
            return self.run()
        except PeerLost as e:
            raise AssertionError(f"it stops between hosts: {e.what}{self._why()}") from e

    def _why(self) -> str:
        return "".join(f"; {line}" for line in dict.fromkeys(self.said[:8]))

    def _order(self, keys: dict[str, Identity], quorum: int) -> StudyOrder:
        named = {"name": self.method.name, "aggregation": self.adder.name}
        edges: tuple[tuple[str, str], ...] = ()
        if self.adder.facts.topology == "peers":
            edges = tuple(sorted(roster_for(by_name(self.adder.name), list(self.sites)).edges))
        public = {n: k.public.hex() for n, k in keys.items()}
        return StudyOrder("rehearsal", {"method": named}, {}, public, quorum, DEADLINE, edges)

    def _site(self, name: str, order: StudyOrder, identity: Identity, home: Path) -> SiteStudy:
        home.mkdir()

        def log(**event: object) -> None:
            why = event.get("what") or event.get("error")
            self.said += [f"{name!r}: {why}"] if why else []

        made = SiteStudy(order, identity, Record(home), post=lambda to, data: self._post.append((to, data)), log=log)
        adder = by_name(order.aggregation, identities={name: identity})
        site = self.sites[name]
        gate = ReleaseGate(name, run=order.digest)
        made.take_part(SiteContext(self.method, site, adder, gate, self._setting(site)))
        return made

    def _setting(self, site: Site) -> dict[str, object]:
        if self.method.needs == "features":
            return {"shape": [int(site.matrix().shape[1])], "axes": [], "digests": [], "alignment": None}
        axes = [replace(a, vocabulary="data") for a in site.counts().axes[1:]]
        return {
            "shape": [int(n) for n in site.counts().shape[1:]],
            "axes": [a.to_json() for a in axes],
            "digests": [a.digest() for a in axes],
        }

    def _carry(self, here: dict[str, SiteStudy]) -> None:
        """Letters between sites; some come before their sum is open at the other, as between hosts."""
        while self._post:
            to, data = self._post.popleft()
            if to in here:
                here[to].put(data)
