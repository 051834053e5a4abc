"""``UnPSL(variant="paper")`` is Huai et al. 2018 as printed: equal to plain numpy that was written from the paper alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.protocol.loop import run

Matrix = Any  # plain numpy as the paper prints it
ROUNDS, SEED = 20, 4


@pytest.fixture(scope="module")
def patients() -> Matrix:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(45, 5)) @ rng.normal(size=(5, 5))
    X = (X - X.mean(0)) / X.std(0)  # before eq. 3.6
    return X, (X[:, 0] + 0.3 * rng.normal(size=45) > 0).astype(int)


def gradient(W: Matrix, X: Matrix, y: Matrix) -> Matrix:
    """Eq. 3.16 without its last term, over the pairs with i < j: a weight times W (x_i x_j' + x_j x_i')."""
    S = X @ W.T @ W @ X.T - 1  # s - b, b = 1
    C = np.triu(np.where(y[:, None] == y, -1 / (1 + np.exp(S)), 1 / (1 + np.exp(-S))), 1)
    return W @ X.T @ (C + C.T) @ X


def argmin(slope: Any, W: Matrix, step: float) -> Matrix:
    """Gradient descent to the minimum."""
    for _ in range(2000):
        G = slope(W)
        if np.abs(G).max() < 1e-10:
            break
        W = W - step * G
    return W


def shrink(T: Matrix, by: float) -> Matrix:
    return T * np.maximum(0, 1 - by / np.linalg.norm(T, axis=1, keepdims=True))  # eq. 3.17


def algorithm_1(X: Matrix, y: Matrix, Z: Matrix, UW: Matrix, UV: Matrix, rho: float, l1: float, l2: float) -> Matrix:
    R2, W = np.corrcoef(X.T) ** 2, Z - UW
    for _ in range(ROUNDS):
        W = argmin(lambda w, T=Z - UW: gradient(w, X, y) + rho * (w - T), W, 0.5 / rho)  # eq. 3.11
        V = shrink(Z - UV, l1 / rho)  # eq. 3.12
        Z = rho * np.linalg.inv(l2 * R2.T + l2 * R2 + 2 * rho * np.eye(len(R2))) @ (W + V + UW + UV)  # eq. 3.18
        UW, UV = UW + W - Z, UV + V - Z  # eq. 3.14, 3.15
    return W


def distributed(parts: Matrix, W: Matrix, rho: float, l1: float, l2: float) -> Matrix:
    U, Wp = [np.zeros_like(W) for _ in parts], [W for _ in parts]
    for _ in range(ROUNDS):
        for p, (X, y) in enumerate(parts):  # eq. 4.21
            R2 = np.corrcoef(X.T) ** 2
            slope = lambda w, X=X, y=y, R2=R2, T=W - U[p]: gradient(w, X, y) + 2 * l2 * R2 @ w + rho * (w - T)  # noqa: E731
            Wp[p] = argmin(slope, Wp[p], 0.5 / rho)
        W = shrink(sum(w + u for w, u in zip(Wp, U)) / len(parts), l1 / rho / len(parts))  # eq. 4.22
        U = [u + w - W for u, w in zip(U, Wp)]  # eq. 4.23
    return W


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (20.0, 30.0)])
def test_the_central_fit_is_algorithm_1(patients: Matrix, l1: float, l2: float) -> None:
    X, y = patients
    rho = 3000.0
    u = pc.UnPSL(variant="paper", l1=l1, l2=l2, penalty=rho, iterations=ROUNDS, tol=0, seed=SEED).fit(X, y)
    Z = np.random.default_rng(SEED).standard_normal((5, 5)) / np.sqrt(5)
    rng = np.random.default_rng([SEED, 1])
    UW, UV = (rng.standard_normal((5, 5)) / np.sqrt(5) for _ in range(2))
    W = algorithm_1(X, y, Z, UW, UV, rho, l1, l2)
    assert np.abs(u.metric_ - W.T @ W).max() <= 1e-8 * np.abs(W.T @ W).max()
    assert np.abs(W.T @ W - (Z - UW).T @ (Z - UW)).max() > 0.1  # it has left its start


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (20.0, 30.0)])
def test_the_distributed_fit_is_section_4(patients: Matrix, l1: float, l2: float) -> None:
    X, y = patients
    parts = [(X[k::3], y[k::3]) for k in range(3)]
    sites = [pc.Site(f"s{k}", features=a, labels=b) for k, (a, b) in enumerate(parts)]
    model = ConsensusUnPSL(variant="paper", l1=l1, l2=l2, penalty=1000.0, rounds=ROUNDS, tol=0.0, seed=SEED)
    ours = run(model, sites).public.W
    W = distributed(parts, np.eye(5), 1000.0, l1, l2)
    assert np.abs(ours - W).max() <= 1e-8 * np.abs(W).max()
    assert np.abs(W - np.eye(5)).max() > 0.1
