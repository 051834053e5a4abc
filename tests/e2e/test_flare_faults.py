"""Faults between real processes, each a kill -9 by number: the right model or a clean stop, no charge lost or doubled."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
sys.path.insert(0, str(Path(__file__).parent))

from flare_federation import At, Federation, running, same, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TRIP = 'name = "trip"\nrank = 4\nrounds = {}\naggregation = "{}"'
ROUNDS = 40


def _restart(federation, *names, after=0.5):
    """Kill whole sites now, start them again a moment later."""
    from polyclinic.engines.flare import site

    federation.kill(*(pid for n in names for pid in federation.pids(n)))

    def later():
        time.sleep(after)
        for n in names:
            site.start(federation.sites[n])

    threading.Thread(target=later).start()


def _right(federation, study, order, status):
    """The model of an undisturbed run, bit for bit, and every release paid once."""
    assert status["state"] == "finished", (status, federation.events(order))
    reference = federation.in_process(study)
    assert same(federation.outcome(order).public, reference.public)
    for name in federation.names:
        charges = federation.charges(name, order.study["study"]["name"])
        assert len(charges) == len(reference.releases), name
        assert len({(c.round, c.step, c.attempt) for c in charges}) == len(charges), name


def test_killed_site_comes_back_in_the_same_job(federation):
    study = federation.study("kill-site", TRIP.format(ROUNDS, "plain"))
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: _restart(federation, "north")))
    _right(federation, study, order, status)
    events = federation.events(order)
    states = [(e["event"], e["time"]) for e in events if e.get("site") == "north"]
    assert "lost" in {s for s, _ in states}
    print(f"FIGURE rejoined: {states}")
    assert len([e for e in events if e["event"] == "leg"]) == 1  # no new job was needed


def test_killed_coordinator_resumes_to_the_same_model(federation):
    import psutil

    from polyclinic.engines.flare import coordinator
    from polyclinic.engines.flare.processes import alive, recorded
    from polyclinic.errors import PeerLost

    study = federation.study("kill-coordinator", TRIP.format(ROUNDS, "plain"))
    order = federation.order(study)

    orphans = []

    def act():
        (server,) = recorded(federation.coordinator.pids, "server.json")
        orphans.extend(r for s in federation.sites.values() for r in recorded(s.pids, "worker-*.json"))
        children = [c.pid for c in psutil.Process(server.pid).children(recursive=True)]
        federation.kill(server.pid, *children)

    with pytest.raises(PeerLost, match="server is gone"):
        federation.follow(order, At(3, act))
    coordinator.start(federation.coordinator)
    back = time.monotonic()
    gone = threading.Event()

    def watch():
        if wait_until(lambda: not any(alive(r) for r in orphans), 30):
            gone.set()
            print(f"FIGURE old workers gone {time.monotonic() - back:.1f} s after the coordinator was back")

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = federation.follow(order)
    _right(federation, study, order, status)
    watcher.join()
    assert len(orphans) == 3
    assert gone.is_set()
    assert "resumed" in {e["event"] for e in federation.events(order)}


@pytest.mark.slow
def test_two_sites_killed_at_once(federation):
    study = federation.study("kill-two", TRIP.format(ROUNDS, "plain"))
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: _restart(federation, "east", "south")))
    _right(federation, study, order, status)


@pytest.mark.slow
def test_killed_worker_under_masked_sums_costs_a_new_attempt(federation):
    study = federation.study("kill-masked", TRIP.format(20, "masked"))
    order = federation.order(study)
    status = federation.follow(order, At(2, lambda: federation.kill(federation.pids("north")[0])))
    assert status["state"] == "finished", (status, federation.events(order))
    reference = federation.in_process(study)
    assert same(federation.outcome(order).public, reference.public)
    burnt = [e for e in federation.events(order) if e["event"] == "burnt"]
    for name in federation.names:
        charges = federation.charges(name, "kill-masked")
        paid = {(c.round, c.step, c.attempt) for c in charges}
        assert len(paid) == len(charges), name  # never twice for one attempt
        assert {(r, s) for r, s, _ in paid} == {(s.round, s.name) for s, _ in reference.releases}
        assert len(charges) <= len(reference.releases) + len(burnt)


@pytest.mark.slow
def test_killed_site_under_subspace_costs_a_new_attempt(federation):
    """There is no coordinator's sum: every node holds the state, and the attempt that was cut is burnt."""
    from flare_federation import hospitals

    method = (
        'name = "gaussianmixture"\nn_components = 2\nrounds = 6\ntol = 0.0\naggregation = "subspace"\nradius = 20.0'
    )
    study = federation.study("kill-subspace", method, data=hospitals.FEATURES, head="deadline = 90\n")
    order = federation.order(study)
    done = threading.Event()

    def strike(event):
        if event.get("kind") == "sum" and event["round"] >= 3 and not done.is_set():
            done.set()
            _restart(federation, "south")

    status = federation.follow(order, strike)
    assert done.is_set()
    assert status["state"] == "finished", (status, federation.events(order))
    reference = federation.in_process(study)
    assert same(federation.outcome(order).public, reference.public)
    for name in federation.names:
        charges = federation.charges(name, "kill-subspace")
        paid = {(c.round, c.step, c.attempt) for c in charges}
        assert len(paid) == len(charges), name
        assert {(r, s) for r, s, _ in paid} == {(s.round, s.name) for s, _ in reference.releases}


