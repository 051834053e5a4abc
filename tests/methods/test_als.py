"""CPALS: follows a reference, finds known structure, never goes up, and says how stable it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.methods.central.als import distinct_sweep
from polyclinic.records.sites.site import pooled
from polyclinic.tensors import matching


def counts(shape: tuple[int, ...] = (60, 12, 15), entries: int = 1500, seed: int = 0) -> pc.SparseTensor:
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, d, entries) for d in shape], 1)
    return pc.SparseTensor(coords, rng.poisson(2, entries) + 1.0, shape)


def test_unconstrained_fit_follows_pyttb_over_twenty_iterations() -> None:
    ttb = pytest.importorskip("pyttb")
    t, rank = counts(), 4
    rng = np.random.default_rng(1)
    init = [rng.random((d, rank)) for d in t.shape]
    theirs = []
    data = ttb.sptensor(t.coords, np.array(t.values)[:, None], t.shape)
    at = ttb.ktensor([f.copy() for f in init])
    for _ in range(20):  # one iteration at a time: columns are scaled between two, which no least squares notices
        at, _, told = ttb.cp_als(data, rank, init=at, maxiters=1, stoptol=0, printitn=0)
        theirs.append(told["fit"])
    ours = pc.CPALS(rank=rank, nonnegative=False, rounds=20, tol=0, weighting="none").fit(t, start=init[1:])
    np.testing.assert_allclose([h["fit"] for h in ours.history_], theirs, atol=1e-8, rtol=0)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_amino_acids_have_rank_three(data_path: Callable[[str], Path], nonnegative: bool) -> None:
    t = pc.datasets.load_aminoacid(data_path("aminoacid"))
    m = pc.CPALS(rank=3, nonnegative=nonnegative, seed=0, weighting="none").fit(t)
    assert m.quality(t)["fit"] >= 0.974


@pytest.fixture(scope="module")
def network() -> pc.tensors.Sites:  # type: ignore[name-defined]
    return pc.datasets.icu_network(patients=3000, seed=0)


def matched_cosine(truth: list[np.ndarray], found: list[np.ndarray]) -> np.ndarray:
    pairs = matching.match(truth, found)
    return np.mean(  # type: ignore[no-any-return]
        [matching.cosines([a], [b])[pairs.left, pairs.right] for a, b in zip(truth, found)], axis=0
    )  # per true phenotype, mean over feature modes


def test_planted_phenotypes_are_recovered_from_one_start(network: list[pc.Site]) -> None:
    truth = network.truth  # type: ignore[attr-defined]
    m = pc.CPALS(rank=truth.rank + 2, seed=0).fit(network)
    cosine = matched_cosine(list(truth.factors), m.factors_)
    assert cosine[np.asarray(truth.shared)].mean() >= 0.95


def test_canonical_result_and_transform_agree(network: list[pc.Site]) -> None:
    m = pc.CPALS(rank=5, rounds=30, seed=0).fit(network)
    assert [f.shape[1] for f in m.factors_] == [5, 5]
    for f in m.factors_:
        np.testing.assert_allclose(np.linalg.norm(f, axis=0), 1.0)
        assert (f >= 0).all()
    assert (np.diff(m.weights_) <= 0).all()
    assert set(m.memberships_) == {s.name for s in network}
    for s in network:
        np.testing.assert_allclose(m.transform(s), m.memberships_[s.name], atol=1e-6 * m.weights_[0])
    energy = sum(np.square(a).sum(0) for a in m.memberships_.values())
    np.testing.assert_allclose(np.sqrt(energy), m.weights_)
    assert m.privacy_.guarantee == "none"
    rows = pooled(network).counts()
    score = m.quality(network)
    assert score["fit"] == pytest.approx(m.quality(rows)["fit"])
    assert score["fit"] >= m.history_[-1]["fit"] - 1e-9


@pytest.mark.parametrize("zeros", ["observed", "missing"])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_objective_never_rises(zeros: str, nonnegative: bool) -> None:
    m = pc.CPALS(rank=3, rounds=25, tol=0, zeros=zeros, nonnegative=nonnegative).fit(counts())  # type: ignore[arg-type]
    objective = [h["objective"] for h in m.history_]
    assert len(objective) == 25
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(objective))


def test_missing_zeros_complete_a_low_rank_tensor_that_observed_zeros_cannot() -> None:
    rng = np.random.default_rng(0)
    shape = (40, 12, 10)
    factors = [rng.random((d, 2)) + 0.1 for d in shape]
    coords = np.argwhere(rng.random(shape) < 0.25)
    t = pc.SparseTensor(coords, np.prod([f[coords[:, n]] for n, f in enumerate(factors)], axis=0).sum(1), shape)
    m = pc.CPALS(rank=2, zeros="missing", rounds=300, tol=1e-10).fit(t)
    o = pc.CPALS(rank=2, rounds=300).fit(t)
    cells = np.argwhere(np.ones(shape))
    truth = np.prod([f[cells[:, n]] for n, f in enumerate(factors)], axis=0).sum(1)
    complete = [next(iter(m.memberships_.values())), *m.factors_]
    sparse = [next(iter(o.memberships_.values())), *o.factors_]
    assert pc.metrics.rmse_at(cells, truth, complete) < 0.01
    assert pc.metrics.rmse_at(cells, truth, sparse) > 0.1


def test_distinct_makes_phenotypes_share_fewer_codes() -> None:
    t = counts(entries=3000)

    def overlap(m: pc.CPALS) -> float:
        return float(sum(np.square(f.T @ f - np.eye(4)).sum() for f in m.factors_))

    for nonnegative in (True, False):
        plain = pc.CPALS(rank=4, rounds=60, nonnegative=nonnegative, seed=1).fit(t)
        apart = pc.CPALS(rank=4, rounds=60, nonnegative=nonnegative, seed=1, distinct=1.0).fit(t)
        assert overlap(apart) < 0.6 * overlap(plain)


def test_distinct_sweep_without_penalty_is_a_sweep_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((20, 3))
    a, g, m = rng.random((8, 3)), x.T @ x, rng.random((8, 3))
    from polyclinic.tensors.kernels.hals import hals

    np.testing.assert_allclose(distinct_sweep(a, g, m, 0.0, False, 2), hals(a, g, m, sweeps=2, nonnegative=False))
    np.testing.assert_allclose(distinct_sweep(a, g, m, 0.0, True, 2), hals(a, g, m, sweeps=2))


def test_best_of_starts_is_kept_and_stability_reported() -> None:
    t = counts()
    m = pc.CPALS(rank=3, n_starts=3, rounds=40, seed=5).fit(t)
    assert [s["seed"] for s in m.starts_] == [5, 6, 7]
    assert m.objective_ == min(s["objective"] for s in m.starts_)
    assert m.stability_ is not None
    assert 0 <= m.stability_ <= 1
    assert pc.CPALS(rank=3, rounds=5).fit(t).stability_ is None


def test_model_does_not_depend_on_threads_order_of_sites_or_repetition(network: list[pc.Site]) -> None:
    models = [
        pc.CPALS(rank=4, rounds=8, threads=n).fit(sites)
        for n, sites in ((1, list(network)), (2, list(network)), (1, list(reversed(network))))
    ]
    for m in models[1:]:
        for a, b in zip(models[0].factors_, m.factors_):
            np.testing.assert_array_equal(a, b)


def test_four_modes_two_modes_and_degenerate_data_work() -> None:
    for shape in [(20, 6), (20, 6, 5, 4)]:
        m = pc.CPALS(rank=2, rounds=10).fit(counts(shape, 200))
        assert [f.shape for f in m.factors_] == [(d, 2) for d in shape[1:]]
    empty = pc.SparseTensor(np.empty((0, 3)), [], (4, 2, 3))
    m = pc.CPALS(rank=2, rounds=5).fit(empty)
    assert not m.memberships_["pooled"].any()
    one = pc.SparseTensor([[0, 1, 2]], [3.0], (1, 2, 3))
    for nonnegative in (True, False):
        m = pc.CPALS(rank=4, rounds=30, nonnegative=nonnegative).fit(one)  # rank above the data's
        assert m.quality(one)["fit"] > 0.999
        assert all(np.isfinite(f).all() for f in m.factors_)


def test_progress_is_an_event_stream() -> None:
    events = []  # type: ignore[var-annotated]
    m = pc.CPALS(rank=2, rounds=4, tol=0).fit(counts(), progress=events.append)
    assert [(e.kind, e.round) for e in events] == [("begin", 0), *(("round", k) for k in (1, 2, 3, 4)), ("end", 4)]
    assert [e.figures["objective"] for e in events[1:-1]] == [h["objective"] for h in m.history_]


def test_wrong_use_is_refused_by_name() -> None:
    t = counts()
    with pytest.raises(ConfigError, match="private"):
        pc.CPALS(rank=2, privacy=pc.Privacy(epsilon=1.0, delta=1e-5)).fit(t)
    with pytest.raises(ConfigError, match="start has shapes"):
        pc.CPALS(rank=2).fit(t, start=[np.ones((3, 2))])
    with pytest.raises(ConfigError, match="distinct"):
        pc.CPALS(rank=2, distinct=1.0, zeros="missing").fit(t)
    m = pc.CPALS(rank=2, rounds=3).fit(t)
    with pytest.raises(ProtocolMismatch):
        m.transform(counts((10, 12, 14)))
