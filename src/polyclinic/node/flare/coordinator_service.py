"""The coordinator's service: start and stop FLARE's server and the port for joining, say how things stand."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from polyclinic.errors import ConfigError, PeerLost, PolyclinicError
from polyclinic.node.enrolment.folders import (
    CoordinatorFolder,
    append_event,
    at_work,
    read_events,
    read_json,
    write_json,
)
from polyclinic.node.enrolment.invitation import entries
from polyclinic.node.enrolment.processes import (
    Recorded,
    alive,
    end,
    forget,
    launch,
    port_open,
    record,
    recorded,
    wait_for,
)
from polyclinic.node.enrolment.startup_files import inside
from polyclinic.node.flare.session import connected, quiet, session
from polyclinic.node.flare_package import need_flare
from polyclinic.node.refusals import told
from polyclinic.node.signed_study import StudyOrder, read_order


def environment(folder: CoordinatorFolder) -> dict[str, str]:
    """What the server and its job processes find."""
    return {
        **os.environ,
        "POLYCLINIC_COORDINATOR": str(folder.path.resolve()),
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",  # FLARE's default of 900 s keeps a finished job "running"
        # FLARE would end a study for everybody 90 s after a site fell silent; how long it waits is the study's deadline.
        "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1000000",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def start(folder: CoordinatorFolder, *, foreground: bool = False) -> dict[str, Any]:
    """Start the server and wait until its port is open; leftovers of an earlier life are removed first."""
    need_flare()
    settings = folder.read_settings()
    server = Recorded.read(folder.pids / "server.json")
    if server is not None and alive(server) and not foreground and _reopened(folder):
        return {"state": "reopened", "pid": server.pid, **{k: settings.get(k) for k in ("host", "port", "enrol_port")}}
    prune(folder)
    host, ports = inside(settings["host"]), _ports(settings)
    # two servers would share the port in silence
    if not wait_for(lambda: not any(port_open(host, p) for p in ports), 3.0):
        raise ConfigError(
            "the coordinator cannot start: another program listens on its ports",
            faults=[f"{host}:{p}" for p in ports if port_open(host, p)],
            hint="another coordinator? Stop it, or found the federation on other ports",
        )
    argv = ["-m", "polyclinic.node.flare.serve", "server", str(folder.server.resolve()), "server"]
    note = folder.pids / "server.json"
    _keep_out(folder)
    desk = receive(folder)
    if foreground:
        _opened(folder, desk)
        record(note, os.getpid())
        import sys

        os.execve(sys.executable, [sys.executable, *argv], environment(folder))
    made = launch(argv, env=environment(folder), log=folder.path / "server.log", note=note)
    up = wait_for(lambda: port_open(host, settings["port"]) or not alive(made), 60.0)
    if not up or not alive(made):
        end(recorded(folder.pids))
        forget(note)
        raise PeerLost("the server did not start", hint=f"read {folder.path / 'server.log'}")
    _opened(folder, desk)
    append_event(folder.events, event="started", pid=made.pid)
    return {"state": "started", "pid": made.pid, **{k: settings.get(k) for k in ("host", "port", "enrol_port")}}


def _ports(settings: dict[str, Any]) -> list[int]:
    return [int(settings[k]) for k in ("port", "admin_port", "enrol_port") if settings.get(k) is not None]


def need_running(folder: CoordinatorFolder) -> None:
    """Refuse to begin while the coordinator is not running, before anything is signed."""
    if not alive(Recorded.read(folder.pids / "server.json")):
        raise PeerLost("the coordinator is not running", hint=f"polyclinic coordinator start {folder.path}")


def receive(folder: CoordinatorFolder) -> Recorded | None:
    """Open the port where sites ask to join, in a process of its own; None where requests are carried as files."""
    if folder.read_settings().get("enrol_port") is None:
        return None
    argv = ["-m", "polyclinic.node.enrolment.joining", str(folder.path.resolve())]
    return launch(argv, env=dict(os.environ), log=folder.path / "reception.log", note=folder.pids / "reception.json")


def _reopened(folder: CoordinatorFolder) -> bool:
    """Open the port for joining again, if its process has died while the server lives."""
    if folder.read_settings().get("enrol_port") is None or alive(Recorded.read(folder.pids / "reception.json")):
        return False
    _opened(folder, receive(folder))
    return True


def _opened(folder: CoordinatorFolder, desk: Recorded | None) -> None:
    """Wait until the port for joining is open; otherwise end everything that was started."""
    settings = folder.read_settings()
    if desk is None:
        return
    host, port = inside(settings["host"]), int(settings["enrol_port"])
    if not wait_for(lambda: port_open(host, port) or not alive(desk), 30.0) or not alive(desk):
        end(recorded(folder.pids))
        for note in folder.pids.glob("*.json"):
            forget(note)
        raise PeerLost(f"the port for joining, {port}, did not open", hint=f"read {folder.path / 'reception.log'}")


def prune(folder: CoordinatorFolder) -> None:
    """Remove FLARE's own records of jobs: a study's state is in our run folder, and stale jobs would never end."""
    if alive(Recorded.read(folder.pids / "server.json")):
        raise ConfigError("the coordinator runs already", hint="polyclinic coordinator status")
    end(recorded(folder.pids))
    for note in folder.pids.glob("*.json") if folder.pids.exists() else ():
        forget(note)
    for name in ("jobs", "snapshots", "transfer"):
        shutil.rmtree(folder.server / name, ignore_errors=True)
    _sweep(folder.server)
    (folder.server / "transfer").mkdir(mode=0o700, exist_ok=True)


def _sweep(workspace: Path) -> None:
    """Folders of single jobs, and marker files, that FLARE leaves behind."""
    for path in workspace.iterdir() if workspace.exists() else ():
        if path.is_dir() and path.name not in ("startup", "local", "transfer"):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in ("shutdown.fl", "restart.fl", "pid.fl", "daemon_pid.fl"):
            path.unlink(missing_ok=True)


def stop(folder: CoordinatorFolder) -> dict[str, Any]:
    """Stop running studies cleanly (they can be resumed), end the server and its jobs by number, prune files."""
    running = [r for r in _runs(folder) if r["state"] == "running"]
    for r in running:
        (folder.run(r["study"]) / "stop").touch(mode=0o600)
    server = Recorded.read(folder.pids / "server.json")
    if alive(server):
        wait_for(lambda: all(r["state"] != "running" for r in _runs(folder)), 6.0)
    ended = end(recorded(folder.pids))
    prune(folder)
    for r in running:
        (folder.run(r["study"]) / "stop").unlink(missing_ok=True)
        path = folder.run(r["study"]) / "status.json"
        if read_json(path)["state"] == "running":
            ended_by = "the coordinator was stopped"
            write_json(path, {"study": r["study"], "state": "stopped", "what": ended_by, "exit": 5})
    append_event(folder.events, event="stopped", pids=ended)
    return {"state": "stopped", "ended": ended, "studies": [r["study"] for r in running]}


def _runs(folder: CoordinatorFolder) -> list[dict[str, Any]]:
    found = []
    for place in sorted((folder.path / "runs").glob("*/order.json")):
        path = place.parent / "status.json"
        value = read_json(path) if path.exists() else {"state": "signed"}
        up = alive(Recorded.read(folder.pids / "server.json"))
        if value["state"] == "running" and not (up and (at_work(place.parent / "lock") or _fresh(place.parent))):
            value = {**value, "state": "interrupted"}
        rounds = [e for e in progress(place.parent) if e.get("kind") == "round"]
        runs, run = value["state"] == "running", place.parent
        waits = {"waiting_for_owner": _waiting(run) if runs else {}, "data_away": _waiting(run, True) if runs else {}}
        more = {"round": rounds[-1]["round"] if rounds else 0, **waits}
        found.append({"study": place.parent.name, **value, **more})
    return found


def _waiting(run: Path, data: bool = False) -> dict[str, str]:
    """Sites whose owners have not decided yet (with ``data``: whose databases do not answer), and since when."""
    since: dict[str, str] = {}
    for e in read_events(run / "events.jsonl"):
        if e["event"] == "leg":
            since = {}
        elif "site" in e:  # the first of several in a row says since when
            holds = e.get("reasons") == told("away") and e["event"] == "loading" if data else e["event"] == "waiting"
            since[e["site"]] = (since.get(e["site"]) or str(e["time"])) if holds else ""
    return {site: time for site, time in sorted(since.items()) if time}


def _fresh(run: Path, seconds: float = 15.0) -> bool:
    """Whether a study wrote something lately: between two legs nobody holds its lock."""
    written = [p.stat().st_mtime for n in ("status.json", "progress.jsonl", "events.jsonl") if (p := run / n).exists()]
    return time.time() - max(written, default=0.0) < seconds


def progress(run: Path) -> list[dict[str, Any]]:
    """How far a study is, one event a line."""
    return read_events(run / "progress.jsonl")


def seen(folder: CoordinatorFolder, now: dict[str, float]) -> dict[str, Any]:
    """When each site was last heard of, also before this; kept on disk."""
    path = folder.path / "seen.json"
    known = {**(read_json(path) if path.exists() else {}), **now}
    if now:
        write_json(path, known)
    return known


def status(folder: CoordinatorFolder) -> dict[str, Any]:
    """Who is connected, who is waited for and since when, and how every study stands."""
    settings = folder.read_settings()
    up = alive(Recorded.read(folder.pids / "server.json"))
    approved = folder.approved()
    here: dict[str, float] = {}
    if up:
        with session(folder) as api:
            here = connected(api)
    known, now = seen(folder, here), time.time()
    desk = alive(Recorded.read(folder.pids / "reception.json"))
    sites = {}
    for name in approved:
        last = known.get(name)
        sites[name] = {
            "connected": name in here,
            "last_seen_seconds": None if last is None else round(max(0.0, now - float(last)), 1),
            "fingerprint": approved[name]["fingerprint"],
        }
    return {
        "state": "running" if up else "stopped",
        "host": settings["host"],
        "port": settings["port"],
        "enrol_port": settings.get("enrol_port"),
        "joining": "by file" if settings.get("enrol_port") is None else "open" if desk else "closed",
        "asking_to_join": [n for n, e in entries(folder).items() if e.state == "waiting"],
        "left": [n for n, s in (read_json(folder.sites) if folder.sites.exists() else {}).items() if s.get("left")],
        "invited": [n for n, e in entries(folder).items() if e.state == "invited"],
        "sites": sites,
        "waiting_for": [n for n, s in sites.items() if not s["connected"]],
        "studies": _runs(folder),
    }


def state_of(folder: CoordinatorFolder, order: StudyOrder) -> dict[str, Any]:
    """How a study stands."""
    path = folder.run(order.id) / "status.json"
    return read_json(path) if path.exists() else {"study": order.id, "state": "signed"}


def order_of(folder: CoordinatorFolder, study: str) -> StudyOrder:
    """The signed order of a study: by its number, or by the only unfinished one that its name fits."""
    folder.read_settings()  # refuses a folder of another format
    names = [r["study"] for r in _runs(folder)]
    fits = [n for n in names if n == study] or [n for n in names if n.startswith(study)]
    if len(fits) > 1:
        fits = [r["study"] for r in _runs(folder) if r["study"] in fits and r["state"] != "finished"] or fits
    if len(fits) != 1:
        raise ConfigError(
            f"study {study!r}: {'none' if not fits else 'several'} of that name",
            faults=fits or names,
            hint="polyclinic coordinator status FOLDER lists them" if names else "no study was submitted yet",
        )
    return read_order(read_json(folder.run(fits[0]) / "order.json")["order"], folder.identity().public)


def _keep_out(folder: CoordinatorFolder) -> None:
    """Tell a server that is not running whom it may not register: our list of sites decides, not what FLARE remembers."""
    known = read_json(folder.sites) if folder.sites.exists() else {}
    revoked = sorted(n for n, s in known.items() if s.get("revoked"))
    write_json(folder.server / "disabled_clients.json", {"disabled_clients": revoked})


def revoke(folder: CoordinatorFolder, name: str) -> None:
    """From now on the site gets no study, no message, and cannot register."""
    from polyclinic.node.enrolment.federation import revoke_on_file

    revoke_on_file(folder, name)
    _tell_server(folder, "disable_client", name)


def readmit(folder: CoordinatorFolder, name: str) -> None:
    """A site that was revoked, and has joined anew, may register again."""
    _tell_server(folder, "enable_client", name)


def _tell_server(folder: CoordinatorFolder, command: str, name: str) -> None:
    if not alive(Recorded.read(folder.pids / "server.json")):
        return  # it reads our list when it starts
    with session(folder) as api, quiet():
        try:
            getattr(api, command)(name)
        except Exception as e:
            raise PolyclinicError(
                f"{name!r}: our list is changed, but FLARE's server did not get it ({e})",
                hint="polyclinic coordinator stop, then start: it reads the list again",
            ) from None
