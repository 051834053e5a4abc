"""Between the halves signs of life come faster than over a network."""

from __future__ import annotations

import pytest
from tests.attacks.hostile_world import World
from tests.ingested import fast_pulse, read_once

from polyclinic.node.enrolment.folders import SiteFolder

__all__ = ["fast_pulse", "read_once", "shared"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three hospitals for several files of tests, each with studies of other names; two of them may be a sum."""
    made = World(tmp_path_factory.mktemp("shared"))
    for site in made.sites.values():
        site.node_path.write_text(site.node_path.read_text().replace("min_sites = 3", "min_sites = 2"))
    made.sites = {n: SiteFolder.of(s.node_path) for n, s in made.sites.items()}
    return made
