"""How a node stands at one moment, as far as monitoring may know: no number about patients is in it."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from polyclinic.errors import PolyclinicError
from polyclinic.node.admission.membership import joined
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, read_events
from polyclinic.node.enrolment.handshake import Papers
from polyclinic.node.flare import coordinator_service as coordinator
from polyclinic.node.flare import site_service as site
from polyclinic.privacy.gate.owner_rules import LedgerRule, ledger_of, policy_of

STATES: Final = (
    "new",
    "waiting",
    "ready",
    "running",
    "finished",
    "refused",
    "failed",
    "stopped",
    "interrupted",
    "cancelled",
)


@dataclass(frozen=True)
class Budget:
    """Patient-level epsilon of one cohort at the policy's delta; reservations of studies that run count as spent."""

    cohort: str
    delta: float
    spent: float
    left: float | None


@dataclass(frozen=True)
class StudyState:
    """One study: how it stands, how far it is, what was sent."""

    study: str
    state: str
    round: int = 0
    releases: int = 0
    bytes_up: float | None = None
    bytes_down: float | None = None
    waiting: Mapping[str, float] = field(default_factory=dict)  # for whom, since how many seconds


@dataclass(frozen=True)
class Snapshot:
    """One look at a node."""

    name: str
    kind: str  # "site" or "coordinator"
    state: str
    healthy: bool
    sentences: tuple[str, ...]  # what is wrong, in words
    process: bool
    accepted: bool | None
    certificate_days: float | None
    budgets: tuple[Budget, ...] = ()
    studies: tuple[StudyState, ...] = ()
    seen: Mapping[str, float] = field(default_factory=dict)  # site -> seconds since it was last heard of
    asked: tuple[str, ...] = ()  # what waits for the owner
    at: float = field(default_factory=time.time)

    def health(self) -> dict[str, object]:
        """The body of ``/health``."""
        stamp = datetime.datetime.fromtimestamp(self.at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "status": "ok" if self.healthy else "fault",
            self.kind: self.name,
            "state": self.state,
            "process": self.process,
            "accepted": self.accepted,
            "certificate_days": None if self.certificate_days is None else round(self.certificate_days, 1),
            "faults": list(self.sentences),
            "studies": {s.study: s.state for s in self.studies},
            "waiting_for_owner": list(self.asked),
            "looked_at": stamp,
        }


def site_snapshot(folder: SiteFolder) -> Snapshot:
    """Look at a site: process, certificate, mutual handshake, studies, budget."""
    value = site.status(folder)
    bad = [p["sentence"] for p in value.get("problems", ()) if p["state"] == "fault"]
    if value["state"] in ("stopped", "not joined"):
        bad.append(f"the node is {value['state']}")
    where = value.get("coordinator") or {}
    budgets: tuple[Budget, ...] = ()
    spent: dict[str, tuple[int, int, float]] = {}
    try:
        budgets, spent = _budget(folder), _released(folder)
    except PolyclinicError as e:
        bad.append("; ".join((e.what, *e.faults)))
    log = read_events(folder.events)
    asked_at = {str(e["study"]): _seconds(e["time"]) for e in log if e["event"] == "waiting" and "study" in e}
    studies = []
    for s in value["studies"]:
        name = str(s["study"])
        rounds, releases, size = spent.get(str(s.get("order", "")), (0, 0, 0.0))
        waits = {"owner": asked_at.get(name, 0.0)} if s["state"] == "waiting" else {}
        studies.append(StudyState(name, str(s["state"]), rounds, releases, size, None, waits))
    return Snapshot(
        folder.node.name,
        "site",
        str(value["state"]),
        value["exit"] == 0 and not bad,
        tuple(bad),
        bool(value.get("process")),
        bool(where.get("reachable")) and value["state"] != "not accepted",
        _days(Papers.of(folder.workspace / "startup").certificate) if joined(folder) else None,
        budgets,
        tuple(studies),
        asked=tuple(map(str, value["waiting_for_owner"])),
    )


def coordinator_snapshot(folder: CoordinatorFolder) -> Snapshot:
    """Look at a coordinator: its processes, its certificate, who is connected, how far each study is."""
    settings = folder.read_settings()
    bad = []
    try:
        value = coordinator.status(folder)
    except PolyclinicError as e:
        bad.append(e.what)
        value = {"state": "silent", "sites": {}, "studies": [], "joining": "unknown", "asking_to_join": []}
    if value["state"] == "stopped":
        bad.append("the coordinator is stopped")
    if value["joining"] == "closed":
        bad.append(f"the port for joining, {settings.get('enrol_port')}, is closed")
    bad += [f"study {s['study']}: {s['state']}" for s in value["studies"] if s["state"] == "failed"]
    return Snapshot(
        str(settings["host"]),
        "coordinator",
        str(value["state"]),
        not bad,
        tuple(bad),
        value["state"] == "running",
        None,
        _days(folder.server / "startup" / "server.crt"),
        (),
        tuple(_study(folder.run(str(s["study"])), s) for s in value["studies"]),
        {n: float(s["last_seen_seconds"]) for n, s in value["sites"].items() if s["last_seen_seconds"] is not None},
        tuple(map(str, value["asking_to_join"])),
    )


def _study(run: Path, s: Mapping[str, Any]) -> StudyState:
    waits: dict[str, float] = {}
    for e in read_events(run / "events.jsonl") if s["state"] == "running" else ():
        if e.get("site") is not None:
            gone = e["event"] in ("absent", "lost", "waiting")
            waits.pop(str(e["site"]), None)
            waits |= {str(e["site"]): _seconds(e["time"])} if gone else {}
    figures: dict[str, float | None] = {}
    if (run / "metrics.json").is_file():
        figures = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    else:  # while it runs: what the rounds so far wrote down, a round that was done twice once
        rounds = {
            e["round"]: e["figures"] for e in read_events(run / "progress.jsonl") if "bytes_up" in e.get("figures", {})
        }
        if rounds:
            figures = {k: sum(float(f[k]) for f in rounds.values()) for k in ("bytes_up", "bytes_down")}
    return StudyState(
        str(s["study"]), str(s["state"]), int(s["round"]), 0, figures.get("bytes_up"), figures.get("bytes_down"), waits
    )


def _budget(folder: SiteFolder) -> tuple[Budget, ...]:
    policy, book = policy_of(folder.node), ledger_of(folder.node)
    tally = book.tally
    own = LedgerRule.model_validate(folder.node.ledger).cohort
    made = []
    for cohort in sorted({own, *tally.cohorts}):
        apart = cohort if policy.cohorts_disjoint else None  # another label is no second budget
        spent = tally.epsilon(policy.delta, cohort=apart)
        most = policy.max_epsilon_total
        made.append(Budget(cohort, policy.delta, spent, None if most is None else max(0.0, most - spent)))
    return tuple(made)


def _released(folder: SiteFolder) -> dict[str, tuple[int, int, float]]:
    """Of each order: the last round, the releases, their payload in bytes (8 a number)."""
    found: dict[str, tuple[int, int, float]] = {}
    for c in ledger_of(folder.node).charges():
        rounds, n, size = found.get(c.run, (0, 0, 0.0))
        found[c.run] = max(rounds, c.round), n + 1, size + 8.0 * c.scalars
    return found


def _days(certificate: Path) -> float | None:
    try:
        end = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None
    return (end - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)


def _seconds(stamp: str) -> float:
    then = datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
