"""Subspace perturbation: neighbours agree on the exact sum, without a coordinator and without seeing a contribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from polyclinic.aggregation.fixed_point import FixedPoint
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.aggregation.vector import flatten
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.interfaces import Contribution, Roster, Step, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic_papers.decentralised import graph, pdmm
from polyclinic_papers.decentralised.consensus import gaussian
from polyclinic_papers.decentralised.digits import join, split
from polyclinic_papers.decentralised.subspace import Subspace

Make = Callable[..., Any]
FIVE = graph.given("12345", ["12", "23", "34", "45", "15", "13", "35"])  # type: ignore[list-item]


def same(a: Total, b: Total) -> bool:
    return a.weight == b.weight and all(np.array_equal(a.arrays[k], b.arrays[k]) for k in b.arrays)


# ---- the consensus itself


def duals(a: np.ndarray, sd: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random z, and the sums u, v through which they act."""
    n = len(a)
    z = sd * rng.standard_normal((n, n)) * a
    b = np.where(np.arange(n)[:, None] > np.arange(n)[None], 1.0, -1.0)
    return z, (b * z).sum(axis=1), (b * z).sum(axis=0)


def activate(a: np.ndarray, s: np.ndarray, z: np.ndarray, c: float, order: np.ndarray) -> np.ndarray:
    """Algorithm 1 as printed: one node after the other, ``z[i, j] = z_{i|j}``."""
    y, z = np.zeros_like(s), z.copy()
    for i in order:
        near = np.flatnonzero(a[i])
        signs = np.where(i > near, 1.0, -1.0)
        y[i] = (s[i] - (signs * z[i, near]).sum()) / (1 + c * len(near))
        z[near, i] = z[i, near] + 2 * c * signs * y[i]
    return y


@pytest.mark.paper
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_eighty_nodes_within_1e8_in_300_activations_with_masks_of_1000(seed: int) -> None:
    names = [f"n{i:02d}" for i in range(80)]
    rng = np.random.default_rng(seed)
    a = graph.adjacency(names, graph.geometric(names, rng))
    c, rate = pdmm.best_constant(a)
    s = rng.standard_normal(80)
    z, u, v = duals(a, 1e3, rng)
    y = pdmm.synchronous(a, s[:, None], u[:, None], v[:, None], c, 300)[:, 0]
    assert np.abs(y - s.mean()).max() < 1e-8
    planned = pdmm.iterations(a, c, 1e3, 1e-8)
    assert planned <= 300
    assert planned == pytest.approx(np.log(1e3 * np.sqrt(a.sum(1).max()) / 1e-9) / -np.log(rate), rel=0.35)
    order = rng.integers(80, size=80 * 300)  # Algorithm 1: 300 activations a node on average
    assert np.abs(activate(a, s, z, c, order) - s.mean()).max() < 1e-8


def test_many_nodes_have_such_a_plan_and_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{i:02d}" for i in range(40)]
    rng = np.random.default_rng(5)
    a, s = graph.adjacency(names, graph.geometric(names, rng)), rng.standard_normal((40, 3))
    _, u, v = duals(a, 1e3, rng)
    found = []
    for many in (200, 5):
        monkeypatch.setattr(pdmm, "MANY", many)
        pdmm._best.cache_clear()
        pdmm._iterations.cache_clear()
        c, rate = pdmm.best_constant(a)
        count = pdmm.iterations(a, c, 1e3, 1e-8)
        start = u[:, None] * np.ones(3), v[:, None] * np.ones(3)
        found.append((c, count, rate, pdmm.synchronous(a, s, *start, c, count)))
    (_, count, rate, y), there = found
    assert count == pytest.approx(there[1], rel=0.15)
    assert rate == pytest.approx(there[2], rel=0.05)
    np.testing.assert_allclose(y, there[3], atol=1e-8)
    np.testing.assert_allclose(y, np.broadcast_to(s.mean(0), y.shape), atol=1e-8)


