"""Both halves of a study as the plain objects that they are: asks are function calls, time is a counter, nothing runs beside it.

A party may be killed at any instant at which it makes something durable: what was on disk before is all that its next life has.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tests.attacks.hostile_world import World

from polyclinic.node.admission.admission import admit
from polyclinic.node.admission.alignment import SiteAligner
from polyclinic.node.admission.retention import drop_data
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.flare.carry import driver_of
from polyclinic.node.site.record import Record
from polyclinic.node.site.worker import SiteStudy
from polyclinic.privacy.gate.owner_rules import ledger_of, witness_of
from polyclinic.privacy.ledger.rollback_check import RollbackCheck


class Killed(BaseException):
    """Kill -9: no handler sees it, nothing after it runs."""


class Halves:
    """The sites and the coordinator of one order.

    Parameters
    ----------
    chance
        Of being killed, at each call of ``fsync``; before it or after it, as the coin falls.
    """

    def __init__(self, world: World, order: Any, *, chance: float = 0.0, seed: int = 0, most: int = 10**9) -> None:
        self.world, self.order, self.chance, self.most = world, order, chance, most
        self.rng, self.kills, self.mortal = np.random.default_rng(seed), 0, False
        self.post: deque[tuple[str, bytes]] = deque()
        self.events: list[dict[str, Any]] = []  # of all sites, as their owners' logs have them
        self.tap: Callable[[str, bytes], bytes] = lambda site, data: data
        self.sites = {n: self.born(n) for n in world.sites}
        self.driver = self.coordinator()
        self._fsync = os.fsync

    def coordinator(self) -> Coordinator:
        return driver_of(self.order, self.world.key, self.world.coordinator.run(self.order.id))

    def born(self, name: str) -> SiteStudy:
        """A process of a site, from its files."""
        folder, order = self.world.sites[name], self.order
        home, me = folder.study(order.digest), folder.identity()
        keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
        made = SiteStudy(
            order,
            me,
            Record(home),
            post=lambda to, data: self.post.append((to, data)),
            log=lambda **event: self.events.append(event),
            aligner=None if order.alignment is None else SiteAligner(order, me),
            watch=RollbackCheck(name, order.digest, keys, witness_of(folder.node), ledger_of(folder.node), me.sign),
            ended=lambda: drop_data(home),
        )
        try:
            if not made.over():
                made.take_part(admit(order, folder, made.wait))
        except Exception as e:
            made.refuse(e)
        return made

    def ask(self, site: str, data: bytes) -> bytes | None:
        """An ask that may be the site's last; letters between neighbours are delivered after it."""
        try:
            out: bytes | None = self._mortal(lambda: self.sites[site].answer(data))
        except Killed:
            self.sites[site], out = self.born(site), None
        while self.post:
            to, letters = self.post.popleft()
            try:
                self._mortal(lambda to=to, letters=letters: self.sites[to].put(letters))  # type: ignore[misc]
            except Killed:
                self.sites[to] = self.born(to)
        return None if out is None else self.tap(site, out)

    def run(self) -> Any:
        """To the end, whoever dies on the way."""
        now = 0.0
        while self.driver.outcome is None:
            try:
                for sent in self._mortal(partial(self.driver.due, now)):
                    self.driver.heard(sent, self.ask(sent.site, sent.data), now)
            except Killed:
                self.driver = self.coordinator()
            now += 0.05
        return self.driver.outcome

    def _mortal(self, act: Callable[[], Any]) -> Any:
        def fsync(handle: int) -> None:
            die = self.kills < self.most and self.rng.random() < self.chance
            self.kills += die
            if die and self.rng.random() < 0.5:
                raise Killed
            self._fsync(handle)
            if die:
                raise Killed

        os.fsync = fsync  # type: ignore[assignment]
        try:
            return act()
        finally:
            os.fsync = self._fsync
