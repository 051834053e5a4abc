"""A coordinator's key in the wrong hands: what it cannot have, because each site derives step, number, state and noise itself.

Rows 13, 14, 17, 19 and 20 of the list of attacks, each with mutations that the first scripts did not contain.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.hostile_world import World

from polyclinic.node.enrolment.folders import read_events
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Total
from polyclinic.protocol.wire import chain as certificate
from polyclinic.protocol.wire import encoding as wire

DPEM = 'name = "dpem"\nrank = 3\nrounds = 3\nplanning_size = 10000\naggregation = "{}"'
SUMALS = 'name = "sumals"\nrank = 3\nrounds = 5\naggregation = "masked"'
PRIVACY = "[privacy]\nepsilon = 0.5\ndelta = 1e-6\n"


class Evil:
    """A coordinator that asks what it likes, correctly signed."""

    def __init__(self, world: World, order: StudyOrder) -> None:
        self.world, self.order = world, order
        world.open(order)
        self.desk = next(iter(world.workers.values()))

    @property
    def protocol(self) -> str:
        return self.desk.study.box.protocol

    def step(self, site: str, *, number: int = 0, attempt: int = 0, sites: Any = None, **more: Any) -> Any:
        asked = {"begin": list(self.order.sites), "opened": [], "votes": {}, **more}
        names = list(sites or self.order.sites)
        return self.world.ask(self.order, site, what="take", number=number, attempt=attempt, sites=names, **asked)

    def letter(self, answer: Any) -> Any:
        return wire.decode_message(bytes(answer["letters"][0]), self.protocol)

    def masked(
        self, sites: Any, *, number: int = 0, attempt: int = 0, paid: bool = True, votes_into: Any = None, **more: Any
    ) -> Any:
        """A masked sum over ``sites``; the Total, or who refused and how."""
        fold = self.desk.study.fold
        roster = self.order.roster(sites, attempt, paid=paid)
        side, queue = None, []
        for site in sites:
            answer = self.step(site, number=number, attempt=attempt, sites=sites, **more)
            if answer["what"] != "letters":
                return site, answer
            if votes_into is not None:
                votes_into[site] = answer["vote"]
            if side is None:
                fold = self.world.workers[site].study.fold
                adder = by_name("masked", identities={COORDINATOR: self.world.key})
                assert fold is not None
                side = adder.exchange(COORDINATOR, replace(roster, chain=fold.chain), fold.step(), None)  # type: ignore[arg-type]
            queue += [
                m for raw in answer["letters"] for m in side.receive(wire.decode_message(bytes(raw), self.protocol))
            ]
        while queue:
            m = queue.pop(0)
            letters = [wire.encode_message(m, self.protocol)]
            answer = self.world.ask(self.order, m.to, what="mail", letters=letters, number=number, attempt=attempt)
            if answer["what"] != "letters" or (not answer["letters"] and side.result() == "pending" and not queue):  # type: ignore[union-attr]
                return m.to, answer
            assert side is not None
            queue += [
                x for raw in answer["letters"] for x in side.receive(wire.decode_message(bytes(raw), self.protocol))
            ]
        assert side is not None
        self.words = side.opened  # type: ignore[attr-defined]
        return side.result()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("lying"), policy="max_epsilon_total = 50.0")  # every study reserves its own


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("four"), ("east", "north", "south", "west"))


def _charges(world: World, site: str, order: StudyOrder | None = None) -> list[Any]:
    charges = ledger_of(world.sites[site].node).charges()
    return [c for c in charges if order is None or c.study == order.study["study"]["name"]]


# ---- 13: the step is the site's own


def test_steps_and_states_that_are_sent_change_nothing(world: World) -> None:
    evil = Evil(world, world.order("steps", DPEM.format("plain"), tail=PRIVACY))
    fold_step = None
    for change in (
        {"sensitivity": 1e-9, "multiplier": 1000.0},
        {"grid": 2.0**-14},
        {"bound": 0.0},
        {"sensitivity": None},
    ):
        honest = evil.step("east")
        assert world.workers["east"].study.fold is not None
        step = world.workers["east"].study.fold.step()
        fold_step = fold_step or step
        lie = evil.step(
            "east",
            step=wire.pack(replace(step, **change)),  # type: ignore[type-var]
            public=wire.pack(world.workers["east"].study.fold.public),
        )
        assert lie == {"what": "refused", "why": "malformed"}  # there is no field for them
        assert evil.step("east")["letters"] == honest["letters"]  # the stored bytes of the one release
    charge = _charges(world, "east", evil.order)
    assert len(charge) == 1
    assert fold_step is not None
    assert charge[0].sd >= fold_step.noise_sd > 1
    party = world.workers["east"].study.party
    assert world.workers["east"].study.fold is not None
    _, mine = party.method.contribute(
        fold_step,
        party.site,
        party.private,
        world.workers["east"].study.fold.public,
        None,  # type: ignore[arg-type]
    )
    error = evil.letter(honest).body["arrays"]["sums"] - mine.arrays["sums"]
    assert np.sqrt(np.mean(error**2)) > 0.5 * fold_step.noise_sd


# ---- 14: one sum of a number


def test_no_second_sum_of_an_exact_step(four: World) -> None:
    evil = Evil(four, four.order("als", SUMALS, head="deadline = 30\nquorum = 3\n"))
    everybody, fewer = tuple(evil.order.sites), tuple(evil.order.sites)[:3]
    assert isinstance(evil.masked(everybody, paid=False), Total)
    for number, attempt, sites in ((1, 0, fewer), (0, 1, fewer), (0, 2, fewer), (99, 0, everybody), (-1, 0, fewer)):
        refused = evil.masked(sites, number=number, attempt=attempt, paid=False)
        assert isinstance(refused, tuple), (number, attempt)
        assert refused[1]["what"] in ("refused", "behind")
    for n in ("east", "north", "south"):  # the same list may be opened again: it is the same sum
        assert four.workers[n].study.fold.number == 0  # type: ignore[union-attr]


def test_no_second_list_of_a_paid_sum_and_its_noise_is_drawn_once(four: World) -> None:
    order = four.order("dp", DPEM.format("masked"), head="deadline = 30\nquorum = 3\n", tail=PRIVACY)
    evil = Evil(four, order)
    everybody = tuple(order.sites)
    first = evil.masked(everybody)
    assert isinstance(first, Total)
    for sites, number, attempt in ((everybody[:3], 0, 1), (everybody[1:], 0, 2), (everybody[:3], 1, 0)):
        refused = evil.masked(sites, number=number, attempt=attempt)
        assert not isinstance(refused, Total), (sites, number, attempt)
    again = evil.masked(everybody, attempt=7)
    assert isinstance(again, Total)
    assert all(np.array_equal(first.arrays[k], again.arrays[k]) for k in first.arrays)  # the same noise, for nothing
    assert {len(_charges(four, n, order)) for n in order.sites} == {1}


# ---- 17: nothing that was sent reaches a kernel


def _opened(world: World, site: str, **changes: Any) -> Any:
    fold = world.workers[site].study.fold
    assert fold is not None
    step = fold.step()
    assert step is not None
    total = Total({k: np.zeros(s) for k, s in step.shapes.items()}, 3.0, 3, step.noise_sd * np.sqrt(3))
    opened = certificate.Opened(0, 0, {}, total, b"\0" * 32)
    return {**opened.pack(), "entered": {s: [0, 0] for s in world.sites}, **changes}


def test_totals_of_other_shapes_never_reach_a_kernel(world: World) -> None:
    evil = Evil(world, world.order("shapes", DPEM.format("plain"), tail=PRIVACY))
    for site in world.sites:
        assert evil.step(site)["what"] == "letters"
    good = _opened(world, "east")
    name, shape = next((k, a.shape) for k, a in good["arrays"].items())
    assert world.workers["east"].study.fold is not None
    wrong = [
        {"arrays": {name: np.zeros((1, 3000))}},
        {"arrays": {name: np.zeros(0)}},
        {"arrays": {}},
        {"arrays": {**good["arrays"], "more": np.zeros(3)}},
        {"arrays": {name: np.full(shape, np.nan)}},
        {"arrays": {name: np.full(shape, 1e300)}},
        {"arrays": {name: np.zeros(shape, np.float32)}},
        {"arrays": {name: "text"}},
        {"weight": -1.0},
        {"weight": float("inf")},
        {"members": 2},
        {"members": -3},
        {"members": 10**9},
        {"entered": {"east": [0, 0]}},
        {"entered": {"east": [0, 0], "north": [0, 0], "nobody": [0, 0]}},
        {"entered": {"east": [5, 0], "north": [0, 0], "south": [0, 0]}},
        {"entered": []},
        {"number": "0"},
        {"state": "short"},
        {"public": wire.pack(world.workers["east"].study.fold.public)},
    ]
    before = world.workers["east"].study.fold.state()
    for change in wrong:
        answer = evil.step("east", number=1, opened=[{**good, **change}])  # type: ignore[dict-item]
        assert answer["what"] == "refused", change
        assert wire.encode(world.workers["east"].study.fold.state()) == wire.encode(before)
    assert evil.step("east", number=1, opened=[{k: v for k, v in good.items() if k != "members"}])["what"] == "refused"
    assert evil.step("east", number=1, opened=5)["what"] == "refused"
    assert not [e for e in read_events(world.sites["east"].events) if e["event"] == "failed"], (
        "refused, not stumbled over"
    )


def test_state_that_does_not_follow_from_the_total_is_not_taken_over(world: World) -> None:
    evil = Evil(world, world.order("states", DPEM.format("plain"), tail=PRIVACY))
    for site in world.sites:
        assert evil.step(site)["what"] == "letters"
    good = _opened(world, "east")
    assert evil.step("east", number=1, opened=[good]) == {"what": "differs", "number": 0}
    fold = world.workers["east"].study.fold
    party = world.workers["east"].study.party
    assert fold is not None
    mine = fold.fold(fold.step(), Total(good["arrays"], good["weight"], good["members"], good["noise_sd"]))  # type: ignore[arg-type]
    lies = [
        replace(mine, marginals=(np.ones(1), np.ones(1))),
        replace(mine, marginals=tuple(m * 1.001 for m in mine.marginals)),
        replace(mine, round=7),
    ]
    for lie in lies:
        sent = {**good, "state": certificate.state_digest(lie)}
        answer = evil.step("east", number=1, opened=[sent], agreed={"0": wire.pack(lie)})
        assert answer == {"what": "refused", "why": "disagrees"}
        assert fold.number == 0
    assert party.private is not None


def test_votes_of_too_few_of_strangers_or_of_another_story_let_nothing_out(world: World) -> None:
    """Sum 1 is taken only where the quorum signed the chain before it."""
    order = world.order("votes", DPEM.format("plain"), tail=PRIVACY)
    evil = Evil(world, order)
    votes = {s: evil.step(s)["vote"] for s in order.sites}
    fold = world.workers["east"].study.fold
    good = _opened(world, "east")
    assert fold is not None
    mine = fold.fold(fold.step(), Total(good["arrays"], good["weight"], good["members"], good["noise_sd"]))  # type: ignore[arg-type]
    good["state"] = certificate.state_digest(mine)
    one = votes["north"]
    for bad in (
        {},
        {"east": votes["east"], "north": one},
        dict.fromkeys(order.sites, one),
        {**votes, "south": bytes(64)},
        {"east": votes["east"], "north": one, "nobody": votes["south"]},
        {s: v[:-1] for s, v in votes.items()},
    ):
        answer = evil.step("east", number=1, opened=[good], votes=bad)
        assert answer == {"what": "refused", "why": "disagrees"}
    assert len(_charges(world, "east", order)) == 1
    assert evil.step("east", number=1, opened=[good], votes=votes)["what"] == "letters"
    assert len(_charges(world, "east", order)) == 2


def test_masked_total_is_the_sum_of_what_was_sent_or_it_is_not_folded(four: World) -> None:
    """The coordinator opened the sum honestly, and then tells another one: every site that signed notices."""
    order = four.order("told", DPEM.format("masked"), head="deadline = 30\n", tail=PRIVACY)
    evil = Evil(four, order)
    everybody = tuple(order.sites)
    votes = {}  # type: ignore[var-annotated]
    total = evil.masked(everybody, votes_into=votes)
    assert isinstance(total, Total)
    words, fold = evil.words, four.workers["east"].study.fold
    sent = certificate.Opened(0, 0, dict.fromkeys(everybody, (0, 0)), total, b"", None, words, everybody)
    assert fold is not None
    mine = fold.fold(fold.step(), total)  # type: ignore[arg-type]
    good = {**sent.pack(), "state": certificate.state_digest(mine)}
    rng = np.random.default_rng(0)
    lies = []
    for at in (0, int(rng.integers(words.size - 2)), words.size - 2, words.size - 1):
        for change in (1, 2**20, 2**63):
            lie = words.copy()
            lie[at : at + 1] += np.uint64(change)
            lies.append({"words": lie})
    both = words.copy()
    both[0] += np.uint64(5)
    both[-1] += np.uint64(5)
    lies += [{"words": both}, {"words": np.zeros_like(words)}, {"words": words[::-1].copy()}, {"words": words[:-1]}]
    lies += [{"words": None, "arrays": {k: np.asarray(v) for k, v in total.arrays.items()}}]
    lies += [{"entered": {s: [0, 0] for s in everybody[:3]}, "members": 3}, {"sites": list(everybody[:3])}]
    lies += [{"attempt": 1}, {"sites": [*everybody, "nobody"]}]
    for lie in lies:
        answer = evil.step("east", number=1, opened=[{**good, **lie}], votes=votes)
        assert answer["what"] == "refused", lie
        assert fold.number == 0
    four.open(order, only=("east",))  # a signer that restarts still checks: the tag's key is with its promise
    assert evil.step("east", number=1, opened=[{**good, "words": both}], votes=votes)["what"] == "refused"
    assert evil.step("east", number=1, opened=[good], votes=votes)["what"] == "letters"


# ---- 19: a charge is one release, also after a restart


def test_restarts_and_other_numbers_give_no_fresh_noise(world: World) -> None:
    order = world.order("noise", DPEM.format("plain"), tail=PRIVACY)
    evil = Evil(world, order)
    seen = set()
    for k in range(12):
        if k % 3 == 2:
            world.open(order, only=("east",))  # a second job of the same signed order
        for number in (0, 2, 9):
            answer = evil.step("east", number=number, attempt=k % 2)
            if answer["what"] == "letters":
                seen.add(evil.letter(answer).body["arrays"]["sums"].tobytes())
    assert len(seen) == 1
    assert len(_charges(world, "east", order)) == 1


# ---- 20: refusals are words


@pytest.mark.parametrize(("method", "tail"), [(SUMALS, ""), (DPEM.format("plain"), PRIVACY)], ids=["exact", "formal"])
def test_no_answer_quotes_a_fault_of_the_records(
    world: World, four: World, monkeypatch: pytest.MonkeyPatch, method: str, tail: str
) -> None:
    world = world if tail else four  # the first one's owners limit an epsilon: no exact study runs there
    order = world.order(f"words-{method[8:12]}", method, tail=tail)
    evil = Evil(world, order)
    party = world.workers["east"].study.party
    secret = "0.123456789"

    def broken(*args: Any) -> None:
        raise ZeroDivisionError(f"the exact value is {secret}")

    monkeypatch.setattr(party.method, "contribute", broken)
    answers = [evil.step("east"), evil.step("east", number=3), world.ask(order, "east", what="nonsense")]
    answers.append(world.ask(order, "east", what="look", full=True))
    if tail:  # a formal study: nobody's record is an answer
        assert answers[0]["what"] == "letters"
    else:
        assert (answers[0]["what"], answers[0]["stage"], answers[0]["why"]) == ("here", "refused", "declined")
    for answer in answers:
        assert secret not in str(answer)
        assert "reasons" not in answer
    assert any(secret in str(e) for e in read_events(Path(world.sites["east"].events)))  # the owner reads it
    assert bool(_charges(world, "east", order)) == bool(tail)
