"""A tap on the relay: what the coordinator's machine and the wire see of letters between sites.

The workers note the plaintext of everything they seal for another site; the server's process notes every frame that it
relays, after TLS was removed; a proxy on the way notes every byte, before it was. What was sealed must be found in neither.
So that the search can fail, the same study also runs with the seal taken off at the sites: then the relay shows everything.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import Federation
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

WINDOW = 24  # bytes of a plaintext that are searched for: three numbers

SERVER = """
import sys
from nvflare.fuel.f3.sfm import conn_manager
take = conn_manager.ConnManager.process_frame_task
def tapped(self, sfm_conn, frame):
    with open({path!r}, "ab") as f:
        f.write(bytes(frame) + b"--frame--")
    return take(self, sfm_conn, frame)
conn_manager.ConnManager.process_frame_task = tapped
from polyclinic.node.flare.serve import main
main(*sys.argv[1:4])
"""

# imported by every Python process that starts at a site; acts in the workers only
WORKER = """
import os, struct, sys
if any("worker_process" in a for a in sys.orig_argv):
    from polyclinic.protocol import envelope, wire
    folder, unsealed = os.environ["TAP"], os.environ.get("TAP_UNSEALED")
    def note(kind, data):
        with open(os.path.join(folder, f"{kind}-{os.getpid()}"), "ab") as f:
            f.write(struct.pack("<I", len(data)) + data)
    seal, open_ = envelope.Channel.seal, envelope.Channel.open
    def tapped(self, data, label):
        note("sealed", bytes(data))
        return bytes(12) + bytes(data) if unsealed else seal(self, data, label)
    envelope.Channel.seal = tapped
    if unsealed:
        envelope.Channel.open = lambda self, data, label: bytes(data)[12:]
    encode = wire.encode_message
    def encoded(message, *args, **options):
        out = encode(message, *args, **options)
        if message.to == "coordinator":
            note("shown", out)
        return out
    wire.encode_message = encoded
"""


class Proxy:
    """Carries connections to a port and keeps every byte of both directions."""

    def __init__(self, to: int) -> None:
        self.to, self.seen, self._lock = to, bytearray(), threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._socket.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            for a, b in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                with self._lock:
                    self.seen += data
                b.sendall(data)
        except OSError:
            pass
        finally:
            a.close()
            b.close()

    def close(self) -> None:
        self._socket.close()


def _noted(folder: Path, kind: str) -> list[bytes]:
    found = []
    for file in folder.glob(f"{kind}-*"):
        data, at = file.read_bytes(), 0
        while at + 4 <= len(data):
            (size,) = struct.unpack("<I", data[at : at + 4])
            found.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    return found


def _windows(texts: list[bytes]) -> set[bytes]:
    """Pieces of every text that are too particular to occur by chance."""
    out = set()
    for t in texts:
        for at in range(0, max(1, len(t) - WINDOW + 1), WINDOW):
            piece = t[at : at + WINDOW]
            if len(piece) == WINDOW and len(set(piece)) > 8:
                out.add(piece)
    return out


def _found(pieces: set[bytes], seen: bytes) -> int:
    """How many of the pieces occur in what was seen."""
    return sum(piece in seen for piece in pieces)


def _run(
    root: Path, aggregation: str, monkeypatch: pytest.MonkeyPatch, *, unsealed: bool
) -> tuple[bytes, bytes, list[bytes], list[bytes]]:
    """Frames at the relay, bytes on the wire, plaintexts that were sealed, letters that the coordinator may read."""
    from polyclinic.node.enrolment.processes import launch, port_open
    from polyclinic.node.flare import coordinator_service as coordinator
    from polyclinic.node.flare import site_service as site

    made = Federation(root)
    notes = root / "notes"
    notes.mkdir()
    (root / "tap").mkdir()
    (root / "tap" / "sitecustomize.py").write_text(WORKER)
    script, frames = root / "server_tap.py", root / "frames.bin"
    script.write_text(SERVER.format(path=str(frames)))
    proxy = Proxy(made.port)
    try:
        launch(
            [str(script), "server", str(made.coordinator.server.resolve()), "server"],
            env=coordinator.environment(made.coordinator),
            log=made.coordinator.path / "server.log",
            note=made.coordinator.pids / "server.json",
        )
        assert wait_until(lambda: port_open("localhost", made.port))
        with monkeypatch.context() as m:
            m.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(root / "tap"), os.environ.get("PYTHONPATH")])))
            m.setenv("TAP", str(notes))
            if unsealed:
                m.setenv("TAP_UNSEALED", "1")
            for folder in made.sites.values():
                kit = folder.workspace / "startup" / "fed_client.json"
                value = json.loads(kit.read_text())
                value["servers"][0]["service"]["target"] = f"localhost:{proxy.port}"
                kit.write_text(json.dumps(value))
                site.start(folder)
        study = made.study("tapped", f'name = "trip"\nrank = 2\nrounds = 1\naggregation = "{aggregation}"')
        order = made.order(study)
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))
    finally:
        made.stop()
        proxy.close()
    return frames.read_bytes(), bytes(proxy.seen), _noted(notes, "sealed"), _noted(notes, "shown")


def _never_shown(text: bytes) -> bytes:
    """Of the first letter between two sites of a masked sum: seed shares, lock shares, 32 bytes of the group's key.

    Seeds of sites that survive are opened to the coordinator at the end, by the protocol; locks of survivors and the
    group's key, with which the total is checked, never are. Shares that the keeper can compute are not sent at all.
    """
    shares, part = text[:-32], text[-32:]
    return shares[len(shares) // 2 :] + part


@pytest.mark.parametrize("aggregation", ["subspace", "masked"])
def test_relay_sees_no_plaintext_of_a_letter_between_sites(
    tmp_path: Path, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, wire, sealed, shown = _run(tmp_path, aggregation, monkeypatch, unsealed=False)
    masked = aggregation == "masked"
    secret = _windows([_never_shown(x) for x in sealed] if masked else sealed)
    assert len(secret) >= (3 if masked else 11)  # masked: one key part of each site
    assert _found(secret, frames) == 0
    assert _found(secret, wire) == 0
    assert b"pc.put" in frames or b"pc.ask" in frames  # the relay reads FLARE's envelopes ...
    assert b"pc.put" not in wire  # ... nobody on the wire does
    assert b"pc.ask" not in wire
    assert len(wire) > len(frames) // 2
    if masked:  # and the tap does find what the coordinator is meant to read
        open_ = _windows([x for x in shown if len(x) < 100_000])
        assert len(open_) > 50
        assert _found(open_, frames) > 0.9 * len(open_)
        assert _found(open_, wire) == 0


def test_the_tap_would_find_letters_that_were_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, wire, sealed, _ = _run(tmp_path, "subspace", monkeypatch, unsealed=True)
    secret = _windows(sealed)
    assert _found(secret, frames) > 0.9 * len(secret) > 50
    assert _found(secret, wire) == 0  # TLS still covers the wire
