"""Where sites ask to join: a small TLS port of the coordinator, and a site's way to it.

    POST /join     secret of the invite and the request -> waiting, approved (with the approval), or refused
    POST /renew    signed by a site that has joined -> its new certificate, once a person has signed one
    POST /roster    with the certificate of a site that has joined -> the signed list of sites
    POST /leave     with that certificate -> the site takes part in no study any more

The site trusts the authority of its invite and nobody else. Everything is bounded: bytes, seconds, connections at a time,
calls a minute; what is kept is one request for each invite. The process reads neither the authority's key nor the coordinator's signing key.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

from polyclinic import __version__
from polyclinic.errors import MessageRefused, PeerLost, PolicyRefusal
from polyclinic.node.enrolment import invitation
from polyclinic.node.enrolment.authority import common_name
from polyclinic.node.enrolment.folders import CoordinatorFolder, append_event, read_json, write_json
from polyclinic.node.enrolment.proxy import connection, proxy_for

BODY: Final = 64 * 1024  # bytes of a request; an honest one has 4 kB
# connections served at the same time; a further one takes the place of the one that was longest silent
AT_ONCE: Final = 16
SECONDS: Final = 15.0  # of one connection, handshake included
A_MINUTE: Final = 240  # calls from one address
ADDRESSES: Final = 1024  # addresses remembered for it
NOTED: Final = 500  # refusals in the log of one life of this process


class JoiningPort(HTTPServer):
    """The coordinator's port for joining.

    Parameters
    ----------
    folder
        The coordinator's folder.
    address, port
        Where to listen; port 0 takes a free one.
    """

    request_queue_size = 32
    daemon_threads = True

    def __init__(self, folder: CoordinatorFolder, address: str, port: int) -> None:
        self.folder = folder
        kit = folder.server / "startup"
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.load_cert_chain(kit / "server.crt", kit / "server.key")
        self._tls.load_verify_locations(kit / "rootCA.pem")
        # a site that has joined shows its certificate; one that asks has none
        self._tls.verify_mode = ssl.CERT_OPTIONAL
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lines: OrderedDict[int, socket.socket] = OrderedDict()  # served now, oldest first
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()
        self._noted = 0
        self.lock, self._gate = threading.Lock(), threading.Lock()
        super().__init__((address, port), _Counter)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread of its own.

        An honest call is over in a fraction of a second. So when all places are taken, the oldest connection is cut: who
        says nothing, or drips, costs itself a connection and nobody else a wait.
        """
        if not self._allowed(str(client_address[0])):
            self.shutdown_request(request)
            return
        taken = self._slots.acquire(blocking=False)
        while not taken:
            with self._gate:
                oldest = next(iter(self._lines.values()), None)
            if oldest is not None:
                _cut(oldest)
            taken = self._slots.acquire(timeout=0.1)
        threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()

    def _serve(self, request: socket.socket, client_address: object) -> None:
        line = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        clock = threading.Timer(SECONDS, _cut, (line,))  # however slowly it drips, it ends
        clock.daemon = True
        clock.start()
        with self._gate:
            self._lines[id(line)] = line
        try:
            with line:
                line.settimeout(SECONDS / 3)
                line.do_handshake()
                self.finish_request(line, client_address)
        except (OSError, ValueError):
            pass  # a broken or strange connection is nobody's business
        finally:
            clock.cancel()
            with self._gate:
                del self._lines[id(line)]
            self._slots.release()

    def refused(self, reason: str, sender: str) -> None:
        """Note a refusal; only so many, because a stranger must not fill the disk."""
        self._noted += 1
        if self._noted <= NOTED:
            append_event(self.folder.events, event="enrolment refused", reason=reason, sender=sender)

    def _allowed(self, address: str) -> bool:
        now = time.monotonic()
        calls = self._calls.setdefault(address, deque(maxlen=A_MINUTE))
        self._calls.move_to_end(address)
        while len(self._calls) > ADDRESSES:
            self._calls.popitem(last=False)
        if len(calls) == A_MINUTE and now - calls[0] < 60.0:
            return False
        calls.append(now)
        return True


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # under TLS, too, and without waiting for it


