"""One answer of one hospital, whatever is in it, ends nobody else's run: the others finish, and certify what they have."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves

from polyclinic.protocol.wire import encoding as wire

TRIP = 'name = "trip"\nrank = 2\nrounds = 1\naggregation = "{}"'
Tree = dict[str, Any]
Change = Callable[[Tree], Tree]
EVIL = "east"  # the first by name: where one is taken for all, it is this one


def _setting(**changes: Any) -> Change:
    return lambda t: {**t, "setting": {**t["setting"], **changes}} if t.get("setting") else t


def _axes(t: Tree) -> Tree:
    if not t.get("setting"):
        return t
    axes = [{**a, "name": "nothing"} for a in t["setting"]["axes"]]
    return {**t, "setting": {**t["setting"], "axes": axes}}


def _letter(change: Callable[[list[Any]], list[Any]]) -> Change:
    """The site's letter of this sum, changed; as the site itself would send it."""

    def made(t: Tree) -> Tree:
        return {**t, "letters": [wire.encode(change(wire.decode(bytes(x)))) for x in t["letters"]]}

    return made


def _twins(t: Tree) -> Tree:
    """The same letter under the names of nodes that it does not have."""
    found = [wire.decode(bytes(x)) for x in t["letters"]]
    names = [f"{EVIL}.{i:02d}" for i in range(3)]
    return {**t, "letters": [wire.encode([x[0], n, *x[2:]]) for x in found for n in names]}


HEAD = {"count": float("inf"), "hash": "x", "site": EVIL, "book": "b", "key": "k"}
BOOKS = json.dumps({"fresh": "1", "known": [{"head": HEAD, "proof": ""}], "seen": [{"about": []}], "told": {}}).encode()
LINE = json.dumps([EVIL, "order", [[{"event": {}}, [[float("inf"), 1, 1]]]]]).encode()
SAYS: dict[str, tuple[str, int, Change]] = {  # kind of answer, from the how many-th on, what it becomes
    "more sums than there are": ("letters", 2, lambda t: {"what": "behind", "number": 10**9}),
    "no sums, when all had some": ("letters", 4, lambda t: {"what": "behind", "number": 0}),
    "fewer than no sums": ("letters", 2, lambda t: {"what": "behind", "number": -5}),
    "other bits, again and again": ("letters", 2, lambda t: {"what": "differs", "number": 1}),
    "other bits of a sum to come": ("letters", 2, lambda t: {"what": "differs", "number": 2**61}),
    "books that are none": ("here", 1, lambda t: {**t, "books": b"\xff{"}),
    "a book of endless lines": ("here", 1, lambda t: {**t, "books": BOOKS}),
    "such books with a letter": ("letters", 2, lambda t: {**t, "books": b"[[["}),
    "an endless mode": ("here", 1, _setting(shape=[float("inf"), 1])),
    "another mode": ("here", 1, _axes),
    "another shape": ("here", 1, _setting(shape=[1, 1])),
    "an agreement that is an array": ("here", 1, _setting(alignment=np.zeros(3))),
    "digests that are none": ("here", 1, _setting(digests={"a": 1})),
    "a false vote": ("letters", 1, lambda t: {**t, "vote": bytes(64)}),
    "no vote": ("letters", 2, lambda t: {**t, "vote": b""}),
    "numbers that are none": ("letters", 1, _letter(lambda x: [*x[:-1], {"arrays": {"a": 5}, "weight": []}])),
    "a weight that is none": ("letters", 2, _letter(lambda x: [*x[:-1], {**x[-1], "weight": float("nan")}])),
    "another step": ("letters", 1, _letter(lambda x: [*x[:5], "zzz", *x[6:]])),
    "the names of others": ("letters", 1, _twins),
    "the end, at once": ("letters", 1, lambda t: {"what": "done", "vote": bytes(64), "result": {}, "book": b"x"}),
    "the end with an endless head": ("done", 1, lambda t: {**t, "heads": {EVIL: HEAD}}),
    "the end with an endless book": ("done", 1, lambda t: {**t, "book": bytes(64) + zlib.compress(LINE)}),
    "the end with a model": ("done", 1, lambda t: {**t, "result": {"chain": 5}, "vote": b"x"}),
    "letters at the end": ("done", 1, lambda t: {"what": "letters", "letters": [b"x"] * 3, "standing": "known"}),
    "behind at the end": ("done", 1, lambda t: {"what": "behind", "number": 0}),
    "it waits, suddenly": ("letters", 2, lambda t: {"what": "here", "stage": "waiting", "life": "x"}),
    "no message at all": ("letters", 2, lambda t: {"what": "zzz"}),
}


