"""``python -m polyclinic.node.monitor.serve site|coordinator PATH LISTEN NOTIFY EVERY``: a small process that answers at once.

The main thread looks at the node (``StudyWatch``), another one answers with the last page. So a monitoring system is never kept
waiting by a silent coordinator or by the accounting of a budget, and a study never by a monitoring system.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from polyclinic.config.service import address
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


CONTENT: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class StatusBoard:
    """The last page.

    Parameters
    ----------
    every
        Seconds between two looks; a page older than four times this and a minute is no longer believed.
    """

    def __init__(self, every: float) -> None:
        self.every = every
        self.page = Page.trouble("not looked at yet")

    def show(self, page: Page) -> None:
        """Keep a page. After a look that failed the metrics of the one before stay: a gap would hide when it began."""
        if page.metrics is None and self.page.metrics is not None:
            page = Page(page.code, page.health, self.page.metrics, page.at)
        self.page = page

    def health(self) -> tuple[int, dict[str, Any]]:
        """Code and body of ``/health``."""
        p = self.page
        old = time.time() - p.at
        if old > 4 * self.every + 60:
            faults = [f"the last look was {old:.0f} s ago", *p.health.get("faults", ())]
            return 503, {**p.health, "status": "fault", "faults": faults}
        return p.code, p.health

    def metrics(self) -> bytes | None:
        """The text of ``/metrics``; None before the first look."""
        return None if self.page.metrics is None else self.page.metrics.encode()


def server(board: StatusBoard, listen: str) -> ThreadingHTTPServer:
    """An HTTP server with two pages, both read-only."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "polyclinic", ""
        timeout = 10

        def do_GET(self) -> None:
            """The two pages."""
            path = self.path.partition("?")[0]
            if path == "/health":
                code, body = board.health()
                self._send(code, "application/json", json.dumps(body).encode())
            elif path == "/metrics":
                text = board.metrics()
                self._send(503 if text is None else 200, CONTENT, text or b"# EOF\n")
            else:
                self._send(404, "application/json", b'{"pages": ["/health", "/metrics"]}')

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A look at the health is no news."""

    host, port = address(listen)

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 64

    return Server((host, port), Handler)


def main(kind: str, path: str, listen: str, notify: str, every: float) -> None:
    """Look until ended, and serve where an address is given."""
    os.umask(0o077)
    board = StatusBoard(every)
    if listen:
        threading.Thread(target=server(board, listen).serve_forever, daemon=True).start()
    watch_of(kind, path, notify, every, board.show if listen else None).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]))
