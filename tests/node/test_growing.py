"""A network of three hospitals grows to four and shrinks to three again: exact and formal studies, willing or not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import hospitals
import pytest
from tests.enrolled import enrolled
from tests.node.test_flare_halves import TRIP, World

from polyclinic.config import Study
from polyclinic.errors import ConfigError, PeerLost
from polyclinic.node.enrolment.federation import sign_study
from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.refusals import SENTENCES

THREE, FOUR = ("east", "north", "south"), ("east", "north", "south", "west")
FORMAL = 'name = "dpem"\nrank = 2\nrounds = 1\naggregation = "masked"'


class Network(World):
    """Four enrolled hospitals; ``west`` may have signed that its part may be computed by subtraction."""

    def __init__(self, root: Path, willing: bool) -> None:
        os.umask(0o077)
        self.root, self.coordinator = root, CoordinatorFolder(root / "coordinator")
        self.desks, self.silent, self.never = {}, set(), threading.Event()
        hospitals.vocabulary(root / "studies")
        nodes = {n: hospitals.hospital(root / n, n, patients=25) for n in FOUR}
        if willing:
            text = nodes["west"].read_text()
            assert "[keys]\n" in text
            nodes["west"].write_text(text.replace("[keys]\n", "[keys]\nwilling = true\n"))
        self.sites = enrolled(self.coordinator, nodes, port=9101 + willing, admin_port=9103)

    def take(self, name: str, method: str, sites: tuple[str, ...], tail: str = "") -> str:
        """Run a study of some of the hospitals; "taken", or what the coordinator hears."""
        path = self.study(name, method, head="deadline = 120\n", tail=tail)
        order = sign_study(self.coordinator, Study.read(path), sites)
        assert order.sites == sites
        self.open(order)
        try:
            self.lead(order).run()
        except PeerLost as e:
            said = {s for s in SENTENCES.values() if any(s in f for f in e.faults)}
            return said.pop() if len(said) == 1 else str(e)
        return "taken"


@pytest.mark.parametrize("willing", [True, False], ids=["willing", "unwilling"])
@pytest.mark.parametrize("lists", [(THREE, FOUR), (FOUR, THREE)], ids=["3 to 4", "4 to 3"])
def test_a_hospital_joins_or_leaves(tmp_path: Path, lists: tuple[tuple[str, ...], ...], willing: bool) -> None:
    world = Network(tmp_path, willing)
    exact = TRIP.format(1, "masked")
    assert world.take("first", exact, lists[0]) == "taken"
    assert world.take("second", exact, lists[1]) == ("taken" if willing else SENTENCES["overlap"])
    assert world.take("again", exact, lists[0]) == "taken", "the list of the first study tells nothing new"
    privacy = "[privacy]\nepsilon = 4.0\ndelta = 1e-6\n"
    assert world.take("formal", FORMAL, lists[1], privacy) == "taken", "each sum has its own noise"


def test_sites_that_are_not_approved_cannot_be_chosen(tmp_path: Path) -> None:
    world = World(tmp_path)
    study = Study.read(world.study("some", TRIP.format(1, "masked")))
    with pytest.raises(ConfigError, match="not all of them can take part") as e:
        sign_study(world.coordinator, study, ("north", "west"))
    assert list(e.value.faults) == ["'west' is not approved"]
