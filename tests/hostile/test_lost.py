"""Exact secure sums that lose sites for good: one alone is waited for, unless all owners let it be shown; a group may go."""

from __future__ import annotations

import pytest
from hostile_world import World
from plain_world import Halves

from polyclinic.engines.flare.folders import SiteFolder, read_events
from polyclinic.errors import PeerLost

TRIP = 'name = "trip"\nrank = 2\nrounds = 3\naggregation = "masked"'


def lose(world: World, name: str, rule: str, gone: set[str]):
    """A study whose sites ``gone`` are silent from the second sum on."""
    order = world.order(name, TRIP, head=f"deadline = 8\nquorum = 3\n{rule}")
    halves = Halves(world, order)
    honest = halves.ask
    halves.ask = lambda site, data: None if site in gone and halves.driver.number >= 1 else honest(site, data)
    return halves, halves.run()


def test_one_site_is_left_behind_only_where_every_owner_lets_it_be_shown(tmp_path):
    world = World(tmp_path, ("east", "north", "south", "west"))
    with pytest.raises(PeerLost, match="waits for all who began, and for 'west'"):
        lose(world, "wait", "", {"west"})
    with pytest.raises(PeerLost, match="waits for all who began, and for 'west'"):
        lose(world, "group", 'lost = "group"\n', {"west"})
    for name, site in world.sites.items():
        site.node_path.write_text(site.node_path.read_text().replace("[keys]\n", "[keys]\nallow_shown = true\n"))
        world.sites[name] = SiteFolder.of(site.node_path)
    halves, outcome = lose(world, "show", 'lost = "show"\n', {"west"})
    assert outcome.public.stage == "end"
    assert halves.driver.counted == ("east", "north", "south")
    assert {r.members for r in outcome.releases[1:]} == {("east", "north", "south")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_of_eight_leave_together_and_two_do_not(tmp_path):
    world = World(tmp_path, tuple(f"site-{c}" for c in "abcdefgh"), patients=12)
    with pytest.raises(PeerLost, match="waits for all who began"):
        lose(world, "two", 'lost = "group"\n', {"site-g", "site-h"})
    halves, outcome = lose(world, "three", 'lost = "group"\n', {"site-f", "site-g", "site-h"})
    assert outcome.public.stage == "end"
    assert halves.driver.counted == tuple(f"site-{c}" for c in "abcde")
    left = [e for e in read_events(halves.driver.folder / "events.jsonl") if e["event"] == "left"]
    assert left[0]["sites"] == ["site-f", "site-g", "site-h"]
