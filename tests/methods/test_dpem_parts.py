"""The parts of DPEM that only see released values: shrinkage, evidence, regrouping, the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from polyclinic.methods.dpem.budget_plan import MEMORY, ReleasePlan, clearness, plan_for
from polyclinic.methods.dpem.m_step import alike, breadth, finished, groups, masses, regrouped, split
from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.running_mean import remembered
from polyclinic.methods.dpem.shrinkage import posterior_mean
from polyclinic.methods.dpem.significance import stands_out
from polyclinic.methods.dpem.state import DPEMPublic
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.budget import Privacy


def test_empirical_bayes_is_nearer_to_the_truth_than_the_release_and_than_a_threshold() -> None:
    rng = np.random.default_rng(0)
    base = np.full(4000, 3.0)
    truth = base * np.where(rng.random(4000) < 0.05, rng.gamma(5.0, 5.0, 4000), 0.02)
    noisy = truth + 8.0 * rng.standard_normal(4000)
    error = {
        "release": np.square(noisy - truth).mean(),
        "threshold": np.square(np.where(noisy > 1.5 * 8, noisy, 0) - truth).mean(),
        "bayes": np.square(posterior_mean(noisy, base, 8.0) - truth).mean(),
    }
    assert error["bayes"] < 0.6 * error["threshold"] < error["release"]


def test_without_noise_the_release_is_the_estimate() -> None:
    y = np.array([[1.0, 0.0], [2.0, 7.0]])
    assert np.array_equal(posterior_mean(y, np.ones((2, 2)), 0.0), y)


def test_the_false_discovery_rate_is_kept_under_pure_noise() -> None:
    rng = np.random.default_rng(1)
    runs = [stands_out(rng.standard_normal(5000), np.zeros(5000), 1.0, fdr=0.01).any() for _ in range(300)]
    assert np.mean(runs) <= 0.03


def test_alike_ignores_what_everybody_has() -> None:
    marginals = [np.array([0.9, 0.04, 0.03, 0.03])]
    f = np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.0], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]])
    likeness = alike([f], marginals)
    assert likeness[0, 1] == pytest.approx(1.0)
    assert likeness[0, 2] == 0.0  # their cosine is 0.99


def test_splitting_keeps_mass_and_simplex() -> None:
    rng = np.random.default_rng(0)
    f = rng.dirichlet(np.ones(8), 3).T
    new, mass = split([f, f], np.array([0.5, 0.3, 0.2]), 5, rng)
    assert new[0].shape == (8, 5)
    assert np.allclose(new[0].sum(0), 1)
    assert mass.sum() == pytest.approx(1.0)
    assert groups(np.eye(5), mass, 0.5) == [[k] for k in np.argsort(-mass, kind="stable")]


@pytest.mark.parametrize(("size", "epsilon"), [(20_000, 1.0), (100_000, 0.5), (5_000, 4.0), (1_000_000, 2.0)])
def test_a_plan_spends_the_budget_exactly(size: int, epsilon: float) -> None:
    plan = plan_for(Privacy(epsilon, 1e-6), (200, 300), planning_size=size)
    assert 20 <= plan.rank <= 40
    assert len(plan.multipliers) == plan.rounds + 1
    events = [accountant.Gaussian(m) for m in plan.multipliers]
    assert accountant.epsilon(events, 1e-6) == pytest.approx(epsilon, abs=1e-6)
    assert list(plan.multipliers[1:]) == sorted(plan.multipliers[1:], reverse=True)  # rising shares


def test_a_plan_needs_no_data_and_without_a_planning_size_is_fixed() -> None:
    plan = plan_for(Privacy(1.0), (200, 300))
    assert (plan.rank, plan.rounds) == (40, 16)
    assert plan_for(Privacy(1.0), (200, 300), planning_size=1000, noisy_sites=100).rank == 0


def test_shares_rise_faster_more_is_remembered_and_fewer_steps_place_where_phenotypes_stand_out_clearly() -> None:
    plans = {n: plan_for(Privacy(1.0, 1e-6), (200, 300), rank=30, planning_size=n) for n in (5_000, 8_000, 20_000)}

    def last(plan: ReleasePlan) -> float:
        return float(plan.multipliers[-1] ** -2 / sum(m**-2 for m in plan.multipliers[1:]))

    assert [plans[n].rounds for n in (5_000, 20_000)] == [16, 12]
    assert 12 < plans[8_000].rounds < 16
    assert last(plans[5_000]) == pytest.approx(
        4.0 / sum(t**0.5 for t in range(1, 17))
    )  # shares like the roots of 1, 2, 3 ...
    assert last(plans[20_000]) == pytest.approx(144 / 650)  # like their squares
    assert last(plans[5_000]) < last(plans[8_000]) < last(plans[20_000])
    assert plans[5_000].memory == MEMORY[0] < plans[8_000].memory < plans[20_000].memory == MEMORY[1]
    assert (plans[5_000].steps, plans[20_000].steps) == (32, 11)
    assert 12 < plans[8_000].steps < 32
    for plan in plans.values():  # the price is the same
        spent = accountant.epsilon([accountant.Gaussian(m) for m in plan.multipliers], 1e-6)
        assert spent == pytest.approx(1.0, abs=1e-6)
    assert plan_for(Privacy(1.0), (200, 300)).memory == MEMORY[0]  # nothing is known of the size yet
    assert clearness(1e-9) == 0.0


def test_patients_are_placed_in_four_steps_where_the_noise_is_soft() -> None:
    plans = [plan_for(Privacy(8.0, 1e-6), (202, 316), rank=20, planning_size=n) for n in (1_500, 3_000, 7_926)]
    assert plans[0].steps == 12
    assert 4 < plans[1].steps < 12
    assert plans[2].steps == 4
    assert {(p.memory, p.rounds) for p in plans} == {(MEMORY[1], 12)}


def test_a_release_is_remembered_as_the_plan_says() -> None:
    rng = np.random.default_rng(4)
    truth = np.arange(4000.0)[:, None]
    releases = [truth + rng.standard_normal(truth.shape) for _ in range(4)]
    noise = {}
    for memory in (0.5, 1.0):
        public = replace(_public(), plan=ReleasePlan(1, 3, memory=memory))
        for released in releases:
            public = remembered(public, released, 1.0)
        noise[memory] = public.noise_sd
    assert noise[1.0] < 0.52 < 0.6 < noise[0.5]


def _public() -> DPEMPublic:
    return DPEMPublic("statistics", 1, ReleasePlan(1, 3), (), (), np.ones(1))


def test_the_memory_is_the_discounted_mean_of_the_releases_and_knows_its_noise() -> None:
    public, rng = _public(), np.random.default_rng(0)
    sds, truth = (3.0, 2.0, 1.0), np.arange(4000.0)[:, None]
    releases = [truth + sd * rng.standard_normal(truth.shape) for sd in sds]
    for released, sd in zip(releases, sds):
        public = remembered(public, released, sd)
    weights = np.array([public.plan.memory ** (2 - t) / sd**2 for t, sd in enumerate(sds)])
    weights /= weights.sum()
    assert public.released is not None
    expected = sum(w * r for w, r in zip(weights, releases))
    np.testing.assert_allclose(public.released, expected, atol=0.1)  # what sampling takes for movement is little
    assert public.noise_sd == pytest.approx(np.sqrt(np.square(weights * sds).sum()), rel=0.05)
    assert np.std(public.released - truth) == pytest.approx(public.noise_sd, rel=0.05)
    assert public.noise_sd < sds[-1]
    assert remembered(public, releases[0], 0.0).noise_sd == 0.0  # without noise: the last sums alone


def test_a_column_that_moved_is_forgotten_and_one_that_stays_is_remembered() -> None:
    rng = np.random.default_rng(1)
    before = np.column_stack([np.arange(500.0), np.arange(500.0)])
    after = np.column_stack([np.arange(500.0), np.arange(500.0)[::-1]])
    first = remembered(_public(), before + rng.standard_normal(before.shape), 1.0)
    now = remembered(first, after + rng.standard_normal(after.shape), 1.0)
    assert now.released is not None
    assert now.noise is not None
    assert now.noise[0] < 0.75 < 0.99 < now.noise[1]
    assert np.abs(now.released - after)[:, 1].max() < 6.0


def test_masses_lost_in_noise_become_equal_and_clear_ones_stay() -> None:
    raw = np.array([10.0, 30.0, 20.0, 20.0, 20.0])
    assert np.ptp(masses(raw, 100.0)) == 0.0
    np.testing.assert_allclose(masses(raw, 1e-6), raw, atol=1e-4)
    np.testing.assert_array_equal(masses(raw, 0.0), raw)


def test_regrouping_keeps_the_releases_of_columns_that_stay() -> None:
    rng = np.random.default_rng(2)
    rank, codes = 20, (30, 40)
    factors = tuple(rng.dirichlet(np.full(n, 0.05), rank).T for n in codes)
    marginals = tuple(f.mean(1) + 1e-6 for f in factors)
    mixture = np.sort(rng.dirichlet(np.full(rank + 1, 5.0)))[::-1]
    public = DPEMPublic("statistics", 4, ReleasePlan(rank, 12), factors, marginals, mixture / mixture.sum())
    public = remembered(public, rng.random((70, rank + 1)), 1.0)
    now = regrouped(DPEMParams(rank=rank), public, renew=True)
    assert now.precision is not None
    assert public.released is not None
    assert now.released is not None
    kept = np.flatnonzero(now.precision)
    assert 8 <= len(kept) <= 18
    assert rank in kept  # the background
    for k in kept[:-1]:
        same = [r for r in range(rank) if all(np.allclose(f[:, r], g[:, k]) for f, g in zip(factors, now.factors))]
        assert len(same) == 1
        np.testing.assert_array_equal(now.released[:, k], public.released[:, same[0]])


def test_later_regrouping_frees_only_pieces_and_halves_what_is_heavy_and_broad() -> None:
    codes, rank = (60, 60), 5
    own = [np.arange(12 * k, 12 * k + 6) for k in range(5)]

    def column(*phenotypes: int) -> NDArray[np.float64]:
        out = np.zeros(60)
        out[np.concatenate([own[k] for k in phenotypes])] = 1.0
        return np.asarray(out / out.sum())

    # 0 and 1 are pieces of one phenotype, 3 holds two and is no heavier than 2
    factor = np.stack([column(0), column(0), column(1), column(2, 3), column(4)], axis=1)
    marginals = (np.full(60, 1 / 60),) * 2
    mixture = np.array([0.15, 0.1, 0.25, 0.25, 0.1, 0.15])
    plan = ReleasePlan(rank, 12, (1.0,))
    public = DPEMPublic("statistics", 6, plan, (factor, factor), marginals, mixture)
    sums = np.random.default_rng(3).random((sum(codes), rank + 1))
    public = remembered(public, sums, 2.0)
    assert breadth(public.factors, marginals).round(6).tolist() == [6, 6, 6, 12, 6]
    now = regrouped(DPEMParams(rank=rank), public, renew=False)
    assert now.released is not None
    assert now.noise is not None
    assert now.precision is not None
    halves = [k for k in range(rank) if now.precision[k] == 0]
    assert len(halves) == 2
    for k in halves:
        assert set(np.flatnonzero(now.factors[0][:, k])) == {*own[2], *own[3]}
    joined = next(k for k in range(rank) if now.factors[0][own[0][0], k] > 0)
    np.testing.assert_allclose(now.released[:, joined], sums[:, 0] + sums[:, 1])
    assert now.noise[joined] == pytest.approx(2.0 * np.sqrt(2))
    assert now.precision[joined] == pytest.approx(1 / 8)
    apart = regrouped(DPEMParams(rank=rank), replace(public, factors=(np.eye(60)[:, :rank],) * 2), renew=False)
    assert apart.released is public.released  # no pieces: nothing is lost


def test_two_columns_that_each_hold_some_of_two_phenotypes_are_drawn_apart_and_never_joined() -> None:
    rank, flat = 6, np.full(60, 1 / 60)
    own = [np.arange(10 * k, 10 * k + 6) for k in range(rank)]
    pure = np.zeros((60, rank))
    for k, codes in enumerate(own):
        pure[codes, k] = 1 / 6
    mixed = pure.copy()
    mixed[:, 0], mixed[:, 1] = 0.65 * pure[:, 0] + 0.35 * pure[:, 1], 0.35 * pure[:, 0] + 0.65 * pure[:, 1]
    assert alike([mixed] * 2, [flat] * 2)[0, 1] > 0.5  # as alike as pieces of one phenotype
    mixture = np.array([0.25, 0.2, 0.15, 0.12, 0.1, 0.08, 0.1])
    released = np.column_stack([1e4 * mixed, 1e4 * flat]) * mixture
    public = DPEMPublic("statistics", 8, ReleasePlan(rank, 12, (1.0,)), (mixed, mixed), (flat, flat), mixture, sites=3)
    public = remembered(public, np.concatenate([released, released]), 1.0)
    now = regrouped(DPEMParams(rank=rank), public, renew=False)
    assert now.released is public.released  # nothing was joined, so nothing begins anew
    for before, after, codes in (
        (mixed[:, 0], now.factors[0][:, 0], own[0]),
        (mixed[:, 1], now.factors[0][:, 1], own[1]),
    ):
        assert after[codes].sum() > before[codes].sum() + 0.1
        assert after.sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(now.factors[0][:, 2:], mixed[:, 2:])  # the others stay as they are
    assert finished(DPEMParams(rank=rank), public).factors[0].shape[1] == rank
    # Pieces of one phenotype are as alike, but no broader together: they are one.
    twins = mixed.copy()
    twins[own[0], 0], twins[own[0], 1] = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.2, 0.2, 0.3]
    twins[own[1], :2] = 0.0
    both = finished(DPEMParams(rank=rank), replace(public, factors=(twins, twins)))
    assert both.factors[0].shape[1] == rank - 1


def test_pieces_of_a_prior_are_shown_as_its_phenotypes_and_place_patients_as_they_are() -> None:
    rank, flat = 3, np.full(30, 1 / 30)
    told = np.zeros((30, rank))
    for r, codes in enumerate((range(6), range(4, 12), range(15, 22))):
        told[codes, r] = 1 / len(codes)
    told = 0.99 * told + 0.01 * flat[:, None]
    shares = np.array([0.3, 0.2, 0.3, 0.2])
    public = DPEMPublic(
        "statistics",
        12,
        ReleasePlan(rank, 12, (1.0,)),
        (told, told),
        (flat, flat),
        shares,
        told=(told, told),
        shares=shares,
        spoken=3,
        pieces=np.array([0, 0, 1]),
    )
    noise = 1e6 * np.random.default_rng(5).standard_normal((60, rank + 1))
    now = finished(DPEMParams(rank=rank), remembered(public, noise, 1e6))
    assert now.parts is not None
    assert now.parts.tolist() == [0, 0, 1, -1]
    assert now.fine[0].shape == (30, 3)
    joint = told[:, :2] @ [0.6, 0.4]
    np.testing.assert_allclose(now.factors[0], np.column_stack([joint, told[:, 2]]), atol=1e-9)


def test_phenotypes_that_share_one_mode_alone_are_not_alike() -> None:
    flat = np.full(8, 1 / 8)
    same = np.zeros((8, 2))
    same[:2] = 0.5
    apart = np.zeros((8, 2))
    apart[0, 0] = apart[5, 1] = 1.0
    assert alike([same, apart], [flat, flat])[0, 1] == 0.0
    assert alike([same, same], [flat, flat])[0, 1] == pytest.approx(1.0)
