"""Health and metrics while a study runs between real processes: within 50 ms, and true."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("prometheus_client")
sys.path.insert(0, str(Path(__file__).parent))

from polyclinic.engines.flare.processes import free_port, port_open
from polyclinic.monitor.process import begin, finish
from polyclinic.study.service import MonitorRule

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def _get(port: int, page: str) -> tuple[int, str, float]:
    before = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as a:
            code, text = a.status, a.read().decode()
    except urllib.error.HTTPError as e:
        code, text = e.code, e.read().decode()
    return code, text, time.perf_counter() - before


def test_health_and_metrics_during_a_study(federation):
    north, port, office = federation.sites["north"], free_port(), free_port()
    begin("site", north.node_path, north.path, MonitorRule(listen=f"127.0.0.1:{port}", every=1.0))
    begin(
        "coordinator",
        federation.coordinator.path,
        federation.coordinator.path,
        MonitorRule(listen=f"127.0.0.1:{office}", every=1.0),
    )
    try:
        order = federation.order(
            federation.study("watched", 'name = "trip"\nrank = 4\nrounds = 60\naggregation = "masked"')
        )
        done: dict = {}
        worker = threading.Thread(target=lambda: done.update(federation.follow(order)))
        worker.start()
        took, rounds, codes = [], set(), set()
        while worker.is_alive():
            if port_open("127.0.0.1", port) and port_open("127.0.0.1", office):
                for where in (port, office):
                    for page in ("/health", "/metrics"):
                        code, text, seconds = _get(where, page)
                        took.append(seconds)
                        codes.add(code)
                        for line in text.splitlines():
                            if line.startswith(f'polyclinic_study_round{{study="{order.id}"}}'):
                                rounds.add((where, float(line.split()[-1])))
            time.sleep(0.2)
        assert done["state"] == "finished"
        assert len(took) >= 20
        assert statistics.median(took) < 0.05
        late = sorted(took)[int(0.95 * len(took))]
        print(
            f"{len(took)} answers, 95 % within {late * 1e3:.1f} ms, median {statistics.median(took) * 1e3:.1f} ms, largest {max(took) * 1e3:.1f} ms"
        )
        end = time.monotonic() + 60
        while True:
            code, text, _ = _get(port, "/health")
            if code == 200 and json.loads(text)["studies"].get(order.id) == "finished":
                break
            assert time.monotonic() < end, text
            time.sleep(0.5)
        for where in (port, office):  # the rounds went up while it ran, at both ends
            assert len({r for w, r in rounds if w == where}) >= 2, rounds
    finally:
        finish(north.path)
        finish(federation.coordinator.path)
    assert not port_open("127.0.0.1", port)
