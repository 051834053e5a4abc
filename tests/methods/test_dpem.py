"""DPEM: what leaves a hospital is bounded in exact integers, paid for, and still tells the phenotypes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Schema, Total, seeds
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Sites, pooled
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.matching import match

SHAPE = (30, 40)


@pytest.fixture(scope="module")
def net() -> Sites:
    return pc.datasets.planted_counts(1500, *SHAPE, phenotypes=4, codes=(5, 6), sites=3, seed=1)


def likeness(model: pc.DPEM, truth: Any) -> float:
    return float(match(model.factors_, list(truth.factors)).likeness.mean())


def doors(sites: list[pc.Site], seed: int = 0) -> dict[str, ReleaseGate]:
    return {s.name: ReleaseGate(s.name, noise=SimulatedNoise(seeds(seed, s.name))) for s in sites}


def state(rng: np.random.Generator, shape: tuple[int, ...], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors and prior as they may come back from the coordinator: peaked ones and flat ones."""
    blocks = [rng.gamma(rng.choice([0.05, 1.0, 50.0]), size=(n, rank)) + 1e-12 for n in shape]
    return np.concatenate([b / b.sum(0) for b in blocks]), rng.gamma(0.5, size=rank) + 1e-9


def hostile(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """One patient: 1 to 400 entries, counts to 1e9, one code or all codes."""
    kind = rng.integers(4)
    if kind == 0:
        coords = np.zeros((1, len(shape)), int)
    elif kind == 1:  # every code of every mode
        coords = np.stack([np.arange(max(shape)) % n for n in shape], axis=1)
    else:
        coords = np.stack([rng.integers(0, n, rng.integers(1, 401)) for n in [shape[0]]], axis=1)
        coords = np.column_stack([coords[:, 0], *(rng.integers(0, n, len(coords)) for n in shape[1:])])
    values = rng.choice([1.0, 2.0, 1e3, 1e9, 123456789.0], len(coords)) * (1 if rng.integers(2) else rng.random() + 0.1)
    return coords, values


def as_tensor(records: list[tuple[np.ndarray, np.ndarray]], shape: tuple[int, ...]) -> pc.SparseTensor:
    coords = [np.column_stack([np.full(len(v), i), c]) for i, (c, v) in enumerate(records)]
    return pc.SparseTensor(np.concatenate(coords), np.concatenate([v for _, v in records]), (len(records), *shape))


# ---- the guarantee


@pytest.mark.parametrize(("shape", "rank"), [((12, 17), 5), ((12, 17), 1), ((6, 7, 8), 3), ((50,), 4)])
def test_one_patient_moves_the_sum_by_at_most_one_in_exact_integers(shape: tuple[int, ...], rank: int) -> None:
    rng = np.random.default_rng(7)
    records = [hostile(rng, shape) for _ in range(60)]
    w, prior = state(rng, shape, rank)
    everyone = as_tensor(records, shape)
    total, _ = em_kernels.unit_statistics(everyone, w, prior)
    assert total.dtype == np.int64
    longest = 0
    for i in range(len(records)):
        alone, _ = em_kernels.unit_statistics(as_tensor([records[i]], shape), w, prior)
        square = sum(int(k) ** 2 for k in alone.ravel())  # Python integers: exact
        assert square <= em_kernels.UNIT**2
        longest = max(longest, square)
        without, _ = em_kernels.unit_statistics(everyone.take([k for k in range(len(records)) if k != i]), w, prior)
        assert np.array_equal(total - without, alone)
    assert longest > 0.99 * em_kernels.UNIT**2  # the bound is used, not merely kept


def test_the_released_step_states_the_sensitivity_that_contribute_keeps(net: Sites) -> None:
    m = pc.DPEM(rank=3, rounds=2, planning_size=10_000, privacy=pc.Privacy(1.0, 1e-6, max_sites_per_patient=2))
    setting = Schema(SHAPE, net[0].counts().axes[1:], ("a",))
    public = m.init_public(setting, np.random.default_rng(0))
    step = m.next_step(public)
    assert step is not None
    assert (step.sensitivity, step.grid) == (1.0, em_kernels.GRID)  # sites per patient: the fold puts them in, below
    rng = np.random.default_rng(3)
    site = pc.Site("a", as_tensor([hostile(rng, SHAPE)], SHAPE))
    for _ in range(2):
        step = m.next_step(public)
        assert step is not None
        _, c = m.contribute(step, site, m.init_site(site, public, rng), public, rng)
        c.check(step, "a")
        assert float(sum(np.square(a).sum() for a in c.arrays.values())) <= 1.0
        public = m.update_public(step, public, Total(c.arrays, 1.0, 1, step.noise_sd))


@pytest.mark.parametrize("bad", [-1.0, -1e-9])
def test_negative_counts_are_refused_before_anything_is_sent(bad: float) -> None:
    site = pc.Site("a", pc.SparseTensor([[0, 0, 0], [0, 1, 1]], [1.0, bad], (1, 2, 2)))
    with pytest.raises(DataError, match="not positive"):
        pc.DPEM(rank=2, rounds=1).fit([site])


def test_nan_counts_are_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        pc.SparseTensor([[0, 0, 0]], [np.nan], (1, 2, 2))


def test_absurd_counts_stay_finite_and_patients_without_events_send_nothing() -> None:
    t = pc.SparseTensor([[1, 0, 0], [1, 1, 1]], [1e300, 1e-300], (3, 2, 2))
    total, _ = em_kernels.unit_statistics(t, np.full((4, 2), 0.5), np.ones(2))
    assert 0 < total.sum() <= 2 * em_kernels.UNIT * 2
    empty = pc.SparseTensor(np.zeros((0, 3), int), [], (5, 2, 2))
    assert not em_kernels.unit_statistics(empty, np.full((4, 2), 0.5), np.ones(2))[0].any()


def test_the_releases_compose_to_exactly_the_budget_and_the_card_is_formal(net: Sites) -> None:
    m = pc.DPEM(rank=4, rounds=5, aggregation="masked", privacy=pc.Privacy(0.7, 1e-6)).fit(net)
    assert m.privacy_.guarantee == "formal"
    assert m.privacy_.adjacency == "patient"
    assert m.privacy_.epsilon == pytest.approx(0.7, abs=1e-6)
    assert m.privacy_.epsilon is not None and m.privacy_.epsilon <= 0.7 + 1e-9
    assert m.privacy_.releases == 7  # the number of patients, the marginals, five rounds


def test_codes_chosen_from_the_data_downgrade_the_card(net: Sites) -> None:
    axes = [replace(a, vocabulary="data") for a in net[0].counts().axes]
    sites = [pc.Site(s.name, s.counts().with_axes(axes)) for s in net]
    m = pc.DPEM(rank=2, rounds=2, privacy=pc.Privacy(1.0)).fit(sites)
    assert m.privacy_.guarantee == "heuristic"


def test_a_formal_run_tells_nothing_that_was_not_paid(net: Sites) -> None:
    m = pc.DPEM(rank=3, rounds=3, privacy=pc.Privacy(1.0)).fit(net)
    for h in m.history_:
        assert h["objective"] is None
        assert h["rmse_observed"] is None
        assert h["rmse_full"] is None


def test_everything_public_is_the_same_after_another_patient_but_for_the_released_sums(net: Sites) -> None:
    """Weights, order, pruning and display are functions of the releases: same releases, same model."""
    site = pooled(net, "a")
    other = pc.Site("a", site.counts().take(np.arange(site.patients - 1)))
    m = pc.DPEM(rank=4, rounds=3, privacy=pc.Privacy(2.0))
    folds = []
    for s in (site, other):
        fold = Simulation(m, [s], doors=doors([s]))
        fold.begin()
        shapes = []
        while (step := m.next_step(fold.public)) is not None:
            shapes.append((step.round, step.name, dict(step.shapes), step.bound, step.multiplier))
            fold.advance()
        folds.append(shapes)
    assert folds[0] == folds[1]


def test_several_starts_are_refused_under_privacy() -> None:
    with pytest.raises(ConfigError, match="n_starts"):
        pc.DPEM(n_starts=3, privacy=pc.Privacy(1.0))


def test_entry_level_privacy_is_refused() -> None:
    with pytest.raises(ConfigError, match="protects patients"):
        pc.DPEM(privacy=pc.Privacy(1.0, level="entry"))


# ---- the sums


def test_noise_zero_equals_central_bit_for_bit(net: Sites) -> None:
    models = [
        pc.DPEM(rank=5, rounds=4, aggregation=a).fit(s)
        for a, s in (("plain", net), ("masked", net), ("plain", [pooled(net)]), ("plain", list(reversed(net))))
    ]
    for m in models[1:]:
        for f, g in zip(models[0].factors_, m.factors_):
            assert np.array_equal(f, g)


def test_noise_is_added_by_all_but_one_insider_under_masked_and_by_every_site_under_plain(net: Sites) -> None:
    price = {
        a: pc.DPEM(rank=3, rounds=1, aggregation=a, privacy=pc.Privacy(1.0)).fit(net).history_[-1]["noise_sd"]
        for a in ("masked", "plain")
    }
    alone = accountant.calibrate(1.0, 1e-6, shares=[0.005, 0.15, 0.845])[-1]
    assert price["plain"] == pytest.approx(alone * np.sqrt(3), rel=1e-6)
    assert price["masked"] == pytest.approx(alone * np.sqrt(3 / 2), rel=1e-6)  # each of three adds half of the variance


def test_a_patient_at_several_sites_is_paid_for(net: Sites) -> None:
    sd = [
        pc.DPEM(rank=2, rounds=1, privacy=pc.Privacy(1.0, 1e-6, max_sites_per_patient=k))
        .fit(net)
        .history_[-1]["noise_sd"]
        for k in (1, 2)
    ]
    assert sd[1] == pytest.approx(2 * sd[0])


# ---- what it learns


def test_planted_phenotypes_are_found_without_noise_and_with_it(net: Sites) -> None:
    free = pc.DPEM(rank=8, rounds=12, seed=0).fit(net)
    assert likeness(free, net.truth) > 0.95
    assert [h["objective"] for h in free.history_][-1] < free.history_[0]["objective"]
    paid = pc.DPEM(rank=8, rounds=8, seed=0, aggregation="masked", privacy=pc.Privacy(8.0)).fit(net, doors=doors(net))
    assert likeness(paid, net.truth) > 0.9


def test_more_noise_never_invents_codes(net: Sites) -> None:
    """Codes shown at a small budget: few, and nearly all of them planted."""
    m = pc.DPEM(rank=8, rounds=8, aggregation="masked", privacy=pc.Privacy(2.0)).fit(net, doors=doors(net, 5))
    pairs = match(m.factors_, list(net.truth.factors))
    shown = np.concatenate([s[:, pairs.left].ravel() for s in m.shown_])
    planted = np.concatenate([(f[:, pairs.right] > 0).ravel() for f in net.truth.factors])
    assert shown.sum() > 10
    assert (shown & ~planted).sum() <= 0.12 * shown.sum()
    assert len(m.phenotypes_) == sum(int(s.sum()) for s in m.shown_)


def test_codes_that_nobody_has_are_not_shown_however_loud_the_noise() -> None:
    """Most of the vocabulary never occurs: whatever the releases say of it is noise (ghosts)."""
    rng = np.random.default_rng(0)
    n, group = 6000, rng.integers(0, 3, 1000)
    who = np.repeat(np.arange(1000), 6)
    coords = np.column_stack([who, 4 * group[who] + rng.integers(0, 4, n), 3 * group[who] + rng.integers(0, 3, n)])
    site = pc.Site("a", pc.SparseTensor(coords, np.ones(n), (1000, 150, 200)))
    shown = ghosts = 0
    for seed in range(3):
        m = pc.DPEM(rank=6, rounds=6, seed=seed, privacy=pc.Privacy(1.0)).fit([site], doors=doors([site], seed))
        shown += sum(int(s.sum()) for s in m.shown_)
        ghosts += int(m.shown_[0][12:].sum() + m.shown_[1][9:].sum())
    assert shown > 20
    assert ghosts <= 0.05 * shown


def test_any_number_of_feature_modes() -> None:
    four = pc.datasets.planted_four_mode(900, (20, 24, 10), 3, codes=(5, 6, 3), seed=0)
    m = pc.DPEM(rank=6, rounds=10).fit(four)
    assert len(m.factors_) == 3
    assert likeness(m, four.truth) > 0.9
    one = pc.Site("a", pc.SparseTensor([[0, 1], [1, 0], [2, 1]], [2.0, 1.0, 4.0], (3, 2)))
    assert pc.DPEM(rank=2, rounds=2).fit([one]).factors_[0].shape[0] == 2


def test_new_patients_are_placed_as_the_old_ones_were(net: Sites) -> None:
    m = pc.DPEM(rank=5, rounds=4, privacy=pc.Privacy(4.0)).fit(net)
    for s in net:
        assert np.allclose(m.transform(s), m.memberships_[s.name])
    assert all(np.allclose(np.linalg.norm(f, axis=0), 1) for f in m.factors_)
    assert (np.diff(m.weights_) <= 0).all()
    score = m.quality(net)
    assert set(score) == {"rmse_observed", "rmse_full", "fit"}
    assert 0 < score["rmse_full"] < np.sqrt(sum(s.counts().norm_squared() for s in net) / (1500 * 1200))


def test_too_little_data_is_said_and_only_marginals_are_bought() -> None:
    few = pc.datasets.planted_counts(60, 10, 12, phenotypes=2, codes=(3, 3), seed=0)
    m = pc.DPEM(planning_size=60, privacy=pc.Privacy(0.1, 1e-6)).fit(few)
    assert m.too_little_data_
    assert m.privacy_.releases == 1
    assert m.privacy_.epsilon == pytest.approx(0.1, abs=1e-6)
    assert [f.shape for f in m.factors_] == [(10, 1), (12, 1)]
    assert np.isfinite(m.transform(few[0])).all()


@pytest.mark.parametrize("rank", [None, 4])
def test_the_gate_acts_on_a_bought_count_too_and_spends_all_that_was_asked_for(rank: int | None) -> None:
    few = pc.datasets.planted_counts(120, 40, 60, phenotypes=2, codes=(3, 3), sites=3, seed=0)
    m = pc.DPEM(rank=rank, aggregation="masked", privacy=pc.Privacy(0.1, 1e-6)).fit(few, doors=doors(few))
    assert m.too_little_data_
    assert m.privacy_.releases == 2  # the number of patients, the marginals with all the rest
    assert m.privacy_.epsilon == pytest.approx(0.1, abs=1e-6)
    assert not pc.DPEM(rank=rank, rounds=2, aggregation="masked", privacy=pc.Privacy(8, 1e-6)).fit(few).too_little_data_


def test_the_rule_does_not_give_up_where_phenotypes_can_be_read() -> None:
    """Epsilon .5 and 2,400 patients: the rule's own rank, with the count asked for and bought."""
    for size in (2_400, None):
        m = pc.DPEM(rounds=2, planning_size=size, aggregation="masked", privacy=pc.Privacy(0.5, 1e-6))
        setting = Schema((200, 300), (), ("a", "b", "c"))
        public = m.init_public(setting, np.random.default_rng(0))
        if size is None:
            step = m.next_step(public)
            assert step is not None
            public = m.update_public(step, public, Total({"n": np.array([2_400.0])}, 1.0, 3, step.noise_sd))
        assert public.plan.rank == 20


def test_patients_are_placed_by_the_fine_columns_and_shown_by_the_joined_ones(net: Sites, tmp_path: Path) -> None:
    m = pc.DPEM(rank=12, rounds=6, seed=0, aggregation="masked", privacy=pc.Privacy(8.0)).fit(net, doors=doors(net))
    place = m.result_.placing
    assert place.parts is not None  # type: ignore[union-attr]
    assert len(m.weights_) < 12
    assert place.stacked.shape[1] == len(place.parts) == 13  # type: ignore[union-attr]
    assert place.parts[-1] == -1  # type: ignore[union-attr]  # the background
    assert place.apart.sum() == (place.parts < 0).sum() >= 1  # type: ignore[union-attr]
    counts = net[0].counts()
    events, fine = counts.norm_squared(), place.expected(counts)  # type: ignore[union-attr]
    assert events > 0
    np.testing.assert_allclose(place.joined(fine).sum(1) + fine[:, place.apart].sum(1), fine.sum(1))  # type: ignore[index, union-attr]
    again = pc.load(m.save(tmp_path / "m.phenotypes"))
    np.testing.assert_array_equal(again.transform(net[0]), m.transform(net[0]))


def test_without_noise_annealing_finds_what_plain_em_divides_wrongly() -> None:
    found = {True: [], False: []}  # type: ignore[var-annotated]
    for seed in range(3):
        law = pc.datasets.planted_counts(1_000, 60, 80, phenotypes=8, codes=(6, 8), seed=seed)
        for anneal, scores in found.items():
            scores.append(likeness(pc.DPEM(rank=16, rounds=24, seed=seed, anneal=anneal).fit(law), law.truth))
    assert np.mean(found[True]) > max(0.96, np.mean(found[False]) + 0.01)


def test_empty_sites_and_single_patients_do_no_harm() -> None:
    sites = [
        pc.Site("a", pc.SparseTensor(np.zeros((0, 3), int), [], (0, 4, 5))),
        pc.Site("b", pc.SparseTensor([[0, 1, 1]], [1.0], (1, 4, 5))),
        pc.Site("c", pc.SparseTensor(np.zeros((0, 3), int), [], (3, 4, 5))),
    ]
    for privacy in (None, pc.Privacy(1.0)):
        m = pc.DPEM(rank=6, rounds=3, aggregation="masked", privacy=privacy).fit(sites)
        assert all(np.isfinite(f).all() for f in m.factors_)
        assert m.memberships_["c"].shape[0] == 3


def test_a_resumed_run_is_the_same_run(net: Sites) -> None:
    m = pc.DPEM(rank=4, rounds=4)
    whole = Simulation(m, net)
    whole.begin()
    half = Simulation(m, net)
    half.begin()
    for _ in range(3):
        whole.advance()
    half.restore(whole.state())
    while whole.advance():
        assert half.advance()
    assert np.array_equal(whole.public.factors[0], half.public.factors[0])
