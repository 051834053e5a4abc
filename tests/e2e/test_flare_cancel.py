"""`coordinator cancel`, `coordinator remove` and `site forget` between processes, while a study runs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.flare_federation import Federation
from tests.traces import files_with_patients
from tests.waiting import wait_until

from polyclinic.node.enrolment.folders import SiteFolder, read_events
from polyclinic.node.flare import site_service as site
from polyclinic.privacy.gate.owner_rules import ledger_of

pytestmark = pytest.mark.e2e
LONG = 'name = "trip"\nrank = 3\ntol = 0\nrounds = 20000\naggregation = "masked"'


def command(*arguments: object) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "polyclinic.cli", *map(str, arguments), "--json"], capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {"error": done.stderr}


def begun(federation: Federation, order: Any, rounds: int = 3) -> threading.Thread:
    """Follow the study in a thread, until it has taken some rounds."""
    progress = federation.coordinator.run(order.id) / "progress.jsonl"
    thread = threading.Thread(target=federation.follow, args=(order,), daemon=True)
    thread.start()
    assert wait_until(lambda: len(read_events(progress)) > rounds, 300)
    return thread


def nothing_left(federation: Federation, name: str, order: Any, word: str = "cancelled") -> bool:
    """Whether the ledger has closed the study once, with this word, and nothing of its patients is in its folder."""
    folder = federation.sites[name]
    home = folder.study(order.digest)
    closed = [e.body for e in ledger_of(folder.node).entries if e.kind == "close"]
    reasons = [b.reason for b in closed if b.order == order.digest]  # type: ignore[union-attr]
    left = [p for pattern in ("data", "releases", "*.ckpt", "*.part") for p in home.glob(pattern)]
    return reasons == [word] and not left


def test_a_study_is_cancelled_while_it_runs_and_its_folder_is_removed(federation: Federation) -> None:
    home = federation.coordinator.path
    order = federation.order(federation.study("cancel-running", LONG))
    following = begun(federation, order)
    assert all((f.study(order.digest) / "data").exists() for f in federation.sites.values())
    assert command("coordinator", "remove", home, order.id, "--yes")[0] == 2, "it runs"
    code, value = command("coordinator", "cancel", home, order.id, "--yes")
    assert (code, value["told"], value["not_told"]) == (0, ["east", "north", "south"], [])
    following.join(600)
    assert not following.is_alive(), "whoever follows the study learns that it is over"
    for name, folder in federation.sites.items():
        assert wait_until(lambda n=name: nothing_left(federation, n, order), 300), name  # type: ignore[misc]
        assert not files_with_patients([folder.node.home], name)
        assert site.status(folder)["exit"] == 0, site.status(folder)
    assert command("coordinator", "resume", home, order.id)[0] == 2
    code, value = command("coordinator", "remove", home, order.id, "--yes")
    assert (code, value["removed"]) == (0, True)
    assert not federation.coordinator.run(order.id).exists()
    after = federation.order(federation.study("after-cancel", LONG.replace("20000", "2")))
    assert federation.follow(after)["state"] == "finished"


def test_a_stopped_study_that_waits_for_a_site_is_cancelled(federation: Federation) -> None:
    home = federation.coordinator.path
    order = federation.order(federation.study("cancel-stopped", LONG, head="deadline = 15\n"))
    following = begun(federation, order)
    federation.kill(*federation.pids("south"))
    following.join(600)
    assert not following.is_alive()
    code, value = command("coordinator", "cancel", home, order.id, "--yes")
    assert code == 5
    assert (value["told"], value["not_told"]) == (["east", "north"], ["south"])
    for name in value["told"]:
        assert wait_until(lambda n=name: nothing_left(federation, n, order), 300), name  # type: ignore[misc]
    site.start(federation.sites["south"])
    assert wait_until(lambda: command("coordinator", "cancel", home, order.id, "--yes")[0] == 0, 120)
    assert wait_until(lambda: nothing_left(federation, "south", order), 300)


@pytest.fixture
def south(federation: Federation) -> Iterator[SiteFolder]:
    """A hospital whose node file is put back: the federation serves other tests, with every patient."""
    folder = federation.sites["south"]
    text = folder.node_path.read_text()
    yield folder
    folder.node_path.write_text(text)
    (folder.node_path.parent / "optout.csv").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_patient_is_forgotten_while_a_study_runs_and_the_node_stays(
    federation: Federation, south: SiteFolder
) -> None:
    order = federation.order(federation.study("forget", LONG))
    following = begun(federation, order)
    folder = south
    client, worker = federation.pids("south")[-1], federation.worker("south")
    code, value = command("site", "forget", "south-7", "--node", folder.node_path, "--yes")
    assert (code, value["studies"], value["left"]) == (0, [order.id], [])
    assert wait_until(lambda: nothing_left(federation, "south", order, "forgotten"), 300)
    assert wait_until(lambda: federation.worker("south") != worker, 300), "its memory is gone too"
    following.join(600)
    assert not following.is_alive()
    assert federation.pids("south")[-1] == client, "the node was not stopped"
    assert not files_with_patients([folder.node.home], "south")
    code, value = command("coordinator", "cancel", federation.coordinator.path, order.id, "--yes")
    assert (code, value["not_told"]) == (0, [])
    assert nothing_left(federation, "south", order, "forgotten")
    after = federation.order(federation.study("after-forget", LONG.replace("20000", "2")))
    assert federation.follow(after)["state"] == "finished"
    assert "south-7" in (folder.node_path.parent / "optout.csv").read_text()
