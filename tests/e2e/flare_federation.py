"""A real federation on loopback for the end-to-end tests: separate processes, mutual TLS, own node files and databases."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
from tests.enrolled import enrolled
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

OUTSIDE = (Path("/tmp/nvflare"),)  # where FLARE writes by default


class Federation:
    """A coordinator and its sites under one temporary folder."""

    def __init__(
        self,
        root: Path,
        names: tuple[str, ...] = hospitals.NAMES,
        *,
        codes: int | None = None,
        enrol: bool = False,
        **options: Any,
    ) -> None:
        from polyclinic.node.enrolment.folders import CoordinatorFolder
        from polyclinic.node.enrolment.processes import free_port

        os.umask(0o077)
        self.root, self.names = root, names
        hospitals.vocabulary(root / "studies", **({} if codes is None else {"drugs": codes, "diagnoses": codes}))
        self.coordinator = CoordinatorFolder(root / "coordinator")
        self.port, self.admin_port = free_port(), free_port()
        self.enrol_port = free_port() if enrol else None
        nodes = {name: hospitals.hospital(root / name, name, **options) for name in names}
        self.sites: dict[str, Any] = dict(
            enrolled(self.coordinator, nodes, port=self.port, admin_port=self.admin_port, enrol_port=self.enrol_port)
        )

    def start(self) -> None:
        """Start everything and wait until all sites are connected."""
        from polyclinic.node.flare import coordinator_service as coordinator
        from polyclinic.node.flare import site_service as site

        coordinator.start(self.coordinator)
        for folder in self.sites.values():
            site.start(folder)

    def stop(self) -> None:
        """Stop everything."""
        from polyclinic.node.flare import coordinator_service as coordinator
        from polyclinic.node.flare import site_service as site

        for folder in self.sites.values():
            site.stop(folder)
        coordinator.stop(self.coordinator)

    def study(self, name: str, method: str, **options: Any) -> Path:
        """Write a study file."""
        return Path(hospitals.study(self.root / "studies", name, method, **{"head": "deadline = 300\n", **options}))

    def order(self, study: Path) -> Any:
        """Sign a study."""
        from polyclinic.config import Study
        from polyclinic.node.enrolment.federation import sign_study

        return sign_study(self.coordinator, Study.read(study))

    def order_named(self, study: str) -> Any:
        """A signed study by its number."""
        from polyclinic.node.flare.coordinator_service import order_of

        return order_of(self.coordinator, study)

    def follow(self, order: Any, tell: Callable[[dict[str, Any]], None] = lambda e: None) -> dict[str, Any]:
        """Run or resume."""
        from polyclinic.node.flare.jobs import follow

        return follow(self.coordinator, order, tell)

    def outcome(self, order: Any) -> Any:
        """The outcome at the coordinator."""
        from polyclinic.node.flare.result import read_outcome
        from polyclinic.studies.registry import ordered

        run = self.coordinator.run(order.id)
        return read_outcome(run, ordered(order.parsed(run / "files")))

    def in_process(self, study: Path, *, noise_seed: int | None = None, without: Collection[str] = ()) -> Any:
        """The same study on the in-process engine, over the same node files."""
        from polyclinic.config import Study
        from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
        from polyclinic.privacy.gate.gate import ReleaseGate
        from polyclinic.protocol.loop import Simulation
        from polyclinic.records.ingest import ingest
        from polyclinic.studies.registry import federated

        what = Study.read(study)
        sites = [
            ingest(f.node, what, self.root / "in-process" / n).site for n, f in self.sites.items() if n not in without
        ]
        doors = None
        if noise_seed is not None:
            doors = {
                s.name: ReleaseGate(s.name, noise=SimulatedNoise(np.random.default_rng([noise_seed, *s.name.encode()])))
                for s in sites
            }
        return Simulation(federated(what), sites, doors=doors, quorum=what.study.quorum).run()

    def charges(self, name: str, study: str) -> list[Any]:
        """What a site's ledger holds about a study."""
        from polyclinic.privacy.gate.owner_rules import ledger_of

        ledger = ledger_of(self.sites[name].node)
        assert not [f for f in ledger.verify() if "no such ledger" not in f]
        return list(ledger.charges(study=study))

    def events(self, order: Any) -> list[dict[str, Any]]:
        """What the coordinator noted about a study."""
        from polyclinic.node.enrolment.folders import read_events

        return read_events(self.coordinator.run(order.id) / "events.jsonl")

    def processes(self) -> list[int]:
        """Every process that has this federation's folder in its command line or environment of ours."""
        import psutil

        mine = []
        for p in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(p.info["cmdline"] or [])
            if str(self.root) in line and p.pid != os.getpid():
                mine.append(p.pid)
        return mine

    def pids(self, name: str) -> list[int]:
        """A site's processes: worker first, then the client."""
        from polyclinic.node.enrolment.processes import recorded

        folder = self.sites[name].pids
        return [p.pid for p in (*recorded(folder, "worker-*.json"), *recorded(folder, "client.json"))]

    def worker(self, name: str) -> int:
        """The number of a site's worker, the newest if one of an earlier study is still leaving; 0 if none runs."""
        from polyclinic.node.enrolment.processes import alive, recorded

        here = [p for p in recorded(self.sites[name].pids, "worker-*.json") if alive(p)]
        return max(here, key=lambda p: p.started).pid if here else 0

    def server(self) -> list[int]:
        """The coordinator's processes: FLARE's server and the studies that it runs."""
        import psutil

        from polyclinic.node.enrolment.processes import recorded

        found = []
        for server in recorded(self.coordinator.pids, "server.json"):
            with suppress(psutil.Error):
                found += [server.pid, *(c.pid for c in psutil.Process(server.pid).children(recursive=True))]
        return found

    def ports(self) -> set[int]:
        """Every port on which a process of this federation listens."""
        import psutil

        found = set()
        for pid in self.processes():
            with suppress(psutil.Error):
                found |= {c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == "LISTEN"}
        return found

    def left_behind(self) -> list[str]:
        """What a stopped federation must not leave: processes, ports, files of FLARE inside or outside its folders."""
        from polyclinic.node.enrolment.processes import port_open

        wait_until(lambda: not self.processes(), 15)
        left = [f"process {p}" for p in self.processes()]
        left += [f"port {p}" for p in (self.port, self.admin_port) if port_open("localhost", p)]
        for workspace in (self.coordinator.server, *(s.workspace for s in self.sites.values())):
            left += [
                str(p)
                for p in workspace.iterdir()
                if (p.is_dir() and p.name not in ("startup", "local", "transfer")) or p.suffix == ".fl"
            ]
        for pids in (self.coordinator.pids, *(s.pids for s in self.sites.values())):
            left += [str(p) for p in pids.glob("*.json")]
        private = (self.coordinator.path, *(s.path for s in self.sites.values()))
        left += [str(p) for f in private for p in f.rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
        return left + [str(p) for p in OUTSIDE if p.exists()]

    def keys_at_the_coordinator(self) -> list[str]:
        """Files at the coordinator that hold a private key of a site; whatever ran, there must be none."""
        secrets = []
        for site in self.sites.values():
            for key in (*site.path.rglob("*.key"), *site.path.rglob("*.pem")):
                data = key.read_bytes()
                if b"PRIVATE KEY" in data:
                    secrets.append(b"".join(data.splitlines()[1:-1])[100:200])
                elif len(data) == 32:
                    secrets += [data, data.hex().encode()]
        assert len(secrets) >= 3 * len(self.sites)  # the search knows what it looks for
        files = [p for p in self.coordinator.path.rglob("*") if p.is_file()]
        return [str(p) for p in files if any(s in b"".join(p.read_bytes().split()) for s in secrets)]

    def kill(self, *pids: int) -> None:
        """kill -9 by number."""
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def restart(self, *names: str) -> None:
        """kill -9 whole sites at once; a service manager starts them again."""
        from polyclinic.node.enrolment.processes import alive, recorded
        from polyclinic.node.flare import site_service as site

        gone = [p for n in names for p in recorded(self.sites[n].pids)]
        self.kill(*(pid for n in names for pid in self.pids(n)))

        def later() -> None:
            wait_until(lambda: not any(map(alive, gone)))
            for n in names:
                site.start(self.sites[n])

        threading.Thread(target=later).start()


@contextmanager
def running(federation: Federation) -> Iterator[Federation]:
    """Started, and stopped whatever happens; then nothing may be left of it."""
    assert not [p for p in OUTSIDE if p.exists()], "something else left FLARE's files: remove them"
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()
    assert federation.left_behind() == []
    assert federation.keys_at_the_coordinator() == []


class At:
    """Does something once, when a run reaches a round."""

    def __init__(self, round_: int, act: Callable[[], None]) -> None:
        self.round, self.act, self.done = round_, act, threading.Event()

    def __call__(self, event: dict[str, Any]) -> None:
        if event.get("kind") == "round" and event["round"] >= self.round and not self.done.is_set():
            self.done.set()
            self.act()


def same(a: Any, b: Any) -> bool:
    """Whether two public states are the same, bit for bit."""
    from polyclinic.protocol.wire import encoding as wire

    return wire.encode(wire.pack(a), limit=2**40) == wire.encode(wire.pack(b), limit=2**40)


__all__ = ["At", "Federation", "hospitals", "running", "same", "sys"]
