"""Tampered, truncated, replayed or wrongly signed messages are refused by name, and nothing ever crashes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyclinic.errors import MessageRefused, PolyclinicError, ProtocolMismatch
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Message, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Channel, Identity, SealedMessage, digest, introduce

Make = Callable[..., Any]


def mutate(value: Any, rng: np.random.Generator) -> Any:
    """Change one thing somewhere inside."""
    if isinstance(value, dict):
        if not value or rng.random() < 0.15:
            return {**value, "more": 1}
        k = list(value)[int(rng.integers(len(value)))]
        if rng.random() < 0.15:
            return {a: b for a, b in value.items() if a != k}
        return {**value, k: mutate(value[k], rng)}
    if isinstance(value, bytes):
        if not value or rng.random() < 0.3:
            return value[: int(rng.integers(len(value)))] if value else b"x"
        at = int(rng.integers(len(value)))
        return value[:at] + bytes([value[at] ^ (1 << int(rng.integers(8)))]) + value[at + 1 :]
    if isinstance(value, np.ndarray):
        if value.size == 0 or rng.random() < 0.3:
            return value[:-1] if value.ndim else value
        out = value.copy()
        out.flat[int(rng.integers(out.size))] += np.asarray(1, out.dtype)
        return out
    if isinstance(value, list | tuple):
        return [*value[:-1]] if len(value) and rng.random() < 0.5 else [*value, "stranger"]
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int | float):
        return value + 1
    return [None, {}, b"", "text", -1, 1e300, [[]], np.zeros(3)][int(rng.integers(8))]


def twist(m: Message, rng: np.random.Generator) -> Message:
    """A message with one thing changed in its header or body."""
    what = int(rng.integers(10))
    if what == 0:
        return replace(m, sender=["stranger", m.to, ""][int(rng.integers(3))])
    if what == 1:
        return replace(m, kind=["advertise", "unmask", "", "abort", "value", "pass"][int(rng.integers(6))] + "?")
    if what == 2:
        return replace(m, round=m.round + 1)
    if what == 3:
        return replace(m, attempt=m.attempt + int(rng.integers(1, 5)))
    if what == 4:
        return replace(m, step=m.step + "'")
    if what == 5:
        return replace(m, body=[None, {}, "text", {"sealed": 3}, {"signature": b""}][int(rng.integers(5))])  # type: ignore[arg-type]
    return replace(m, body=mutate(dict(m.body), rng))


@pytest.mark.parametrize(("name", "copies"), [("masked", 120), ("subspace", 14), ("cycle", 100)])
def test_a_run_under_fuzz_refuses_all_of_it_and_still_ends_right(
    network: Make, truth: Make, name: str, copies: int
) -> None:
    """More than 10,000 altered messages over the three sums: each is refused, none leaves a trace."""
    rng = np.random.default_rng(5)
    roster, step, parts = network(4, 3)
    adder: Any = by_name(name)
    roster = adder.enrol(roster)
    sides = {s: adder.exchange(s, roster, step, parts[s]) for s in roster.sites}
    if roster.coordinator:
        sides[roster.coordinator] = adder.exchange(roster.coordinator, roster, step, None)
    queue = [m for s in sorted(sides) for m in sides[s].start()]
    refused = 0
    while queue:
        m = queue.pop(0)
        for _ in range(copies):
            bad = twist(m, rng)
            with pytest.raises(MessageRefused):
                sides[m.to].receive(bad)
            refused += 1
        raw = wire.encode_message(m, "x/1")
        for _ in range(3):  # on the wire: cut, or a bit turned
            at = int(rng.integers(len(raw)))
            broken = raw[:at] if rng.random() < 0.5 else raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]
            with pytest.raises((MessageRefused, ProtocolMismatch)):
                sides[m.to].receive(wire.decode_message(broken, "x/1"))
            refused += 1
        queue.extend(sides[m.to].receive(m))
        if m.kind != "average":  # the same result from several neighbours is expected
            with pytest.raises(MessageRefused):  # replayed
                sides[m.to].receive(m)
    want = truth(step, parts).arrays["B"]
    totals = [x.result() for x in sides.values() if isinstance(x.result(), Total)]
    assert totals
    for t in totals:
        np.testing.assert_allclose(t.arrays["B"], want, rtol=1e-12)
    assert refused >= {"masked": 4_400, "subspace": 4_500, "cycle": 1_500}[name]


@pytest.mark.parametrize("name", ["masked", "subspace", "cycle"])
def test_garbage_with_a_valid_signature_is_refused_or_harmless(network: Make, name: str) -> None:
    """A site that signs nonsense in every phase: errors have names, the others crash never."""
    rng = np.random.default_rng(6)
    roster, step, parts = network(4, 3)
    for _ in range(12):
        adder: Any = by_name(name)
        enrolled = adder.enrol(roster)
        sides = {s: adder.exchange(s, enrolled, step, parts[s]) for s in enrolled.sites}
        if enrolled.coordinator:
            sides[enrolled.coordinator] = adder.exchange(enrolled.coordinator, enrolled, step, None)
        queue = [m for s in sorted(sides) for m in sides[s].start()]
        while queue:
            m = queue.pop(0)
            if rng.random() < 0.25 and "signature" in m.body:
                body = {k: v for k, v in m.body.items() if k != "signature"}
                with contextlib.suppress(PolyclinicError):
                    signed = sides[m.sender].envelope.seal(m.to, m.kind, mutate(body, rng))
                    queue.extend(sides[m.to].receive(signed))
            with contextlib.suppress(MessageRefused):
                queue.extend(sides[m.to].receive(m))
        for side in sides.values():
            side.deadline()
            assert (
                side.result() == "pending" or side.result() in ("done", "aborted") or isinstance(side.result(), Total)
            )


def test_a_refusal_names_the_reason_and_is_logged(network: Make, caplog: pytest.LogCaptureFixture) -> None:
    roster, step, parts = network(3)
    adder: Any = by_name("masked")
    roster = adder.enrol(roster)
    a = roster.sites[0]
    (m,) = adder.exchange(a, roster, step, parts[a]).start()
    coordinator = adder.exchange("coordinator", roster, step, None)
    for bad, words in [
        (replace(m, to="elsewhere"), "is not for 'coordinator'"),
        (replace(m, sender="ghost"), "not on the roster"),
        (replace(m, attempt=7), "belongs to another sum"),
        (replace(m, body={**m.body, "line": bytes(32)}), "signature is wrong"),
        (replace(m, sender=roster.sites[1]), "signature is wrong"),
        (replace(m, body={k: v for k, v in m.body.items() if k != "signature"}), "signature is wrong"),
    ]:
        with pytest.raises(MessageRefused, match=words) as caught:
            coordinator.receive(bad)
        assert caught.value.code == "PC610"
        assert words in caplog.records[-1].getMessage()
        assert caplog.records[-1].name == "polyclinic.protocol"
    coordinator.receive(m)
    with pytest.raises(MessageRefused, match="received before"):
        coordinator.receive(m)
    forged = SealedMessage(
        a, replace(roster, keys={**roster.keys, a: (other := Identity.generate(a)).public}), step, other
    )
    with pytest.raises(MessageRefused, match="signature is wrong"):
        coordinator.receive(forged.seal("coordinator", "advertise", m.body))


def test_a_message_of_another_roster_does_not_open(network: Make) -> None:
    """Same keys, same round, but one side believes in another threshold: no word is exchanged."""
    roster, step, parts = network(4)
    adder: Any = by_name("masked")
    roster = adder.enrol(roster)
    a = roster.sites[0]
    (m,) = adder.exchange(a, replace(roster, threshold=4), step, parts[a]).start()
    with pytest.raises(MessageRefused, match="signature is wrong"):
        adder.exchange("coordinator", roster, step, None).receive(m)


def test_a_line_opens_only_for_its_label_its_direction_and_its_key() -> None:
    one, other = Channel(bytes(32), "a", "b"), Channel(bytes(32), "b", "a")
    sealed = one.seal(b"secret", "dual 1")
    assert other.open(sealed, "dual 1") == b"secret"
    assert one.seal(b"secret", "dual 1") != sealed
    for line, data, label in [
        (other, sealed, "dual 2"),
        (one, sealed, "dual 1"),
        (Channel(b"1" * 32, "b", "a"), sealed, "dual 1"),
        (other, sealed[:-1], "dual 1"),
        (other, b"", "dual 1"),
    ]:
        with pytest.raises(MessageRefused, match="does not open"):
            line.open(data, label)


def test_the_canonical_digest_tells_values_apart() -> None:
    values = [
        None, True, False, 0, 1, 1.0, "1", b"1", "", b"", [], {}, [1], [[1]], {"1": 1}, [None], ["a", "b"], ["ab"],
        np.zeros(2), np.zeros(3), np.zeros((2, 1)), np.zeros(2, np.uint64), np.ones(2),
    ]  # fmt: skip
    assert len({digest(v) for v in values}) == len(values)
    assert digest({"b": 1, "a": np.arange(3)}) == digest({"a": np.arange(3), "b": 1})
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    for bad in (deep, {1: 2}, object(), np.array(["text"])):
        with pytest.raises((TypeError, ValueError)):
            digest(bad)
    identities, keys = introduce(["a", "b"])
    assert keys["a"] == identities["a"].public != keys["b"]
    assert Identity.from_bytes("c", bytes(32)).public == Identity.from_bytes("c", bytes(32)).public
