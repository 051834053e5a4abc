"""What a site keeps after a study, and what its owner can erase (ATTACKS row 30)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.node.test_flare_halves import World
from tests.traces import files_with_patients

from polyclinic.cli import main
from polyclinic.node.admission.retention import seconds, sweep
from polyclinic.node.dossier.review import operating_system_user
from polyclinic.privacy.gate.owner_rules import ledger_of

TRIP = 'name = "trip"\nrank = 2\nrounds = 2\naggregation = "plain"'


def patients_left(home: Path) -> list[Path]:
    """Files of a study's folder that hold a patient's event, tensor, label, state or release."""
    held = [f for f in home.rglob("*") if f.is_file()]
    return [
        f for f in held if f.suffix in (".parquet", ".npz", ".part") or "private" in f.name or f.name == "state.ckpt"
    ]


def words_left(site: Any) -> list[Path]:
    """Files anywhere in a site's folder with a word of a patient."""
    return files_with_patients([site.node.home], site.node.name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_patients_data_go_when_a_study_ends_and_another_runs(world: World) -> None:
    for name in ("first", "second"):
        order = world.order(world.study(name, TRIP))
        world.open(order)
        world.lead(order).run()
        for site in world.sites.values():
            home = site.study(order.digest)
            assert [f.name for f in patients_left(home)] == ["outcome.npz"], "memberships, until their time is over"
            assert words_left(site) == []
            entries = ledger_of(site.node).entries
            assert [e.body.order for e in entries if e.kind == "close"][-1] == order.digest  # type: ignore[union-attr]
            assert site.pins.exists()
            assert (site.path / "identity.key").exists()
            assert ledger_of(site.node).verify() == ()


def test_owners_erase_results_and_a_study_and_the_book_says_so(world: World) -> None:
    order = world.order(world.study("first", TRIP))
    world.open(order)
    world.lead(order).run()
    site = world.sites["south"]
    outcome = site.study(order.digest) / "outcome.npz"
    assert outcome.exists()
    with pytest.raises(SystemExit, match="0"):
        main(["site", "erase", str(site.node_path), "--results", "--yes"])
    assert not outcome.exists()
    with pytest.raises(SystemExit, match="0"):
        main(["site", "erase", str(site.node_path), "--study", order.id, "--yes"])
    lines = [e.body for e in ledger_of(site.node).entries if e.kind == "erase"]
    user = operating_system_user()
    said = [(x.what, x.by) for x in lines]  # type: ignore[union-attr]
    assert said == [("results", user), ("study", user)]  # the account that typed it
    assert lines[0].files == 1  # type: ignore[union-attr]
    assert lines[1].order == order.digest  # type: ignore[union-attr]
    assert (site.path / "identity.key").exists()
    assert site.pins.exists()


def test_results_and_stopped_studies_go_after_their_time(world: World) -> None:
    order = world.order(world.study("first", TRIP))
    world.open(order)
    site = world.sites["north"]
    world.desks["north"].loaded.result(60)
    home = site.study(order.digest)
    assert patients_left(home), "a study that was admitted and stopped"
    assert words_left(site), "the search finds them where they are"
    now = max(p.stat().st_mtime for p in home.rglob("*"))
    assert sweep(site, now + seconds("13d")) == 0
    assert sweep(site, now + seconds("15d")) > 0
    assert not patients_left(home)
    assert os.listdir(home)