def test_the_planned_iterations_suffice_and_half_do_not() -> None:
    rng = np.random.default_rng(3)
    for edges, names in [(FIVE, "12345"), (graph.ring("abcdefg"), "abcdefg"), (graph.complete("abcdef"), "abcdef")]:
        a = graph.adjacency(names, edges)
        c, _ = pdmm.best_constant(a)
        count = pdmm.iterations(a, c, 1e3, 1e-8)
        s = rng.uniform(-1, 1, (len(a), 1))
        _, u, v = duals(a, 1e3, rng)
        errors = [
            np.abs(pdmm.synchronous(a, s, u[:, None], v[:, None], c, t) - s.mean()).max() for t in (count, count // 2)
        ]
        assert errors[0] < 1e-8 < errors[1]


def test_a_node_computes_equations_8_and_9_as_printed() -> None:
    """The z-form equals the paper's y and lambda (ERRATA E4.1), node by node."""
    rng = np.random.default_rng(4)
    names, c = list("12345"), 0.4
    near = {i: graph.neighbours(i, FIVE) for i in names}
    s = {i: rng.standard_normal(3) for i in names}
    lam = {(i, j): 10 * rng.standard_normal(3) for i in names for j in near[i]}  # lambda_{i|j}
    nodes = {
        i: pdmm.PdmmNode(i, s[i], {j: lam[i, j] for j in near[i]}, {j: lam[j, i] for j in near[i]}, c) for i in names
    }
    y = {i: np.zeros(3) for i in names}
    b = pdmm.sign
    for _ in range(60):
        new = {i: (s[i] + sum(c * y[j] - b(i, j) * lam[j, i] for j in near[i])) / (1 + c * len(near[i])) for i in names}
        lam = {(i, j): lam[j, i] + c * b(i, j) * (new[i] - y[j]) for i in names for j in near[i]}
        y = new
        theirs = {i: nodes[i].value() for i in names}
        for i in names:
            nodes[i].absorb(theirs[i], {j: theirs[j] for j in near[i]})
            np.testing.assert_allclose(theirs[i], y[i], atol=1e-11)
    np.testing.assert_allclose(y["1"], np.mean(list(s.values()), axis=0), atol=1e-6)


# ---- the sum


@pytest.mark.parametrize("network", ["complete", "ring", "given"])
def test_all_nodes_hold_the_same_bits_and_they_are_masked_s_bits(add: Make, network: Any) -> None:
    rng = np.random.default_rng(0)
    names = tuple("12345")
    step = Step(2, "statistics", {"S": (7,), "c": (2, 3)}, bound=1e9, weight_bound=50.0)
    parts = {
        s: Contribution({"S": rng.standard_normal(7), "c": rng.standard_normal((2, 3))}, float(rng.random()))
        for s in names
    }
    adder = Subspace(network=FIVE if network == "given" else network)
    roster = adder.enrol(Roster(names))
    results = add(adder, roster, step, parts).run()
    masked = Masked()
    want = add(masked, masked.enrol(Roster(names)), step, parts).run()["coordinator"]
    assert all(same(results[s], want) for s in names)
    assert same(adder.aggregate_local(roster, step, parts), want)
    exact = sum(parts[s].weight * parts[s].arrays["S"] for s in names)
    np.testing.assert_allclose(
        want.arrays["S"], exact, atol=FixedPoint.of(step, 5).error
    )  # bound a billion times too wide


def test_a_geometric_network_of_thirty(add: Make, network: Make, truth: Make) -> None:
    roster, step, parts = network(30, 3)
    adder = Subspace()
    roster = adder.enrol(roster)
    assert len(roster.edges) < 30 * 29 / 2
    results = add(adder, roster, step, parts).run()
    first = results[roster.sites[0]]
    assert all(same(r, first) for r in results.values())
    np.testing.assert_allclose(first.arrays["B"], truth(step, parts).arrays["B"], rtol=1e-12)


def test_specimens_count_exactly_the_bytes_of_the_letters(add: Make, network: Make) -> None:
    roster, step, parts = network(5)
    adder = Subspace(bits=1e-7)
    roster = adder.enrol(roster)
    office = add(adder, roster, step, parts)
    office.run()
    sent: Counter[tuple[str, str]] = Counter()
    for m in office.transcript:
        sent[m.sender, m.to] += len(wire.encode_message(m, "x/1"))
    counted: Counter[tuple[str, str]] = Counter()
    for sender, to, size in adder.message_sizes(roster, step, lambda m: len(wire.encode_message(m, "x/1"))):
        counted[sender, to] += size
    assert sent == counted


def test_masks_are_fresh_for_every_scalar_and_sum(add: Make) -> None:
    """Equal inputs in every coordinate, twice: all first values differ (E4.7)."""
    names = tuple("abcd")
    step = Step(1, "s", {"S": (50,)}, bound=1.0)
    parts = {s: Contribution({"S": np.full(50, 0.5)}) for s in names}
    adder = Subspace()
    roster = adder.enrol(Roster(names))
    firsts = []
    for _ in range(2):
        sides: dict[str, Any] = {s: adder.exchange(s, roster, step, parts[s]) for s in names}
        queue = [m for s in names for m in sides[s].start()]
        while queue and queue[0].kind != "value":
            m = queue.pop(0)
            queue.extend(sides[m.to].receive(m))
        firsts += [sides[s]._own for s in names]
    values = np.concatenate(firsts)
    assert len(np.unique(values)) == values.size
    assert values.std() > 100  # masked by far more than the inputs' range


def test_the_transcript_without_keys_shows_nothing(add: Make, network: Make) -> None:
    """No broadcast value, no input, no word of the result appears in any letter."""
    roster, step, parts = network(4)
    adder = Subspace()
    roster = adder.enrol(roster)
    office = add(adder, roster, step, parts)
    results = office.run()
    code = FixedPoint.of(step, 4)
    blob = b"".join(wire.encode_message(m, "") for m in office.transcript)
    for s in roster.sites:
        words = code.encode(flatten(step, parts[s], s), s)
        for secret in (words.tobytes()[:16], split(words).tobytes()[:16], parts[s].arrays["B"].tobytes()[:16]):
            assert secret not in blob
        assert results[s].arrays["B"].tobytes()[:16] not in blob


def test_a_lost_site_burns_the_attempt(add: Make, network: Make) -> None:
    roster, step, parts = network(5)
    adder = Subspace()
    roster = adder.enrol(roster)
    gone = roster.sites[2]
    for lost in (lambda m: m.sender == gone, lambda m: m.sender == gone and m.kind == "value" and m.body["slot"] == 5):
        results = add(adder, roster, step, parts, lost=lost).run()
        assert set(results.values()) == {"aborted"}


def test_who_missed_only_the_result_asks_for_it(add: Make, network: Make) -> None:
    roster, step, parts = network(5)
    adder = Subspace()
    roster = adder.enrol(roster)
    deaf, dropped = roster.sites[3], []  # type: ignore[var-annotated]

    def lost(m: Any) -> bool:
        miss = m.to == deaf and m.kind == "average" and not any(x.kind == "ask" for x in office.transcript)
        dropped.append(miss)
        return miss

    office = add(adder, roster, step, parts, lost=lost)
    results = office.run()
    assert any(dropped)
    assert same(results[deaf], results[roster.sites[0]])


def test_letters_may_overtake_each_other(network: Make, truth: Make) -> None:
    roster, step, parts = network(5)
    adder = Subspace(network="ring")
    roster = adder.enrol(roster)
    rng = np.random.default_rng(0)
    sides = {s: adder.exchange(s, roster, step, parts[s]) for s in roster.sites}
    queue = [m for s in roster.sites for m in sides[s].start()]
    while queue:  # any order at all
        m = queue.pop(int(rng.integers(len(queue))))
        queue.extend(sides[m.to].receive(m))
    for s in roster.sites:
        np.testing.assert_allclose(sides[s].result().arrays["B"], truth(step, parts).arrays["B"], rtol=1e-12)  # type: ignore[union-attr]


def test_another_plan_is_refused_by_name(network: Make) -> None:
    roster, step, parts = network(3)
    adder = Subspace()
    roster = adder.enrol(roster)
    other = Subspace(adder.identities, sd=2e3)
    a, b = roster.sites[:2]
    (hello,) = [m for m in other.exchange(a, roster, step, parts[a]).start() if m.to == b]
    with pytest.raises(MessageRefused, match="another plan"):
        adder.exchange(b, roster, step, parts[b]).receive(hello)


def test_unsafe_rosters_and_masks_are_refused(network: Make) -> None:
    roster, step, parts = network(5)
    adder = Subspace()
    good = adder.enrol(roster)
    one = good.sites[0]
    star = frozenset((one, s) for s in good.sites[1:])
    for bad, words in [
        (replace(good, edges=star), "cut off"),
        (replace(good, coordinator="coordinator"), "has none"),
        (replace(good, sites=good.sites[:2], edges=frozenset({good.sites[:2]})), "fewer than 3"),  # type: ignore[arg-type]
        (replace(good, edges=frozenset(list(good.edges)[:2])), "falls apart"),
        (replace(good, edges=graph.ring(good.sites), colluders=2), "cut off"),
    ]:
        with pytest.raises(ConfigError, match=words):
            adder.exchange(one, bad, step, parts[one])
    with pytest.raises(ConfigError, match="float64"):
        Subspace(adder.identities, sd=1e9).exchange(one, good, step, parts[one])
    with pytest.raises(ConfigError, match="no coordinator"):
        adder.exchange(one, good, step, None)
    assert adder.noise_share(replace(good, colluders=1)) == 1 / 4


def test_digits_of_whole_numbers_add_exactly() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(-(2**58), 2**58, (9, 200))
    numbers[:, 0] = [2**58, -(2**58), 0, 1, -1, 2**41, -(2**41), 2**20, -(2**20)]
    digits = np.array([split(x.view(np.uint64)) for x in numbers])
    assert np.abs(digits).max() <= 1
    np.testing.assert_array_equal(join(digits.sum(axis=0) * 2**20).view(np.int64), numbers.sum(axis=0))


def test_masks_are_gaussian() -> None:
    draws = np.sort(gaussian(bytes(range(32)), 20_000, 3.0) / 3)
    gap = np.abs(ndtr(draws) - (np.arange(20_000) + 0.5) / 20_000).max()
    assert gap * np.sqrt(20_000) < 2.0  # Kolmogorov-Smirnov, p about 7e-4


def test_a_paid_step_gets_the_largest_masks_and_their_leak_costs_next_to_nothing(add: Make) -> None:
    names = tuple(f"s{i}" for i in range(6))
    step = Step(1, "statistics", {"S": (200,)}, bound=1e3, sensitivity=1.0, multiplier=3.0, grid=2.0**-16)
    rng = np.random.default_rng(0)
    parts = {s: Contribution({"S": rng.integers(-(2**20), 2**20, 200) * 2.0**-16}) for s in names}  # type: ignore[dict-item]
    adder = Subspace()
    roster = adder.enrol(Roster(names, colluders=1))
    assert adder.plan(roster, paid=True).sd > 100 * adder.plan(roster).sd
    (event,) = adder.masks(roster).events(step)
    assert event.multiplier > 1000  # type: ignore[union-attr]  # beside the step's own 3.0
    total = add(adder, roster, step, parts).run()[names[0]]
    np.testing.assert_array_equal(total.arrays["S"], sum(p.arrays["S"] for p in parts.values()))
    assert total.noise_sd == pytest.approx(3.0 * np.sqrt(6 / 5))
