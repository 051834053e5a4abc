"""A study in legs: each is one job of FLARE; our own files, not FLARE's, say when the study has ended."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polyclinic.errors import ConfigError, PeerLost
from polyclinic.node.coordinator.coordinator import CANCELLING
from polyclinic.node.enrolment.folders import (
    CoordinatorFolder,
    append_event,
    at_work,
    read_events,
    read_json,
    write_json,
)
from polyclinic.node.enrolment.processes import Recorded, alive, wait_for
from polyclinic.node.flare.carry import CANCEL
from polyclinic.node.flare.coordinator_service import progress, seen, state_of
from polyclinic.node.flare.session import connected, quiet, session, submit
from polyclinic.node.signed_study import StudyOrder

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

ENDED: Final = ("finished", "stopped", "failed", "cancelled")
LEGS: Final = 20
AWAY: Final = 25.0  # seconds after which a site that is connected, but not in this leg, is worth a new leg


def follow(folder: CoordinatorFolder, order: StudyOrder, tell: Callable[[dict[str, object]], None]) -> dict[str, Any]:
    """Run a study in legs until it is finished or cleanly stopped.

    A leg is one FLARE job. A new one is made when the coordinator's job process dies, or when a site is connected that the
    present leg does not know.
    """
    run = folder.run(order.id)
    if (run / CANCEL).exists():
        raise ConfigError(f"study {order.id!r} was cancelled", hint="submit the study again: it gets a new name")
    (run / "stop").unlink(missing_ok=True)
    least = order.least
    shown = len(progress(run))
    heard = len(read_events(run / "events.jsonl"))
    failed = 0  # legs that died before they began
    with session(folder) as api:
        for leg in range(LEGS):
            _wait_connected(folder, api, order, least, tell)
            if (run / CANCEL).exists():
                return {**state_of(folder, order), "state": "cancelled"}
            here = [s for s in order.sites if s in folder.approved()]
            write_json(run / "status.json", {"study": order.id, "state": "submitted"})
            job = submit(api, order, run, here, least)
            append_event(run / "events.jsonl", event="leg", number=leg, job=job)
            again = False
            started = time.monotonic()
            quiet_since = time.monotonic()
            while True:
                time.sleep(0.2)
                now = read_json(run / "status.json")
                fresh = progress(run)
                for event in fresh[shown:]:
                    tell(event)
                shown = max(shown, len(fresh))
                news = read_events(run / "events.jsonl")
                for event in news[heard:]:
                    if "site" in event:
                        tell({**event, "kind": "site"})
                heard = max(heard, len(news))
                if now["state"] in ENDED and now.get("job", job) == job:
                    break
                if time.monotonic() - quiet_since > 3.0:
                    quiet_since = time.monotonic()
                    if not alive(Recorded.read(folder.pids / "server.json")):
                        raise PeerLost(
                            f"study {order.id!r}: the coordinator's server is gone",
                            hint="polyclinic coordinator start, then: polyclinic coordinator resume",
                        )
                    again, dead = _watch(folder, api, run, order, job, started, now)
                    if again:
                        (run / "stop").touch(mode=0o600)
                        wait_for(lambda: read_json(run / "status.json")["state"] in ENDED, 15.0)
                        (run / "stop").unlink(missing_ok=True)
                        break
                    if dead:
                        again = True
                        break
            now = read_json(run / "status.json")
            if now["state"] == "finished" or not again:
                return now
            failed = failed + 1 if now["state"] == "submitted" else 0
            if failed >= 2:
                raise PeerLost(
                    f"study {order.id!r}: its process at the coordinator does not start",
                    hint=f"read {folder.path / 'server.log'} and {folder.server / 'error_log.txt'}",
                )
            append_event(run / "events.jsonl", event="next leg")
        raise PeerLost(f"study {order.id!r}: {LEGS} legs were not enough", hint="polyclinic coordinator resume")


def cancel(folder: CoordinatorFolder, order: StudyOrder) -> dict[str, Any]:
    """Cancel a study for good and tell its sites; what ``status.json`` says then.

    The leg that runs tells them. Where none runs, a leg is made for the sites that are connected.
    """
    run, path = folder.run(order.id), folder.run(order.id) / "status.json"
    before = state_of(folder, order)
    if before["state"] == "finished":
        raise ConfigError(f"study {order.id!r} has finished", hint="polyclinic coordinator remove deletes its folder")
    (run / CANCEL).touch(mode=0o600)
    told = set(before.get("told", ()))
    # where no leg was made, no site has the order: none is given it now
    untold = (set(order.sites) & set(folder.approved()) if (run / "events.jsonl").exists() else set()) - told
    leg = at_work(run / "lock")
    if untold and not leg and alive(Recorded.read(folder.pids / "server.json")):
        with session(folder) as api:
            if here := sorted(untold & set(connected(api))):
                write_json(path, {**before, "state": "submitted"})
                submit(api, order, run, here, 1)
                leg = True
    if leg:
        wait_for(lambda: read_json(path)["state"] == "cancelled", 3 * CANCELLING)
        told |= set(state_of(folder, order).get("told", ()))
    value = {"study": order.id, "state": "cancelled", "told": sorted(told), "not_told": sorted(untold - told)}
    write_json(path, {**value, "what": "the coordinator cancelled it"})
    return value


def remove(folder: CoordinatorFolder, order: StudyOrder) -> int:
    """Delete the run folder of a study that is over; how many files went."""
    run, state = folder.run(order.id), state_of(folder, order)["state"]
    if state not in ("finished", "cancelled") or at_work(run / "lock"):
        hint = f"polyclinic coordinator cancel {folder.path} {order.id}: its sites then delete their data"
        raise ConfigError(f"study {order.id!r} is not over: {state}", hint=hint)
    if run.is_symlink():
        raise ConfigError(f"{run} is a link", hint="delete it by hand")
    files = sum(len(names) for _, _, names in os.walk(run))
    shutil.rmtree(run)
    append_event(folder.events, event="removed", study=order.id, order=order.digest, files=files)
    return files


def _wait_connected(
    folder: CoordinatorFolder, api: Session, order: StudyOrder, least: int, tell: Callable[[dict[str, object]], None]
) -> None:
    """FLARE starts a job with the sites that are there; so wait for all, or for the quorum after a while."""
    begin = time.monotonic()
    told: set[str] = set()
    while True:
        now = connected(api)
        known = seen(folder, now)
        here = set(now) & set(order.sites)
        away = set(order.sites) - here
        if away != told and time.monotonic() - begin > 1.0:
            told = away
            ago = {n: None if n not in known else max(0.0, time.time() - float(known[n])) for n in sorted(away)}
            tell({"kind": "waiting", "sites": ago})
        waited = time.monotonic() - begin
        if (folder.run(order.id) / CANCEL).exists():
            return
        if len(here) == len(order.sites) or (len(here) >= least and waited > min(8.0, order.deadline)):
            return
        if waited > order.deadline:
            raise PeerLost(
                f"study {order.id!r}: {len(here)} sites are connected, {least} are needed",
                faults=[f"waiting for: {', '.join(sorted(set(order.sites) - here))}"],
                hint="start the sites (polyclinic site start), then: polyclinic coordinator resume",
            )
        time.sleep(0.5)


def _watch(
    folder: CoordinatorFolder,
    api: Session,
    run: Path,
    order: StudyOrder,
    job: str,
    started: float,
    now: dict[str, object],
) -> tuple[bool, bool]:
    """Whether a new leg is needed for a site that this leg does not reach, and whether this leg's process is dead."""
    events = read_events(run / "events.jsonl")
    last = max((i for i, e in enumerate(events) if e["event"] == "leg"), default=0)
    states: dict[str, tuple[str, str]] = {}
    for e in events[last:]:
        if "site" in e:
            states[e["site"]] = (e["event"], e["time"])
    try:
        here = connected(api)
        seen(folder, here)
        with quiet():
            said = str(api.get_job_status(job))
    except Exception:
        return False, False
    old = time.monotonic() - started
    # FLARE lists a dead site for a while; only a fresh heartbeat counts. A restarted site needs some seconds to rejoin by itself.
    fresh = {s for s, last in here.items() if time.time() - last < 6.0}
    away = [
        s
        for s, (state, when) in states.items()
        if state in ("absent", "lost") and time.time() - datetime.fromisoformat(when).timestamp() > AWAY and s in fresh
    ]
    if now["state"] == "running" and away and old > AWAY:
        append_event(run / "events.jsonl", event="a site is back, but not in this leg", sites=away)
        return True, False
    dead = said.startswith("FINISHED") or "EXCEPTION" in said or "FAILED" in said or "ABORTED" in said
    return False, dead and old > 5.0 and read_json(run / "status.json")["state"] not in ENDED
