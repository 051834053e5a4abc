"""The courier as it is used: every hospital, the coordinator and a hostile carrier are processes of their own; no socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")  # its enrolment makes the keys' certificates

import hospitals
from tests.e2e.courier_hosts import Hosts, told
from tests.e2e.flare_federation import same
from tests.waiting import wait_until

from polyclinic.privacy.gate.owner_rules import ledger_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

PRIVACY = "[privacy]\nepsilon = 4.0\ndelta = 1e-6\n"
STUDIES = {
    "trip": ('name = "trip"\nrank = 3\nrounds = 3\naggregation = "masked"', ""),
    "dpem": ('name = "dpem"\nrank = 3\nrounds = 2\naggregation = "masked"', PRIVACY),
}


def _study(hosts: Hosts, kind: str, seed: int) -> tuple[str, Path]:
    name = f"{kind}-{seed}-MARKERSTUDY"
    method, tail = STUDIES[kind]
    return name, hosts.study(name, method, tail)


def _checked(hosts: Hosts, kind: str, name: str, path: Path, said: tuple[int, dict[str, Any], str]) -> None:
    code, value, trouble = said
    assert code == 0, (code, value, trouble)
    order = hosts.order(value["study"])
    reference = hosts.in_process(path, noise=kind == "dpem")
    assert same(hosts.outcome(order).public, reference.public)
    for s in hosts.sites.values():  # each release was paid for once, whatever came twice
        charged = ledger_of(s.node).charges(study=name)
        assert len({(c.number, c.release) for c in charged}) == len(reference.releases)
    lying = hosts.lying()
    assert len(lying) > 20
    text = b"".join(p.read_bytes() for p in lying)
    for marker in (b"MARKERSTUDY", b"DR00", b"diagnosis", b"drug", b"north-"):
        assert marker not in text, marker
    assert all("MARKER" not in p.name for p in lying)
    changed = set(json.loads((hosts.root / "changed.json").read_text()))
    assert hosts.refused(order) <= changed  # nothing honest was refused
    assert changed - hosts.refused(order) <= {p.name for p in lying}, "a changed file was taken"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["trip", "dpem"])
def test_a_hostile_carrier_between_processes_changes_no_bit(tmp_path: Path, kind: str, seed: int) -> None:
    hosts = Hosts(tmp_path)
    name, path = _study(hosts, kind, seed)
    with hosts.carried(seed, 0.2, change=0.05):
        said = hosts.ended(hosts.submit(path))
    faults = json.loads((hosts.root / "carrier.json").read_text())
    assert all(n > 0 for n in faults.values()), faults
    _checked(hosts, kind, name, path, said)
    print(faults, "changed:", len(json.loads((hosts.root / "changed.json").read_text())))


@pytest.mark.timeout(900)
def test_letters_between_sites_come_through_too(tmp_path: Path) -> None:
    """``subspace``: no coordinator adds; what sites write to each other is sent again until its receipt comes.

    A sum takes tens of letters one after the other, so the carrier does less harm here: 5 % of each.
    """
    hosts = Hosts(tmp_path)
    method = 'name = "gaussianmixture"\nn_components = 2\nrounds = 1\naggregation = "subspace"\nradius = 20.0'
    path = hosts.study("subspace-MARKERSTUDY", method, data=hospitals.FEATURES)
    with hosts.carried(1, 0.05, change=0.01):
        code, value, trouble = hosts.ended(hosts.submit(path), 800)
    assert code == 0, (value, trouble)
    order = hosts.order(value["study"])
    found, reference = hosts.outcome(order).public, hosts.in_process(path, noise=False).public
    assert same(found, reference)
    posts = [p for p in hosts.lying() if p.suffix == ".pcf" and "coordinator" not in p.name]
    assert len(posts) > 50, "sites wrote to each other"
    print(len(posts), "letters and receipts")


@pytest.mark.parametrize("kind", ["trip", "dpem"])
def test_a_site_is_awaited_killed_and_started_again(tmp_path: Path, kind: str) -> None:
    hosts = Hosts(tmp_path)
    name, path = _study(hosts, kind, 4)
    home, north = hosts.coordinator.path, hosts.sites["north"]

    def awaited(who: set[str]) -> bool:
        code, text = told("courier", "status", home, "--json")
        studies = json.loads(text)["studies"] if code in (0, 5) else []
        return code == 5 and who <= set(studies[0].get("awaited", {}))

    with hosts.carried(4, 0.1, start=False):
        submitted = hosts.submit(path)
        assert wait_until(lambda: awaited({"east", "north", "south"}))
        assert "the courier is not running" in told("courier", "status", "--node", north.node_path)[1]
        for name_ in hosts.sites:
            hosts.start(name_)
        (run,) = (home / "runs").iterdir()
        assert wait_until(lambda: (run / "state.ckpt").exists() or submitted.poll() is not None)
        assert submitted.poll() is None, hosts.ended(submitted)
        hosts.kill("north")
        assert wait_until(lambda: awaited({"north"}))
        code, text = told("courier", "status", "--node", north.node_path)
        assert code == 0
        assert "the courier is not running" in text
        assert "card has not come" not in text
        hosts.start("north")
        assert wait_until(lambda: "is at work" in told("courier", "status", "--node", north.node_path)[1])
        said = hosts.ended(submitted)
    _checked(hosts, kind, name, path, said)
