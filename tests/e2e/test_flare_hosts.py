"""The deployment guide, run: a coordinator and three hospitals on hosts of their own, behind the guide's firewall table.

Each host is a network namespace with its own address, loopback and disk on a switch; what runs on it are the commands of
docs/howto/deployment.md and network.md, word for word (``guide`` fails for a line that is not there).
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from polyclinic.node.signed_study import StudyOrder

pytest.importorskip("nvflare")

import hospitals
from tests.e2e.flare_federation import ROOT, same
from tests.e2e.flare_hosts import HUB, PORTS, PROXY_PORT, Hospitals, firewall, guide, missing, network
from tests.waiting import wait_until

REASON = missing()
FILTER = shutil.which("nft") is not None
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]
TRIP = 'name = "trip"\nrank = 4\ntol = 0\nrounds = {}\naggregation = "{}"'
MIXTURE = 'name = "gaussianmixture"\nn_components = 2\nrounds = 1\naggregation = "subspace"\nradius = 20.0'


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    """Four hosts (and a fifth for a proxy), firewalls up before anything is installed, joined by the guide's commands."""
    root = tmp_path_factory.mktemp("hosts")
    with network(root, ["hub", *hospitals.NAMES, "proxy"]) as hosts:
        hub = hosts["hub"]
        for name, host in hosts.items():  # the coordinator need not know its own name (NAT, a split name service)
            host.knows({HUB: hub.address} if name != "hub" else {})
        if FILTER:
            hub.firewall(firewall("coordinator"))
            for name in hospitals.NAMES:
                hosts[name].firewall(firewall("hospital", hub.address))
        made = Hospitals(hosts, root)
        try:
            made.join()
            yield made
        finally:
            made.stop()
        assert made.left_behind() == []
        assert made.keys_at_the_coordinator() == []


def _right(four: Hospitals, study: Any, order: StudyOrder, status: Any) -> None:
    """Finished with the model of one process; nobody paid twice, a secure sum that was cut costs one more attempt."""
    assert status["state"] == "finished", (status, four.events(order))
    reference = four.in_process(study)
    assert same(four.outcome(order).public, reference.public)
    cut = sum(e["event"] in ("aborted", "resumed") for e in four.events(order))
    for name in four.names:
        charges = four.charges(name, study.stem)
        paid = [(c.round, c.step, c.attempt) for c in charges]
        assert len(set(paid)) == len(paid), name
        assert {p[:2] for p in paid} == {(x.step.round, x.step.name) for x in reference.releases}, name
        assert len(paid) <= len(reference.releases) + cut, (name, cut)


def test_guides_commands_run_a_study_between_hosts(four: Hospitals) -> None:
    study = four.study("guide", TRIP.format(5, "plain"))
    order, status = four.submit(study)
    _right(four, study, order, status)
    said = four.hub.run("polyclinic coordinator status /srv/polyclinic")
    assert f"coordinator running ({HUB}:443)" in said
    assert "connected: east, north, south" in said
    line = guide(f"polyclinic report /srv/polyclinic/runs/{order.id}", **{order.id: "icu-1a2b3c4d"})
    four.hub.run(line)
    assert (four.coordinator.run(order.id) / "report.html").exists()
    said = four.at("north", guide("polyclinic site status --node node.toml"))
    assert f"north running; coordinator {HUB}:443 reachable" in said
    assert f"study {order.id}: finished" in said


@pytest.mark.skipif(not FILTER, reason="the command `nft` (nftables) is missing")
def test_firewall_table_is_enough_for_letters_between_sites(four: Hospitals) -> None:
    """Hospitals reach the coordinator's two ports and nothing else, nobody reaches a hospital, and the sums still close."""
    hub, (one, two, _) = four.hub, (four.hosts[n] for n in four.names)
    assert {p for a, p in hub.listening() if a == "0.0.0.0"} == set(PORTS)
    assert all(a == "127.0.0.1" for n in four.names for a, _ in four.hosts[n].listening())
    assert [p for p in (443, 8203, 8204) if one.reaches(hub.address, p)] == list(PORTS)
    inside = next(p for _, p in two.listening())
    assert not one.reaches(two.address, inside)
    assert not hub.reaches(two.address, inside)
    study = four.study("letters", MIXTURE, data=hospitals.FEATURES)
    order, status = four.submit(study)
    _right(four, study, order, status)


