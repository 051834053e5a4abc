"""Malformed and oversized messages against our decoders: refused, never a crash, and no memory kept."""

from __future__ import annotations

import gc
import os

import numpy as np
import psutil
import pytest

from polyclinic.errors import PolyclinicError
from polyclinic.node.messages import open_ask, seal_ask
from polyclinic.node.signed_study import StudyOrder, read_order
from polyclinic.protocol.interfaces import Message
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Identity


def _mangle(rng: np.random.Generator, good: bytes) -> bytes:
    """Flip, cut, repeat, insert, or make it up."""
    data = bytearray(good)
    for _ in range(int(rng.integers(1, 4))):
        kind, at = int(rng.integers(6)), int(rng.integers(len(data) + 1))
        if kind == 0 and data:
            data[at % len(data)] ^= int(rng.integers(1, 256))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data += data[:at]
        elif kind == 3:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 4:
            data[4:8] = rng.bytes(4)  # the announced length of the header
        else:
            data = bytearray(rng.bytes(int(rng.integers(0, 200))))
    return bytes(data)


def _resident() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.parametrize("tries", [4_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_malformed_messages_leave_no_trace(tries: int) -> None:
    rng = np.random.default_rng(0)
    coordinator = Identity.generate("coordinator")
    order = StudyOrder(
        "s", {"method": {"name": "trip"}}, {}, {"north": "00", "coordinator": coordinator.public.hex()}, 1, 1.0
    )
    letter = Message(
        "north", "south", "value", 1, "sweep", 0, {"slot": 3, "x": np.arange(12.0), "y": [1, None, "t", b"z"]}
    )
    goods = [
        wire.encode_message(letter, "trip/1"),
        wire.encode({"study": "s", "letters": [wire.encode_message(letter, "trip/1")] * 3}),
        seal_ask(coordinator, "s", "north", "1", {"what": "take", "number": 0, "agreed": {"a": np.zeros((3, 4))}}),
        order.encode().encode(),
    ]
    readers = [
        lambda d: wire.decode_message(d, "trip/1"),
        wire.decode,
        lambda d: open_ask(d, coordinator.public.hex(), "s", "north"),
        lambda d: read_order(d.decode("latin-1"), coordinator.public),
    ]
    refused = 0
    before = 0
    for n in range(tries):
        if n == tries // 10:
            before = _resident()  # after the interpreter has warmed up
        which = n % 4
        try:
            readers[which](_mangle(rng, goods[which]))  # type: ignore[no-untyped-call]
        except PolyclinicError:
            refused += 1
    assert refused > 0.9 * tries  # a few mangled ones are still well-formed
    assert _resident() <= before * 1.05


def test_oversized_messages_are_refused_before_they_are_read() -> None:
    huge = bytes(wire.LIMIT + 1)
    for read in (
        wire.decode,
        lambda d: wire.decode_message(d, ""),
        lambda d: open_ask(d + bytes(64), "00", "s", "north"),
    ):
        with pytest.raises(PolyclinicError, match="exceeds"):
            read(huge)


def test_announced_sizes_are_not_believed() -> None:
    """A header that announces an array of petabytes allocates nothing."""
    import struct

    import msgpack

    header = msgpack.packb({"v": 1, "t": {"\x00array": 0}, "a": [["<f8", [2**39, 2**39]]]})
    before = _resident()
    with pytest.raises(PolyclinicError):
        wire.decode(b"PCW1" + struct.pack("<I", len(header)) + header)
    assert _resident() < before * 1.05
