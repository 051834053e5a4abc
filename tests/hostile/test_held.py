"""A coordinator killed while the sites hold more than it knows: their votes and the end are said again, not lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hospitals
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.ingested import ingest_once

from polyclinic.config import Study
from polyclinic.node.enrolment import federation as coordination
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.studies.registry import federated

METHOD = 'name = "trip"\nrank = 2\nrounds = 1\naggregation = "subspace"'


def held(halves: Halves) -> bool:
    """Every site knows the total of sum 1, and the coordinator has not written it down."""
    return halves.driver.number == 1 and all(s.mark.after is not None for s in halves.sites.values())


def one_closed(halves: Halves) -> bool:
    return any(s._last is not None for s in halves.sites.values())


def all_closed(halves: Halves) -> bool:
    return all(s._last is not None for s in halves.sites.values())


def run(halves: Halves, kill: Callable[[Halves], bool], *, sites: bool) -> Any:
    """To the end; the coordinator is killed the first time that ``kill`` holds after an answer, perhaps with all ``sites``."""
    now, killed = 0.0, False
    while halves.driver.outcome is None:
        for sent in halves.driver.due(now):
            halves.driver.heard(sent, halves.ask(sent.site, sent.data), now)
            if not killed and kill(halves):
                halves.driver, killed = halves.coordinator(), True
                halves.sites = {n: halves.born(n) for n in halves.sites} if sites else halves.sites
                break
        now += 0.05
    assert killed
    return halves.driver.outcome


@pytest.mark.parametrize(
    ("kill", "whom"), [(held, "alone"), (one_closed, "alone"), (all_closed, "alone"), (one_closed, "with-sites")]
)
def test_a_coordinator_killed_while_the_sites_hold_a_sum_goes_on(
    shared: World, kill: Callable[[Halves], bool], whom: str
) -> None:
    """A site whose process is new after the study ended there has read no data, and says that it has ended."""
    name = f"{kill.__name__.replace('_', '-')}-{whom}"
    path = hospitals.study(shared.root / "studies", name, METHOD, head="deadline = 60\n")
    order = coordination.sign_study(shared.coordinator, Study.read(path))
    outcome = run(Halves(shared, order), kill, sites=whom != "alone")
    study = Study.read(path)
    sites = [ingest_once(s.node, study, shared.root / "in-process" / n).site for n, s in shared.sites.items()]
    reference = Simulation(federated(study), sites).run().public
    assert wire.encode(wire.pack(outcome.public)) == wire.encode(wire.pack(reference))
    assert outcome.certified.sites == tuple(sorted(shared.sites))
