"""Looks at a node again and again: what monitoring is answered, and news for the owner's command."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, append_event, read_json, write_json
from polyclinic.node.enrolment.handshake import NOW, SOON
from polyclinic.node.monitor.metrics import exposition
from polyclinic.node.monitor.snapshot import Snapshot, coordinator_snapshot, site_snapshot

PATIENCE: Final = 30.0  # seconds for the command


@dataclass(frozen=True)
class Page:
    """One look.

    Attributes
    ----------
    code, health
        Of ``/health``.
    metrics
        The text of ``/metrics``; none where the look failed.
    at
        When, in seconds since 1970.
    """

    code: int
    health: dict[str, Any]
    metrics: str | None
    at: float

    @classmethod
    def trouble(cls, what: str) -> Page:
        """The node could not be looked at."""
        return cls(503, {"status": "fault", "faults": [what]}, None, time.time())


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
    if not s.process:
        made.append({**base, "event": "node down", "about": s.name})
    elif s.kind == "site" and s.accepted is False:
        made.append({**base, "event": "coordinator away", "about": s.name, "what": list(s.sentences)})
    if s.state == "data away":
        made.append({**base, "event": "data away", "about": s.name, "what": list(s.sentences)})
    if s.certificate_days is not None and s.certificate_days <= SOON:
        within = NOW if s.certificate_days <= NOW else SOON
        days = round(s.certificate_days, 1)
        made.append({**base, "event": "certificate ends soon", "about": "certificate", "days": days, "within": within})
    return made


class StudyWatch:
    """Looks at a node again and again.

    Parameters
    ----------
    look
        Makes a snapshot.
    every
        Seconds between two looks.
    show
        What is done with each page; none are made where nobody serves them.
    """

    def __init__(
        self,
        look: Callable[[], Snapshot],
        every: float,
        notices: Notices | None = None,
        show: Callable[[Page], None] | None = None,
    ) -> None:
        self.look, self.every, self.notices, self.show = look, every, notices, show

    def once(self) -> None:
        """Look, show, and tell what is new."""
        try:
            found = self.look()
            if self.show is not None:
                code = 200 if found.healthy else 503
                self.show(Page(code, found.health(), exposition(found).decode(), found.at))
            if self.notices is not None:
                self.notices.look(found)
        except Exception as e:  # whatever is wrong with the node, the monitor goes on saying so
            if self.show is not None:
                self.show(Page.trouble(f"{type(e).__name__}: {e}"))

    def run(self) -> None:
        """Look for ever."""
        while True:
            self.once()
            time.sleep(self.every)


def watch_of(kind: str, path: str, notify: str, every: float, show: Callable[[Page], None] | None) -> StudyWatch:
    """The watch of a node."""
    folder: SiteFolder | CoordinatorFolder
    look: Callable[[], Snapshot]
    if kind == "site":
        folder = SiteFolder.of(Path(path))
        look = partial(site_snapshot, folder)
    else:
        folder = CoordinatorFolder(Path(path))
        look = partial(coordinator_snapshot, folder)
    notices = Notices(notify, folder.path / "told.json", folder.events) if notify else None
    return StudyWatch(look, every, notices, show)
