"""Between the halves signs of life come faster than over a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.attacks.hostile_world import World
from tests.ingested import reading_once

from polyclinic.node.enrolment.folders import SiteFolder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three hospitals for several files of tests, each with studies of other names; two of them may be a sum."""
    made = World(tmp_path_factory.mktemp("shared"))
    for site in made.sites.values():
        site.node_path.write_text(site.node_path.read_text().replace("min_sites = 3", "min_sites = 2"))
    made.sites = {n: SiteFolder.of(s.node_path) for n, s in made.sites.items()}
    return made


@pytest.fixture(autouse=True)
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.node.coordinator import site_registry as attendance

    monkeypatch.setattr(attendance, "EVERY", 0.1)
    monkeypatch.setattr(attendance, "GRACE", 3.0)


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The same records are read once for all studies of them."""
    with reading_once():
        yield
