"""Secure sums that lose a site: an exact sum waits for it, a sum with noise goes on within the owners' limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves

from polyclinic.errors import PeerLost, SumAborted
from polyclinic.node.coordinator import coordinator as driver
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.privacy.gate.owner_rules import ledger_of

TRIP = 'name = "trip"\nrank = 2\nrounds = 3\naggregation = "masked"'


def test_an_exact_sum_waits_for_every_site(tmp_path: Path) -> None:
    """A site is silent from the fourth sum on."""
    world = World(tmp_path, ("east", "north", "south", "west"))
    halves = Halves(world, world.order("wait", TRIP, head="deadline = 8\nquorum = 3\n"))
    honest = halves.ask
    halves.ask = lambda site, data: None if site == "west" and halves.driver.number >= 3 else honest(site, data)  # type: ignore[method-assign]
    with pytest.raises(PeerLost, match="waits for all who began, and for 'west'"):
        halves.run()


DPEM = 'name = "dpem"\nplanning_size = 10000\nrank = 2\nrounds = 1\naggregation = "masked"'


def test_an_owners_floor_of_sites_is_held_against_every_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quorum 3 of 4 with noise goes on without one; not where an owner asks for sums over at least four."""
    monkeypatch.setattr(driver, "ATTEMPTS", 2)  # a study that cannot go on stops sooner
    world = World(tmp_path, ("east", "north", "south", "west"))

    def short(name: str) -> Any:
        tail = "[privacy]\nepsilon = 0.1\ndelta = 1e-6\n"
        halves = Halves(world, world.order(name, DPEM, head="deadline = 3\nquorum = 3\n", tail=tail))
        honest = halves.ask
        halves.ask = lambda site, data: (  # type: ignore[method-assign]
            None if site == "west" and halves.driver._conductor is not None else honest(site, data)
        )
        made.append(halves.driver)
        return halves.run()

    made: list[driver.Coordinator] = []
    assert {r.members for r in short("three").releases} == {("east", "north", "south")}
    east = world.sites["east"]
    east.node_path.write_text(east.node_path.read_text().replace("min_sites = 3", "min_sites = 4"))
    world.sites["east"] = SiteFolder.of(east.node_path)
    before = len(ledger_of(east.node).charges())
    with pytest.raises((PeerLost, SumAborted)):
        short("four")
    assert made[-1].conductor.releases == []  # nothing was opened
    assert (
        len(ledger_of(east.node).charges()) <= before + 1
    )  # what was sent into the attempt with all four stayed closed
