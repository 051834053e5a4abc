"""Faults between real processes, each a kill -9 by number: the right model or a clean stop, no charge lost or doubled.

That nothing is left after ``stop`` (processes, ports, files) is asserted wherever a federation ends (``running``).
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.node.signed_study import StudyOrder

pytest.importorskip("nvflare")

import hospitals
from tests.e2e.flare_federation import At, Federation, running, same
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

TRIP = 'name = "trip"\nrank = 4\ntol = 0\nrounds = {}\naggregation = "{}"'
PRIVATE = "[privacy]\nepsilon = 4.0\ndelta = 1e-6"


def _right(federation: Federation, study: Any, order: StudyOrder, status: Any, *, retries: bool = False) -> None:
    """The model of an undisturbed run, bit for bit, and every release paid once, over all attempts.

    With ``retries`` (subspace) what the masks of an attempt that was cut leak is paid, too; never one attempt twice, and
    never more attempts than the coordinator has begun.
    """
    assert status["state"] == "finished", (status, federation.events(order))
    reference, outcome = federation.in_process(study), federation.outcome(order)
    assert same(outcome.public, reference.public)
    assert [h.get("objective") for h in outcome.history] == [h.get("objective") for h in reference.history]
    for site in federation.sites.values():  # memberships stay, for their owner only; the checkpoint is gone
        kept = site.study(order.digest)
        assert (kept / "outcome.npz").stat().st_mode & 0o077 == 0
        assert not [p for p in kept.rglob("*") if p.suffix == ".ckpt" and p.name != "closed.ckpt"]
        assert not [p for p in kept.rglob(".*") if p.is_file()]
    events = federation.events(order)
    more = sum(e["event"] in ("aborted", "resumed") for e in events)
    for name in federation.names:
        charges = federation.charges(name, order.study["study"]["name"])
        paid = {(c.round, c.step, c.attempt) for c in charges}
        assert len(paid) == len(charges), name  # never twice
        assert {(r, s) for r, s, _ in paid} == {(x.step.round, x.step.name) for x in reference.releases}, (
            name
        )  # none lost
        assert len(charges) <= len(reference.releases) + (more if retries else 0), name


def test_killed_sites_come_back_in_the_same_job_and_pay_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run: a worker between charge and release, a whole site in the middle of a round, two sites at once.

    The coordinator gives a site that is back 25 s to take part again before it begins a new job. On a busy machine two
    Python processes need longer to start. So the limit is removed: sites come back in the same job by themselves.
    """
    from polyclinic.node.enrolment.folders import read_events
    from polyclinic.node.flare import jobs

    monkeypatch.setattr(jobs, "AWAY", float("inf"))

    study = federation.study("kill-sites", TRIP.format(26, "plain"))
    order = federation.order(study)
    found: list[str] = []
    thread = threading.Thread(target=_strike_between, args=(federation, order, "east", found))
    one, two = At(8, lambda: federation.restart("north")), At(17, lambda: federation.restart("east", "south"))
    thread.start()
    status = federation.follow(order, lambda e: (one(e), two(e)))  # type: ignore[arg-type, func-returns-value]
    thread.join()
    assert found, "no kill came between a charge and its release"
    assert one.done.is_set()
    assert two.done.is_set()
    _right(federation, study, order, status)
    events = federation.events(order)
    for name, site in federation.sites.items():
        mine = [e["event"] for e in read_events(site.events) if e.get("study") == order.id]
        assert mine.count("restored") >= (2 if name == "east" else 1), (name, mine)
    assert len([e for e in events if e["event"] == "leg"]) == 1  # no new job was needed


