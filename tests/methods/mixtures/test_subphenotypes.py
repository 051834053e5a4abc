"""From phenotypes to groups of patients: memberships of a factorization are the features of a mixture; rows stay put."""

from __future__ import annotations

import numpy as np

import polyclinic as pc


def test_memberships_of_phenotypes_become_groups_of_patients() -> None:
    sites = pc.datasets.icu_network(patients=240, seed=0)
    trip = pc.TRIP(rank=4, rounds=4, seed=0).fit(sites)
    features = [pc.Site(s.name, features=np.log1p(trip.memberships_[s.name]), labels=s.labels) for s in sites]
    standard = pc.Standardizer(aggregation="masked").fit_transform(features)
    groups = pc.GaussianMixture(
        n_components=3, covariance_type="diag", seed=0, rounds=8, reg_covar=1e-3, aggregation="masked"
    ).fit(standard)
    assert set(groups.memberships_) == {s.name for s in sites}
    for s in sites:  # every site keeps its own rows
        assert groups.memberships_[s.name].shape == (s.patients, 3)
        np.testing.assert_allclose(groups.memberships_[s.name].sum(1), 1.0, atol=1e-9)
    central = pc.GaussianMixture(n_components=3, covariance_type="diag", seed=0, rounds=8, reg_covar=1e-3)
    whole = central.fit(np.concatenate([s.features for s in sorted(standard, key=lambda s: s.name)]))
    np.testing.assert_allclose(groups.means_, whole.means_, atol=1e-6)
