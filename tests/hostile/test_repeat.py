"""Two exact orders over the same patients: where one leaves a site out, the difference of their sums is that site's part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.enrolled import enrolled
from tests.hostile.plain_world import Halves
from tests.hostile.spans import few

from polyclinic.errors import PolicyRefusal, PolyclinicError
from polyclinic.node.admission import membership
from polyclinic.node.enrolment.folders import CoordinatorFolder, read_json, write_json
from polyclinic.node.refusals import SENTENCES
from polyclinic.node.signed_study import StudyOrder
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import Counted
from polyclinic.privacy.policy.differencing import exposed
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Step

FOUR = ("east", "north", "south", "west")
EXACT = 'name = "sumals"\nrank = 2\nrounds = 1\nstart = "random"\npacked = false\naggregation = "{}"'
PAID = 'name = "dpem"\nplanning_size = 10000\nrank = 2\nrounds = 1\naggregation = "masked"'
MIXTURE = 'name = "gaussianmixture"\nn_components = 2\nrounds = 2\naggregation = "masked"'
PRIVACY = "[privacy]\nepsilon = 0.1\ndelta = 1e-6\n"


def without(world: World, order: StudyOrder, *gone: str, **more: Any) -> StudyOrder:
    """The same order, signed as well, for fewer sites."""
    keys = {n: k for n, k in order.keys.items() if n not in gone}
    quorum = min(order.quorum, len(keys) - 1)
    edges = tuple(e for e in order.edges if not set(e) & set(gone))
    return world.forged(order, keys=keys, quorum=quorum, edges=edges, **more)


class Tapped(Halves):
    """What an onlooker has at the end: every total, by its number; and each site's own part, to compare with."""

    def __init__(self, world: World, order: StudyOrder) -> None:
        super().__init__(world, order)
        self.totals: dict[int, Any] = {}
        self.own: dict[str, Any] = {}
        taken = self.driver.taken

        def note(opened: Any, public: Any = None) -> None:
            self.totals[opened.number] = opened.total.arrays
            taken(opened, public)

        self.driver.taken = note  # type: ignore[method-assign]
        for name, site in self.sites.items():
            site._contribution = self._kept(name, site._contribution)  # type: ignore[method-assign]

    def _kept(self, name: str, contribution: Any) -> Any:
        def kept(step: Any, public: Any, roster: Any, number: int) -> Any:
            out = contribution(step, public, roster, number)
            self.own.setdefault(name, {})[number] = out.arrays
            return out

        return kept