def test_killed_coordinator_resumes_to_the_same_model(federation: Federation) -> None:
    """While it is away an owner stops a site, orphans included. When it is back all old workers end by themselves."""
    import psutil

    from polyclinic.errors import PeerLost
    from polyclinic.node.enrolment.processes import alive, port_open, recorded
    from polyclinic.node.flare import coordinator_service as coordinator
    from polyclinic.node.flare import site_service as site

    study = federation.study("kill-coordinator", TRIP.format(20, "plain"))
    order = federation.order(study)
    orphans = {}
    ports = set()  # type: ignore[var-annotated]

    def act() -> None:
        for name, folder in federation.sites.items():
            (orphans[name],) = recorded(folder.pids, "worker-*.json")
            lines = psutil.Process(orphans[name].pid).net_connections("tcp")
            ports.update(c.laddr.port for c in lines if c.status == "LISTEN")
        federation.kill(*federation.server())

    with pytest.raises(PeerLost, match="server is gone"):
        federation.follow(order, At(3, act))
    assert not port_open("localhost", federation.port)
    assert alive(orphans["north"])
    assert orphans["north"].pid in site.stop(federation.sites["north"])["ended"]
    assert not alive(orphans["north"])
    coordinator.start(federation.coordinator)
    site.start(federation.sites["north"])
    status = federation.follow(order)
    _right(federation, study, order, status)
    assert wait_until(lambda: not any(alive(r) for r in orphans.values())), "old workers are still there"
    assert not [p for p in ports if port_open("localhost", p) and p not in federation.ports()]
    assert "resumed" in {e["event"] for e in federation.events(order)}


def _strike_between(federation: Federation, order: StudyOrder, name: str, found: list[str]) -> None:
    """Kill a site's worker when a charge is on disk and its release is not yet stored, so that nothing can have left."""
    from polyclinic.node.enrolment.folders import read_events
    from polyclinic.privacy.gate.owner_rules import ledger_of

    def ready() -> bool:  # before that, the worker that runs may be one of an earlier study
        return any(e.get("study") == order.id for e in read_events(federation.sites[name].events))

    if not wait_until(ready):
        return
    ledger = ledger_of(federation.sites[name].node)
    store = federation.sites[name].study(order.digest) / "releases"
    path = ledger.path
    assert path is not None

    def size() -> int:
        return path.stat().st_size if path.exists() else 0

    while not found:
        pid = wait_until(lambda: federation.worker(name))
        before, stored = size(), set(store.glob("*.npz"))
        if not pid or not wait_until(lambda before=before: size() != before, 90, every=0.0002):  # type: ignore[misc]
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # it goes no further while the store is read
            if set(store.glob("*.npz")) != stored:  # too late: wait for the next charge
                os.kill(pid, signal.SIGCONT)
                continue
        federation.kill(pid)
        wait_until(lambda pid=pid: federation.worker(name) != pid)  # type: ignore[misc]
        charges = ledger.charges(study=order.study["study"]["name"])
        if charges and not (store / f"{charges[-1].release}.npz").exists():
            found.append(str(charges[-1].release))  # else the new line was no charge: once more


@pytest.mark.slow
def test_killed_worker_under_masked_sums_costs_a_new_attempt(federation: Federation) -> None:
    study = federation.study("kill-masked", TRIP.format(20, "masked"))
    order = federation.order(study)
    status = federation.follow(order, At(2, lambda: federation.kill(federation.worker("north"))))
    _right(federation, study, order, status, retries=True)


