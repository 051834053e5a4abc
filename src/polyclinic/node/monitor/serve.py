"""``python -m polyclinic.node.monitor.serve site|coordinator PATH LISTEN NOTIFY EVERY``: a small process that answers at once.

The main thread looks at the node (``watch``), another one answers with the last page. So a monitoring system is never kept
waiting by a silent coordinator or by the accounting of a budget, and a study never by a monitoring system.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from polyclinic.config.service import address
from polyclinic.node.monitor.watch import Page, watch_of

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
