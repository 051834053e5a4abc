"""The wire: what goes in comes out; everything else is refused by name."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyclinic.errors import MessageRefused, PolyclinicError, ProtocolMismatch
from polyclinic.protocol.interfaces import Message
from polyclinic.protocol.wire import encoding as wire

scalars = (
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text() | st.binary()
)
trees = st.recursive(
    scalars, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(), x, max_size=4), max_leaves=12
)


def tidy(value: object) -> object:
    return [tidy(v) for v in value] if isinstance(value, list | tuple) else value


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(trees)
def test_any_tree_survives(tree: object) -> None:
    assert wire.decode(wire.encode({"x": tree})) == {"x": tidy(tree)}


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i4", "u8", "u4", "u2", "u1", "?"])
def test_arrays_survive_bit_for_bit(dtype: str, rng: np.random.Generator) -> None:
    a = (rng.random((3, 0, 2)) if dtype == "f4" else rng.random((3, 4)) * 100).astype(dtype)
    b = wire.decode(wire.encode({"a": a, "t": a.T}))
    assert b["a"].dtype == a.dtype and np.array_equal(b["a"], a) and np.array_equal(b["t"], a.T)
    assert not b["a"].flags.writeable


def test_objects_and_code_never_travel() -> None:
    for value in (object(), np.array([object()]), np.array(["x"]), {1, 2}):
        with pytest.raises(MessageRefused):
            wire.encode({"x": value})


def test_size_limit_holds_both_ways() -> None:
    data = wire.encode({"a": np.zeros(1000)})
    with pytest.raises(MessageRefused, match="exceeds the limit"):
        wire.encode({"a": np.zeros(1000)}, limit=1000)
    with pytest.raises(MessageRefused, match="exceeds the limit"):
        wire.decode(data, limit=1000)


def test_every_truncation_is_refused() -> None:
    data = wire.encode({"a": np.arange(5.0), "b": "text"})
    for cut in range(len(data)):
        with pytest.raises(MessageRefused):
            wire.decode(data[:cut])
    with pytest.raises(MessageRefused, match="not announced"):
        wire.decode(data + b"x")


@settings(max_examples=300)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_flipped_bytes_never_crash(at: int, value: int, seed: int) -> None:
    data = bytearray(wire.encode({"a": np.arange(5.0), "b": ["text", {"c": 1}], "d": None}))
    data[at % len(data)] = value
    rng = np.random.default_rng(seed)
    data[rng.integers(len(data))] = rng.integers(256)
    with contextlib.suppress(PolyclinicError):
        wire.decode(bytes(data))


def test_ten_thousand_random_messages_crash_nothing(rng: np.random.Generator) -> None:
    refused = 0
    for _ in range(10_000):
        data = rng.bytes(int(rng.integers(0, 60)))
        try:
            wire.decode(wire.MAGIC + data if rng.random() < 0.5 else data)
        except PolyclinicError:
            refused += 1
    assert refused == 10_000


def test_another_protocol_or_version_is_refused_by_name() -> None:
    m = Message("north", "coordinator", "x", 1, "s", 0, {"a": np.zeros(2)})
    data = wire.encode_message(m, "trip/1")
    again = wire.decode_message(data, "trip/1")
    assert again.sender == "north" and np.array_equal(again.body["a"], np.zeros(2))
    with pytest.raises(ProtocolMismatch, match="'north' speaks 'trip/1', this side speaks 'trip/2'"):
        wire.decode_message(data, "trip/2")


def test_another_wire_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "VERSION", 2)
    data = wire.encode({"x": 1})
    monkeypatch.undo()
    with pytest.raises(ProtocolMismatch, match="wire version 2"):
        wire.decode(data)


def test_states_survive() -> None:
    @dataclass(frozen=True)
    class Inner:
        n: int

    @dataclass(frozen=True)
    class State:
        stage: str
        factors: tuple[np.ndarray, ...]
        maybe: float | None
        inner: Inner

    # resolvable annotations for a local class
    State.__annotations__ = {"stage": str, "factors": tuple, "maybe": float, "inner": Inner}
    s = State("a", (np.eye(2), np.ones(3)), None, Inner(4))
    t = wire.unpack(State, wire.decode(wire.encode(wire.pack(s))))
    assert (
        t.stage == "a"
        and isinstance(t.factors, tuple)
        and np.array_equal(t.factors[0], np.eye(2))
        and t.inner == Inner(4)
    )
    with pytest.raises(MessageRefused, match="wrong fields"):
        wire.unpack(State, {"stage": "a"})
