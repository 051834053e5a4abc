"""Likelihood of counts and of yes/no, by which saved models place patients."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.tensors.kernels.counts import Likelihood, place
from polyclinic.tensors.sparse import SparseTensor

RANK, SHAPE = 3, (14, 17)
LOSSES = ("poisson", "bernoulli")


def columns(seed: int) -> list[np.ndarray]:
    """Factors of both modes whose columns sum to 1 and are nowhere 0."""
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(n), RANK).T for n in SHAPE]


def drawn(patients: int, loss: Likelihood, seed: int) -> SparseTensor:
    """Counts (or their presence) of planted rates."""
    truth = np.random.default_rng(0)
    factors = [truth.dirichlet(np.full(n, 0.3), RANK).T for n in SHAPE]
    rng = np.random.default_rng([1, seed])
    a = rng.gamma(0.7, 30.0, (patients, RANK))
    x = rng.poisson(np.einsum("ir,jr,kr->ijk", a, *factors)).astype(float)
    return pc.from_numpy(np.minimum(x, 1.0) if loss == "bernoulli" else x)


def dense_log_likelihood(x: np.ndarray, m: np.ndarray, loss: Likelihood) -> float:
    m = m + 1e-10
    if loss == "poisson":
        return float((x * np.log(m) - m).sum())
    return float(np.where(x > 0, np.log(-np.expm1(-m)), -m).sum())


@pytest.mark.parametrize("loss", LOSSES)
def test_memberships_are_those_of_highest_likelihood(loss: Likelihood) -> None:
    t, stacked = drawn(30, loss, 2), np.concatenate(columns(3))
    a = place(t, stacked, loss, steps=5000, tol=1e-12)
    x = np.zeros(t.shape)
    x[tuple(t.coords.T)] = t.values

    def likelihood(patients: np.ndarray) -> float:
        return dense_log_likelihood(x, np.einsum("ir,jr,kr->ijk", patients, *columns(3)), loss)

    rng = np.random.default_rng(0)
    for _ in range(20):
        assert likelihood(np.maximum(a + rng.normal(0, 0.3, a.shape), 0)) < likelihood(a)


@pytest.mark.parametrize("cls", [pc.SumALS, pc.CPALS])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_removed_loss_says_what_to_use(cls: type, loss: str) -> None:
    with pytest.raises(
        ConfigError, match=r"loss: .*pc\.Topics, or pc\.DPEM without privacy for a few hundred patients"
    ):
        cls(rank=2, loss=loss)
