"""Standardising and PCA by sums equal the pooled ones; with privacy one bounded, noisy release."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.moments.moments import GRID, SummedMoments, half, in_ball, unit_rows, whole


def network(seed: int = 0, rows: int = 300, sites: int = 5) -> tuple[list[pc.Site], np.ndarray]:
    rng = np.random.default_rng(seed)
    scales = np.array([1e-5, 1.0, 1e4, 30.0])  # a voice jitter beside a cell count
    x = rng.normal(size=(rows, 4)) @ rng.normal(size=(4, 4)) * scales + np.array([3e-5, -2.0, 5e4, 0.0])
    cuts = np.sort(rng.choice(np.arange(1, rows), sites - 1, replace=False))
    return [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.split(x, cuts))], x


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_standardizing_equals_pooled_to_1e_10(aggregation: str) -> None:
    from sklearn.preprocessing import StandardScaler

    sites, x = network()
    ours, theirs = pc.Standardizer(aggregation=aggregation).fit(sites), StandardScaler().fit(x)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-10)
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-10)
    for site, before in zip(ours.transform(sites), sites):
        np.testing.assert_allclose(site.features, theirs.transform(before.features), atol=1e-10)
    assert ours.n_samples_seen_ == len(x)


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_pca_equals_pooled_to_1e_10(aggregation: str) -> None:
    from sklearn.decomposition import PCA

    sites, _ = network()
    sites = pc.Standardizer().fit_transform(sites)
    z = np.concatenate([s.features for s in sites])
    ours, theirs = pc.FederatedPCA(n_components=3, aggregation=aggregation).fit(sites), PCA(3, svd_solver="full").fit(z)
    signs = np.sign((ours.components_ * theirs.components_).sum(1))
    np.testing.assert_allclose(ours.components_, theirs.components_ * signs[:, None], atol=1e-10)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)
    np.testing.assert_allclose(ours.transform(z), theirs.transform(z) * signs, atol=1e-9)


def test_standardize_inside_pca_equals_standardizing_first() -> None:
    sites, _ = network()
    one = pc.FederatedPCA(n_components=2, standardize=True).fit(sites)
    two = pc.FederatedPCA(n_components=2).fit(pc.Standardizer().fit_transform(sites))
    np.testing.assert_allclose(one.components_, two.components_, atol=1e-9)


def test_one_patient_per_site_and_a_constant_feature() -> None:
    rng = np.random.default_rng(1)
    x = np.c_[rng.normal(size=12), np.full(12, 7.25)]
    s = pc.Standardizer().fit([pc.Site(f"p{i:02d}", features=r[None]) for i, r in enumerate(x)])
    np.testing.assert_allclose(s.mean_, x.mean(0), rtol=1e-12)
    assert s.scale_[1] == 1.0
    assert np.isfinite(s.transform(x)).all()


def test_no_site_exceeds_the_announced_bounds() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):  # the fold refuses a contribution above its bound; hostile shapes of data
        x = rng.standard_cauchy(size=(40, 2)) * 10.0 ** rng.integers(-4, 4)
        x = np.clip(x, -1e6, 1e6)
        sites = [pc.Site("a", features=x[:39]), pc.Site("b", features=x[39:])]
        m = pc.Standardizer().fit(sites)
        np.testing.assert_allclose(m.mean_, x.mean(0), rtol=1e-9, atol=1e-9 * np.abs(x).mean())


def test_missing_values_are_refused_with_a_count_per_feature() -> None:
    x = np.ones((5, 3))
    x[1, 0] = x[2, 0] = x[3, 2] = np.nan
    with pytest.raises(DataError, match="feature 0: 2 missing") as e:
        pc.Standardizer().fit([pc.Site("north", features=x)])
    assert len(e.value.faults) == 2


def test_values_beyond_the_public_radius_are_refused() -> None:
    with pytest.raises(DataError, match="beyond the public radius 10"):
        pc.Standardizer(radius=10.0).fit([pc.Site("n", features=[[11.0], [1.0]])])


def test_privacy_needs_a_public_radius() -> None:
    with pytest.raises(ConfigError, match="radius"):
        pc.Standardizer(privacy=pc.Privacy(epsilon=1.0))


def test_a_patients_row_never_exceeds_length_one_and_lies_on_the_grid() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_cauchy(size=(3000, 7)) * 10.0 ** rng.integers(-6, 9, size=(3000, 1))
    u = unit_rows(rows)
    whole_numbers = u / GRID
    assert (whole_numbers == np.rint(whole_numbers)).all()
    exact = [sum(int(v) ** 2 for v in row) for row in whole_numbers]  # integers: no rounding
    assert max(exact) <= int(1 / GRID) ** 2
    np.testing.assert_allclose(np.linalg.norm(u[np.linalg.norm(rows, axis=1) > 1], axis=1), 1.0, atol=1e-5)


def test_noisy_moments_are_close_and_the_card_is_formal() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal([1.0, -2.0], [1.0, 0.5], size=(20_000, 2))
    sites = [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, 4))]
    s = pc.Standardizer(aggregation="masked", radius=8.0, privacy=pc.Privacy(epsilon=1.0, delta=1e-6)).fit(sites)
    assert s.privacy_.guarantee == "formal"
    assert s.privacy_.epsilon is not None and s.privacy_.epsilon <= 1.0
    np.testing.assert_allclose(s.mean_, [1.0, -2.0], atol=0.1)
    np.testing.assert_allclose(s.scale_, [1.0, 0.5], atol=0.2)
    p = pc.FederatedPCA(n_components=1, radius=8.0, privacy=pc.Privacy(epsilon=1.0)).fit(sites)
    assert abs(p.components_[0, 0]) > 0.95


def test_balls_and_triangles() -> None:
    x = np.random.default_rng(5).normal(size=(50, 3)) * 4
    assert np.linalg.norm(in_ball(x, 1.0, 2.0), axis=1).max() <= 1 + 1e-12
    m = np.arange(9.0).reshape(3, 3)
    m = m + m.T
    np.testing.assert_array_equal(whole(half(m), 3), m)
    assert SummedMoments.begin(3, 1.0).second.shape == (6,)
