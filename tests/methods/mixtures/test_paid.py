"""Patient-level privacy: every row bounded, every release paid, and the fit still good."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.methods.mixtures import private_mixture as histogram
from polyclinic.methods.mixtures.private_statistics import bounded, consistency, improve
from polyclinic.methods.moments.moments import GRID, in_ball
from polyclinic.models.mixtures.gaussian import Mixture
from polyclinic.protocol.loop import Simulation

CENTRES = np.array([[-3.0, -2.0], [3.0, -2.0], [0.0, 3.6]])
SPREADS = np.array([[[1.0, 0.0], [0.5, 0.8]], [[0.7, 0.2], [0.0, 1.2]], [[1.0, 0.0], [0.0, 1.0]]])
KINDS = ("full", "tied", "diag", "spherical")


def records(seed: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z = rng.choice(3, n, p=[0.3, 0.3, 0.4])
    return CENTRES[z] + np.einsum("npq,nq->np", SPREADS[z], rng.normal(size=(n, 2)))  # type: ignore[no-any-return]


def network(x: np.ndarray, sites: int = 4) -> list[pc.Site]:
    return [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, sites))]


def mixture(kind: str) -> Mixture:
    full = Mixture(np.full(3, 1 / 3), CENTRES / 10, SPREADS @ np.swapaxes(SPREADS, 1, 2) / 100, "full")
    return histogram.recast(full, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_one_patient_moves_the_sums_by_at_most_one_exactly(kind: str) -> None:
    rng = np.random.default_rng(0)
    hostile = np.concatenate(
        [rng.standard_cauchy(size=(100, 2)) * 10.0 ** rng.integers(-3, 9, (100, 1)), CENTRES, np.zeros((1, 2))]
    )
    crowd, m = in_ball(records(1, 50), 0.0, 10.0), mixture(kind)
    base = bounded(crowd, m)
    for z in in_ball(hostile, 0.0, 10.0):
        more = bounded(np.vstack([crowd, z]), m)
        units = np.concatenate([((more[n] - base[n]) / GRID).ravel() for n in ("a", "b", "C")])
        assert (units == np.rint(units)).all()
        assert sum(int(u) ** 2 for u in units) <= int(1 / GRID) ** 2  # integers: no rounding


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_truth_is_a_fixed_point(kind: str) -> None:
    rng = np.random.default_rng(2)
    m = mixture(kind)
    x = m.sample(60_000, rng)[0]
    after = improve(bounded(x, m), 0.0, m, reg_covar=0.0)
    np.testing.assert_allclose(after.means, m.means, atol=0.003)
    np.testing.assert_allclose(after.covariances, m.covariances, atol=0.06 * np.abs(m.covariances).max())
    assert 0.8 < consistency(2) < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_noise_never_breaks_a_covariance(kind: str) -> None:
    rng = np.random.default_rng(3)
    m = mixture(kind)
    for _ in range(30):
        sums = {n: v + rng.normal(0, 30.0, v.shape) for n, v in bounded(in_ball(records(4, 60), 0.0, 10.0), m).items()}
        m = improve(sums, 30.0, m, reg_covar=1e-9)
        assert np.isfinite(m.precisions_cholesky()).all()
        assert m.weights.min() > 0


def fitted(seed: int, **params: object) -> tuple[float, pc.GaussianMixture]:
    x, held_out = records(seed, 20_000), records(seed + 100, 20_000)
    sites = network(x)
    reference = pc.GaussianMixture(n_components=3, seed=0, n_starts=3).fit(sites).score(held_out)
    paid = pc.GaussianMixture(
        n_components=3,
        seed=seed,
        aggregation="masked",
        privacy=pc.Privacy(epsilon=2.0, delta=1e-6),
        **params,  # type: ignore[arg-type]
    ).fit(sites)
    return reference - paid.score(held_out), paid


def test_epsilon_2_is_within_a_tenth_of_a_nat_of_no_privacy() -> None:
    gap, m = fitted(0, radius=10.0)
    assert abs(gap) < 0.1  # a reference that is worse would be a bad start of ours
    assert m.privacy_.guarantee == "formal"
    assert m.privacy_.adjacency == "patient"
    assert m.privacy_.epsilon is not None and m.privacy_.epsilon <= 2.0
    assert not m.privacy_.reasons
    # what was not paid for is not there
    assert m.lower_bound_ is None
    assert m.bic_ is None
    assert all(h["lower_bound"] is None for h in m.history_)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("radius", [10.0, 50.0, 200.0])
def test_epsilon_2_for_three_seeds_and_generous_radii(seed: int, radius: float) -> None:
    assert abs(fitted(seed, radius=radius)[0]) < 0.1


def test_every_release_has_its_price() -> None:
    method = pc.GaussianMixture(n_components=3, radius=10.0, privacy=pc.Privacy(epsilon=1.0), paid_rounds=3)
    fold = Simulation(method, network(records(5, 3000)))
    fold.run()
    steps = [r.step for r in fold.releases]
    assert [s.name for s in steps] == ["coarse", "fine", "statistics", "statistics", "statistics"]
    assert all(s.sensitivity == 1.0 and s.multiplier and s.formal for s in steps)
    later = [s.multiplier for s in steps[2:]]
    assert later == sorted(later, reverse=True)  # type: ignore[type-var]  # later rounds get more of the budget


def test_many_features_start_in_the_plane_where_patients_differ() -> None:
    rng = np.random.default_rng(6)
    centres = rng.normal(size=(3, 8)) * 2.5
    x = centres[rng.choice(3, 12_000)] + rng.normal(size=(12_000, 8))
    sites = network(x)
    reference = pc.GaussianMixture(n_components=3, seed=0, n_starts=2).fit(sites).score(x)
    m = pc.GaussianMixture(n_components=3, radius=12.0, aggregation="masked", privacy=pc.Privacy(epsilon=4.0)).fit(
        sites
    )
    assert m.privacy_.guarantee == "formal"
    assert reference - m.score(x) < 0.1


def test_privacy_needs_public_numbers() -> None:
    with pytest.raises(ConfigError, match="radius"):
        pc.GaussianMixture(n_components=2, privacy=pc.Privacy(epsilon=1.0))
    with pytest.raises(ConfigError, match="level of patients"):
        pc.GaussianMixture(n_components=2, radius=1.0, privacy=pc.Privacy(epsilon=1.0, level="entry"))
    with pytest.raises(ConfigError, match="center has shape"):
        pc.GaussianMixture(n_components=2, radius=1.0, center=[0.0], privacy=pc.Privacy(epsilon=1.0)).fit(np.eye(3))


@pytest.mark.parametrize("how", ["box", "given"])
def test_public_starts_cost_nothing(how: str) -> None:
    options = {"start": "box"} if how == "box" else {"means_init": CENTRES}
    method = pc.GaussianMixture(
        n_components=3, radius=10.0, paid_rounds=2, privacy=pc.Privacy(epsilon=1.0), covariance_type="diag", **options
    )
    fold = Simulation(method, network(records(7, 2000)))
    fold.run()
    assert {r.step.name for r in fold.releases} == {"statistics"}


def test_consensus_without_a_coordinator_is_formal_too() -> None:
    sites = network(records(8, 1500), 5)
    m = pc.GaussianMixture(
        n_components=3, radius=10.0, paid_rounds=2, aggregation="subspace", privacy=pc.Privacy(epsilon=2.0)
    ).fit(sites)
    assert m.privacy_.guarantee == "formal"
    assert m.privacy_.epsilon is not None and m.privacy_.epsilon <= 2.0 * (
        1 + 1e-3
    )  # the masks' leak is charged as well
