"""Frames that grow in memory, silent callers of the joining port, unknown runs: rows 22, 25 and 26 of the list of attacks."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from tests.attacks.hostile_world import World

from polyclinic.errors import MessageRefused, PolyclinicError
from polyclinic.protocol.wire import encoding as wire

HEAD = b"\x83\xa1v\x01\xa1a\x90\xa1t"


def _frame(header: bytes) -> bytes:
    return wire.MAGIC + struct.pack("<I", len(header)) + header


def _many(count: int, item: bytes) -> bytes:
    return _frame(HEAD + b"\xdd" + struct.pack(">I", count) + item * count)


SMALL = {
    "empty maps": b"\x80",
    "lists of empty lists": b"\x91\x90",
    "maps of one": b"\x81\xa1a\x80",
    "large numbers": b"\xce\xff\xff\xff\xff",
    "short texts": b"\xa1x",
    "nothing": b"\xc0",
}


@pytest.mark.parametrize("item", SMALL.values(), ids=SMALL.keys())
def test_small_values_do_not_become_large_memory(item: Any) -> None:
    data = _many(5 * 2**20 // len(item), item)
    tracemalloc.start()
    try:
        with pytest.raises(MessageRefused):
            wire.decode(data)
        assert tracemalloc.get_traced_memory()[1] <= 4 * len(data)
    finally:
        tracemalloc.stop()


def test_wide_letters_deep_lists_and_arrays_of_nothing_are_counted() -> None:
    wide = _frame(HEAD + b"\xdb" + struct.pack(">I", 4 * 2**20) + "\U0001f600".encode() + b"a" * (4 * 2**20 - 4))
    deep = _frame(HEAD + b"\x91" * 10**6 + b"\xc0")
    item = msgpack.packb(["|u1", []])
    count = 5 * 2**18
    arrays = _frame(b"\x83\xa1v\x01\xa1t\xc0\xa1a\xdd" + struct.pack(">I", count) + item * count)
    for data in (wide, deep, arrays):
        tracemalloc.start()
        try:
            with pytest.raises(MessageRefused):
                wire.decode(data)
            assert tracemalloc.get_traced_memory()[1] <= 4 * len(data)
        finally:
            tracemalloc.stop()


def test_honest_messages_pass() -> None:
    letters = [wire.encode({"v": np.zeros(250_000), "n": i}) for i in range(4)]
    sealed = {f"site-{i:03d}": bytes(200) for i in range(100)}
    for value in ({"mail": letters}, {"sealed": sealed}, {"labels": [f"code {i}" for i in range(20_000)]}):
        data = wire.encode(value)
        tracemalloc.start()
        back = wire.decode(data)
        assert tracemalloc.get_traced_memory()[1] <= max(4 * len(data), wire.SMALL)
        tracemalloc.stop()
        assert set(back) == set(value)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("frames", [3_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_mutated_frames_are_refused_and_weigh_little(frames: int) -> None:
    rng, refused = np.random.default_rng(frames + 2), 0
    good = wire.encode({"a": [1, 2.5, "x", None, b"q"], "b": np.arange(20.0), "c": {"d": np.arange(6, dtype=np.uint8)}})
    tracemalloc.start()
    for _ in range(frames):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        with_more = bytes(data) + rng.bytes(int(rng.integers(0, 9)))
        try:
            wire.decode(with_more)
        except PolyclinicError:
            refused += 1
    print(f"\nFIGURE {frames:,} mutated frames: {refused:,} refused, the others decode, no other exception")
    assert 0.5 * frames < refused < frames
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    pytest.importorskip("nvflare")
    return World(tmp_path_factory.mktemp("ports"), patients=4)


def _call(port: int, context: ssl.SSLContext) -> bytes:
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=300)) as line:
        line.sendall(b"POST /roster HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        return line.recv(13)


@pytest.mark.parametrize("how", ["silent", "half a handshake", "half a request"])
def test_slow_callers_of_the_joining_port_cost_only_themselves(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line ends by its own time here: others are answered only because the oldest line is cut."""
    from polyclinic.node.enrolment import joining

    monkeypatch.setattr(joining, "SECONDS", 100_000.0)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with joining.JoiningPort(world.coordinator, "127.0.0.1", 0) as port_:
        threading.Thread(target=port_.serve_forever, daemon=True).start()
        port = port_.server_address[1]
        _call(port, context)
        idle = []
        for _ in range(2 * joining.AT_ONCE):
            line = socket.create_connection(("127.0.0.1", port))
            if how == "half a handshake":
                line.sendall(b"\x16\x03\x01\x02\x00\x01")
            elif how == "half a request":
                line = context.wrap_socket(line, do_handshake_on_connect=False)
            idle.append(line)
        assert all(_call(port, context).startswith(b"HTTP/1.0 403") for _ in range(3))
        port_.shutdown()
        for line in idle:
            line.close()


def test_unknown_run_is_not_found(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from polyclinic.web.server import create_app

    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "study.json").write_text("{}")
    app, cookie = create_app(tmp_path, token="t" * 24), {"polyclinic": "t" * 24}
    client = TestClient(app, base_url="http://127.0.0.1:8765", cookies=cookie, raise_server_exceptions=False)
    for id in ("x", "%00", "../r", "r/..", "r%2f..%2fr"):
        for path in (f"/api/events?id={id}", f"/api/run?id={id}", f"/report?id={id}"):
            assert client.get(path).status_code == 404, path
