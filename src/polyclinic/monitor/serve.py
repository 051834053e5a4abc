"""``python -m polyclinic.monitor.serve site|coordinator PATH LISTEN NOTIFY EVERY``: a process of its own.

It looks at the node every few seconds, and answers from what it last saw: a monitoring system is never kept waiting by a
coordinator that is silent, and a study never by a monitoring system.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from polyclinic.engines.flare.folders import CoordinatorFolder, SiteFolder, append_event
from polyclinic.monitor.metrics import CONTENT, exposition, need_client
from polyclinic.monitor.notice import Notices
from polyclinic.monitor.snapshot import Snapshot, coordinator_snapshot, site_snapshot
from polyclinic.study.service import address

__all__ = ["Watch", "server"]


class Watch:
    """The last snapshot, looked at anew in a thread.

    Parameters
    ----------
    look
        Makes a snapshot.
    every
        Seconds between two looks; a snapshot older than four times this and a minute is no longer believed.
    """

    def __init__(self, look: Callable[[], Snapshot], every: float, notices: Notices | None = None) -> None:
        self.look, self.every, self.notices = look, every, notices
        self.last: Snapshot | None = None
        self.trouble = "not looked at yet"
        self.render: Callable[[Snapshot], bytes] | None = None  # set where pages are served
        self._page: bytes | None = None  # written when the node is looked at, not when somebody asks

    def once(self) -> None:
        """Look, and tell what is new."""
        try:
            found = self.look()
            self._page = self.render(found) if self.render is not None else None
            self.last, self.trouble = found, ""
            if self.notices is not None:
                self.notices.look(self.last)
        except Exception as e:  # whatever is wrong with the node, the monitor goes on saying so
            self.trouble = f"{type(e).__name__}: {e}"

    def run(self) -> None:
        """Look for ever."""
        while True:
            self.once()
            time.sleep(self.every)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Code and body of ``/health``."""
        s = self.last
        if s is None or self.trouble:
            return 503, {"status": "fault", "faults": [self.trouble]}
        body = s.health()
        old = time.time() - s.at
        if old > 4 * self.every + 60:
            return 503, {**body, "status": "fault", "faults": [f"the last look was {old:.0f} s ago", *body["faults"]]}
        return (200 if s.healthy else 503), body

    def metrics(self) -> bytes | None:
        """The text of ``/metrics``; None before the first look."""
        return self._page


def server(watch: Watch, listen: str) -> ThreadingHTTPServer:
    """An HTTP server with two pages, both read-only."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "polyclinic", ""
        timeout = 10

        def do_GET(self) -> None:
            """The two pages."""
            path = self.path.partition("?")[0]
            if path == "/health":
                code, body = watch.health()
                self._send(code, "application/json", json.dumps(body).encode())
            elif path == "/metrics":
                text = watch.metrics()
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

        def log_message(self, format: str, *args: Any) -> None:
            """A look at the health is no news."""

    host, port = address(listen)
    watch.render = exposition

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    return Server((host, port), Handler)


def main(kind: str, path: str, listen: str, notify: str, every: float) -> None:
    """Watch and serve until ended."""
    os.umask(0o077)
    folder: SiteFolder | CoordinatorFolder
    look: Callable[[], Snapshot]
    if kind == "site":
        folder = SiteFolder.of(Path(path))
        look = partial(site_snapshot, folder)
    else:
        folder = CoordinatorFolder(Path(path))
        look = partial(coordinator_snapshot, folder)
    notices = Notices(notify, folder.path / "told.json", folder.events) if notify else None
    watch = Watch(look, every, notices)
    if not listen:
        watch.run()
        return
    need_client()
    made = server(watch, listen)
    sys.setswitchinterval(0.001)  # an answer does not wait for a look
    append_event(folder.events, event="monitor", listen=listen)
    threading.Thread(target=watch.run, daemon=True).start()
    made.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]))
