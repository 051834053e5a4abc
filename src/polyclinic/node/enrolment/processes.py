"""Processes that we start, noted by number and start time, and ended by number only, never by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import private, turn, write_json

MONITOR: Final = Path("monitor", "process.json")  # in the folder of a site or coordinator


@dataclass(frozen=True)
class Recorded:
    """A process that we started; the start time tells it from a later one with the same number."""

    pid: int
    started: float

    @classmethod
    def read(cls, path: Path) -> Recorded | None:
        """The process noted in a file; None if there is no note."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            return cls(int(value["pid"]), float(value["started"]))
        except (OSError, ValueError, KeyError):
            return None


def record(path: Path, pid: int) -> Recorded:
    """Note a process."""
    import psutil

    try:
        started = float(psutil.Process(pid).create_time())
    except psutil.Error:
        started = 0.0
    private(path.parent)
    write_json(path, {"pid": pid, "started": started})
    return Recorded(pid, started)


def forget(path: Path) -> None:
    """Remove a note."""
    path.unlink(missing_ok=True)


def recorded(folder: Path, pattern: str = "*.json") -> list[Recorded]:
    """All processes noted in a folder."""
    found = [Recorded.read(p) for p in sorted(folder.glob(pattern))] if folder.exists() else []
    return [f for f in found if f is not None]


def alive(process: Recorded | None) -> bool:
    """Whether this very process runs (a zombie does not)."""
    import psutil

    if process is None:
        return False
    try:
        p = psutil.Process(process.pid)
        return abs(p.create_time() - process.started) < 1.0 and p.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end(processes: Sequence[Recorded], *, patience: float = 5.0) -> list[int]:
    """End processes and their children: ask, wait, then kill. Returns the numbers that were ended."""
    import psutil

    found: list[psutil.Process] = []
    for r in processes:
        if alive(r):
            p = psutil.Process(r.pid)
            with suppress(psutil.Error):
                found += p.children(recursive=True)
            found.append(p)
    for p in found:
        with suppress(psutil.Error):
            p.terminate()
    _, left = psutil.wait_procs(found, timeout=patience)
    for p in left:
        with suppress(psutil.Error):
            p.kill()
    psutil.wait_procs(left, timeout=patience)
    return sorted({p.pid for p in found})


def launch(argv: Sequence[str], *, env: dict[str, str], log: Path, note: Path) -> Recorded:
    """Start one of our own processes in the background, detached from the terminal; its output goes to ``log``."""
    running = Recorded.read(note)
    if alive(running):
        raise ConfigError(f"already running (process {running.pid if running else '?'})", hint="stop it first")
    private(log.parent)
    turn(log)  # what the process itself says; FLARE's own logs turn over by themselves
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, *argv],
            env={
                "MALLOC_ARENA_MAX": "2",
                **env,
            },  # threads of a server share arenas: bursts of strangers leave less behind
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(handle)
    process.returncode = 0  # it outlives this command on purpose; nobody waits for it here
    return record(note, process.pid)


def port_open(host: str, port: int, timeout: float = 0.5) -> bool:
    """Whether somebody listens."""
    import socket

    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port nobody uses now (rehearsals and tests)."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(true: object, seconds: float, every: float = 0.1) -> bool:
    """Wait until a function returns something true."""
    assert callable(true)
    end_ = time.monotonic() + seconds
    while time.monotonic() < end_:
        if true():
            return True
        time.sleep(every)
    return bool(true())
