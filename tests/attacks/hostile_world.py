"""Real halves of a study between hosts (worker, order, door, ledger) whose wire is a function call, and a coordinator that lies."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import hospitals
from tests.enrolled import enrolled
from tests.gossip import gossip

from polyclinic.config import Study
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.flare.worker import Worker
from polyclinic.node.messages import seal_ask
from polyclinic.node.signed_study import StudyOrder, _digest
from polyclinic.protocol.wire import encoding as wire

ROOT = Path(__file__).parents[2]


class World:
    """Enrolled sites whose coordinator's key is in the attacker's hands."""

    def __init__(
        self,
        root: Path,
        names: tuple[str, ...] = ("east", "north", "south"),
        *,
        policy: str = "",
        more: str = "",
        patients: int = 25,
        ask_owner: bool = False,
    ) -> None:
        os.umask(0o077)
        self.root = root
        hospitals.vocabulary(root / "studies")
        self.coordinator = CoordinatorFolder(root / "coordinator")
        nodes = {n: hospitals.hospital(root / n, n, patients=patients, policy=policy, more=more) for n in names}
        for node in nodes.values() if ask_owner else ():
            node.write_text(node.read_text().replace('studies = "policy"', 'studies = "ask"'))
        self.sites = enrolled(self.coordinator, nodes)
        self.workers: dict[str, Worker] = {}
        self.key = self.coordinator.identity()
        self.serial = itertools.count()

    def order(self, name: str, method: str, head: str = "deadline = 30\n", **options: Any) -> StudyOrder:
        """A signed study."""
        path = hospitals.study(self.root / "studies", name, method, head=head, **options)
        return coordination.sign_study(self.coordinator, Study.read(path))

    def forged(self, order: StudyOrder, **changes: Any) -> StudyOrder:
        """Another order, correctly signed with the coordinator's key."""
        other = replace(order, **changes)
        return replace(other, signature=self.key.sign(_digest(other)).hex())

    def open(self, order: StudyOrder, only: tuple[str, ...] | None = None) -> None:
        """A process of the study at every site."""
        for name in only or tuple(self.sites):
            self.workers[name] = Worker(order, self.sites[name], self._post)
        for name in only or tuple(self.sites):
            self.workers[name].loaded.result(120)
        self.gossip(order)

    def gossip(self, order: StudyOrder) -> None:
        """Everybody tells everybody what they know of their books, as a coordinator's signs of life carry it."""
        gossip(order, self.key, {n: d for n, d in self.workers.items() if d.order.digest == order.digest}, self.root)

    def _post(self, to: str, data: bytes) -> None:
        threading.Thread(target=lambda: self.workers[to].put(data)).start()

    def ask(self, order: StudyOrder, site: str, **value: Any) -> dict[str, Any]:
        """An ask of the coordinator, signed, and its answer."""
        data = seal_ask(self.key, order.digest, site, str(next(self.serial)), value)
        for _ in range(60):
            answer = wire.decode(self.workers[site].answer(data))
            if answer["what"] != "busy":
                break
        return answer  # type: ignore[no-any-return]


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything under a folder: mode and content."""
    return {
        str(p.relative_to(folder)): (p.stat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in sorted(folder.rglob("*"))
    }
