"""Information leak: exact values, the paper's Figure 3, and estimates from runs."""

from __future__ import annotations

from math import inf, log2

import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic_papers.decentralised import graph, pdmm
from polyclinic_papers.decentralised import leakage as leaks
from polyclinic_papers.decentralised.leakage import ideal_bits, mask_sd
from polyclinic_papers.leakage import How, ksg, leak, linear_gaussian, views

NAMES = "12345"
FIVE = graph.given(NAMES, ["12", "23", "34", "45", "15", "13", "35"])  # type: ignore[list-item]


@pytest.mark.paper
def test_figure_3_order_federated_cycle_subspace_ideal() -> None:
    bits = {h: leak(h, NAMES, FIVE, "24", order=NAMES) for h in ("federated", "cycle", "subspace", "ideal")}
    for node in "135":
        assert bits["federated"][node] == inf
        assert bits["cycle"][node] > bits["subspace"][node] + 0.1
        assert bits["subspace"][node] == pytest.approx(bits["ideal"][node], abs=1e-3)
    assert bits["cycle"]["3"] == inf  # equation (11): between two corrupt nodes
    assert bits["cycle"]["1"] == pytest.approx(0.5, abs=1e-5)  # (12): only as a pair with node 5
    assert bits["ideal"]["1"] == pytest.approx(0.5 * log2(1.5))


@pytest.mark.paper
@pytest.mark.parametrize(("sd", "excess"), [(1, 0.368), (10, 4.8e-3), (100, 4.8e-5), (1000, 4.8e-7)])
def test_excess_of_the_five_node_graph_is_the_erratum_s(sd: float, excess: float) -> None:
    got = leak("subspace", NAMES, FIVE, "24", sd=sd)["1"] - ideal_bits(3)
    assert got == pytest.approx(excess, rel=0.02)


