"""Health and metrics while a study runs between real processes: within 50 ms, and true."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.flare_federation import Federation

pytest.importorskip("nvflare")
pytest.importorskip("prometheus_client")

from tests.e2e.poll import get

from polyclinic.config.service import MonitorRule
from polyclinic.node.doctor.processes import free_port, port_open
from polyclinic.node.monitor.process import begin, finish

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def _figure(text: str, name: str) -> float | None:
    return next((float(x.split()[-1]) for x in text.splitlines() if x.startswith(name)), None)


def test_health_and_metrics_during_a_study(federation: Federation, tmp_path: Path) -> None:
    north, port, office = federation.sites["north"], free_port(), free_port()
    home = federation.coordinator.path
    begin("site", north.node_path, north.path, MonitorRule(listen=f"127.0.0.1:{port}", every=1.0))
    begin("coordinator", home, home, MonitorRule(listen=f"127.0.0.1:{office}", every=1.0))
    pages = [f"http://127.0.0.1:{p}{page}" for p in (port, office) for page in ("/health", "/metrics")]
    asking = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("poll.py"), tmp_path / "out", tmp_path / "stop", *pages]
    )
    try:
        study = federation.study("watched", 'name = "trip"\nrank = 4\nrounds = 60\ntol = 0.0\naggregation = "masked"')
        order = federation.order(study)
        done = federation.follow(order)
        (tmp_path / "stop").touch()
        asking.wait(timeout=30)
        assert done["state"] == "finished"
        found = json.loads((tmp_path / "out").read_text())
        took = [a["seconds"] for a in found]
        assert len(took) >= 20
        late = sorted(took)[int(0.95 * len(took))]
        print(
            f"{len(took)} answers, median {statistics.median(took) * 1e3:.1f} ms, 95 % within {late * 1e3:.1f} ms, "
            f"largest {max(took) * 1e3:.1f} ms; load {os.getloadavg()[0]:.1f}"
        )
        assert statistics.median(took) < 0.05
        for url in (pages[1], pages[3]):  # rounds and bytes went up while it ran, at both ends
            texts = [a["text"] for a in found if a["url"] == url]
            for name in (
                f'polyclinic_study_round{{study="{order.id}"}}',
                f'polyclinic_bytes_total{{study="{order.id}",way="up"}}',
            ):
                seen = [n for t in texts if (n := _figure(t, name)) is not None]
                assert len(set(seen)) >= 2, (url, name, seen)
                assert seen == sorted(seen)
        end = time.monotonic() + 60
        while True:
            code, text, _ = get(pages[0])
            if code == 200 and json.loads(text)["studies"].get(order.id) == "finished":
                break
            assert time.monotonic() < end, text
            time.sleep(0.5)
    finally:
        (tmp_path / "stop").touch()
        finish(north.path)
        finish(home)
    assert not port_open("127.0.0.1", port)
    assert not port_open("127.0.0.1", office)
