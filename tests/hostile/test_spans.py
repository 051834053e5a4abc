"""A coordinator that takes every sum again and again, over other sites and with vectors withheld, through real sums.

What it opens is put together by the rank oracle: no combination of all of it may be the part of fewer than three sites.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.hostile.spans import few

from polyclinic.aggregation.promise import Promises
from polyclinic.errors import MessageRefused, PeerLost, SumAborted
from polyclinic.node.coordinator import coordinator as driver
from polyclinic.node.messages import Deliver, SumRequest, seal_ask, tree_of
from polyclinic.node.signed_study import COORDINATOR
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Total
from polyclinic.protocol.wire import encoding as wire

SITES = ("east", "north", "south", "west")
DPEM = 'name = "dpem"\nplanning_size = 10000\nrank = 2\nrounds = 2\naggregation = "masked"'
TRIP = 'name = "trip"\nrank = 2\nrounds = 2\naggregation = "masked"'
PAID = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"


class Evil:
    """The coordinator's own code and key, over any sites, in any attempt, with any vectors withheld."""

    def __init__(self, halves: Halves, seed: int) -> None:
        self.halves, self.rng, self.serial = halves, np.random.default_rng(seed), 0
        self.opened: dict[int, set[tuple[str, ...]]] = {}
        self.exact: set[int] = set()
        self.tried = 0

    def ask(self, site: str, ask: SumRequest | Deliver) -> list[bytes]:
        self.serial += 1
        h = self.halves
        sealed = seal_ask(h.world.key, h.order.digest, site, f"evil-{self.serial}", tree_of(ask))
        answer = wire.decode(h.sites[site].answer(sealed))
        return [bytes(x) for x in answer.get("letters") or ()]

    def sum(self, attempt: int, sites: tuple[str, ...], withheld: set[str]) -> None:
        """One attempt at the next sum, to its end."""
        lead, order = self.halves.driver, self.halves.order
        c, now = lead.conductor, (lead.number, attempt)
        step = c.step()
        if step is None:
            return
        self.tried += 1
        roster = replace(order.roster(sites, attempt, paid=bool(step.noise_sd)), chain=c.chain)
        try:
            side = by_name("masked", identities={COORDINATOR: self.halves.world.key}).exchange(
                COORDINATOR, roster, step, None
            )
        except (MessageRefused, ValueError):  # its own code refuses so small a sum
            return
        protocol = f"{c.method.name}/{c.method.version}"
        waiting = [(s, SumRequest(*now, sites, **lead.relayed(s))) for s in sites]
        for _ in range(8):
            while waiting:
                site, ask = waiting.pop(0)
                for raw in self.ask(site, ask):
                    letter = wire.decode_message(raw, protocol)
                    if letter.kind == "masked" and site in withheld:
                        continue
                    try:
                        out = side.receive(letter)
                    except MessageRefused:
                        continue
                    waiting += [(m.to, Deliver(*now, (wire.encode_message(m, protocol),))) for m in out]  # type: ignore[misc]
            if side.result() != "pending":
                break
            waiting = [(m.to, Deliver(*now, (wire.encode_message(m, protocol),))) for m in side.deadline()]  # type: ignore[misc]
        if isinstance(side.result(), Total):
            self.opened.setdefault(lead.number, set()).add(tuple(sorted(side.members)))  # type: ignore[attr-defined]
            if not step.noise_sd:
                self.exact.add(lead.number)

    def some(self, times: int) -> None:
        """Attempts drawn at random; more often than not everybody, or all but one."""
        for _ in range(times):
            size = int(self.rng.choice([2, 3, 4], p=[0.1, 0.5, 0.4]))
            sites = tuple(sorted(self.rng.choice(SITES, size, replace=False)))
            gone = {str(self.rng.choice(sites))} if self.rng.random() < 0.4 else set()
            self.sum(int(self.rng.integers(0, 30)), sites, gone)


def attacked(world: World, name: str, method: str, seed: int, head: str = "", tail: str = "") -> Evil:
    """A study in which the coordinator first takes every sum several times."""
    order = world.order(name, method, head=f"deadline = 2\nquorum = 3\n{head}", tail=tail)
    halves = Halves(world, order)
    evil, done = Evil(halves, seed), set[int]()
    honest = halves.ask

    def ask(site: str, data: bytes) -> bytes | None:
        lead = halves.driver
        if lead._conductor is not None and lead.number not in done and wire.decode(data[64:])["what"] == "take":
            done.add(lead.number)
            evil.some(8)
        out = honest(site, data)
        c = lead._conductor
        for release in () if c is None else c.releases:
            evil.opened.setdefault(release.number, set()).add(tuple(release.members))
        return out

    halves.ask = ask  # type: ignore[method-assign]
    with suppress(PeerLost, SumAborted):  # whoever has the coordinator's key can always stop a study
        halves.run()
    return evil


def subtracted(evil: Evil) -> list[tuple[str, ...]]:
    """Sets of one or two sites whose part follows from what was opened: per number, and over exact sums together."""
    together = set[tuple[str, ...]]().union(*(v for k, v in evil.opened.items() if k in evil.exact), set())
    groups = [*evil.opened.values(), together]
    return [s for g in groups if g for s in few(sorted(g), SITES)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ATTEMPTS", 3)  # a study that cannot go on stops sooner


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("spans"), SITES)


@pytest.mark.parametrize(("method", "tail"), [(TRIP, ""), (DPEM, PAID)], ids=["exact", "paid"])
def test_a_sum_taken_again_over_others_opens_nothing_new(world: World, method: Any, tail: Any) -> None:
    evil = [attacked(world, f"again-{seed}-{len(tail)}", method, seed, tail=tail) for seed in range(2)]
    assert sum(e.tried for e in evil) >= 16
    assert any(e.opened for e in evil)  # the attack is a real one: some of its own sums do open
    assert [subtracted(e) for e in evil] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "tail"), [(TRIP, ""), (DPEM, PAID)], ids=["exact", "paid"])
def test_forty_studies_whose_sums_are_taken_again(world: World, method: Any, tail: Any) -> None:
    evil = [attacked(world, f"many-{seed}-{len(tail)}", method, seed, tail=tail) for seed in range(100, 140)]
    assert [s for e in evil for s in subtracted(e)] == []


def test_without_the_promise_of_one_list_the_same_attack_subtracts_a_site(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Promises, "may", lambda self, attempt, members: True)
    monkeypatch.setattr(Promises, "bound", property(lambda self: ()))
    evil = [attacked(world, f"broken-{seed}", DPEM, seed, tail=PAID) for seed in range(3)]
    assert any(subtracted(e) for e in evil)


def test_the_rank_oracle_finds_what_can_be_subtracted() -> None:
    sites = ("east", "north", "south", "west")
    assert few([sites], sites) == []
    assert few([sites, sites[:3]], sites) == [("west",), ("east", "west"), ("north", "west"), ("south", "west")]
    assert few([sites[:2]], sites) == [("east", "north")]
    assert few([sites, sites[:2]], sites) == [("east", "north"), ("south", "west")]
    cycle = [("a", "b", "c"), ("b", "c", "d"), ("a", "c", "d"), ("a", "b", "d")]
    assert ("a",) in few(cycle, "abcd")  # of full rank: every single part
    assert few(cycle[:1], "abcd") == []
