"""The hook: a command of the owner's, run when the owner is asked, a study failed here, or a certificate ends soon."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Final

from polyclinic.node.enrolment.folders import append_event, read_json, write_json
from polyclinic.node.enrolment.handshake import NOW, SOON
from polyclinic.node.monitor.snapshot import Snapshot

__all__ = ["Notices"]

PATIENCE: Final = 30.0  # seconds for the command


class Notices:
    """Which news was told; kept on disk, so that a restart tells nothing twice.

    Parameters
    ----------
    command
        As written; it is split into words and run without a shell.
    memory
        The file of what was told.
    log
        Where a command that fails is written down.
    """

    def __init__(self, command: str, memory: Path, log: Path) -> None:
        self.words = shlex.split(command)
        self.memory, self.log = memory, log

    def look(self, snapshot: Snapshot) -> list[dict[str, object]]:
        """Tell what is new in a snapshot; what has gone is forgotten, so that it is told again should it come back."""
        before = set(read_json(self.memory)["told"]) if self.memory.exists() else set()
        news = {_key(n): n for n in _news(snapshot)}
        told = [n for key, n in news.items() if key not in before]
        for n in told:
            self._run(n)
        if set(news) != before:
            write_json(self.memory, {"told": sorted(news)})
        return told

    def _run(self, news: dict[str, object]) -> None:
        try:
            done = subprocess.run(
                self.words, input=json.dumps(news) + "\n", text=True, capture_output=True, timeout=PATIENCE, check=False
            )
            if done.returncode:
                append_event(self.log, event="notify failed", about=news["event"], code=done.returncode)
        except (OSError, subprocess.TimeoutExpired) as e:
            append_event(self.log, event="notify failed", about=news["event"], what=f"{type(e).__name__}: {e}")


def _key(n: dict[str, object]) -> str:
    return "\0".join(str(n.get(k, "")) for k in ("event", "about", "within"))


def _news(s: Snapshot) -> list[dict[str, object]]:
    base = {"node": s.name, "kind": s.kind}
    made: list[dict[str, object]] = [{**base, "event": "owner is asked", "about": a} for a in s.asked]
    made += [
        {**base, "event": "study failed", "about": x.study, "state": x.state}
        for x in s.studies
        if x.state in ("failed", "refused")
    ]
    if s.certificate_days is not None and s.certificate_days <= SOON:
        within = NOW if s.certificate_days <= NOW else SOON
        days = round(s.certificate_days, 1)
        made.append({**base, "event": "certificate ends soon", "about": "certificate", "days": days, "within": within})
    return made