def refused(halves: Halves) -> None:
    """The study ends for everybody with one word, and the reason stands in each site's own log."""
    with pytest.raises(PolyclinicError) as e:
        halves.run()
    assert SENTENCES["overlap"] in str(e.value.faults)
    assert "west" not in str(e.value.faults).replace("'west'", "")
    for name in halves.order.sites:
        assert halves.sites[name].why == "overlap"
        assert any("give away the part of 'west'" in r for r in halves.sites[name].reasons)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four hospitals that have taken an exact sum together."""
    made = World(tmp_path_factory.mktemp("repeat"), FOUR)
    Halves(made, made.order("whole", EXACT.format("masked"))).run()
    return made


def test_a_second_exact_order_without_one_site_is_refused(world: World) -> None:
    order = world.order("second", EXACT.format("masked"))
    charges = {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()}
    refused(Halves(world, without(world, order, "west")))
    refused(Halves(world, without(world, order, "west", id="other-words")))
    assert charges == {n: len(ledger_of(s.node).charges()) for n, s in world.sites.items()}  # nothing left


def test_a_roster_that_shrinks_only_when_sums_are_taken_is_refused(world: World) -> None:
    order = world.order("shrinks", EXACT.format("masked"))
    again = Halves(world, world.forged(order, quorum=3))
    again.sites["west"].refuse(PolicyRefusal("it is away"))
    with pytest.raises(PolyclinicError):
        again.run()
    assert [again.sites[n].why for n in FOUR[:3]] == ["overlap"] * 3
    assert any("give away the part of 'west'" in r for r in again.sites["east"].reasons)


def test_sums_without_a_coordinator_are_compared_too(world: World) -> None:
    refused(Halves(world, without(world, world.order("ring", EXACT.format("subspace")), "west")))


def test_the_same_sites_and_paid_orders_go_on(world: World) -> None:
    order = world.order("seed", EXACT.format("masked"))
    values = {**order.study, "study": {**order.study["study"], "seed": 5}}
    Halves(world, world.forged(order, study=values)).run()  # nothing to subtract
    paid = world.order("paid", PAID, tail=PRIVACY)
    Halves(world, without(world, paid, "west")).run()  # every sum is private by itself
    counted = [e.body for e in ledger_of(world.sites["east"].node).entries if isinstance(e.body, Counted)]
    assert {c.sites for c in counted} == {FOUR}
    assert len({c.order for c in counted}) == len(counted) == 2  # one line an order, not one a sum


def test_noise_that_hides_nobody_is_none(world: World) -> None:
    """Booked as formal, with an epsilon of a thousand: the difference of two such sums is a hospital's part all the same."""
    order = world.order("loud", PAID, tail="[privacy]\nepsilon = 1000\ndelta = 1e-6\n")
    with pytest.raises(PolyclinicError):
        Halves(world, without(world, order, "west")).run()
    east = ledger_of(world.sites["east"].node)
    assert not any(c.run == order.digest for c in east.charges())
    step = Step(1, "x", {"x": (1,)}, bound=1.0, sensitivity=1.0, multiplier=0.09)
    assert not step.hides
    assert replace(step, multiplier=0.1).hides
    assert not replace(step, multiplier=None).hides


