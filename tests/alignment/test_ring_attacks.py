"""What the ring's neighbours and a lying site learn: nothing (ATTACKS 6, TRUST A13)."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from polyclinic.alignment import ring as module
from polyclinic.alignment.ring import RingCoordinator, RingSite, ring, step_of
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.federation.envelope import Envelope, introduce
from polyclinic.federation.fold import deliver
from polyclinic.federation.protocol import Roster

MODE = "diagnosis"


class Nosy(RingSite):
    """Keeps every point that passes, before and after its own secret, and its own finished tags."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passed: set[bytes] = set()
        self.finished: dict[bytes, str] = {}

    def _helped(self, owner: str, points: Any) -> Any:
        out = super()._helped(owner, points)
        self.passed |= {p.tobytes() for p in points} | {p.tobytes() for p in module._raise(points, self._secret or b"")}
        return out

    def _home(self, points: Any) -> Any:
        self.passed |= {p.tobytes() for p in points}
        (letter,) = super()._home(points)
        self.finished = dict(zip((p.tobytes() for p in letter.body["points"]), self._sent))
        return [letter]


class Ruler(Nosy):
    """Sends the coordinator 2,000 points of known order instead of its tags, and keeps the tags of its dictionary."""

    def _home(self, points: Any) -> Any:
        import rbcl

        super()._home(points)
        marks = sorted(bytes(rbcl.crypto_core_ristretto255_random()) for _ in range(2_000))
        self._sent = [f"mark {i}" for i in range(len(marks))]
        self.marks = marks
        body = {"points": np.frombuffer(b"".join(marks), np.uint8).reshape(-1, 32)}
        return [self.envelope.seal("coordinator", "tags", body)]


class Ranks(RingCoordinator):
    """As it was: places in the order of the tags."""

    def _tags(self, sender: str, body: dict[str, Any]) -> Any:
        out = super()._tags(sender, body)
        tags = sorted({p.tobytes() for list_ in self.tags.values() for p in list_})
        rank = {t: i for i, t in enumerate(tags)}
        again = []
        for m in out:
            places = np.array([rank[p.tobytes()] for p in self.tags[m.to]], np.int64)
            rest = {k: v for k, v in m.body.items() if k != "signature"}
            again.append(self.envelope.seal(m.to, m.kind, {**rest, "places": places}))
        return again


def run(codes: dict[str, list[str]], kinds: dict[str, Any], coordinator: Any = RingCoordinator) -> dict[str, Any]:
    names = tuple(sorted(codes))
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=len(names), keys=keys)
    parties: dict[str, Any] = {}
    for n in names:
        envelope = Envelope(n, roster, step_of(MODE), identities[n])
        parties[n] = kinds.get(n, RingSite)(envelope, MODE, codes[n])
    parties["coordinator"] = coordinator(Envelope("coordinator", roster, step_of(MODE), identities["coordinator"]))
    deliver(parties)
    return parties


@pytest.mark.parametrize("n", [3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_no_point_that_a_site_handles_is_one_of_its_own_finished_tags(n: int) -> None:
    """One site has all the codes of the others (a dictionary): before, it found 60 of its neighbour's 60 codes."""
    names = [f"s{i}" for i in range(n)]
    codes = {s: [f"c{k}" for k in range(7 * i, 7 * i + 30)] for i, s in enumerate(names)}
    codes[names[-1]] = sorted({c for v in codes.values() for c in v})
    parties = run(codes, dict.fromkeys(names, Nosy))
    for s in names:
        assert len(parties[s].finished) == len(codes[s])
        assert len(parties[s].passed) >= 64 * (2 * (n - 1) + 1) - 5
        assert not parties[s].passed & set(parties[s].finished)
    union = {c for v in codes.values() for c in v}
    assert {parties[s].size for s in names} == {len(union)}
    assert len({parties[s].agreement for s in names}) == 1
    place: dict[str, int] = {}
    for s in names:
        assert set(parties[s].places) == set(codes[s])
        for c, at in parties[s].places.items():
            assert place.setdefault(c, at) == at
    assert sorted(place.values()) == list(range(len(union)))


def gaps(liar: Any, dictionary: list[str]) -> np.ndarray:
    """For every code of the dictionary: how many strangers' tags the liar sees between the two marks around its tag."""
    import bisect

    places = np.array([liar.places[f"mark {i}"] for i in range(len(liar.marks))])
    between = np.diff(places) - 1
    tag_of = {c: t for t, c in liar.finished.items()}
    at = np.array([bisect.bisect(liar.marks, tag_of[c]) - 1 for c in dictionary])
    return between[np.clip(at, 0, len(between) - 1)]


def test_a_ruler_of_evenly_spread_tags_reads_nothing_from_random_places() -> None:
    dictionary = [f"c{k}" for k in range(120)]
    pick = np.random.default_rng(0).permutation(120)[:40]
    there = {dictionary[k] for k in pick}
    codes = {"a": sorted(there)[:25], "b": sorted(there)[15:], "z": dictionary}
    truth = np.array([c in there for c in dictionary])
    before = np.array([gaps(run(codes, {"z": Ruler}, Ranks)["z"], dictionary) for _ in range(3)])
    assert (before[:, truth] > 0).mean() > 0.95  # the attack works against ranks: the others' codes are found ...
    assert (before[:, ~truth] == 0).mean() > 0.9  # ... and hardly one that they have not
    hits = np.zeros(2)
    for _ in range(4):
        now = gaps(run(codes, {"z": Ruler})["z"], dictionary) > 0
        hits += [now[truth].mean() / 4, now[~truth].mean() / 4]
    assert abs(hits[0] - hits[1]) < 4 * np.sqrt(0.25 / 160 + 0.25 / 320)


def test_identity_equal_and_strange_points_are_refused() -> None:
    import rbcl

    good = bytes(rbcl.crypto_core_ristretto255_random())
    strange = b"\xff" * 32
    for bad, why in [([bytes(32), good], "identity"), ([good, good], "twice"), ([strange], "not a point")]:
        points = np.frombuffer(b"".join(bad), np.uint8).reshape(-1, 32)
        with pytest.raises(MessageRefused, match=why):
            module._points({"points": points}, "a")


def test_a_short_list_does_not_come_home() -> None:
    names = ("a", "b", "c")
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=3, keys=keys)
    site = RingSite(Envelope("a", roster, step_of(MODE), identities["a"]), MODE, ["x"])
    import rbcl

    few = np.frombuffer(b"".join(bytes(rbcl.crypto_core_ristretto255_random()) for _ in range(63)), np.uint8)
    with pytest.raises(MessageRefused, match="63 of 64"):
        site._home(few.reshape(-1, 32))


def test_lists_travel_padded_and_an_owner_may_allow_fewer() -> None:
    seen: list[int] = []

    def tap(m: Any) -> None:
        if m.kind.startswith("list:"):
            seen.append(len(m.body["sealed"]))

    ring({"a": ["x"], "b": [str(i) for i in range(64)]}, MODE, tap=tap)
    assert set(seen) == {64 * 32 + 28}
    names = ("a", "b")
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=2, keys=keys)
    envelope = Envelope("a", roster, step_of(MODE), identities["a"])
    with pytest.raises(ConfigError, match="65 diagnosis codes travel as 128, at most 64"):
        RingSite(envelope, MODE, [secrets.token_hex(4) for _ in range(65)], most=64)
