"""Row 24 between hosts: a book that was put back, or deleted with everything beside it, is found before anything leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.hostile_world import World

from polyclinic.errors import PeerLost
from polyclinic.node.coordinator import site_registry as attendance
from polyclinic.node.flare.carry import carry, driver_of
from polyclinic.privacy.gate.owner_rules import ledger_of, witness_of
from polyclinic.privacy.ledger.entries import Note

METHOD = 'name = "trip"\nrank = 2\nrounds = 2\naggregation = "masked"'


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "EVERY", 0.1)
    monkeypatch.setattr(attendance, "GRACE", 3.0)


def run(world: World, name: str) -> Any:
    order = world.order(name, METHOD)
    world.workers = {}
    for n in world.sites:
        from polyclinic.node.flare.worker import Worker

        world.workers[n] = Worker(order, world.sites[n], world._post)
    made = driver_of(order, world.key, world.coordinator.run(order.id))
    return carry(made, lambda site, data, seconds: world.workers[site].answer(data))


def save(world: World, site: str, to: Path) -> None:
    shutil.copytree(world.sites[site].node_path.parent, to)


def restore(world: World, site: str, saved: Path) -> None:
    """Everything of the site is as it was: book, head, key, anchor, what it knew of others."""
    shutil.rmtree(world.sites[site].node_path.parent)
    shutil.copytree(saved, world.sites[site].node_path.parent)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("witnesses"))


def test_a_site_put_back_as_a_whole_is_told_by_its_peers(world: World, tmp_path: Path) -> None:
    run(world, "first")
    save(world, "north", tmp_path / "saved")
    run(world, "second")
    full = ledger_of(world.sites["north"].node).count
    for other in ("east", "south"):
        known = witness_of(world.sites[other].node).about("north")
        assert max(k.head.count for k in known) == full, "the last head, with the line that closed the study"
    restore(world, "north", tmp_path / "saved")
    book = ledger_of(world.sites["north"].node)
    assert not book.verify(), "by itself the book is whole"
    charged = len(book.charges())
    with pytest.raises(PeerLost):
        run(world, "third")
    assert len(ledger_of(world.sites["north"].node).charges()) == charged, "nothing left, nothing was charged"
    log = world.sites["north"].events.read_text()
    assert "others know more lines than this ledger has" in log
    assert "cut or put back" in log
    assert witness_of(world.sites["north"].node).about("north"), "kept for `ledger recover`"


def test_no_letter_of_the_ring_leaves_a_book_that_was_put_back(tmp_path: Path) -> None:
    """Agreeing on codes comes before the first sum, and is a letter of data as well."""
    from tests.hostile.plain_world import Halves
    from tests.hostile.test_hostile_coordinator import RING

    from polyclinic.protocol.wire import encoding as wire

    world = World(tmp_path / "world", patients=20)
    site = world.sites["south"]
    save(world, "south", tmp_path / "saved")
    ledger_of(site.node).write(Note("something was spent"))
    Halves(world, world.order("before", METHOD.replace("masked", "plain"))).run()
    restore(world, "south", tmp_path / "saved")
    halves = Halves(world, world.order("ring", METHOD.replace("masked", "plain"), head="deadline = 2\n", data=RING))
    said: list[dict[str, Any]] = []

    def tap(name: str, data: bytes) -> bytes:
        said.extend([wire.decode(data)] if name == "south" else [])
        return data

    halves.tap = tap
    with pytest.raises(PeerLost):
        halves.run()
    assert not any(a.get("letters") for a in said)
    assert any("others know more" in r for r in halves.sites["south"].reasons)


def test_an_owner_may_ask_for_every_witness_of_the_order(tmp_path: Path) -> None:
    """A quorum of two of three: whoever is kept out of every sum cannot tell what it knows, unless the owner waits for it."""
    from tests.hostile.plain_world import Halves

    world = World(tmp_path, more='witnesses = "all"', patients=20)
    for s in world.sites.values():
        s.node_path.write_text(s.node_path.read_text().replace("min_sites = 3", "min_sites = 2"))
    world.sites = {n: type(s).of(s.node_path) for n, s in world.sites.items()}
    order = world.order("quorum", METHOD.replace("masked", "plain"), head="deadline = 2\nquorum = 2\n")
    halves = Halves(world, order)
    honest = halves.ask
    halves.ask = lambda site, data: None if site == "south" else honest(site, data)  # type: ignore[method-assign]
    with pytest.raises(PeerLost):
        halves.run()
    assert not any(ledger_of(s.node).charges() for s in world.sites.values())
    again = Halves(world, order)
    again.run()
