"""Asks in orders that no honest coordinator has: one sum a thousand times, two processes of one study, a sum after the end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves

from polyclinic.node.messages import SumRequest, seal_ask, tree_of
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.wire import encoding as wire

DPEM = 'name = "dpem"\nplanning_size = 10000\nrank = 2\nrounds = 1\naggregation = "{}"'
PAID = "[privacy]\nepsilon = 0.1\ndelta = 1e-6\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("sequence"))


def begun(world: World, name: str, adder: str) -> Halves:
    """A study that stands before its first sum, everybody's books told."""
    halves = Halves(world, world.order(name, DPEM.format(adder), head="deadline = 3\n", tail=PAID))
    honest = halves.ask

    def ask(site: str, data: bytes) -> bytes | None:
        if wire.decode(data[64:])["what"] == "take":
            raise StopAsyncIteration
        return honest(site, data)

    halves.ask = ask  # type: ignore[method-assign]
    with pytest.raises(StopAsyncIteration):
        halves.run()
    halves.ask = honest  # type: ignore[method-assign]
    return halves


def take(halves: Halves, study: Any, attempt: int) -> dict[str, Any]:
    driver, order = halves.driver, halves.order
    books = driver.books.bundle("east")
    ask = SumRequest(0, attempt, order.sites, **driver.relayed("east"), books=books)
    data = seal_ask(halves.world.key, order.digest, "east", f"again-{attempt}-{id(study)}", tree_of(ask))
    return wire.decode(study.answer(data))  # type: ignore[no-any-return]


def many(world: World, adder: str, times: int) -> None:
    halves = begun(world, f"many-{adder}-{times}", adder)
    east, site = halves.sites["east"], world.sites["east"]
    before = len(ledger_of(site.node).charges())
    said = [take(halves, east, a) for a in range(times)]
    twin = halves.born("east")  # a second process of the same order, on the same files
    halves.sites["east"] = twin
    halves.driver.books.heard("east", wire.decode(twin.answer(_look(halves)))["books"])
    said += [take(halves, twin, times + a) for a in range(3)]
    letters = [wire.decode(bytes(x)) for answer in said for x in answer.get("letters") or ()]
    assert len(ledger_of(site.node).charges()) == before + 1  # one release of a number, in all attempts and processes
    assert len(letters) >= times // 2
    kinds = {m[3] for m in letters}
    if adder == "plain":
        assert len(kinds) == 1
        assert len({wire.encode(m[-1]) for m in letters}) == 1  # the same bytes each time
    else:
        assert kinds == {"advertise"}  # keys; no vector leaves before everybody has answered


def _look(halves: Halves) -> bytes:
    from polyclinic.node.messages import Ping

    ask = tree_of(Ping(books=halves.driver.books.bundle("east")))
    return seal_ask(halves.world.key, halves.order.digest, "east", "look", ask)


@pytest.mark.parametrize("adder", ["plain", "masked"])
def test_one_sum_asked_again_and_again_is_one_release(world: World, adder: str) -> None:
    many(world, adder, 60)


@pytest.mark.slow
@pytest.mark.parametrize("adder", ["plain", "masked"])
def test_one_sum_asked_a_thousand_times_is_one_release(world: World, adder: str) -> None:
    many(world, adder, 1000)


def test_nothing_leaves_after_the_end(world: World) -> None:
    halves = Halves(world, world.order("ended", DPEM.format("masked"), head="deadline = 20\n", tail=PAID))
    outcome = halves.run()
    before = {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()}
    for name, study in halves.sites.items():
        for process in (study, halves.born(name)):
            for number in (-1, 0, len(outcome.releases) - 1, len(outcome.releases), 10**6):
                ask = SumRequest(number, 7, halves.order.sites)
                data = seal_ask(world.key, halves.order.digest, name, f"late-{number}", tree_of(ask))
                answer = wire.decode(process.answer(data))
                assert not answer.get("letters"), (name, number, answer)
    assert {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()} == before
