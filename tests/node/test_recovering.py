"""Faults that recover by themselves: a login that fails, a database that is away, a coordinator that did not run."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.node.monitor.test_monitor import GOOD
from tests.node.test_flare_halves import TRIP, World
from tests.waiting import wait_until

from polyclinic.errors import DataError
from polyclinic.node.admission import admission
from polyclinic.node.enrolment.folders import read_events
from polyclinic.node.flare.coordinator_service import _waiting
from polyclinic.node.monitor.serve import _news
from polyclinic.node.refusals import why_of
from polyclinic.records.databases.engine import DataAway
from polyclinic.records.ingest import ingest

LOGIN = """
import os
import sys
from pathlib import Path
from polyclinic.node.flare.serve import again
tries = Path(sys.argv[1])
def client(times):
    tries.write_text(tries.read_text() + f"{os.getpid()} ")
    if len(tries.read_text().split()) < times:
        raise RuntimeError("Login failed.")
again(client, pause=0.0)(times=3)
"""


def test_a_client_whose_login_fails_tries_again_in_the_same_process(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(LOGIN)
    (tmp_path / "tries").write_text("")
    process = subprocess.Popen([sys.executable, tmp_path / "client.py", tmp_path / "tries"], stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert (tmp_path / "tries").read_text().split() == [str(process.pid)] * 3, "its recorded number stays right"
    assert said.count(b"RuntimeError: Login failed.. The client tries again") == 2


def test_a_database_that_comes_back_costs_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of one site are away when the study begins, and come back."""
    world = World(tmp_path)
    there = threading.Event()

    def reading(node: Any, *args: Any, **more: Any) -> Any:
        if node.name == "north" and not there.is_set():
            raise DataAway("site 'north': the database cannot be read", faults=["connection refused"])
        return ingest(node, *args, **more)

    monkeypatch.setattr(admission, "ingest", reading)
    monkeypatch.setattr(admission, "AGAIN", 0.1)
    path = world.study("away", TRIP.format(2, "masked"))
    order = world.order(path)
    world.open(order)
    lead, run = world.lead(order), world.coordinator.run(order.id)
    seen: list[dict[str, str]] = []

    def stopped() -> bool:
        if not there.is_set() and (away := _waiting(run, True)):
            seen.append(away)
            there.set()
        return False

    lead.stopped = stopped
    lead.run()
    assert list(seen[0]) == ["north"], "the coordinator reads which site waits for its database"
    assert _waiting(run, True) == {}
    assert [e["event"] for e in read_events(world.sites["north"].events)].count("data away") == 1
    assert not any(e["event"] == "refused" for e in read_events(lead.events))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', DataAway),
        ("FATAL: the database system is starting up", DataAway),
        ("FATAL: terminating connection due to administrator command", DataAway),
        ('FATAL: password authentication failed for user "reader"', DataError),
        ('permission denied for table "person"', DataError),
    ],
)
def test_only_a_database_that_does_not_answer_is_away(text: str, kind: type[DataError]) -> None:
    from polyclinic.records.databases.drivers import AWAY

    error = (DataAway if AWAY.search(text) else DataError)("the database cannot be read", faults=[text])
    assert type(error) is kind
    assert why_of(error) == ("away" if kind is DataAway else "declined")


def test_the_time_in_which_the_coordinator_did_not_run_is_no_silence(tmp_path: Path) -> None:
    world = World(tmp_path)
    order = world.order(world.study("asleep", TRIP.format(1, "plain")))
    lead = world.lead(order)
    driver = lead.driver
    world.open(order)

    def carry(now: float) -> None:
        for s in driver.due(now):
            driver.heard(s, world.ask(s.site, s.data, 1.0), now)

    now = 100.0
    for _ in range(400):
        carry(now := now + 0.05)
        if len(driver.ready()) == 3:
            break
        wait_until(lambda: all(d.loaded.done() for d in world.desks.values()), 60)
    assert len(driver.ready()) == 3
    driver.due(now + 60.0)  # a minute without processor
    (stalled,) = [e for e in read_events(lead.events) if e["event"] in ("stalled", "lost")]
    assert stalled["reasons"] == ["the coordinator itself did not run for 60 s"]
    for k in range(1, 9):  # and sites that are silent together while it runs: it says so
        driver.due(now + 60.0 + k)
    said = [e for e in read_events(lead.events) if e["event"] == "stalled"]
    assert "all sites fell silent at once" in said[-1]["reasons"][0]


def test_notify_names_what_went_wrong() -> None:
    down = replace(GOOD, process=False, state="stopped")
    away = replace(GOOD, accepted=False, sentences=("hub:443 is not reachable",))
    data = replace(GOOD, state="data away", sentences=("the database is away",))
    for snapshot, event in ((down, "node down"), (away, "coordinator away"), (data, "data away")):
        events = [n["event"] for n in _news(snapshot)]
        assert events == ["owner is asked", event]
    assert [n["event"] for n in _news(GOOD)] == ["owner is asked"]
