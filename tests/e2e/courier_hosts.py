"""Three hospitals and a coordinator as processes of the command line; between them folders, and a process that carries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hospitals
import numpy as np

ROOT = Path(__file__).parents[2]
CARRIER = ROOT / "tests" / "node" / "hostile_carrier.py"
NOISE = 11
RULE = (
    f'[ledger]\nsimulated_noise_seed = {NOISE}\n[courier]\ninbox = "in"\noutbox = "out"\nevery = 0.05\nresend = 1.0\n'
)


def command(*words: object) -> list[str]:
    """The command line, in a process of its own."""
    return [sys.executable, "-m", "polyclinic.cli", *map(str, words)]


def told(*words: object) -> tuple[int, str]:
    """Run a command to its end: exit code and what it said."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


class Hosts:
    """What lies on four machines that no cable connects."""

    def __init__(self, root: Path, patients: int = 25) -> None:
        from polyclinic.node.admission import membership
        from polyclinic.node.enrolment import federation as coordination
        from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder

        os.umask(0o077)
        self.root, self.running = root, dict[str, subprocess.Popen[bytes]]()
        hospitals.vocabulary(root / "studies")
        self.coordinator = CoordinatorFolder(root / "coordinator")
        names = hospitals.NAMES
        invites = coordination.found(self.coordinator, list(names), host="localhost", port=9001, admin_port=9002)
        self.sites: dict[str, SiteFolder] = {}
        for name, invite in zip(names, invites):
            node = hospitals.hospital(root / name, name, patients=patients, rehearsal=True, more=RULE)
            site = SiteFolder.of(node)
            request, marks = membership.request(site, invite)
            membership.complete(site, coordination.approve(self.coordinator, request, marks["site"])[0])
            self.sites[name] = site
        roster = coordination.roster(self.coordinator)
        for site in self.sites.values():
            membership.pin(site, roster)
        for place in (*(root / n for n in names), root / "coordinator"):
            for box in ("in", "out"):
                (place / box).mkdir(exist_ok=True)

    def study(self, name: str, method: str, tail: str = "", data: str = hospitals.TENSOR) -> Path:
        """Write a study file."""
        return Path(hospitals.study(self.root / "studies", name, method, head="deadline = 90\n", data=data, tail=tail))

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A hospital's courier."""
        log = (self.root / f"{name}.log").open("ab")
        self.running[name] = subprocess.Popen(
            command("courier", "site", "--node", self.sites[name].node_path), stdout=log, stderr=log
        )
        return self.running[name]

    def kill(self, name: str) -> None:
        """kill -9, and nothing is tidied."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait(timeout=20)

    @contextmanager
    def carried(self, seed: int, share: float, change: float = 0.0, *, start: bool = True) -> Iterator[None]:
        """A carrier between all, and the sites at work unless they are started later; ended whatever happens."""
        (self.root / "stop").unlink(missing_ok=True)
        carrier = subprocess.Popen([sys.executable, CARRIER, self.root, str(seed), str(share), str(change)])
        try:
            for name in self.sites if start else ():
                self.start(name)
            yield
        finally:
            (self.root / "stop").touch()
            carrier.wait(timeout=30)
            for p in self.running.values():
                p.kill()
                p.wait(timeout=20)

    def submit(self, path: Path, *, pace: float = 4.0) -> subprocess.Popen[str]:
        """The coordinator's command."""
        box = self.root / "coordinator"
        words = ("courier", "submit", self.coordinator.path, path, "--inbox", box / "in", "--outbox", box / "out")
        return subprocess.Popen(
            command(*words, "--pace", pace, "--every", 0.05, "--resend", 1.0, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, submitted: subprocess.Popen[str], seconds: float = 600.0) -> tuple[int, dict[str, Any], str]:
        """Exit code, what the command said, and what went wrong."""
        out, err = submitted.communicate(timeout=seconds)
        return submitted.returncode, json.loads(out) if out.strip() else {}, err

    def order(self, said: str) -> Any:
        """A signed study by its number."""
        from polyclinic.node.flare.coordinator_service import order_of

        return order_of(self.coordinator, said)

    def outcome(self, order: Any) -> Any:
        """As the coordinator has it."""
        from polyclinic.node.flare.result import read_outcome
        from polyclinic.studies.registry import federated

        run = self.coordinator.run(order.id)
        return read_outcome(run, federated(order.parsed(run / "files")))

    def in_process(self, path: Path, *, noise: bool) -> Any:
        """The same study in one process, over the same files."""
        from polyclinic.config import Study
        from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
        from polyclinic.privacy.gate.gate import ReleaseGate
        from polyclinic.protocol.loop import Simulation
        from polyclinic.records.ingest import ingest
        from polyclinic.studies.registry import federated

        study = Study.read(path)
        sites = [ingest(s.node, study, self.root / "one" / n).site for n, s in self.sites.items()]
        doors = None
        if noise:
            doors = {
                s.name: ReleaseGate(s.name, noise=SimulatedNoise(np.random.default_rng([NOISE, *s.name.encode()])))
                for s in sites
            }
        return Simulation(federated(study), sites, doors=doors).run()

    def refused(self, order: Any) -> set[str]:
        """Files that somebody refused, by the names that stand in the logs."""
        from polyclinic.node.enrolment.folders import read_events

        logs = [self.coordinator.run(order.id) / "events.jsonl", *(s.events for s in self.sites.values())]
        return {
            str(e["file"])
            for log in logs
            for e in read_events(log)
            if e.get("event") == "message refused" and "file" in e
        }

    def lying(self) -> list[Path]:
        """Everything that lies or lay in a synchronised folder, as a curious carrier has it."""
        now = [p for n in (*self.sites, "coordinator") for b in ("in", "out") for p in (self.root / n / b).iterdir()]
        return [*(self.root / "seen").iterdir(), *now]
