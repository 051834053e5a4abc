"""A site's service: start and stop FLARE's client and its workers, say how things stand."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.node.admission.membership import joined, pending, studies, unpinned
from polyclinic.node.admission.retention import sweep
from polyclinic.node.doctor.probes import acceptance
from polyclinic.node.enrolment.folders import SiteFolder, append_event, read_events
from polyclinic.node.enrolment.handshake import Papers, certificate
from polyclinic.node.enrolment.processes import Recorded, alive, end, forget, launch, record, recorded
from polyclinic.node.enrolment.proxy import grpc_environment
from polyclinic.node.flare.coordinator_service import _sweep
from polyclinic.node.flare.executor import NODE
from polyclinic.node.flare_package import need_flare
from polyclinic.node.probe import Probe, first_fault
from polyclinic.records.databases.drivers import DRIVERS, POSTGRESQL, address_of, opened, with_password

PATIENCE: Final = 5  # seconds for a database
TODO: Final = (
    "polyclinic site doctor reads the data as a study would; url, password, rights, file names are in [source]"
)


def nearby(folder: SiteFolder) -> list[Probe]:
    """Disk and data."""
    from polyclinic.node.doctor.probes import disk

    return [disk(folder.node.home), data_there(folder.node)]


def data_there(node: Node) -> Probe:
    """Whether the database answers, or the files are there; nothing is read (``doctor`` and ``check`` read)."""
    from polyclinic.node.doctor.probes import password_unset

    source = node.source
    if source.url:
        return password_unset(node) or _database(node)
    named = {k: getattr(source, k) for k in ("events", "labels", "features", "folder", "database")}
    named |= {f"tables[{n}].file": t.file for n, t in enumerate(source.parts)}
    away = [f"{k} = {v!r}" for k, v in named.items() if v and not _found(node.path(v))]
    if away:
        return Probe("data", "fault", f"the data are not there: {', '.join(away)}", TODO, exit=3)
    return Probe("data", "ok", "the files are there")


def _found(path: Path) -> bool:
    if any(c in str(path) for c in "*?["):
        return any(path.parent.glob(path.name))
    return path.exists()


def _database(node: Node) -> Probe:
    try:
        at, password = address_of(node)
        if DRIVERS[at.scheme] is not POSTGRESQL:
            with opened(node):
                return Probe("data", "ok", "the database answers")
    except PolyclinicError as e:
        return Probe("data", "fault", "; ".join((e.what, *e.faults)), e.hint or TODO, exit=3)
    try:
        import psycopg
    except ImportError:
        return Probe(
            "data", "fault", "package psycopg (extra postgres) is not installed", "pip install 'polyclinic[postgres]'"
        )
    try:
        with psycopg.connect(with_password(at, password), connect_timeout=PATIENCE) as link:
            link.execute("SELECT 1")
    except psycopg.Error as e:
        why = str(e).strip().splitlines()[0].strip() if str(e).strip() else type(e).__name__
        return Probe("data", "fault", f"the database is away or refuses us: {why}", TODO, exit=3)
    return Probe("data", "ok", "the database answers")


def start(folder: SiteFolder, *, foreground: bool = False) -> dict[str, Any]:
    """Start the site's client; it connects by itself, also to a coordinator that comes later."""
    need_flare()
    if not joined(folder):
        raise ConfigError(
            f"{folder.node.name!r} has not joined yet", hint="polyclinic site join INVITE --node node.toml"
        )
    from polyclinic.node.doctor.probes import disk

    if (room := disk(folder.node.home)).state == "fault":
        raise ConfigError(f"{folder.node.name!r} cannot start: {room.sentence}", hint=room.todo)
    host = str(folder.read_invite()["host"])
    end(recorded(folder.pids, "worker-*.json"))  # orphans of an earlier life
    paper = certificate(Papers.of(folder.workspace / "startup"), folder.node.name)
    if paper.state != "ok":
        append_event(folder.events, event="certificate", state=paper.state, what=paper.sentence, hint=paper.todo)
    sweep(folder)  # data that a crash left, and results that are older than the owner keeps them
    argv = ["-m", "polyclinic.node.flare.serve", "client", str(folder.workspace.resolve()), folder.node.name]
    env = {
        **os.environ,
        **grpc_environment(host),
        NODE: str(folder.node_path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    note = folder.pids / "client.json"
    if foreground:
        record(note, os.getpid())
        os.execve(sys.executable, [sys.executable, *argv], env)
    made = launch(argv, env=env, log=folder.path / "client.log", note=note)
    append_event(folder.events, event="started", pid=made.pid)
    return {"state": "started", "pid": made.pid, "site": folder.node.name}


def stop(folder: SiteFolder) -> dict[str, Any]:
    """End the client and every worker by its number, also while the coordinator is away; prune FLARE's files."""
    if not folder.path.exists():
        return {"state": "stopped", "site": folder.node.name, "ended": []}
    ended = end(recorded(folder.pids, "client.json")) + end(recorded(folder.pids, "worker-*.json"))
    for note in folder.pids.glob("*.json") if folder.pids.exists() else ():
        forget(note)
    _sweep(folder.workspace)
    append_event(folder.events, event="stopped", pids=ended)
    return {"state": "stopped", "site": folder.node.name, "ended": ended}


def status(folder: SiteFolder) -> dict[str, Any]:
    """Whether the site has joined, runs and is accepted by its coordinator, and how every study stands here.

    ``reachable`` means that both have just accepted each other's certificate; ``exit`` is 0 only if the client lives, is
    accepted, and no study is in fault now.
    """
    if not folder.invite.exists():
        none: dict[str, Any] = {"studies": [], "refused": [], "waiting_for_owner": [], "exit": 5}
        return {"site": folder.node.name, "state": "not joined", **none}
    invite = folder.read_invite()
    up = alive(Recorded.read(folder.pids / "client.json"))
    asked, log = studies(folder), read_events(folder.events)
    probes, near = acceptance(folder) if joined(folder) else [], nearby(folder)
    unaccepted, away, wrong = first_fault(probes), first_fault(near), in_fault(log)
    line = next((p for p in probes if p.name == "coordinator"), None)
    problems = (*probes, *near, *_studies(log, wrong))
    return {
        "site": folder.node.name,
        "state": _state(folder, up, unaccepted, away, wrong),
        "process": up,
        "workers": [p.pid for p in recorded(folder.pids, "worker-*.json") if alive(p)],
        "coordinator": {
            "host": invite["host"],
            "port": invite["port"],
            "reachable": line is not None and line.state == "ok",
        },
        "problems": [
            p.to_json() for p in problems if p.state == "fault" or (p.name, p.state) == ("certificate", "warning")
        ],
        "not_pinned": sorted({n for s in asked for n in unpinned(folder, s)}),
        "studies": asked,
        "refused": [s["study"] for s in asked if s["state"] == "refused"],
        "in_fault": wrong,
        "waiting_for_owner": [s["study"] for s in asked if s["state"] == "waiting"]
        + [p.id for _, p in pending(folder)],
        "last_event": log[-1] if log else None,
        "log": str(Path(folder.events)),
        "exit": _exit_code(up, unaccepted, away, wrong),
    }


def _state(folder: SiteFolder, up: bool, unaccepted: Probe | None, away: Probe | None, wrong: Mapping[str, str]) -> str:
    """Say in a few words how the site stands."""
    if not up:
        return "stopped" if joined(folder) else "waiting for the coordinator's approval"
    # A coordinator that is away may come back: the client goes on trying.
    if unaccepted is not None and not (unaccepted.name == "coordinator" and unaccepted.outside):
        return "not accepted"
    if away is not None:
        return {"disk": "no room on the disk", "data": "data away"}[away.name]
    return f"study {sorted(wrong.values())[0]}" if wrong else "running"


def _exit_code(up: bool, unaccepted: Probe | None, away: Probe | None, wrong: Mapping[str, str]) -> int:
    if "refused" in wrong.values():
        return 4
    if wrong or unaccepted is not None or not up:
        return 5
    return 0 if away is None else 3 if away.name == "data" else 5


def _studies(log: Sequence[Mapping[str, Any]], wrong: Mapping[str, str]) -> list[Probe]:
    """Studies that are in fault now, each with what was last said of it."""
    last = {str(e["study"]): e for e in log if "study" in e and e["event"] in ("refused", "failed")}
    found = []
    for study, word in wrong.items():
        e = last[study]
        said = [str(x) for x in (e.get("what"), e.get("error"), *(e.get("reasons") or ())) if x]
        todo = "polyclinic site review" if word == "refused" else "the log has more; the coordinator resumes the study"
        found.append(
            Probe("study", "fault", f"study {study} {word} here: {'; '.join(said) or 'no reason was kept'}", todo)
        )
    return found


def in_fault(log: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Studies that were refused or failed here, until one goes well again: what is old does not stick.

    >>> in_fault([{"event": "refused", "study": "a"}, {"event": "failed", "study": "b"}])
    {'a': 'refused', 'b': 'failed'}
    >>> in_fault([{"event": "refused", "study": "a"}, {"event": "finished", "study": "b"}])
    {}
    """
    wrong: dict[str, str] = {}
    for e in log:
        if "study" in e and e["event"] in ("refused", "failed"):
            wrong[str(e["study"])] = str(e["event"])
        elif e["event"] in ("ready", "finished"):
            wrong.clear()
    return wrong