def _tap(kind: str, first: int, change: Change) -> Callable[[str, bytes], bytes]:
    seen = 0

    def tap(site: str, data: bytes) -> bytes:
        nonlocal seen
        tree = wire.decode(data)
        if site != EVIL or tree["what"] != kind:
            return data
        seen += 1
        return data if seen < first else wire.encode(change(tree))

    return tap


def _ends_well(halves: Halves, *, bits: bool = True) -> None:
    outcome, others = halves.run(), [s for n, s in halves.sites.items() if n != EVIL]
    assert set(outcome.certified.sites) >= {s.me for s in others}
    assert len(outcome.certified.sites) >= outcome.certified.needed
    for site in others if bits else ():
        assert site.fold is not None
        assert wire.encode(wire.pack(site.fold.public)) == wire.encode(wire.pack(outcome.public))


ENDED = (  # everybody's run, once; four more of the same kinds are among the slow ones
    "more sums than there are",
    "books that are none",
    "a book of endless lines",
    "an endless mode",
    "another mode",
    "another shape",
    "an agreement that is an array",
    "the end with an endless head",
    "behind at the end",
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", [w if w in ENDED else pytest.param(w, marks=pytest.mark.slow) for w in SAYS])
def test_the_others_finish_whatever_one_hospital_answers(shared: World, way: str) -> None:
    name = f"says-{list(SAYS).index(way)}"
    halves = Halves(shared, shared.order(name, TRIP.format("plain"), head="deadline = 2\nquorum = 2\n"))
    halves.tap = _tap(*SAYS[way])
    _ends_well(halves)


ODD: list[Any] = [None, -1, 2**61, 0.5, float("nan"), float("inf"), "x", b"x", bytes(64), True, [], {}, [[]], {"a": 1}]
ODD += [np.zeros((0, 3)), np.full(3, np.nan), [None], ["north"], [2**40, 2**40], {"north": b"x"}, {"0": {}}]


def _odd(rng: np.random.Generator, tree: Any, depth: int = 0) -> Any:
    """The tree with something else in one place."""
    if isinstance(tree, bytes) and tree[:4] == b"PCW1" and rng.random() < 0.8:
        return wire.encode(_odd(rng, wire.decode(tree), depth + 1))
    if isinstance(tree, dict) and tree and depth < 6 and rng.random() < 0.9:
        key = sorted(tree)[int(rng.integers(len(tree)))]
        if rng.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        return {**tree, key: _odd(rng, tree[key], depth + 1)}
    if isinstance(tree, list | tuple) and tree and depth < 6 and rng.random() < 0.9:
        at = int(rng.integers(len(tree)))
        return [_odd(rng, v, depth + 1) if i == at else v for i, v in enumerate(tree)]
    return ODD[int(rng.integers(len(ODD)))]


def _babble(shared: World, seed: int) -> int:
    """A study in which a third of one hospital's answers have something odd in one place; how many had."""
    rng, lies = np.random.default_rng(seed), 0
    halves = Halves(shared, shared.order(f"odd-{seed}", TRIP.format("plain"), head="deadline = 2\nquorum = 2\n"))

    def tap(site: str, data: bytes) -> bytes:
        nonlocal lies
        if site != EVIL or rng.random() < 0.6:
            return data
        lies += 1
        return wire.encode(_odd(rng, wire.decode(data)))

    halves.tap = tap
    _ends_well(halves)
    return lies


@pytest.mark.timeout(300)
def test_the_others_finish_beside_a_hospital_that_babbles(shared: World) -> None:
    assert _babble(shared, 0) >= 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_others_finish_beside_a_hospital_that_babbles_two_hundred_times(shared: World) -> None:
    assert sum(_babble(shared, seed) for seed in range(100, 300)) >= 2000