def transcript(a: np.ndarray, c: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """All synchronous broadcasts as matrices of the inputs (f) and of the 2 m initial duals (g), by brute force."""
    n = len(a)
    pairs = [(i, j) for i in range(n) for j in range(n) if a[i, j]]
    k = n + len(pairs)
    s, z = np.eye(n, k), np.zeros((n, n, k))
    for q, (i, j) in enumerate(pairs):
        z[i, j, n + q] = 1.0
    b = np.where(np.arange(n)[:, None] > np.arange(n)[None], 1.0, -1.0)
    rows = []
    for _ in range(count):
        y = (s - (b[:, :, None] * z).sum(axis=1)) / (1 + c * a.sum(axis=1))[:, None]
        rows.append(y)
        new = np.zeros_like(z)
        for i, j in pairs:
            new[j, i] = z[i, j] + 2 * c * b[i, j] * y[i]
        z = new
    m = np.vstack(rows)
    return m[:, :n], m[:, n:]


@pytest.mark.parametrize("sd", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("shape", ["five", "path", "ring"])
def test_the_closed_form_equals_the_leak_of_the_whole_transcript(sd: float, shape: str) -> None:
    """Nothing but two views per node is in the broadcasts, however many there are (eavesdropper)."""
    edges = {
        "five": FIVE,
        "path": graph.given(NAMES, ["12", "23", "34", "45"]),  # type: ignore[list-item]
        "ring": graph.ring(NAMES),
    }[shape]
    a = graph.adjacency(NAMES, edges)
    f, g = transcript(a, 0.3, 12)
    closed = leak("subspace", NAMES, edges, sd=sd)
    for i, name in enumerate(NAMES):
        assert linear_gaussian(f, sd * g, i) == pytest.approx(closed[name], abs=1e-6)


def test_corrupt_nodes_learn_their_closed_form_from_their_own_duals_and_all_broadcasts() -> None:
    a = graph.adjacency(NAMES, FIVE)
    f, g = transcript(a, 0.3, 12)
    pairs = [(i, j) for i in range(5) for j in range(5) if a[i, j]]
    bad = {1, 3}
    known = [q for q, (i, j) in enumerate(pairs) if {i, j} & bad]
    keep_g = [q for q in range(len(pairs)) if q not in known]
    keep_f = [0, 2, 4]  # corrupt nodes subtract what they know: their inputs and the duals of their edges
    closed = leak("subspace", NAMES, FIVE, "24", sd=10.0)
    for k, i in enumerate(keep_f):
        assert linear_gaussian(f[:, keep_f], 10.0 * g[:, keep_g], k) == pytest.approx(closed[NAMES[i]], abs=1e-6)


def test_the_authors_rule_is_no_bound_and_ours_is() -> None:
    """ERRATA E4.5: 1/2 log2(1 + var_s / var_lambda) is below the exact excess at a leaf of a path."""
    path = graph.given(NAMES, ["12", "23", "34", "45"])  # type: ignore[list-item]
    excess = max(leak("subspace", NAMES, path, sd=100.0).values()) - ideal_bits(5)
    assert excess > 0.5 * log2(1 + 1e-4)
    for edges in (FIVE, graph.ring(NAMES), graph.complete(NAMES)):
        for bits in (1e-3, 1e-6):
            sd = mask_sd(NAMES, edges, 1, bits)
            worst = max(
                b - ideal_bits(5 - len(bad))
                for bad in ("", *NAMES)
                for b in leak("subspace", NAMES, edges, bad, sd=sd).values()
            )
            assert bits * 0.5 < worst <= bits


def test_an_isolated_honest_node_is_fully_revealed_and_refused() -> None:
    star = graph.given(NAMES, ["12", "13", "14", "15"])  # type: ignore[list-item]
    assert leak("subspace", NAMES, star, "1")["2"] == inf
    with pytest.raises(ConfigError, match="without 1 the remaining sites are cut off"):
        mask_sd(NAMES, star, 1, 1e-6)
    with pytest.raises(ConfigError, match="cut off"):
        mask_sd(NAMES, graph.ring(NAMES), 2, 1e-6)


@pytest.mark.parametrize("corrupt", ["", "24", "1", "25"])
def test_cycle_views_are_what_the_protocol_sends(corrupt: str) -> None:
    f, g = views(NAMES, corrupt, 7.0)
    rng = np.random.default_rng(0)
    s, r = rng.standard_normal(5), rng.standard_normal(1)
    seen = f @ s + g @ r
    messages = {k: 7.0 * r[0] + s[: k + 1].sum() for k in range(5)}
    bad = set(corrupt)
    expected = [messages[k] for k in range(5) if not bad or {NAMES[k], NAMES[(k + 1) % 5]} & bad]
    expected += [7.0 * r[0]] if "1" in bad else []
    np.testing.assert_allclose(seen, [*expected, s.sum()])


def test_the_eavesdropper_sees_all_of_a_cycle_but_only_the_sum_of_subspace() -> None:
    assert leak("cycle", NAMES, order=NAMES)["3"] == inf
    assert leak("subspace", NAMES, FIVE)["3"] == pytest.approx(ideal_bits(5), abs=1e-3)


# ---- estimates from runs


def test_ksg_matches_the_closed_form_of_correlated_gaussians() -> None:
    rng = np.random.default_rng(0)
    for rho in (0.0, 0.5, 0.9):
        x, e = rng.standard_normal((2, 4000))
        y = rho * x + np.sqrt(1 - rho**2) * e
        assert ksg(x, y) == pytest.approx(-0.5 * log2(1 - rho**2), abs=0.06)


def test_ksg_agrees_with_scikit_learn() -> None:
    from sklearn.feature_selection import mutual_info_regression

    rng = np.random.default_rng(1)
    x, e = rng.standard_normal((2, 3000))
    y = np.tanh(2 * x) + 0.3 * e
    theirs = mutual_info_regression(x[:, None], y, n_neighbors=3, random_state=0)[0] / np.log(2)
    assert ksg(x, y) == pytest.approx(theirs, abs=0.02)


@pytest.mark.paper
def test_ten_thousand_runs_give_figure_3() -> None:
    """Monte Carlo of the real iterations and of the real ring: KSG estimates lie at the exact values."""
    runs, sd, rng = 10_000, 1e3, np.random.default_rng(0)
    a = graph.adjacency(NAMES, FIVE)
    c, _ = pdmm.best_constant(a)
    s = rng.standard_normal((5, runs))
    z = sd * rng.standard_normal((5, 5, runs)) * a[:, :, None]
    b = np.where(np.arange(5)[:, None] > np.arange(5)[None], 1.0, -1.0)
    u, v = (b[:, :, None] * z).sum(axis=1), (b[:, :, None] * z).sum(axis=0)
    d, honest = a.sum(axis=1)[:, None], [0, 2, 4]
    heard = []
    for _ in range(2):  # two broadcasts hold all there is (E4.5); the duals of corrupt nodes' edges are known to them
        y = (s - u) / (1 + c * d)
        u, v = -v - 2 * c * (a @ y), -u - 2 * c * d * y
        heard.append(y)
    known = np.zeros((5, 5), bool)
    known[[1, 3]] = known[:, [1, 3]] = True
    first = heard[0] * (1 + c * d) + ((b[:, :, None] * z) * known[:, :, None]).sum(axis=1)
    second = heard[1] * (1 + c * d) - 2 * c * (a @ heard[0]) - ((b[:, :, None] * z) * known[:, :, None]).sum(axis=0)
    corrupt_view = np.vstack([first[honest], second[honest]])
    r = sd * rng.standard_normal(runs)
    ring_view = np.vstack([s[0] + r, s[0] + s[2] + r, s.sum(axis=0) - s[1] - s[3]])
    x = s[0]

    def estimate(view: np.ndarray) -> float:
        design = np.vstack([view, np.ones(runs)]).T
        scale = np.linalg.norm(design, axis=0)
        return ksg(x, design / scale @ np.linalg.lstsq(design / scale, x, rcond=1e-14)[0])

    itself = ksg(x, x + 0.0)
    got: dict[How, float] = {
        "federated": itself / itself,
        "cycle": estimate(ring_view) / itself,
        "subspace": estimate(corrupt_view) / itself,
        "ideal": ksg(x, s[honest].sum(axis=0)) / itself,
    }
    assert got["federated"] == 1.0
    assert got["federated"] > got["cycle"] > got["subspace"]
    assert got["subspace"] == pytest.approx(got["ideal"], abs=0.01)
    assert got["cycle"] * itself == pytest.approx(0.5, abs=0.05)
    assert got["subspace"] * itself == pytest.approx(ideal_bits(3), abs=0.05)


def test_masks_of_many_sites_follow_from_one_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"s{i:02d}" for i in range(24))
    edges = graph.ring(names) | graph.given(names, [(names[i], names[(i + 5) % 24]) for i in range(24)])
    here = mask_sd(names, edges, 1, 1e-6)
    monkeypatch.setattr(leaks, "MANY", 5)
    leaks._mask_sd.cache_clear()
    assert mask_sd(names, edges, 1, 1e-6) == here
    with pytest.raises(ConfigError) as refused:
        mask_sd(names, edges - {e for e in edges if names[0] in e} | {(names[0], names[1])}, 1, 1e-6)
    assert refused.value.faults == (f"without {names[1]} the remaining sites are cut off from each other",)
    leaks._mask_sd.cache_clear()
