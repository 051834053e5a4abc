"""Exact secure sums that lose sites for good: one alone is waited for, unless all owners let it be shown; a group may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hospitals
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.ingested import ingest_once

from polyclinic.config import Study
from polyclinic.errors import PeerLost, SumBurnt
from polyclinic.node.coordinator import coordinator as driver
from polyclinic.node.enrolment.folders import SiteFolder, read_events
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.minimum_patients import SUPPORT, MinimumPatients
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 2\nrounds = 3\naggregation = "masked"'


def lose(world: World, name: str, rule: str, gone: set[str], data: str = hospitals.TENSOR) -> Any:
    """A study whose sites ``gone`` are silent from the fourth sum on."""
    order = world.order(name, TRIP, head=f"deadline = 8\nquorum = 3\n{rule}", data=data)
    halves = Halves(world, order)
    honest = halves.ask
    halves.ask = lambda site, data: None if site in gone and halves.driver.number >= 3 else honest(site, data)  # type: ignore[method-assign]
    return halves, halves.run()


def test_one_site_is_left_behind_only_where_every_owner_lets_it_be_shown(tmp_path: Path) -> None:
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
    assert {r.members for r in outcome.releases[3:]} == {("east", "north", "south")}


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
    with pytest.raises((PeerLost, SumBurnt)):
        short("four")
    assert made[-1].conductor.releases == []  # nothing was opened
    assert (
        len(ledger_of(east.node).charges()) <= before + 1
    )  # what was sent into the attempt with all four stayed closed


FLOORED = hospitals.TENSOR.replace("minimum_patients = 1", "minimum_patients = 20")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_of_eight_leave_together_and_two_do_not(tmp_path: Path) -> None:
    """Those who stay ask first how many patients have each code among them, and drop what is now of too few."""
    world = World(tmp_path, tuple(f"site-{c}" for c in "abcdefgh"), patients=12)
    with pytest.raises(PeerLost, match="waits for all who began"):
        lose(world, "two", 'lost = "group"\n', {"site-g", "site-h"})
    halves, outcome = lose(world, "three", 'lost = "group"\n', {"site-f", "site-g", "site-h"}, FLOORED)
    assert outcome.public.inner.stage == "end"
    assert halves.driver.counted == tuple(f"site-{c}" for c in "abcde")
    left = [e for e in read_events(halves.driver.folder / "events.jsonl") if e["event"] == "left"]
    assert left[0]["sites"] == ["site-f", "site-g", "site-h"]
    names, members = [r.step.name for r in outcome.releases], [len(r.members) for r in outcome.releases]
    at = members.index(5)
    assert names[0] == names[at] == SUPPORT
    assert names.count(SUPPORT) == 2
    assert members[at:] == [5] * len(members[at:])
    study = Study.read(tmp_path / "studies" / "three.toml")
    here = [
        ingest_once(s.node, study, tmp_path / "own" / n).site
        for n, s in world.sites.items()
        if n in halves.driver.counted
    ]
    whole = [ingest_once(s.node, study, tmp_path / "own" / n).site for n, s in world.sites.items()]
    now, then = ([c >= 20 for c in MinimumPatients(federated(study).method, 20).counted(x)] for x in (here, whole))
    assert [k.tolist() for k in outcome.public.kept] == [k.tolist() for k in now]
    assert sum(k.sum() for k in now) < sum(k.sum() for k in then)  # some codes are of too few patients now
