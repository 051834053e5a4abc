"""What the ring's neighbours and a lying site learn: nothing (ATTACKS 6, TRUST A13)."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from polyclinic.alignment import ecdh_ring as module
from polyclinic.alignment import vrf_tags as marks
from polyclinic.alignment.ecdh_ring import RingCoordinator, RingSite, ring, step_of
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.interfaces import Roster
from polyclinic.protocol.loop import deliver
from polyclinic.protocol.wire.sealed import SealedMessage, introduce

MODE = "diagnosis"


class Nosy(RingSite):
    """Keeps every point that passes, before and after its own secret, and its own finished tags."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passed: set[bytes] = set()
        self.finished: dict[bytes, str] = {}

    def _helped(self, owner: str, points: Any) -> Any:
        out = super()._helped(owner, points)
        self.passed |= {p.tobytes() for p in points} | {p.tobytes() for p in marks.raised(points, self._secret or b"")}
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
        self.marks = sorted(bytes(rbcl.crypto_core_ristretto255_random()) for _ in range(2_000))
        self._sent = [f"mark {i}" for i in range(len(self.marks))]
        self._tags = np.frombuffer(b"".join(self.marks), np.uint8).reshape(-1, 32)
        return [self.envelope.seal("coordinator", "tags", {"points": self._tags})]

    def _places(self, sender: str, body: dict[str, Any]) -> Any:
        """Believes whatever places it is told."""
        self.places, self._result = dict(zip(self._sent, body["places"].tolist())), "done"
        return []


class Ranks(RingCoordinator):
    """As it was: places in the order of the tags, for who believes them."""

    def _tags(self, sender: str, body: dict[str, Any]) -> Any:
        out = super()._tags(sender, body)
        rank = {t: i for i, t in enumerate(sorted({p.tobytes() for list_ in self.tags.values() for p in list_}))}
        places = np.array([rank[p.tobytes()] for p in self.tags["z"]], np.int64)
        return [m if m.to != "z" else self.envelope.seal("z", m.kind, {"places": places}) for m in out]


class Doubler(Nosy):
    """Sends twice its tags: half of their marks are the marks of its tags, if marks are multiples of tags."""

    def _home(self, points: Any) -> Any:
        import rbcl

        super()._home(points)
        tags = [rbcl.crypto_core_ristretto255_add(t, t) for t in self.finished]
        self._tags = np.frombuffer(b"".join(tags), np.uint8).reshape(-1, 32)
        return [self.envelope.seal("coordinator", "tags", {"points": self._tags})]

    def _places(self, sender: str, body: dict[str, Any]) -> Any:
        import rbcl

        out = super()._places(sender, body)
        half = rbcl.crypto_core_ristretto255_scalar_invert((2).to_bytes(32, "little"))
        own = marks.raised(body["marks"][body["places"]], half)
        there = {m.tobytes() for m in body["marks"]}
        self.found = {c for c, m in zip(self.finished.values(), own) if m.tobytes() in there}
        return out


class Twofold(RingCoordinator):
    """Gives the last site a union of its own: other marks, or the same ones at other places."""

    how = "key"

    def _tags(self, sender: str, body: dict[str, Any]) -> Any:
        out = super()._tags(sender, body)
        if not out:
            return out
        *others, last = out
        rest = {k: v for k, v in last.body.items() if k != "signature"}
        if self.how == "key":
            rest = {k: v for k, v in super()._tags(sender, body)[-1].body.items() if k != "signature"}
        elif self.how == "places":
            rest["places"] = np.roll(rest["places"], 1)
        elif self.how == "more":  # marks of nobody, among which the places are others
            rest["marks"] = np.concatenate([rest["marks"], marks.raised(rest["marks"], bytes([3]) + bytes(31))])
            order = sorted(range(len(rest["marks"])), key=lambda i: rest["marks"][i].tobytes())
            rest["marks"], rest["places"] = rest["marks"][order], np.argsort(order)[rest["places"]]
        elif self.how == "order":
            rest["marks"], rest["places"] = rest["marks"][::-1], len(rest["marks"]) - 1 - rest["places"]
        return [*others, self.envelope.seal(last.to, last.kind, rest)]


def run(codes: dict[str, list[str]], kinds: dict[str, Any], coordinator: Any = RingCoordinator) -> dict[str, Any]:
    names = tuple(sorted(codes))
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=len(names), keys=keys)
    parties: dict[str, Any] = {}
    for n in names:
        envelope = SealedMessage(n, roster, step_of(MODE), identities[n])
        parties[n] = kinds.get(n, RingSite)(envelope, MODE, codes[n])
    parties["coordinator"] = coordinator(SealedMessage("coordinator", roster, step_of(MODE), identities["coordinator"]))
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
    return between[np.clip(at, 0, len(between) - 1)]  # type: ignore[no-any-return]


def test_a_ruler_of_evenly_spread_tags_reads_nothing_from_random_places() -> None:
    dictionary = [f"c{k}" for k in range(120)]
    pick = np.random.default_rng(0).permutation(120)[:40]
    there = {dictionary[k] for k in pick}
    codes = {"a": sorted(there)[:25], "b": sorted(there)[15:], "z": dictionary}
    truth = np.array([c in there for c in dictionary])
    before = np.array([gaps(run(codes, {"z": Ruler}, Ranks)["z"], dictionary) for _ in range(2)])
    assert (before[:, truth] > 0).mean() > 0.95  # the attack works against ranks: the others' codes are found ...
    assert (before[:, ~truth] == 0).mean() > 0.9  # ... and hardly one that they have not
    hits = np.zeros(2)
    for _ in range(3):
        now = gaps(run(codes, {"z": Ruler})["z"], dictionary) > 0
        hits += [now[truth].mean() / 3, now[~truth].mean() / 3]
    assert abs(hits[0] - hits[1]) < 4 * np.sqrt(0.25 / 120 + 0.25 / 240)


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
    site = RingSite(SealedMessage("a", roster, step_of(MODE), identities["a"]), MODE, ["x"])
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
    envelope = SealedMessage("a", roster, step_of(MODE), identities["a"])
    with pytest.raises(ConfigError, match="65 diagnosis codes travel as 128, at most 64"):
        RingSite(envelope, MODE, [secrets.token_hex(4) for _ in range(65)], most=64)


@pytest.mark.parametrize("how", ["key", "more", "places", "order"])
def test_a_site_that_is_told_other_places_refuses_them_or_has_another_agreement(how: str) -> None:
    codes = {s: [f"c{k}" for k in range(i, i + 20)] for i, s in enumerate("abc")}
    lying = type("Lying", (Twofold,), {"how": how})
    if how in ("places", "order"):
        with pytest.raises(MessageRefused, match=r"not those of the tags|not in their order"):
            run(codes, {}, lying)
        return
    parties = run(codes, {}, lying)
    assert parties["a"].agreement == parties["b"].agreement != b""
    assert parties["c"].places
    assert parties["c"].agreement != parties["a"].agreement


def test_a_site_cannot_ask_for_tags_that_it_has_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"a": [f"c{k}" for k in range(10)], "b": [f"c{k}" for k in range(5, 15)], "z": [f"c{k}" for k in range(30)]}
    assert run(codes, {"z": Doubler})["z"].found == set()
    monkeypatch.setattr(marks, "_hashed", lambda tags: tags)
    assert run(codes, {"z": Doubler})["z"].found == {
        f"c{k}" for k in range(15)
    }  # the attack works where marks are multiples