@pytest.mark.parametrize(("what", "seconds"), [("cable", 10), ("road", 100)])
def test_pulled_cable_costs_time_and_nothing_else(four: Hospitals, what: str, seconds: int) -> None:
    """Once the host sees it; once packets just vanish, for longer than FLARE would go on without a site (30 + 60 s)."""
    north = four.hosts["north"]
    back = []

    def pull() -> None:
        (north.cable if what == "cable" else north.road)(False)
        time.sleep(seconds)
        (north.cable if what == "cable" else north.road)(True)
        back.append(time.time())

    study = four.study(f"pulled-{what}", TRIP.format(14, "masked"), head="deadline = 200\n")
    try:
        order, status = four.submit(study, at_round=2, act=pull)
    finally:
        (north.cable if what == "cable" else north.road)(True)
    events = four.events(order)
    assert ("lost", "north") in {(e["event"], e.get("site")) for e in events}  # it was noticed
    _right(four, study, order, status)
    print(f"FIGURE {what} away for {seconds} s: finished {time.time() - back[0]:.0f} s after it was back")


def test_cable_that_stays_out_is_a_clean_stop_that_resumes(four: Hospitals) -> None:
    north = four.hosts["north"]
    study = four.study("unplugged", TRIP.format(14, "masked"), head="deadline = 12\n")
    try:
        order, status = four.submit(study, at_round=2, act=lambda: north.cable(False), code=5)
        assert status["state"] == "stopped"
        assert "coordinator resume" in status["hint"], status
        said = four.at("north", "polyclinic site status --node node.toml", code=5)
        assert "not reachable" in said
    finally:
        north.cable(True)
    line = guide(f"polyclinic coordinator resume /srv/polyclinic {order.id}", **{order.id: "icu-1a2b3c4d"})
    four.hub.run(line)
    _right(four, study, order, {"state": four.state(order)})


def test_services_come_back_by_themselves(four: Hospitals) -> None:
    """What the guide's systemd units run: in the foreground, until they are stopped."""
    guide("ExecStart=/opt/polyclinic/bin/polyclinic coordinator start /var/lib/polyclinic/hub --foreground")
    four.hub.run("polyclinic coordinator stop /srv/polyclinic")
    assert wait_until(lambda: not four.hub.pids()), four.hub.pids()
    begin = time.monotonic()
    service = four.hub.popen("polyclinic coordinator start /srv/polyclinic --foreground")
    drain = threading.Thread(target=service.communicate, daemon=True)
    drain.start()
    try:
        assert wait_until(lambda: (four.coordinator.pids / "server.json").exists())
        assert wait_until(lambda: four.status()["waiting_for"] == []), four.status()
        print(f"FIGURE all hospitals back {time.monotonic() - begin:.0f} s after the coordinator's service was started")
        assert four.hosts["south"].reaches(four.hub.address, 8204)
    finally:
        four.hub.run("polyclinic coordinator stop /srv/polyclinic")
        drain.join(15)
    assert service.poll() is not None
    four.hub.run("polyclinic coordinator start /srv/polyclinic")
    assert wait_until(lambda: four.status()["waiting_for"] == []), four.status()


def test_hospital_behind_a_proxy_takes_part(four: Hospitals) -> None:
    """South's only way out is CONNECT with a password, and it cannot even resolve the coordinator's name."""
    south, proxy = four.hosts["south"], four.hosts["proxy"]
    four.at("south", "polyclinic site stop --node node.toml")
    server = proxy.popen(f"{sys.executable} {ROOT}/tests/e2e/connect_proxy.py {PROXY_PORT} /srv/log jo:pass%20word")
    service = None
    try:
        south.shut_in(proxy if FILTER else None, four.hub)
        assert not south.reaches(four.hub.address, 443)
        said = four.at("south", "polyclinic site pin --node node.toml", typed="y\n", code=5)
        assert "does not know the name" in said
        south.env = {"https_proxy": f"http://jo:wrong@{proxy.address}:{PROXY_PORT}"}
        said = four.at("south", "polyclinic site pin --node node.toml", typed="y\n", code=5)
        assert "407" in said
        south.env = {"HTTPS_PROXY": f"http://jo:pass%2520word@{proxy.address}:{PROXY_PORT}"}  # gRPC reads no capitals
        four.at("south", "polyclinic site pin --node node.toml", typed="y\n")
        guide("ExecStart=/opt/polyclinic/bin/polyclinic site start --node node.toml --foreground")
        service = south.popen("polyclinic site start --node node.toml --foreground", cwd="/srv/polyclinic-site")
        assert wait_until(lambda: four.status()["waiting_for"] == []), four.status()
        assert "reachable" in four.at("south", "polyclinic site status --node node.toml")
        study = four.study("proxied", TRIP.format(3, "masked"))
        order, status = four.submit(study)
        _right(four, study, order, status)
        log = (proxy.disk / "log").read_text(encoding="utf-8")
        assert log.count(f"let through CONNECT {HUB}:443") >= 3  # status, FLARE's client, its worker
        assert f"let through CONNECT {HUB}:8204" in log
        assert f"refused CONNECT {HUB}:8204" in log
        four.at("south", "polyclinic site stop --node node.toml")
        assert wait_until(lambda: not south.pids()), south.pids()
    finally:
        for process in (server, service):
            if process is not None:
                process.kill()
                process.communicate()
