"""Health and metrics while a study runs between real processes: they answer, and what they say is true."""

from __future__ import annotations

import http.client
import json
import os
import signal
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from tests.e2e.flare_federation import At, Federation
from tests.waiting import wait_until

pytest.importorskip("nvflare")
pytest.importorskip("prometheus_client")

from polyclinic.config.service import MonitorRule
from polyclinic.node.enrolment.processes import free_port, port_open
from polyclinic.node.monitor.process import begin, finish

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def get(url: str) -> tuple[int, str]:
    """Code and text of one answer, 0 if there is none."""
    at = urlsplit(url)
    line = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        line.request("GET", at.path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        line.close()


def _figure(url: str, name: str) -> float:
    """A figure of a page of metrics, 0 where it is not there yet."""
    return next((float(x.split()[-1]) for x in get(url)[1].splitlines() if x.startswith(name)), 0.0)


def test_health_and_metrics_during_a_study(federation: Federation) -> None:
    """A hospital is halted twice until both pages show what was done: rounds and bytes go up while the study runs."""
    north, port, office = federation.sites["north"], free_port(), free_port()
    home = federation.coordinator.path
    begin("site", north.node_path, north.path, MonitorRule(listen=f"127.0.0.1:{port}", every=1.0))
    begin("coordinator", home, home, MonitorRule(listen=f"127.0.0.1:{office}", every=1.0))
    metrics = [f"http://127.0.0.1:{p}/metrics" for p in (port, office)]
    study = federation.study("watched", 'name = "trip"\nrank = 4\nrounds = 16\ntol = 0.0\naggregation = "masked"')
    order = federation.order(study)
    names = (f'polyclinic_study_round{{study="{order.id}"}}', f'polyclinic_bytes_total{{study="{order.id}",way="up"}}')
    seen = [dict.fromkeys(((url, name) for url in metrics for name in names), 0.0)]

    def shown() -> None:
        halted = federation.worker("east")
        with suppress(ProcessLookupError):
            os.kill(halted, signal.SIGSTOP)
        try:
            before = seen[-1]
            wait_until(lambda: all(_figure(*key) > value for key, value in before.items()))
            seen.append({key: _figure(*key) for key in before})
        finally:
            with suppress(ProcessLookupError):
                os.kill(halted, signal.SIGCONT)

    one, two = At(3, shown), At(10, shown)
    try:
        done = federation.follow(order, lambda e: (one(e), two(e)))  # type: ignore[arg-type, func-returns-value]
        assert done["state"] == "finished"
        none, first, second = seen
        assert all(none[key] < first[key] < second[key] for key in none), seen

        def finished() -> bool:
            code, text = get(f"http://127.0.0.1:{port}/health")
            return code == 200 and json.loads(text)["studies"].get(order.id) == "finished"

        assert wait_until(finished)
    finally:
        finish(north.path)
        finish(home)
    assert not port_open("127.0.0.1", port)
    assert not port_open("127.0.0.1", office)
