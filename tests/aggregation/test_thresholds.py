"""How many must survive, and what a curious hospital gets by subtracting what is its own (ATTACKS 4, 5, 21)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.errors import ConfigError, MessageRefused, PeerLost
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.policy.policy import Policy
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Roster, Step, least_threshold
from polyclinic.protocol.loop import Simulation, roster_for

Make = Callable[..., Any]
CANARIES = 9_000


@pytest.mark.parametrize(
    ("n", "c", "t"), [(3, 1, 3), (4, 1, 3), (5, 1, 4), (7, 1, 5), (10, 1, 6), (10, 3, 7), (4, 2, 4)]
)
def test_two_lists_never_fit_and_one_hides_among_two(n: int, c: int, t: int) -> None:
    assert least_threshold(n, c) == t
    assert 2 * (t - c) > n - c
    assert t - c >= 2


@pytest.mark.parametrize(("n", "t", "lost"), [(3, 3, 0), (4, 4, 0), (5, 4, 1), (7, 5, 2)])
def test_an_insider_who_subtracts_its_own_noise_learns_no_more_than_was_booked(
    add: Make, n: int, t: int, lost: int
) -> None:
    """9,000 patients of the first site, each in or out by a coin and alone in one coordinate; the second site attacks."""
    rng = np.random.default_rng([n, t, lost])
    there = rng.random(CANARIES) < 0.5
    step = Step(1, "counts", {"S": (CANARIES,)}, bound=1.0, sensitivity=1.0, multiplier=1.25, grid=2.0**-16)
    names = tuple(f"site{i}" for i in range(n))
    adder = Masked()
    roster = adder.enrol(Roster(names, threshold=t))
    doors = {s: ReleaseGate(s) for s in names}
    clear = {s: Contribution({"S": there * 1.0 if s == names[0] else np.zeros(CANARIES)}) for s in names}  # type: ignore[dict-item]
    parts = {s: doors[s].release(step, clear[s], share=adder.noise_share(roster)) for s in names}
    gone = names[n - lost :]
    total = add(adder, roster, step, parts, lost=lambda m: m.sender in gone and m.kind == "masked").run()["coordinator"]
    assert total.members == n - lost
    booked = accountant.gaussian_mu([c.event for c in doors[names[0]].ledger.charges()])
    left = total.arrays["S"] - parts[names[1]].arrays["S"]
    sd = np.sqrt((left[there].var(ddof=1) + left[~there].var(ddof=1)) / 2)
    measured = (left[there].mean() - left[~there].mean()) / sd
    error = 2 / np.sqrt(CANARIES) * np.sqrt(1 + measured**2 / 8)
    assert measured <= booked + 3 * error
    assert measured >= booked - 3 * error  # all (n, t, lost) here are tight: a share more would be noise for nothing


@pytest.mark.parametrize("how", ["masked", "subspace", "cycle"])
def test_nobody_colluding_is_refused(network: Make, how: str) -> None:
    roster, step, parts = network(4)
    adder = by_name(how)
    roster = adder.enrol(roster)
    with pytest.raises(ConfigError, match=r"0 colluders|1 colluder or more"):
        adder.exchange(roster.sites[0], replace(roster, colluders=0), step, parts[roster.sites[0]])


@pytest.mark.parametrize("how", ["masked", "subspace", "cycle"])
def test_a_sum_over_fewer_than_the_colluders_and_two_is_not_taken(network: Make, how: str) -> None:
    roster, step, parts = network(4)
    adder = by_name(how)
    roster = adder.enrol(roster)
    few = replace(roster, colluders=3, threshold=4)
    with pytest.raises(ConfigError, match=r"fewer than 5|at least 5"):
        adder.exchange(roster.sites[0], few, step, parts[roster.sites[0]])


def test_three_sites_masked_need_all_three_whatever_the_quorum_says() -> None:
    """With two the sum shows the neighbour's part to 2e-14 (it was opened, once)."""
    sites = pc.datasets.icu_network(patients=300, seed=0)[:3]
    gone = sorted(s.name for s in sites)[2]
    method = pc.SumALS(rank=2, rounds=1, aggregation="masked", seed=0)
    fold = Simulation(method, sites, quorum=2, silent=lambda step, name: name == gone)
    assert fold.roster.threshold == 3
    with pytest.raises(PeerLost, match="3 are needed"):
        fold.advance()


def test_plain_with_a_quorum_of_two_goes_on_after_one_loss() -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)[:3]
    gone = sorted(s.name for s in sites)[2]
    method = pc.SumALS(rank=2, rounds=1, seed=0)
    assert Simulation(method, sites, quorum=2, silent=lambda step, name: name == gone).run().history


def test_an_owners_least_number_of_sites_holds_for_every_sum() -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)[:4]
    names = sorted(s.name for s in sites)
    doors = {
        n: ReleaseGate(n, policy=Policy(min_sites=4, methods=("sumals",)) if n == names[1] else None) for n in names
    }
    method = pc.SumALS(rank=2, rounds=1, aggregation="masked", seed=0)
    fold = Simulation(method, sites, doors=doors, quorum=3, silent=lambda step, name: name == names[3])
    with pytest.raises(PeerLost, match="4 are needed"):
        fold.advance()


def test_a_site_signs_no_list_shorter_than_its_owner_allows(network: Make) -> None:
    """The coordinator's threshold is 3 of 4; one owner asks for 4."""
    roster, step, parts = network(4)
    makers = {s: Masked(least=4 if s == roster.sites[0] else 1) for s in roster.sites}
    shared = Masked()
    roster = shared.enrol(replace(roster, threshold=3))
    for m in makers.values():
        m.identities = shared.identities
    sides: dict[str, Any] = {s: makers[s].exchange(s, roster, step, parts[s]) for s in roster.sites}
    sides["coordinator"] = shared.exchange("coordinator", roster, step, None)
    queue = [m for s in roster.sites for m in sides[s].start()]
    refused = []
    for _ in range(10):
        while queue:
            m = queue.pop(0)
            if m.kind == "masked" and m.sender == roster.sites[3]:
                continue
            try:
                queue += sides[m.to].receive(m)
            except MessageRefused as e:
                refused.append((m.to, m.kind, str(e)))
        queue += sides["coordinator"].deadline()
    assert [(to, kind) for to, kind, _ in refused] == [(roster.sites[0], "survivors")]
    assert "the threshold is 4" in refused[0][2]
    assert sides["coordinator"].result() == "aborted"


def test_a_quorum_above_the_number_of_sites_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 5 sites"):
        roster_for(by_name("masked"), ["a", "b", "c"], threshold=5)
