"""Round overhead and letters a second between real processes, and what garbage on the ports does. Slow tests."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare")

import hospitals
from tests.e2e.flare_federation import Federation, running, same

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


class Work:
    """Seconds of processor that a federation's processes use, added up while a study runs (load of others left out)."""

    def __init__(self, made: Any) -> None:
        self.made, self.used, self._end = made, {}, threading.Event()  # type: ignore[var-annotated]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._end.wait(0.3):
            for pid in self.made.processes():
                try:
                    t = psutil.Process(pid).cpu_times()
                    self.used[pid] = t.user + t.system
                except psutil.Error:
                    continue

    def seconds(self) -> float:
        return sum(self.used.values())  # type: ignore[no-any-return]

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()


def _overhead(made: Any, rank: int, rounds: int) -> tuple[float, float, int, float]:
    """Median seconds of a round between hosts, the same in one process, bytes that a site contributes, processor seconds."""
    method = (  # whole rounds of 64-bit numbers, to the last: what is measured is the way of a letter
        f'name = "trip"\nrank = {rank}\nrounds = {rounds}\ntol = 0.0\n'
        'start = "random"\npacked = false\nwarmup = 0\naggregation = "plain"'
    )
    study = made.study("overhead", method, head="deadline = 300\n")
    order = made.order(study)
    marks = {}  # type: ignore[var-annotated]
    with Work(made) as work:
        status = made.follow(order, lambda e: e.get("kind") == "round" and marks.setdefault(e["round"], work.seconds()))
    assert status["state"] == "finished", status
    processor = (marks[rounds - 1] - marks[1]) / (rounds - 2)
    outcome, reference = made.outcome(order), made.in_process(study)
    assert same(outcome.public, reference.public)

    def median(history: Any) -> float:
        return float(np.median(np.diff([h["seconds"] for h in history])))

    payload = outcome.traffic.payload_bytes_up // (len(made.names) * outcome.traffic.rounds)
    return median(outcome.history), median(reference.history), payload, processor


def test_rounds_of_200_kilobytes_at_three_sites_give_the_model_of_one_process(tmp_path: Path) -> None:
    made = Federation(tmp_path, codes=1000)
    with running(made):
        between, one, payload, processor = _overhead(made, 13, 15)
    print(
        f"\nFIGURE 3 sites x {payload / 1e3:.0f} kB: {between:.3f} s a round, in process {one:.3f} s; "
        f"{processor:.2f} s of processor a round, {_load()}"
    )


def test_rounds_of_ten_megabytes_at_ten_sites_give_the_model_of_one_process(tmp_path: Path) -> None:
    made = Federation(tmp_path, tuple(f"site-{i}" for i in range(10)), codes=16_000, patients=15)
    with running(made):
        between, one, payload, processor = _overhead(made, 39, 6)
    print(
        f"\nFIGURE 10 sites x {payload / 1e6:.1f} MB: {between:.2f} s a round, in process {one:.2f} s; "
        f"{processor:.1f} s of processor a round, {_load()}"
    )


def _letters(made: Any, name: str, offsets: tuple[int, ...], head: str) -> tuple[int, float]:
    """Logical letters between nodes and seconds, for a mixture over a graph in which node i talks to i +- each offset."""
    from polyclinic.node.enrolment.folders import write_json
    from polyclinic.node.signed_study import StudyOrder, _digest
    from polyclinic.protocol.aggregators import by_name

    method = (
        'name = "gaussianmixture"\nn_components = 2\nrounds = 1\naggregation = "subspace"\nradius = 20.0\nstart = "box"'
    )
    order = made.order(made.study(name, method, data=hospitals.FEATURES, head=head))
    nodes = order.sites
    n = len(nodes)
    edges = tuple(sorted({tuple(sorted((nodes[i], nodes[(i + k) % n]))) for i in range(n) for k in offsets}))
    ring = StudyOrder(**{**order.body(), "edges": edges})
    ring = StudyOrder(
        **{**ring.body(), "edges": edges, "signature": made.coordinator.identity().sign(_digest(ring)).hex()}
    )
    write_json(made.coordinator.run(ring.id) / "order.json", {"order": ring.encode()})
    status = made.follow(ring)
    assert status["state"] == "finished", (status, made.events(ring))
    seconds = float(next(e["seconds"] for e in made.events(ring) if e["event"] == "finished"))
    plan = by_name("subspace").plan(ring.roster(order.sites, 0))  # type: ignore[attr-defined]
    sums = len(made.outcome(ring).releases)
    return sums * len(plan.edges) * 2 * (plan.slots + 3), seconds  # a study's start-up is in the seconds, too


def test_ten_nodes_with_four_neighbours_finish_a_study(tmp_path: Path) -> None:
    made = Federation(tmp_path, tuple(f"site-{i}" for i in range(10)), patients=20)
    with running(made):
        letters, seconds = _letters(made, "ring", (1, 2), "deadline = 300\n")
    print(
        f"\nFIGURE 10 nodes, 4 neighbours: {letters} letters, {seconds:.1f} s, {letters / seconds:.0f} a second, {_load()}"
    )


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def _burst(port: int, count: int, rng: np.random.Generator) -> None:
    good = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for n in range(count):
        try:
            with socket.create_connection(("localhost", port), timeout=5) as s:
                s.settimeout(0.2)
                kind = n % 4
                if kind == 0:
                    s.sendall(rng.bytes(int(rng.integers(1, 2000))))
                elif kind == 1:
                    s.sendall(good + rng.bytes(200))
                elif kind == 2:
                    s.sendall(b"\x16\x03\x01" + rng.bytes(300))
                else:
                    s.sendall(b"\xff" * 65536)
        except OSError:
            continue


def test_garbage_on_every_port_changes_nothing(tmp_path: Path) -> None:
    from polyclinic.node.enrolment.processes import recorded

    made = Federation(tmp_path, enrol=True)
    with running(made):
        study = made.study("before", 'name = "trip"\nrank = 3\nrounds = 2\naggregation = "plain"')
        assert made.follow(made.order(study))["state"] == "finished"
        ours = recorded(made.coordinator.pids)  # server and the port for joining
        assert len(ours) == 2
        processes = [*(psutil.Process(p.pid) for p in ours), *(psutil.Process(made.pids(n)[-1]) for n in made.names)]
        public = (made.port, made.admin_port, made.enrol_port)
        internal = sorted(
            {c.laddr.port for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"} - set(public)
        )
        assert internal
        sizes = []
        for burst in range(2):
            threads = [
                threading.Thread(target=_burst, args=(port, count, np.random.default_rng([burst, port])))  # type: ignore[arg-type]
                for port, count in (*((p, 10_000) for p in public), *((p, 200) for p in internal))
            ]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            sizes.append([p.memory_info().rss for p in processes])
        print(
            f"\nFIGURE resident after bursts: {[[round(x / 2**20) for x in s] for s in sizes]} MiB; internal ports {len(internal)}"
        )
        for first, second in zip(*sizes):
            assert second <= 1.2 * first
            assert second < 2**30
        order = made.order(made.study("after", 'name = "trip"\nrank = 3\nrounds = 2\naggregation = "plain"'))
        assert made.follow(order)["state"] == "finished"