@pytest.mark.slow
def test_other_columns_of_the_same_patients_are_the_same_patients(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    first = world.order("columns", MIXTURE, data=hospitals.FEATURES)
    Halves(world, first).run()
    fewer = hospitals.FEATURES.replace(', "x5"', "")
    second = world.order("fewer", MIXTURE, data=fewer)
    assert second.columns != first.columns
    refused(Halves(world, without(world, second, "west")))


@pytest.mark.slow
def test_a_study_that_began_without_a_site_goes_on_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    order = world.order("short", EXACT.format("masked").replace("rounds = 1", "rounds = 3"))
    halves = Halves(world, world.forged(order, quorum=3))
    halves.sites["west"].refuse(PolicyRefusal("it is away"))
    honest = halves.ask

    def ask(site: str, data: bytes) -> bytes | None:
        if halves.driver.number == 2 and halves.sites["east"].number == 2:
            halves.sites["east"] = halves.born("east")
            assert halves.sites["east"].why is None, halves.sites["east"].reasons
            halves.ask = honest  # type: ignore[method-assign]
            restarted.append(site)
        return honest(site, data)

    restarted: list[str] = []
    halves.ask = ask  # type: ignore[method-assign]
    outcome = halves.run()
    assert restarted
    assert {r.members for r in outcome.releases} == {FOUR[:3]}


@pytest.mark.slow
def test_what_it_is_about_one_sites_part_without_error(tmp_path: Path) -> None:
    """A site that comes later and is willing: what two totals tell of it."""
    world = World(tmp_path, FOUR)
    first = world.order("whole", EXACT.format("masked"))
    fewer = Tapped(world, without(world, first, "west", id="fewer"))
    fewer.run()
    assert Halves(world, first).sites["east"].why == "overlap"
    for site in world.sites.values():
        write_json(site.willing, {"west": "signed"})
    whole = Tapped(world, first)
    whole.run()
    for name, mine in whole.own["west"][0].items():
        np.testing.assert_allclose(
            whole.totals[0][name] - fewer.totals[0][name], mine, rtol=1e-4
        )  # the grid of a masked sum


# ---- the rule by itself


@pytest.mark.parametrize(
    ("lists", "new", "found"),
    [
        (["abcd"], "abc", "d"),
        (["abc"], "abcd", "d"),
        (["abcd"], "abce", "de"),  # whoever is of the two knows the other
        (["abcde"], "abc", "de"),
        (["abcdef"], "abc", ""),
        (["abcd"], "abcd", ""),
        ([], "abc", ""),
        (["abcdefghi", "abc"], "defgh", "i"),  # three lists, no two of which are close
        (["abcdef", "abcghi"], "defjkl", ""),
        (["abcd", "abc"], "abcd", ""),  # it was allowed once; the same again tells nothing new
    ],
)
def test_lists_that_can_be_combined(lists: list[str], new: str, found: str) -> None:
    assert exposed(lists, new) == tuple(found)
    assert exposed(lists, new[::-1]) == tuple(found)


def test_every_list_counts_whatever_was_asked_but_for_disjoint_cohorts() -> None:
    tally = Balance()
    tally.add(Counted("o", "all", ("a", "b", "c", "d")))
    assert Policy().repeat_faults(tally, "abc", "all")
    assert Policy().repeat_faults(tally, "abc", "other")
    assert not Policy(cohorts_disjoint=True).repeat_faults(tally, "abc", "other")
    assert Balance.restore(tally.state()).counted == tally.counted


GROWTH = [  # lists so far, new list, willing sites, whether it is taken
    (["abc"], "abc", "", True),
    (["abc"], "abcd", "", False),
    (["abc"], "abcd", "d", True),
    (["abc"], "abcde", "", False),
    (["abc"], "abcdef", "", True),
    (["abc"], "def", "", True),
    (["abcd"], "abc", "", False),
    (["abcd"], "abc", "d", True),
    (["abc", "abcdef"], "def", "", True),
    (["abc", "abcdef"], "abcdefghi", "", True),
    (["abc", "abcdef"], "abcde", "", False),
    (["abc"], "abcde", "de", True),
    (["abc"], "abcd", "a", False),  # only the newcomer's own agreement helps
]


@pytest.mark.parametrize(("lists", "new", "willing", "taken"), GROWTH)
def test_a_network_grows_by_three_or_by_one_whose_owner_agrees(
    lists: list[str], new: str, willing: str, taken: bool
) -> None:
    tally = Balance()
    for i, of in enumerate(lists):
        tally.add(Counted(f"o{i}", "all", tuple(of)))
    assert (Policy().repeat_faults(tally, new, "all", willing) == []) == taken


def test_only_a_sites_own_signature_makes_it_willing(tmp_path: Path) -> None:
    nodes = {n: hospitals.hospital(tmp_path / n, n, patients=2) for n in FOUR}
    nodes["west"].write_text(nodes["west"].read_text().replace("[keys]\n", "[keys]\nwilling = true\n"))
    coordinator = CoordinatorFolder(tmp_path / "coordinator")
    sites = enrolled(coordinator, nodes, port=9011)
    assert [sorted(read_json(s.willing)) for s in sites.values()] == [["west"]] * 4
    roster = read_json(coordinator.path / "roster.json")
    signed = roster["willing"]["west"]
    for forged in (dict.fromkeys(FOUR, signed), {"north": "00"}, {"north": coordinator.identity().sign(b"").hex()}, 7):
        membership.pin(sites["east"], {**roster, "willing": forged})
        assert "north" not in read_json(sites["east"].willing)


def test_it_agrees_with_ranks_and_takes_five_hundred_sites() -> None:
    """The oracle of ranks (``tests/hostile/spans.py``) on random lists; and 500 sites in twenty lists."""
    rng = np.random.default_rng(0)
    sites = "abcdefgh"
    shown = 0
    for _ in range(150):
        drawn = {"".join(s for s in sites if rng.random() < 0.7) for _ in range(int(rng.integers(2, 5)))} - {""}
        *lists, new = sorted(drawn)
        lists = [x for i, x in enumerate(lists) if not few(lists[: i + 1], sites)]  # honest so far
        found = exposed(lists, new)
        assert bool(found) == (bool(lists) and new not in lists and bool(few([*lists, new], sites)))
        shown += bool(found)
    assert 10 < shown < 140
    many = [f"s{i:03d}" for i in range(500)]
    lists = [[s for s in many if rng.random() < 0.8] for _ in range(20)]  # type: ignore[misc]
    assert exposed(lists, many) == ()
