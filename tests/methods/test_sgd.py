"""CPSGD and the local pass that federated methods share."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import Divergence
from polyclinic.methods.rounds.local_pass import local_pass, open_factors, open_patients
from polyclinic.methods.rounds.observed_pass import Elastic
from polyclinic.methods.rounds.step_size import rate_at
from polyclinic.methods.starts.random import start
from polyclinic.records.sites.site import pooled
from polyclinic.tensors import cp


@pytest.fixture(scope="module")
def network() -> list[pc.Site]:
    return pc.datasets.icu_network(patients=1500, seed=1)


def test_stochastic_passes_recover_planted_phenotypes_with_exact_zeros(network: list[pc.Site]) -> None:
    truth = network.truth  # type: ignore[attr-defined]
    m = pc.CPSGD(rank=truth.rank + 2, rounds=40, seed=0).fit(network)
    assert pc.metrics.factor_match_score(truth.factors, m.factors_) >= 0.95


def test_nonzeros_only_learns_values_but_not_phenotypes(network: list[pc.Site]) -> None:
    truth = network.truth  # type: ignore[attr-defined]
    m = pc.CPSGD(rank=truth.rank + 2, zeros="missing", rounds=15, seed=0).fit(network)
    errors = [h["rmse_observed"] for h in m.history_]
    assert errors[-1] < 0.8 * errors[0]
    assert pc.metrics.factor_match_score(truth.factors, m.factors_) < 0.5  # ERRATA E0.4: "one everywhere"


def test_a_column_short_of_the_noise_is_turned_off_by_l21() -> None:
    rng = np.random.default_rng(0)
    b, c = np.kron(np.eye(3), np.ones((4, 1))), np.kron(np.eye(3), np.ones((5, 1)))
    a = rng.gamma(1.0, 3.0, (120, 3))
    a[:, 2] = 0.0  # nobody here has the third phenotype
    rate = np.einsum("ir,jr,kr->ijk", a, b, c) + 0.02
    x = rng.poisson(rate)
    coords = np.argwhere(x)
    t = pc.SparseTensor(coords, x[tuple(coords.T)], x.shape)
    features = [f / np.linalg.norm(f, axis=0) for f in (b, c)]
    patients = np.zeros((120, 3))
    off = local_pass(t, patients, features, number=40, seed=0, sparsity=4.0).patients
    on = local_pass(t, patients, features, number=40, seed=0).patients
    norms = np.linalg.norm(off, axis=0)
    assert norms[2] < 0.01 * norms.max()
    assert norms[:2].min() > 0.5 * norms.max()
    assert np.linalg.norm(on, axis=0)[2] > 2 * norms[2]


def test_pass_keeps_unit_columns_and_empty_patients_at_zero(network: list[pc.Site]) -> None:
    t = pooled(network).counts()
    hole = pc.SparseTensor(t.coords + np.array([1, 0, 0]), np.array(t.values), (t.patients + 2, *t.shape[1:]))
    f = start(t.shape[1:], 4, 0)
    for number in (1, 11):
        done = local_pass(hole, np.zeros((hole.patients, 4)), f, number=number, seed=0)
        for g in done.factors:
            np.testing.assert_allclose(np.linalg.norm(g, axis=0), 1.0)
        assert not done.patients[0].any()
        assert not done.patients[-1].any()
        assert done.patients.any()


def test_elastic_force_holds_local_factors_near_the_global_ones(network: list[pc.Site]) -> None:
    t = pooled(network).counts()
    f = tuple(start(t.shape[1:], 4, 0))
    distance = []
    for strength in (0.1, 1.0, 100.0):
        done = local_pass(t, np.zeros((t.patients, 4)), f, number=11, seed=0, elastic=Elastic(f, strength))
        distance.append(sum(float(np.linalg.norm(a - b)) for a, b in zip(done.factors, f)))
    assert distance[0] > distance[1] > distance[2]
    assert distance[2] < 0.05 * distance[0]


@pytest.mark.parametrize("zeros", ["observed", "missing"])
def test_zero_elastic_force_is_no_elastic_force_bit_for_bit(network: list[pc.Site], zeros: str) -> None:
    t = pooled(network).counts()
    f = open_factors(start(t.shape[1:], 4, 0), zeros=zeros)  # type: ignore[arg-type]
    a = open_patients(t.patients, 4, zeros=zeros, modes=3, seed=0)  # type: ignore[arg-type]
    rate = rate_at(None, 1, zeros)  # type: ignore[arg-type]
    for number in (2, 12):
        one = local_pass(t, a, f, number=number, seed=0, zeros=zeros, learning_rate=rate)  # type: ignore[arg-type]
        two = local_pass(
            t,
            a,
            f,
            number=number,
            seed=0,
            zeros=zeros,  # type: ignore[arg-type]
            learning_rate=rate,
            elastic=Elastic(tuple(f), 0.0),
        )
        np.testing.assert_array_equal(one.patients, two.patients)
        for x, y in zip(one.factors, two.factors):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("zeros", ["observed", "missing"])
def test_same_seed_same_model_another_seed_another(network: list[pc.Site], zeros: str) -> None:
    models = [pc.CPSGD(rank=3, rounds=3, seed=s, zeros=zeros).fit(network) for s in (0, 0, 1)]  # type: ignore[arg-type]
    np.testing.assert_array_equal(models[0].factors_[0], models[1].factors_[0])
    assert not np.array_equal(models[0].factors_[0], models[2].factors_[0])


def test_inputs_are_not_changed(network: list[pc.Site]) -> None:
    t = pooled(network).counts()
    f = start(t.shape[1:], 4, 0)
    a = np.full((t.patients, 4), 0.5)
    before = [x.copy() for x in f]
    for zeros, rate in (("observed", 1.0), ("missing", 0.01)):
        local_pass(t, a, f, number=1, seed=0, zeros=zeros, learning_rate=rate)  # type: ignore[arg-type]
    assert (a == 0.5).all()
    for x, y in zip(f, before):
        np.testing.assert_array_equal(x, y)


def test_too_large_a_step_stops_with_a_value_to_try(network: list[pc.Site]) -> None:
    with pytest.raises(Divergence, match=r"(?s)round \d+.*learning_rate is 50: try 5"):
        pc.CPSGD(rank=3, rounds=20, zeros="missing", learning_rate=50.0, nonnegative=False).fit(network)


def test_prox_threshold_is_eta_mu_or_mu_as_printed() -> None:
    t = pc.SparseTensor([[0, 0, 0], [1, 0, 0]], [1.0, 1.0], (2, 1, 1))
    a, f = np.array([[3.0], [4.0]]), [np.zeros((1, 1)), np.zeros((1, 1))]  # no gradient: only the prox moves A
    for variant, threshold in (("corrected", 0.1), ("paper", 1.0)):
        done = local_pass(
            t,
            a,
            f,
            number=1,
            seed=0,
            zeros="missing",
            learning_rate=0.1,
            sparsity=1.0,
            variant=variant,  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(done.patients, cp.shrink_columns(a, threshold))
