"""The paper's baseline: a sum around a Hamiltonian cycle with one random offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyclinic.aggregation.secure.masked import Masked
from polyclinic.errors import ConfigError
from polyclinic.protocol.interfaces import Roster
from polyclinic_papers.cycle import Cycle, hamiltonian
from polyclinic_papers.decentralised import graph

Make = Callable[..., Any]


@pytest.mark.parametrize("n", [3, 10])
def test_everybody_gets_the_sum_and_it_is_masked_s_bit_for_bit(add: Make, network: Make, n: int) -> None:
    roster, step, parts = network(n)
    adder, masked = Cycle(), Masked()
    results = add(adder, adder.enrol(roster), step, parts).run()
    want = add(masked, masked.enrol(roster), step, parts).run()["coordinator"]
    for s in roster.sites:
        assert results[s].weight == want.weight
        np.testing.assert_array_equal(results[s].arrays["B"], want.arrays["B"])


def test_what_is_handed_on_is_offset(add: Make, network: Make) -> None:
    """The second site's view is uniform, although all contributions are zero."""
    roster, step, parts = network(3, 4000)
    zero = {s: type(p)({k: 0 * a for k, a in p.arrays.items()}, 1.0) for s, p in parts.items()}
    adder = Cycle()
    roster = adder.enrol(roster)
    sides: dict[str, Any] = {s: adder.exchange(s, roster, step, zero[s]) for s in roster.sites}
    seen = []
    queue = [m for s in roster.sites for m in sides[s].start()]
    while queue:
        m = queue.pop(0)
        if m.kind == "pass":
            line = sides[m.to]._lines[m.sender]
            seen.append(np.frombuffer(line.open(m.body["sealed"], "pass"), np.uint8))
        queue.extend(sides[m.to].receive(m))
    assert len(seen) == 3
    for raw in seen:
        assert abs(np.unpackbits(raw).mean() - 0.5) < 5 * 0.5 / np.sqrt(8 * raw.size)


@pytest.mark.parametrize("seed", range(6))
def test_a_cycle_is_found_in_a_random_graph_and_uses_its_edges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{i:02d}" for i in range(20)]
    hidden = list(rng.permutation(names))  # a planted cycle, and few chords
    chords = [tuple(rng.choice(names, 2, replace=False)) for _ in range(15)]
    edges = graph.given(names, [*zip(hidden, [*hidden[1:], hidden[0]]), *chords])
    way = hamiltonian(names, edges)
    assert sorted(way) == names
    assert way[0] == names[0]
    assert all(tuple(sorted(p)) in edges for p in zip(way, (*way[1:], way[0])))


def test_no_cycle_is_an_error_that_says_what_to_do(network: Make) -> None:
    with pytest.raises(ConfigError, match="subspace"):
        hamiltonian("12345", graph.given("12345", ["12", "13", "14", "15"]), tries=20)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="no neighbours"):
        Cycle(order="13245").way(Roster(tuple("12345"), edges=graph.ring("12345")))
    with pytest.raises(ConfigError, match="every site once"):
        Cycle(order="123").way(Roster(tuple("12345")))


def test_a_given_order_is_used(add: Make, network: Make, truth: Make) -> None:
    roster, step, parts = network(4)
    order = (roster.sites[0], roster.sites[2], roster.sites[1], roster.sites[3])
    adder = Cycle(order=order)
    office = add(adder, adder.enrol(roster), step, parts)
    total = office.run()[roster.sites[0]]
    assert [m.sender for m in office.transcript if m.kind == "pass"] == list(order)
    np.testing.assert_allclose(total.arrays["B"], truth(step, parts).arrays["B"], rtol=1e-12)


def test_a_lost_site_burns_the_sum(add: Make, network: Make) -> None:
    roster, step, parts = network(4)
    adder = Cycle()
    roster = adder.enrol(roster)
    results = add(adder, roster, step, parts, lost=lambda m: m.sender == roster.sites[2]).run()
    assert set(results.values()) == {"aborted"}
