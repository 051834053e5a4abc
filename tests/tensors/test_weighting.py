"""Saturating weights: no patient weighs more than twice a typical one, and every method weighs alike."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import heaviest_share, log_sizes, saturation_of, sizes, weighted


def skewed(patients: int = 400, seed: int = 0) -> SparseTensor:
    """Records as hospitals have them: a few patients with very many repeated rows, and one without any."""
    rng = np.random.default_rng(seed)
    n = rng.geometric(0.1, patients)
    who = np.repeat(np.arange(patients), n)
    coords = np.column_stack([who, rng.integers(0, 30, len(who)), rng.integers(0, 40, len(who))])
    values = np.ceil(rng.lognormal(0, 2.0, patients))[who]
    return SparseTensor(coords, values, (patients + 1, 30, 40))


def test_the_weight_is_the_equation_and_bounded() -> None:
    t = skewed()
    n0 = saturation_of(log_sizes(t))
    s = np.zeros(t.patients)
    np.add.at(s, t.coords[:, 0], t.values**2)
    assert n0 == pytest.approx(np.exp(np.log(s[s > 0]).mean()), rel=0.05)
    assert float(f"{n0:.2g}") == n0
    x = weighted(t, n0)
    expected = t.values * np.sqrt(1 + n0) / np.sqrt(s[t.coords[:, 0]] + n0)
    np.testing.assert_allclose(x.values, expected)
    assert sizes(x).max() < 1 + n0
    assert heaviest_share(t) > 0.2
    assert heaviest_share(x) <= 0.03
    assert x.codes[0] is t.codes[0]  # coordinates are shared
    assert weighted(t, n0) is x  # made once
    assert weighted(t, None) is t


@pytest.mark.parametrize("method", [pc.TRIP, pc.SumALS, pc.DPFact, pc.LocalTF, pc.LocalModel])
def test_n0_is_that_of_the_pooled_patients_in_every_method(method: type) -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    pooled = pc.CPALS(rank=3, rounds=2).fit(sites)
    model = method(rank=3, rounds=2).fit(sites)
    assert model.saturation_ == pooled.saturation_ is not None
    fixed = method(rank=3, rounds=2, saturation=13).fit(sites)
    assert fixed.saturation_ == 13
    assert method(rank=3, rounds=2, weighting="none").fit(sites).saturation_ is None


def test_masked_sums_give_the_same_n0() -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    plain, masked = (pc.SumALS(rank=3, rounds=2, aggregation=a).fit(sites) for a in ("plain", "masked"))
    assert plain.saturation_ == masked.saturation_


def test_a_new_patient_is_weighted_like_the_old_ones() -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    model = pc.TRIP(rank=4, rounds=8, seed=0).fit(sites)
    for s in sites:
        np.testing.assert_allclose(model.transform(s), model.memberships_[s.name], atol=1e-6 * model.weights_[0])
    assert model.quality(sites)["fit"] == pytest.approx(model.quality([sites[0], *sites[1:]])["fit"])


def test_a_patient_with_a_thousand_repeats_does_not_make_a_phenotype() -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    t = sites[0].counts()
    loud = np.where(t.coords[:, 0] == t.rows[0], t.values * 1000, t.values)
    changed = pc.Site(sites[0].name, SparseTensor(t.coords, loud, t.shape, t.axes), None, sites[0].labels)
    quiet = pc.SumALS(rank=4, rounds=20, seed=0).fit(sites)
    noisy = pc.SumALS(rank=4, rounds=20, seed=0).fit([changed, *sites[1:]])
    from polyclinic.tensors.matching import factor_match_score

    assert factor_match_score(quiet.factors_, noisy.factors_) > 0.9
    old = pc.SumALS(rank=4, rounds=20, seed=0, weighting="none")
    before = old.with_params().fit(sites)
    after = old.with_params().fit([changed, *sites[1:]])
    assert factor_match_score(before.factors_, after.factors_) < 0.6


def test_the_papers_variants_weigh_every_count() -> None:
    assert pc.TRIP(variant="paper").weighting == "none"
    assert pc.TRIP(variant="paper", weighting="saturating").weighting == "none"
    assert pc.DPFact(zeros="missing").weighting == "none"
    private = pc.DPFact(zeros="missing", privacy=pc.Privacy(1.0, 1e-4, level="entry", clip=1.0))
    assert private.weighting == "none"
    assert pc.TRIP().weighting == "saturating"


def test_a_formal_guarantee_needs_a_public_n0() -> None:
    sites = pc.datasets.icu_network(patients=200, seed=0)
    with pytest.raises(ConfigError, match="saturation=13"):
        pc.LocalTF(rank=2, privacy=pc.Privacy(1.0)).fit(sites)


def test_sites_without_a_cell_say_nothing_about_n0() -> None:
    sites = pc.datasets.icu_network(patients=200, seed=0)
    t = sites[0].counts()
    empty = pc.Site("empty", SparseTensor(np.empty((0, t.ndim)), [], (5, *t.shape[1:]), t.axes and (None, *t.axes[1:])))
    without = pc.SumALS(rank=2, rounds=2).fit(sites).saturation_
    assert pc.SumALS(rank=2, rounds=2).fit([*sites, empty]).saturation_ == without
