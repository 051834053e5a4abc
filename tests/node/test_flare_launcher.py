"""A site's workers: restarted when killed, ended for good when told, and within the memory that the owner allows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import wait_until

pytest.importorskip("nvflare")

import hospitals

from polyclinic.node.enrolment.folders import SiteFolder, private, read_events
from polyclinic.node.enrolment.processes import recorded
from polyclinic.node.flare.launcher import RESTARTS, _Worker

ROOT = Path(__file__).parents[2]


def _site(root: Path, keys: str = "") -> SiteFolder:
    site = SiteFolder.of(hospitals.hospital(root, "north", patients=1, more=keys))
    private(site.path)
    return site


def _worker(site: SiteFolder, code: str) -> tuple[_Worker, threading.Thread]:
    made = _Worker("job", [sys.executable, "-c", code], dict(os.environ), site)
    waiter = threading.Thread(target=made.wait, daemon=True)
    waiter.start()
    return made, waiter


def _pid(site: SiteFolder, before: int = 0) -> int:
    def other() -> int:
        pids = [p.pid for p in recorded(site.pids, "worker-*.json")]
        return pids[0] if pids and pids[0] != before else 0

    return wait_until(other)


def test_killed_worker_is_started_again_a_few_times_and_told_ones_end(tmp_path: Path) -> None:
    site = _site(tmp_path)
    worker, waiter = _worker(site, "import time; time.sleep(600)")
    pid = 0
    for _ in range(2):
        pid = _pid(site, pid)
        assert pid
        os.kill(pid, signal.SIGKILL)
    pid = _pid(site, pid)
    assert pid
    worker.terminate()
    waiter.join(300)
    assert not waiter.is_alive()
    assert recorded(site.pids) == []
    assert sum(e["event"] == "worker restarted" for e in read_events(site.events)) == 2


def test_worker_that_always_dies_is_given_up(tmp_path: Path) -> None:
    site = _site(tmp_path)
    _, waiter = _worker(site, "import os; os.kill(os.getpid(), 9)")
    waiter.join(300)
    assert not waiter.is_alive()
    assert sum(e["event"] == "worker restarted" for e in read_events(site.events)) == RESTARTS


def test_worker_keeps_to_the_memory_that_the_owner_allows(tmp_path: Path) -> None:
    code = (
        "import time; time.sleep(0.5)\ntry:\n    bytearray(400 * 2**20)\nexcept MemoryError:\n    raise SystemExit(7)"
    )
    for keys, want in (("max_memory_mb = 200", 7), ("", 0)):
        site = _site(tmp_path / (keys[:3] or "free"), keys)
        worker, waiter = _worker(site, code)
        waiter.join(300)
        assert worker._process.returncode == want


@pytest.mark.parametrize("job", ["../../pins", "..", "a/b", "", "x" * 200, "a b", "a\x00b", "/tmp/evil"])
def test_the_servers_name_of_a_job_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """The server chooses it, and FLARE checks another field than the one that is read here."""
    from nvflare.apis.fl_context import FLContext

    from polyclinic.errors import MessageRefused
    from polyclinic.node.flare import launcher

    site = _site(tmp_path)
    site.pins.write_text("{}")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.setenv("POLYCLINIC_NODE", str(site.node_path))
    monkeypatch.setattr(launcher.SiteLauncher, "get_command", lambda *_: "true")
    with pytest.raises(MessageRefused, match="job whose id"):
        launcher.SiteLauncher().launch_job({"job_id": job}, FLContext())
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
