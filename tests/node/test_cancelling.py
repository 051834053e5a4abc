"""A study is cancelled: every site deletes its data, closes its reservation, and never takes it up again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.test_flare_halves import TRIP, World
from tests.node.test_flare_retention import patients_left, words_left
from tests.waiting import wait_until

from polyclinic.cli import main
from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.node.admission.membership import pending, studies
from polyclinic.node.admission.retention import sweep
from polyclinic.node.enrolment.folders import read_events, read_json, write_json
from polyclinic.node.flare import jobs
from polyclinic.node.flare.carry import CANCEL, lead
from polyclinic.node.flare.site_service import in_fault
from polyclinic.node.messages import EndStudy, Refused, read_answer, seal_ask, tree_of
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.wire.sealed import Identity

PRIVATE = 'name = "dpem"\nrank = 2\nrounds = 3\naggregation = "masked"'


def closed(world: World, order: Any, name: str) -> list[str]:
    """Why a site's ledger says that it closed the order."""
    entries = ledger_of(world.sites[name].node).entries
    return [e.body.reason for e in entries if e.kind == "close" and e.body.order == order.digest]  # type: ignore[union-attr]


def settled(world: World, name: str) -> None:
    """Wait until a site has done everything that it was asked to do."""
    world.desks[name]._pool.submit(lambda: None).result(60)


