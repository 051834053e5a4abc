"""The federated mixture is scikit-learn's on pooled records, for every way to add; and behaves as an estimator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError, PolicyRefusal, ProtocolMismatch
from polyclinic.methods.mixtures.statistics import expect, maximise
from polyclinic.models.mixtures.gaussian import Mixture
from polyclinic.protocol.loop import Simulation

KINDS = ("full", "tied", "diag", "spherical")


def network(seed: int = 0, k: int = 3, d: int = 3, rows: int = 360, sites: int = 4) -> tuple[list[pc.Site], np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(k, d)) * 2.5
    x = np.concatenate([rng.normal(size=(rows // k, d)) @ rng.normal(size=(d, d)) + c for c in centres])
    rng.shuffle(x)
    return [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, sites))], x


def test_columns_in_another_order_are_put_in_one_order_in_fit_and_predict() -> None:
    sites, _ = network()
    plain = pc.GaussianMixture(n_components=3, rounds=5).fit(sites)
    turned = [
        pc.Site(s.name, features=s.matrix()[:, ::-1], columns=["z", "y", "x"])
        if s.name == "s2"
        else pc.Site(s.name, features=s.matrix(), columns=["x", "y", "z"])
        for s in sites
    ]
    named = pc.GaussianMixture(n_components=3, rounds=5).fit(turned)
    np.testing.assert_allclose(named.means_, plain.means_, rtol=1e-9)
    assert named.feature_names_in_.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(named.predict(turned)["s2"], plain.predict(sites)["s2"])
    for model in (pc.Standardizer(), pc.FederatedPCA()):
        expected = [s.matrix() for s in model.fit(sites).transform(sites)]
        np.testing.assert_allclose([s.matrix() for s in model.fit(turned).transform(turned)], expected, atol=1e-9)
    other = [*turned[:3], pc.Site("s3", features=sites[3].matrix(), columns=["x", "y", "w"])]
    for model in (pc.GaussianMixture(n_components=3), pc.Standardizer(), pc.FederatedPCA()):  # type: ignore[assignment]
        with pytest.raises(ProtocolMismatch, match="'s3' lacks 'z'; has besides 'w'"):
            model.fit(other)


def same_start(x: np.ndarray, k: int, kind: str) -> dict[str, object]:
    d = x.shape[1]
    precisions = {
        "full": np.stack([np.eye(d)] * k),
        "tied": np.eye(d),
        "diag": np.ones((k, d)),
        "spherical": np.ones(k),
    }[kind]
    return {"weights_init": np.full(k, 1 / k), "means_init": x[:k].copy(), "precisions_init": precisions}


def sklearn_fit(x: np.ndarray, k: int, kind: str, rounds: int, **more: object) -> Any:
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianMixture(k, covariance_type=kind, tol=0, max_iter=rounds, **same_start(x, k, kind), **more).fit(x)


@pytest.mark.parametrize(("kind", "rounds"), [("full", 100), ("tied", 20), ("diag", 20), ("spherical", 20)])
def test_plain_equals_sklearn_to_1e_8_over_up_to_100_iterations(kind: str, rounds: int) -> None:
    sites, x = network()
    theirs = sklearn_fit(x, 3, kind, rounds)
    ours = pc.GaussianMixture(n_components=3, covariance_type=kind, tol=0, rounds=rounds, **same_start(x, 3, kind)).fit(  # type: ignore[arg-type]
        sites
    )
    for a in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        np.testing.assert_allclose(getattr(ours, a), getattr(theirs, a), rtol=1e-8, atol=1e-8, err_msg=a)
    assert ours.n_iter_ == theirs.n_iter_ == rounds
    np.testing.assert_allclose(ours.lower_bound_, theirs.lower_bound_, rtol=1e-10)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-8)
    np.testing.assert_allclose(ours.score_samples(x), theirs.score_samples(x), atol=1e-8)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))
    np.testing.assert_allclose(
        [ours.score(sites), ours.bic(x), ours.aic(x)], [theirs.score(x), theirs.bic(x), theirs.aic(x)]
    )
    np.testing.assert_allclose([ours.bic_, ours.aic_], [theirs.bic(x), theirs.aic(x)], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_equals_sklearn_to_its_quantisation(kind: str) -> None:
    sites, x = network(rows=150, sites=3)
    theirs = sklearn_fit(x, 3, kind, 20)
    ours = pc.GaussianMixture(
        n_components=3,
        covariance_type=kind,  # type: ignore[arg-type]
        tol=0,
        rounds=20,
        aggregation="masked",
        **same_start(x, 3, kind),  # type: ignore[arg-type]
    ).fit(sites)
    for a in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(ours, a), getattr(theirs, a), rtol=1e-8, atol=1e-8, err_msg=a)


def test_subspace_equals_plain_to_1e_6() -> None:
    sites, x = network(rows=120, sites=5, d=2)
    start = same_start(x, 3, "full")
    one, two = (
        pc.GaussianMixture(n_components=3, tol=0, rounds=3, aggregation=a, **start).fit(sites)  # type: ignore[arg-type]
        for a in ("plain", "subspace")
    )
    for a in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(one, a), getattr(two, a), atol=1e-6)
    assert two.privacy_.guarantee == "information-theoretic"


@pytest.mark.parametrize(("kind", "variant"), [*((k, "corrected") for k in KINDS), ("full", "paper")])
def test_log_likelihood_never_decreases(kind: str, variant: str) -> None:
    sites, _ = network(seed=3, rows=300)
    m = pc.GaussianMixture(
        n_components=4,
        covariance_type=kind,  # type: ignore[arg-type]
        variant=variant,  # type: ignore[arg-type]
        tol=0,
        rounds=20,
        reg_covar=1e-9,
        seed=1,
    ).fit(sites)
    curve = [h["lower_bound"] for h in m.history_]
    assert np.diff(curve).min() > -1e-8
    assert curve[-1] > curve[0]


def test_exact_covariance_is_the_papers_less_the_square_of_the_move() -> None:
    _, x = network()
    old = Mixture(np.full(3, 1 / 3), x[:3], np.stack([np.eye(3)] * 3), "full")  # ERRATA E4.9
    s = expect(x, old)
    exact, paper = maximise(s, old), maximise(s, old, paper=True)
    move = exact.means - old.means
    np.testing.assert_allclose(paper.covariances - exact.covariances, np.einsum("jp,jq->jpq", move, move), atol=1e-12)
    r = old.responsibilities(x)
    d0 = x - exact.means[0]
    np.testing.assert_allclose(exact.covariances[0], (r[:, 0] * d0.T) @ d0 / r[:, 0].sum(), atol=1e-12)


def test_only_the_symmetric_half_travels_as_one_vector() -> None:
    sites, _ = network()
    fold = Simulation(pc.GaussianMixture(n_components=3, rounds=1), sites)
    while fold.advance():
        pass
    (step,) = [r.step for r in fold.releases if r.step.counts]
    assert step.size - 1 == 3 * (1 + 3 + 6)  # c (1 + d + d(d+1)/2) scalars, and the log-likelihood aside
    assert fold.traffic.payload_bytes_up == 4 * 8 * 30


def test_order_of_sites_and_split_of_patients_change_nothing() -> None:
    sites, x = network(sites=4)
    options = {"n_components": 3, "seed": 5, "rounds": 30}
    a = pc.GaussianMixture(**options).fit(sites)  # type: ignore[arg-type]
    b = pc.GaussianMixture(**options).fit(sites[::-1])  # type: ignore[arg-type]
    c = pc.GaussianMixture(**options).fit(x)  # type: ignore[arg-type]
    np.testing.assert_array_equal(a.means_, b.means_)
    np.testing.assert_allclose(a.means_, c.means_, atol=1e-7)
    assert a.memberships_["s0"].shape == (len(sites[0].features), 3)  # type: ignore[arg-type]


def test_one_patient_per_site() -> None:
    _, x = network(rows=24, d=2)
    nodes = [pc.Site(f"p{i:02d}", features=r[None]) for i, r in enumerate(x)]
    one = pc.GaussianMixture(n_components=2, seed=0, rounds=5).fit(nodes)
    two = pc.GaussianMixture(n_components=2, seed=0, rounds=5).fit(x)
    np.testing.assert_allclose(one.means_, two.means_, atol=1e-7)


def test_several_starts_keep_the_best() -> None:
    sites, _ = network(seed=7, k=6, d=2, rows=300)
    one = pc.GaussianMixture(n_components=6, seed=0, rounds=8).fit(sites)
    many = pc.GaussianMixture(n_components=6, seed=0, rounds=8, n_starts=3).fit(sites)
    starts = {int(h["start"]): h["lower_bound"] for h in many.history_}
    assert len(starts) == 3
    assert many.lower_bound_ == max(starts.values()) >= one.lower_bound_


def test_votes_find_groups_that_a_far_box_start_may_miss() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 0.3, (150, 2)) for c in ((0, 0), (8, 0), (0, 8), (8, 8))])
    m = pc.GaussianMixture(n_components=4, seed=0).fit(x)
    np.testing.assert_allclose(np.sort(m.means_.sum(1)), [0, 8, 8, 16], atol=0.2)
    box = pc.GaussianMixture(n_components=4, seed=0, start="box", n_starts=4).fit(x)
    assert not [h for h in box.history_ if h["round"] == 0]
    assert np.isfinite(box.lower_bound_)


def test_an_empty_group_is_moved_by_a_public_rule() -> None:
    sites, x = network(k=2, d=2)
    start = np.array([x.mean(0), [9e3, 9e3]])
    m = pc.GaussianMixture(
        n_components=2, means_init=start, precisions_init=np.ones((2, 2)), covariance_type="diag", seed=1
    )
    a, b = m.with_params().fit(sites), m.with_params().fit(sites)
    assert a.history_[-1]["reseeded"] >= 1
    assert a.weights_.min() > 0.01
    np.testing.assert_array_equal(a.means_, b.means_)


def test_bic_chooses_the_planted_number() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(c, 1.0, (120, 2)) for c in ((-5, 0), (5, 0), (0, 7))])
    rng.shuffle(x)
    sites = [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, 3))]
    bic = {k: pc.GaussianMixture(n_components=k, seed=0).fit(sites).bic_ for k in range(1, 5)}
    assert min(bic, key=lambda k: bic[k]) == 3


def test_infinite_values_of_all_sites_are_named_at_once() -> None:
    sites, x = network()
    bad = x[:4].copy()
    bad[0, 1] = bad[2, 1] = -np.inf
    worse = x[:4].copy()
    worse[3, 0] = np.inf
    with pytest.raises(DataError) as e:
        pc.GaussianMixture(n_components=2).fit([*sites, pc.Site("x", features=bad), pc.Site("y", features=worse)])
    assert e.value.faults == (
        "site 'x': feature 1: 2 infinite value(s)",
        "site 'y': feature 0: 1 infinite value(s)",
    )


def test_too_few_patients_behind_exact_sums_are_refused() -> None:
    nodes = [pc.Site(f"p{i}", features=[[float(i), 1.0]]) for i in range(5)]
    with pytest.raises(PolicyRefusal, match="fewer than 20 patients"):
        pc.GaussianMixture(n_components=1).fit(nodes)
    assert pc.GaussianMixture(n_components=1, min_patients=5).fit(nodes).n_iter_ >= 1
    assert "solve for the records" in str(pc.GaussianMixture(n_components=1, min_patients=5).fit(nodes).privacy_)


def test_all_wrong_parameters_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        pc.GaussianMixture(n_components=0, covariance_type="round", colour=1)  # type: ignore[arg-type, call-arg]
    assert len(e.value.faults) == 3
    with pytest.raises(ConfigError, match="means_init"):
        pc.GaussianMixture(n_components=2, weights_init=[0.5, 0.5])
    with pytest.raises(ConfigError, match="precisions_init has shape"):
        pc.GaussianMixture(n_components=1, means_init=[[0.0, 0.0]], precisions_init=[[1.0]]).fit(np.eye(2))


def test_works_in_sklearn_pipelines_and_clones() -> None:
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _, x = network()
    m = pc.GaussianMixture(n_components=3, seed=0, means_init=x[:3])
    assert clone(m).get_params() == m.get_params()
    pipe = make_pipeline(StandardScaler(), pc.GaussianMixture(n_components=3, seed=0))
    assert pipe.fit(x).predict(x).shape == (len(x),)
    assert "n_components=3" in repr(m)


def test_samples_follow_the_mixture() -> None:
    m = Mixture(np.array([0.3, 0.7]), np.array([[0.0, 0.0], [5.0, 5.0]]), np.array([[1.0, 2.0], [0.5, 0.5]]), "diag")
    x, z = m.sample(20_000, np.random.default_rng(0))
    assert abs((z == 1).mean() - 0.7) < 0.02
    np.testing.assert_allclose(x[z == 0].var(0), [1.0, 2.0], rtol=0.1)
    np.testing.assert_allclose(x.mean(0), m.overall()[0], atol=0.1)
    np.testing.assert_allclose(np.cov(x.T), m.overall()[1], rtol=0.1)


def test_a_run_goes_on_from_any_checkpoint() -> None:
    from polyclinic.protocol.wire import encoding as wire

    sites, _ = network()
    method = pc.GaussianMixture(n_components=3, seed=2, rounds=6, tol=0, n_starts=2)
    through = Simulation(method, sites)
    whole = through.run().public
    for stop in (2, 12):  # in the first start, and in the second
        first = Simulation(method, sites)
        for _ in range(stop):
            first.advance()
        second = Simulation(method, sites)
        second.restore(wire.decode(wire.encode(first.state())))
        np.testing.assert_array_equal(second.run().public.mixture.means, whole.mixture.means)


def test_memory_streams_in_blocks() -> None:
    import tracemalloc

    x = np.random.default_rng(0).normal(size=(200_000, 8))
    m = Mixture(np.full(4, 0.25), x[:4].copy(), np.stack([np.eye(8)] * 4), "full")
    tracemalloc.start()
    expect(x, m)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # the data are 12.8 MB; responsibilities alone would be 6.4


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_records_stay_within_the_announced_bounds(kind: str) -> None:
    rng = np.random.default_rng(0)
    for x, k in (
        (np.ones((10, 3)), 2),  # every record the same
        (rng.normal(size=(5, 2)), 8),  # more groups than patients
        (np.c_[rng.normal(size=20), np.ones(20)], 2),  # a feature that never varies
        (rng.normal(size=(6, 12)), 2),  # more features than patients
        (rng.normal(size=(30, 1)) * 1e5, 3),
    ):
        m = pc.GaussianMixture(n_components=k, covariance_type=kind, rounds=5).fit(x)  # type: ignore[arg-type]
        assert np.isfinite(m.means_).all()
        assert np.isfinite(m.lower_bound_)
