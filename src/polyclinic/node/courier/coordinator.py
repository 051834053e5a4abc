"""The coordinator's end: carries the asks of a driver as files, and brings the answers back.

The driver has no clock: it is told the time. Here its seconds last ``pace`` real ones, so that everything it waits for (a
sign of life, an answer, a study's deadline) is as slow as the carrier, and nothing in the protocol is another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyclinic.errors import PeerLost
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.coordinator.site_registry import Sending
from polyclinic.node.courier.mailbox import Mailbox
from polyclinic.node.courier.sealed_file import SealedFile, fresh_id, own_key
from polyclinic.node.enrolment.folders import (
    CoordinatorFolder,
    append_event,
    at_work,
    private,
    read_json,
    write_json,
)
from polyclinic.node.flare.carry import CANCEL, lead
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.protocol.outcome import Outcome


@dataclass
class Flight:
    """One ask on its way."""

    sending: Sending
    path: Path | None
    sent: float  # when it was last written
    until: float


@dataclass
class CourierCoordinator:
    """Carries one study.

    Parameters
    ----------
    driver, box
        The coordinator's half of the study, and its two folders.
    pace
        Real seconds in one second of the driver.
    resend
        Real seconds after which a file without an answer is written again.
    """

    driver: Coordinator
    box: Mailbox
    pace: float = 1.0
    resend: float = 60.0
    flights: dict[str, Flight] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)  # sites that answered: they have the order
    _orders: dict[str, tuple[Path | None, float]] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        """The driver's time."""
        return (time.monotonic() - self._begun) / self.pace

    def once(self) -> None:
        """Take what came, send what is due, send again what was not answered."""
        for p in self.box.take():
            flight = self.flights.pop(p.id, None) if p.kind == "answer" else None
            if flight is None or flight.sending.site != p.sender:  # doubled, late, or not an answer to us
                continue
            self.box.withdraw(flight.path)
            self.heard.add(p.sender)
            self.driver.heard(flight.sending, p.data, self.now)
        for s in self.driver.due(self.now):
            self.flights[fresh_id()] = Flight(s, None, float("-inf"), time.monotonic() + s.seconds * self.pace)
        self._send_orders()
        for id, f in list(self.flights.items()):
            if time.monotonic() > f.until:
                del self.flights[id]
                self.box.withdraw(f.path)
                self.driver.heard(f.sending, None, self.now)
            elif time.monotonic() - f.sent > self.resend:
                self.box.withdraw(f.path)
                order = self.driver.order.digest
                f.path = self.box.put(SealedFile(COORDINATOR, f.sending.site, "ask", order, id, f.sending.data))
                f.sent = time.monotonic()

    def _send_orders(self) -> None:
        order = self.driver.order
        for site in order.sites:
            path, sent = self._orders.get(site, (None, float("-inf")))
            if site in self.heard:
                self.box.withdraw(path)
                self._orders[site] = None, float("inf")
            elif time.monotonic() - sent > self.resend and self.box.knows(site):
                self.box.withdraw(path)
                made = SealedFile(COORDINATOR, site, "order", order.digest, fresh_id(), order.encode().encode())
                self._orders[site] = self.box.put(made), time.monotonic()

    def awaited(self) -> dict[str, float]:
        """For whom it waits, and since when (real seconds)."""
        begun: dict[str, float] = {}
        for f in self.flights.values():
            since = time.monotonic() - (f.until - f.sending.seconds * self.pace)
            begun[f.sending.site] = max(begun.get(f.sending.site, 0.0), round(since, 1))
        return dict(sorted(begun.items()))

    def run(self, stopped: Callable[[], bool], every: float, tell: Callable[[dict[str, Any]], None]) -> Outcome | None:
        """Until the study has ended."""
        try:
            told = 0.0
            while self.driver.outcome is None and self.driver.told is None:
                if (self.driver.folder / CANCEL).exists():
                    self.driver.cancel()
                elif stopped():
                    raise PeerLost("the run was stopped", hint="polyclinic courier resume")
                self.once()
                if time.monotonic() - told > 2.0:
                    told = time.monotonic()
                    stages = {s: self.driver.state(s) for s in self.driver.order.sites}
                    tell({"awaited": self.awaited(), "sites": stages, **self.box.waiting()})
                time.sleep(every)
            return self.driver.outcome
        finally:
            for f in self.flights.values():
                self.box.withdraw(f.path)
            for path, _ in self._orders.values():
                self.box.withdraw(path)


def office_box(folder: CoordinatorFolder, inbox: Path, outbox: Path, log: Callable[..., None]) -> Mailbox:
    """The coordinator's mailbox: its own keys, and the sites that it approved."""
    home = private(folder.path / "courier")
    pinned = {n: bytes.fromhex(str(s["key"])) for n, s in folder.approved().items()}
    return Mailbox(COORDINATOR, folder.identity(), own_key(home / "courier.key"), inbox, outbox, home, pinned, log)


def run_by_courier(
    folder: CoordinatorFolder,
    order: StudyOrder,
    inbox: Path,
    outbox: Path,
    *,
    pace: float = 60.0,
    every: float = 1.0,
    resend: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, object]:
    """Run or resume a signed study through two folders; how it ended is in ``status.json`` of its run folder."""
    run = folder.run(order.id)

    def by_files(driver: Coordinator) -> Outcome | None:
        driver.resume = "polyclinic courier resume"
        box = office_box(folder, inbox, outbox, partial(append_event, run / "events.jsonl"))
        office = CourierCoordinator(driver, box, pace, resend if resend is not None else 2 * pace)
        try:
            return office.run(stopped, every, lambda v: _tell(run, v))
        finally:
            (run / "courier.json").unlink(missing_ok=True)

    lead(folder, order, {"engine": "courier"}, by_files)
    return read_json(run / "status.json")


def states(folder: CoordinatorFolder) -> list[dict[str, Any]]:
    """Every study that was run by courier: how it stands, for whom it waits, what is to be carried."""
    found = []
    for path in sorted((folder.path / "runs").glob("*/status.json")):
        value = read_json(path)
        if value.get("engine") != "courier":
            continue
        if value["state"] == "running" and not at_work(path.parent / "lock"):
            value = {**value, "state": "interrupted"}
        now = path.with_name("courier.json")
        found.append({**value, **(read_json(now) if now.exists() and value["state"] == "running" else {})})
    return found


def _tell(run: Path, value: Mapping[str, object]) -> None:
    write_json(run / "courier.json", value)