class _Counter(BaseHTTPRequestHandler):
    """Reads one call and answers it."""

    server: JoiningPort
    server_version, sys_version = "polyclinic", ""
    timeout = SECONDS / 3

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if not 0 <= size <= BODY:
            self.rfile.read(min(max(size, 0), 4 * BODY))  # so that the answer is read, not the broken line
            return self._answer(413, {"state": "refused", "reason": f"a request has at most {BODY:,} bytes"})
        try:
            value = json.loads(self.rfile.read(size) or b"{}")
        except (ValueError, RecursionError):
            return self._answer(400, {"state": "refused", "reason": "not a request to join"})
        with self.server.lock:
            status, answer = 404, {"state": "refused", "reason": "nothing here"}
            sender = str(self.client_address[0])
            if self.path == "/join":
                status, answer = invitation.ask(self.server.folder, value, sender)
            elif self.path == "/renew":
                status, answer = invitation.hand_out(self.server.folder, value)
            elif self.path in ("/roster", "/leave"):
                status, answer = self._member(self.path)
            if answer.get("state") == "refused":
                self.server.refused(answer["reason"], sender)
        return self._answer(status, answer)

    def _member(self, path: str) -> tuple[int, dict[str, Any]]:
        """Answer a site that has joined: hand out the roster, or note that the site leaves."""
        folder, name = self.server.folder, ""
        if isinstance(self.connection, ssl.SSLSocket):
            der = self.connection.getpeercert(binary_form=True)  # the authority has signed it, or TLS had refused it
            name = common_name(der) if der else ""
        if name not in folder.approved():
            return 403, {"state": "refused", "reason": "only a site that has joined may ask this"}
        if path == "/roster":
            # `coordinator approve` wrote it; the version is for `site doctor`
            return 200, {**read_json(folder.path / "roster.json"), "polyclinic": __version__}
        sites, today = read_json(folder.sites), time.strftime("%Y-%m-%d")
        write_json(folder.sites, {**sites, name: {**sites[name], "revoked": today, "left": today}})
        append_event(folder.events, event="left", site=name)
        return 200, {"state": "left"}

    def _answer(self, status: int, value: Mapping[str, object]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """The coordinator's own log says what came in."""


def call(
    invite: dict[str, Any], path: str, value: Mapping[str, object], *, kit: Path | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """A site calls the coordinator's port for joining; raises if the coordinator cannot be reached, or is not the invite's.

    Parameters
    ----------
    kit
        Folder with ``client.crt`` and ``client.key``, once the site has joined.
    """
    host, port = str(invite["host"]), int(invite["enrol_port"])
    tls = ssl.create_default_context(cadata=str(invite["authority"]))
    if kit is not None:
        tls.load_cert_chain(kit / "client.crt", kit / "client.key")
    proxy = proxy_for(host)
    try:
        with contextlib.closing(connection(host, port, timeout, tls)) as line:
            line.request("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})
            reply = line.getresponse()
            answer = json.loads(reply.read(4 * BODY))
    except ssl.SSLCertVerificationError as e:
        raise MessageRefused(
            f"{host}:{port} does not prove to be the coordinator of this invite ({e.verify_message})",
            hint="a wrong address, a proxy that opens TLS, or an attacker in between. Nothing was sent",
        ) from None
    except (OSError, HTTPException, ValueError) as e:
        by = f" through the proxy {proxy.host}:{proxy.port}" if proxy is not None else ""
        raise PeerLost(
            f"the coordinator's port for joining, {host}:{port}, does not answer{by} ({_why(e)})",
            hint=f"is the coordinator started, its port open? Or carry it as a file: polyclinic site {_BY_HAND.get(path, '')}",
        ) from None
    if not isinstance(answer, dict) or reply.status not in (200, 202):
        why = answer.get("reason", reply.status) if isinstance(answer, dict) else reply.status
        raise PolicyRefusal(f"the coordinator refused: {why}", hint=_REMEDY.get(reply.status, ""))
    return answer


def awaited(
    invite: dict[str, Any], path: str, value: Mapping[str, object], wait: float, every: float
) -> dict[str, Any] | None:
    """Call until the coordinator has approved, also while it is being restarted: its answer, or None when the time is over."""
    end = time.monotonic() + wait
    while True:
        last = time.monotonic() + every > end
        try:
            answer = call(invite, path, value)
        except PeerLost:
            if last:
                raise
        else:
            if answer["state"] == "approved":
                return answer
            if last:
                return None
        time.sleep(every)


def _why(e: Exception) -> str:
    """What a person at a firewall can use: a name that is unknown, a port that is closed, packets that vanish."""
    if isinstance(e, socket.gaierror):
        return "this machine does not know the name"
    if isinstance(e, TimeoutError):
        return "no answer: a firewall on the way may drop it"
    return str((e.strerror if isinstance(e, OSError) else None) or (e if isinstance(e, OSError) else type(e).__name__))


_BY_HAND: Final = {"/join": "join --offline", "/roster": "pin roster.json", "/renew": "renew --approval FILE"}
_REMEDY: Final = {
    403: "ask the coordinator for a new invite (polyclinic coordinator invite)",
    409: "if that was not you, somebody else has your invite: tell the coordinator (coordinator invite makes a new one)",
}


def listening(settings: dict[str, object]) -> str:
    """Address to listen on: loopback stays on loopback, any other host means all addresses."""
    return "127.0.0.1" if settings["host"] in ("localhost", "127.0.0.1") else ""


def main(path: str) -> None:
    """``python -m polyclinic.node.enrolment.joining FOLDER``."""
    import os

    os.umask(0o077)
    folder = CoordinatorFolder(Path(path))
    settings = folder.read_settings()
    with JoiningPort(folder, listening(settings), int(settings["enrol_port"])) as desk:
        desk.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