def leg(world: World, order: Any, before: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """One leg of a study, as FLARE's controller runs it."""

    def carried(driver: Any) -> Any:
        from polyclinic.node.flare.carry import carry

        def stopped() -> bool:
            before()
            return False

        return carry(driver, world.ask, stopped)

    lead(world.coordinator, order, {"job": "1"}, carried)
    return read_json(world.coordinator.run(order.id) / "status.json")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_running_study_is_cancelled_in_the_middle(world: World) -> None:
    order = world.order(world.study("stops", TRIP.format(500, "masked")))
    world.open(order)
    run = world.coordinator.run(order.id)

    def at_round_two() -> None:
        if any(e.get("round") == 2 for e in read_events(run / "progress.jsonl")):
            (run / CANCEL).touch()

    status = leg(world, order, at_round_two)
    assert (status["state"], status["told"]) == ("cancelled", ["east", "north", "south"])
    for name, site in world.sites.items():
        settled(world, name)
        assert patients_left(site.study(order.digest)) == []
        assert words_left(site) == []
        assert closed(world, order, name) == ["cancelled"]
        assert order.digest not in ledger_of(site.node).tally.open
        assert ledger_of(site.node).verify() == ()
        assert [s["state"] for s in studies(site)] == ["cancelled"]
        assert in_fault(read_events(site.events)) == {}, "the hospital is not in fault"


def test_what_a_private_study_did_not_spend_is_free_again(world: World) -> None:
    order = world.order(world.study("paid", PRIVATE, tail="[privacy]\nepsilon = 4.0\n"))
    world.open(order)
    for name in world.sites:
        world.desks[name].loaded.result(60)
    before = ledger_of(world.sites["north"].node)
    assert order.digest in before.tally.open, "set aside at the start"
    run = world.coordinator.run(order.id)
    (run / CANCEL).touch()
    assert leg(world, order)["told"] == ["east", "north", "south"]
    after = ledger_of(world.sites["north"].node)
    assert order.digest not in after.tally.open
    assert not after.charges(study="paid")


def test_a_site_whose_owner_has_not_decided_is_told_too(world: World) -> None:
    site = world.sites["north"]
    site.node.keys.pop("studies", None)
    order = world.order(world.study("asked", TRIP.format(3, "plain")))
    world.open(order)
    assert wait_until(lambda: world.desks["north"].study.stage == "waiting", 60)
    run = world.coordinator.run(order.id)
    (run / CANCEL).touch()
    assert "north" in leg(world, order)["told"]
    world.desks["north"].loaded.result(60)
    settled(world, "north")
    assert [s["state"] for s in studies(site)] == ["cancelled"]
    assert pending(site) == []
    assert patients_left(site.study(order.digest)) == []


def test_a_cancelled_study_is_not_taken_up_again(world: World) -> None:
    """Also not by a new process, and not if the coordinator forgets that it cancelled it."""
    order = world.order(world.study("over", TRIP.format(3, "plain")))
    world.open(order)
    run = world.coordinator.run(order.id)
    (run / CANCEL).touch()
    leg(world, order)
    with pytest.raises(ConfigError, match="was cancelled"):
        jobs.follow(world.coordinator, order, lambda e: None)
    (run / CANCEL).unlink()
    world.open(order)
    status = leg(world, order)
    assert status["state"] == "stopped"
    assert "closed: the study has ended there" in str(status["faults"])
    for site in world.sites.values():
        assert words_left(site) == []
        assert in_fault(read_events(site.events)) == {}


def test_data_of_a_process_that_was_killed_after_the_word_go_at_the_next_start(world: World) -> None:
    order = world.order(world.study("killed", TRIP.format(3, "plain")))
    world.open(order)
    site = world.sites["south"]
    world.desks["south"].loaded.result(60)
    ledger_of(site.node).close(order.digest, "cancelled")  # and then the process died
    assert words_left(site)
    assert sweep(site) > 0
    assert words_left(site) == []


@pytest.mark.parametrize("signer", ["north", "stranger"])
def test_only_the_coordinator_cancels(world: World, signer: str) -> None:
    order = world.order(world.study("forged", TRIP.format(3, "plain")))
    world.open(order)
    desk, site = world.desks["south"], world.sites["south"]
    desk.loaded.result(60)
    key = world.sites["north"].identity() if signer == "north" else Identity.generate("coordinator")
    forged = seal_ask(key, order.digest, "south", "x", tree_of(EndStudy(cancelled=True)))
    assert read_answer(desk.answer(forged)) == Refused("malformed")
    real = world.coordinator.identity()
    for_another = seal_ask(real, order.digest, "north", "x", tree_of(EndStudy(cancelled=True)))
    of_another = seal_ask(real, "0" * 64, "south", "x", tree_of(EndStudy(cancelled=True)))
    not_a_word = seal_ask(real, order.digest, "south", "x", {**tree_of(EndStudy()), "cancelled": 1})
    for data in (for_another, of_another, not_a_word):
        assert read_answer(desk.answer(data)) == Refused("malformed")
    assert desk.study.stage == "ready"
    assert closed(world, order, "south") == []
    assert words_left(site)


def test_a_study_that_has_finished_is_not_cancelled_at_a_site(world: World) -> None:
    order = world.order(world.study("done", TRIP.format(1, "plain")))
    world.open(order)
    leg(world, order)
    ask = seal_ask(world.coordinator.identity(), order.digest, "south", "x", tree_of(EndStudy(cancelled=True)))
    assert read_answer(world.desks["south"].answer(ask)) == Refused("closed")
    assert closed(world, order, "south") == ["finished"]
    assert (world.sites["south"].study(order.digest) / "outcome.npz").exists()


def test_many_words_at_once_cancel_once(world: World) -> None:
    order = world.order(world.study("often", TRIP.format(3, "plain")))
    world.open(order)
    desk = world.desks["south"]
    desk.loaded.result(60)
    key = world.coordinator.identity()
    asks = [seal_ask(key, order.digest, "south", f"x{n}", tree_of(EndStudy(cancelled=True))) for n in range(8)]
    threads = [threading.Thread(target=desk.answer, args=(a,)) for a in asks]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert closed(world, order, "south") == ["cancelled"]
    assert ledger_of(world.sites["south"].node).verify() == ()


def test_a_study_that_no_site_has_seen_is_cancelled_and_removed(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = world.order(world.study("signed", TRIP.format(3, "plain")))
    home, run = world.coordinator.path, world.coordinator.run(order.id)
    with pytest.raises(SystemExit, match="2"):
        main(["coordinator", "remove", str(home), order.id, "--yes"])
    assert "coordinator cancel" in capsys.readouterr().err
    for _ in range(2):  # again changes nothing
        with pytest.raises(SystemExit, match="0"):
            main(["coordinator", "cancel", str(home), order.id, "--yes", "--json"])
        assert '"not_told": []' in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["coordinator", "status", str(home)])
    said = capsys.readouterr().out
    assert f"study {order.id}: cancelled" in said
    assert "coordinator remove" in said
    with pytest.raises(SystemExit, match="0"):
        main(["coordinator", "remove", str(home), order.id, "--yes"])
    assert not run.exists()
    assert read_events(world.coordinator.events)[-1]["order"] == order.digest


def test_a_site_that_is_away_is_named_and_told_later(world: World) -> None:
    order = world.order(world.study("away", TRIP.format(3, "plain")))
    world.open(order)
    world.silent.add("east")
    run = world.coordinator.run(order.id)
    (run / CANCEL).touch()
    lead_ = world.lead(order)
    driver, now = lead_.driver, 0.0
    driver.cancel()
    while driver.told is None:
        for s in driver.due(now):
            driver.heard(s, world.ask(s.site, s.data, 1.0), now)
        now += 0.5
    assert driver.told == ["north", "south"]
    write_json(run / "status.json", {"study": order.id, "state": "cancelled", "told": driver.told})
    value = jobs.cancel(world.coordinator, order)
    assert value["not_told"] == ["east"]
    assert closed(world, order, "east") == []
    world.silent.clear()
    assert "east" in leg(world, order)["told"]
    assert jobs.cancel(world.coordinator, order)["not_told"] == []


def test_a_run_folder_that_is_a_link_is_not_removed(world: World, tmp_path: Path) -> None:
    order = world.order(world.study("linked", TRIP.format(3, "plain")))
    run, elsewhere = world.coordinator.run(order.id), tmp_path / "elsewhere"
    run.rename(elsewhere)
    run.symlink_to(elsewhere)
    write_json(run / "status.json", {"study": order.id, "state": "finished"})
    with pytest.raises(ConfigError, match="is a link"):
        jobs.remove(world.coordinator, order)
    assert (elsewhere / "order.json").exists()


def test_what_is_refused_because_of_the_closing_line_is_no_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the line in the ledger and the site's own note, the work that goes on may find the line."""
    order = world.order(world.study("between", TRIP.format(3, "plain")))
    world.open(order)
    study = world.desks["south"].study
    world.desks["south"].loaded.result(60)
    assert study.watch is not None
    close = study.watch.ledger.close

    def slow(*args: Any, **more: Any) -> Any:
        line = close(*args, **more)
        study.refuse(PolicyRefusal("the order is closed in this book"))
        return line

    monkeypatch.setattr(study.watch.ledger, "close", slow)
    ask = seal_ask(world.coordinator.identity(), order.digest, "south", "x", tree_of(EndStudy(cancelled=True)))
    assert read_answer(world.desks["south"].answer(ask)) == Refused("closed")
    assert in_fault(read_events(world.sites["south"].events)) == {}