@pytest.mark.slow
def test_lost_site_without_quorum_is_a_clean_stop_that_resumes(federation):
    from polyclinic.engines.flare import site

    study = federation.study("stop-clean", TRIP.format(ROUNDS, "plain"), head="deadline = 15\n")
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: federation.kill(*federation.pids("south"))))
    assert status["state"] == "stopped"
    assert status["exit"] == 5
    site.start(federation.sites["south"])
    status = federation.follow(order)
    _right(federation, study, order, status)


@pytest.mark.slow
def test_lost_site_with_quorum_is_left_behind(federation):
    from polyclinic.engines.flare import site

    study = federation.study("quorum", TRIP.format(ROUNDS, "plain"), head="deadline = 60\nquorum = 2\n")
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: federation.kill(*federation.pids("south"))))
    assert status["state"] == "finished"
    assert len(federation.charges("south", "quorum")) < len(federation.charges("east", "quorum"))
    site.start(federation.sites["south"])


@pytest.mark.slow
def test_site_killed_between_charge_and_release_pays_once(tmp_path):
    """Exact noise takes a while to draw: the ledger's new line tells when the charge is on disk and nothing has left."""
    made = Federation(tmp_path)
    with running(made):
        method = 'name = "dpem"\nrank = 40\nrounds = 2\naggregation = "plain"'
        study = made.study("between", method, tail="[privacy]\nepsilon = 4.0\ndelta = 1e-6", head="deadline = 120\n")
        order = made.order(study)
        ledger = made.sites["east"].node.path("east.ledger.jsonl")

        def strike():
            assert wait_until(lambda: ledger.exists() and len(ledger.read_bytes().splitlines()) >= 2, 120)
            made.kill(made.pids("east")[0])

        thread = threading.Thread(target=strike)
        thread.start()
        status = made.follow(order)
        thread.join()
        assert status["state"] == "finished", (status, made.events(order))
        for name in made.names:
            charges = made.charges(name, "between")
            assert len({(c.round, c.step, c.attempt) for c in charges}) == len(charges), name
        assert len(made.charges("east", "between")) == len(made.charges("north", "between"))


def test_stop_leaves_no_process_no_port_and_no_stray_file(tmp_path):
    import psutil

    from polyclinic.engines.flare import coordinator, site
    from polyclinic.engines.flare.processes import port_open, recorded
    from polyclinic.errors import PeerLost

    made = Federation(tmp_path)
    made.start()
    try:
        study = made.study("stopped", TRIP.format(400, "plain"))
        order = made.order(study)
        seen = threading.Event()

        def run():
            with pytest.raises(PeerLost):
                made.follow(order, At(2, seen.set))

        thread = threading.Thread(target=run)
        thread.start()
        assert seen.wait(120)
        # the coordinator dies; the sites' owners can still stop, workers included
        (server,) = recorded(made.coordinator.pids, "server.json")
        made.kill(server.pid, *[c.pid for c in psutil.Process(server.pid).children(recursive=True)])
        thread.join(60)
    except Exception:
        made.stop()
        raise
    for folder in made.sites.values():
        ended = site.stop(folder)["ended"]
        assert ended
    coordinator.stop(made.coordinator)
    assert wait_until(lambda: not made.processes(), 15), made.processes()
    assert not port_open("localhost", made.port)
    assert not port_open("localhost", made.admin_port)
    for workspace in (made.coordinator.server, *(s.workspace for s in made.sites.values())):
        left = {p.name for p in workspace.iterdir() if p.is_dir()}
        assert left <= {"startup", "local", "transfer"}, left
    assert not [p for p in made.root.rglob("*") if p.is_file() and p.stat().st_mode & 0o077 and "site" in p.parts]