@pytest.mark.slow
def test_killed_site_under_subspace_costs_a_new_attempt(federation: Federation) -> None:
    """There is no coordinator's sum: every node holds the state, and the attempt that was cut is aborted."""
    method = (
        'name = "gaussianmixture"\nn_components = 2\nrounds = 6\ntol = 0.0\naggregation = "subspace"\nradius = 20.0'
    )
    study = federation.study("kill-subspace", method, data=hospitals.FEATURES, head="deadline = 90\n")
    order = federation.order(study)
    strike = At(3, lambda: federation.restart("south"))
    status = federation.follow(order, strike)
    assert strike.done.is_set()
    _right(federation, study, order, status, retries=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
def test_kills_at_any_instant_end_in_the_right_model(federation: Federation, seed: int) -> None:
    """Masked TRIP while anybody may die at any time: a worker, a whole site, two sites, the coordinator."""
    from polyclinic.errors import PeerLost, PolyclinicError
    from polyclinic.node.flare import coordinator_service as coordinator
    from polyclinic.node.flare import site_service as site

    study = federation.study(f"any-instant-{seed}", TRIP.format(15, "masked"))
    order = federation.order(study)
    rng = np.random.default_rng(seed)
    stop = threading.Event()
    deaths: list[str] = []

    def angel() -> None:
        while not stop.wait(float(rng.uniform(0.5, 9.0))) and len(deaths) < 8:
            what = rng.choice(["worker", "site", "two sites", "coordinator"], p=[0.4, 0.3, 0.15, 0.15])
            names = [str(n) for n in rng.permutation(federation.names)]
            if what == "worker":
                federation.kill(*filter(None, [federation.worker(names[0])]))
            elif what in ("site", "two sites"):
                federation.restart(*names[: 1 if what == "site" else 2])
            else:
                federation.kill(*federation.server())
            deaths.append(str(what))

    thread = threading.Thread(target=angel)
    thread.start()
    status = {"state": "new"}
    try:
        for _ in range(12):
            try:
                status = federation.follow(order)
            except PolyclinicError as e:
                status = {"state": "stopped", "what": e.what}
            if status["state"] == "finished":
                break
            assert status["state"] == "stopped", (status, deaths, federation.events(order)[-10:])  # clean, resumable
            if not _alive(federation):
                with suppress(PeerLost):  # it may be killed while it starts
                    coordinator.start(federation.coordinator)
    finally:
        stop.set()
        thread.join()
        if not _alive(federation):
            coordinator.start(federation.coordinator)
        for name, folder in federation.sites.items():
            if site.status(folder)["state"] != "running":
                wait_until(lambda name=name: site.status(federation.sites[name])["state"] == "running", 5)  # type: ignore[misc]
    print(f"FIGURE killed: {deaths}; legs {sum(e['event'] == 'leg' for e in federation.events(order))}")
    assert deaths
    _right(federation, study, order, status, retries=True)


def _alive(federation: Federation) -> bool:
    from polyclinic.node.enrolment.processes import Recorded, alive

    return alive(Recorded.read(federation.coordinator.pids / "server.json"))


@pytest.mark.slow
def test_lost_site_without_quorum_is_a_clean_stop_that_resumes(federation: Federation) -> None:
    from polyclinic.node.flare import site_service as site

    study = federation.study("stop-clean", TRIP.format(40, "plain"), head="deadline = 15\n")
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: federation.kill(*federation.pids("south"))))
    assert status["state"] == "stopped"
    assert status["exit"] == 5
    site.start(federation.sites["south"])
    status = federation.follow(order)
    _right(federation, study, order, status)


@pytest.mark.slow
def test_lost_site_with_quorum_is_left_behind(federation: Federation) -> None:
    from polyclinic.node.flare import site_service as site

    study = federation.study("quorum", TRIP.format(40, "plain"), head="deadline = 60\nquorum = 2\n")
    order = federation.order(study)
    status = federation.follow(order, At(3, lambda: federation.kill(*federation.pids("south"))))
    assert status["state"] == "finished"
    assert len(federation.charges("south", "quorum")) < len(federation.charges("east", "quorum"))
    site.start(federation.sites["south"])


@pytest.mark.slow
def test_private_site_killed_between_charge_and_release_pays_once(tmp_path: Path) -> None:
    """With exact noise and formal privacy: the budget spent is that of an undisturbed run."""
    made = Federation(tmp_path)
    with running(made):
        method = 'name = "dpem"\nrank = 20\nrounds = 2\naggregation = "plain"'
        study = made.study("between", method, tail=PRIVATE, head="deadline = 120\n")
        order = made.order(study)
        found: list[str] = []
        thread = threading.Thread(target=_strike_between, args=(made, order, "east", found))
        thread.start()
        status = made.follow(order)
        thread.join()
        assert found, "no kill came between a charge and its release"
        assert status["state"] == "finished", (status, made.events(order))
        paid = {n: [(c.round, c.step, c.attempt) for c in made.charges(n, "between")] for n in made.names}
        assert all(len(set(p)) == len(p) for p in paid.values())
        assert paid["east"] == paid["north"] == paid["south"]
