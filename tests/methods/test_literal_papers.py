"""``variant="paper"`` is the papers' algorithm as printed: equal to plain numpy that was written from the papers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import Divergence
from polyclinic.methods.rounds.local_pass import open_factors, open_patients
from polyclinic.methods.starts.random import start
from polyclinic.protocol.interfaces import seeds
from polyclinic.protocol.loop import run
from polyclinic.tensors.kernels.sgd import shuffle

RANK, ROUNDS, SEED = 3, 20, 4
Matrix = Any  # plain numpy as the papers print it
Matrices = Any


@pytest.fixture(scope="module")
def sites() -> Matrix:
    return pc.datasets.planted_counts(60, 8, 9, phenotypes=3, codes=(3, 4), sites=3, seed=5)


def dense(site: pc.Site) -> Matrix:
    tensor = site.counts()
    out = np.zeros(tensor.shape)
    np.add.at(out, tuple(tensor.coords.T), tensor.values)
    return out


# ---- Kim et al. 2017, Algorithm 1


def khatri_rao(a: Matrix, b: Matrix) -> Matrix:
    return np.einsum("ir,jr->ijr", a, b).reshape(-1, a.shape[1])


def trip(tensors: Matrices, A: Matrices, omega: float, lam: float, mu: float) -> Matrices:
    """Three modes. A holds the global factors of modes 2 and 3 at the start, from which the hospitals start as well."""
    K, R = len(tensors), A[0].shape[1]
    unfold = [[np.moveaxis(O, n, 0).reshape(O.shape[n], -1) for n in range(3)] for O in tensors]
    Ak, H = [[None, *A] for _ in tensors], [[None, *(np.zeros_like(a) for a in A)] for _ in tensors]
    A, B, Y = [None, *A], [None, *A], [None, *(np.zeros_like(a) for a in A)]
    for _ in range(ROUNDS):
        pi = khatri_rao(A[1], A[2])
        for k in range(K):
            Ak[k][0] = unfold[k][0] @ pi @ np.linalg.inv(pi.T @ pi)  # eq. 7
        for n in (1, 2):
            for k in range(K):  # eq. 9
                pi_k = khatri_rao(*(Ak[k][m] for m in range(3) if m != n))
                left = unfold[k][n] @ pi_k + omega * A[n] + H[k][n]
                Ak[k][n] = left @ np.linalg.inv(pi_k.T @ pi_k + omega * np.eye(R))
            right = lam * B[n] + mu * B[n] + Y[n] + omega * sum(a[n] for a in Ak) - sum(h[n] for h in H)
            A[n] = np.linalg.inv((mu + K * omega) * np.eye(len(B[n])) + lam * B[n] @ B[n].T) @ right  # eq. 10
            B[n] = A[n] + Y[n] / mu  # eq. 11
            Y[n] = Y[n] + mu * (B[n] - A[n])  # eq. 12
            for k in range(K):
                H[k][n] = H[k][n] + omega * (A[n] - Ak[k][n])  # eq. 13
    return A[1:]


@pytest.mark.parametrize(("omega", "lam"), [(1.0, 0.0), (30.0, 0.0), (5.0, 0.7)])
def test_trip_is_algorithm_1(sites: Matrix, omega: float, lam: float) -> None:
    model = pc.TRIP(rank=RANK, rounds=ROUNDS, seed=SEED, variant="paper", penalty=omega, distinct=lam)
    ours = run(model, sites).public.factors
    begun = start(sites[0].counts().shape[1:], RANK, SEED)
    ordered = sorted(sites, key=lambda s: s.name)
    printed = trip([dense(s) for s in ordered], begun, omega, lam, mu=omega)
    for a, b in zip(ours, printed):
        assert np.abs(a - b).max() <= 1e-8 * np.abs(b).max()


def test_the_printed_trip_depends_on_omega_in_absolute_units(sites: Matrix) -> None:
    fits = [
        pc.TRIP(rank=RANK, rounds=30, seed=SEED, variant="paper", penalty=w).fit(sites).score(sites) for w in (1, 1e6)
    ]
    assert fits[1] < 0.5 * fits[0]  # Section 5: a large omega holds the hospitals at the start


# ---- Ma et al. 2021, Algorithm 3, and Ma et al. 2019, Algorithm 1


def local_sgd(sites: Matrix, rate: float, gamma: float, mu: float, tau: int, *, elastic: bool) -> Matrices:
    """Both algorithms: ``elastic`` is DPFact (hospitals keep their factors, eq. 17 pulls), else LocalTF (they adopt)."""
    shape = sites[0].counts().shape[1:]
    G = open_factors(start(shape, RANK, SEED), zeros="missing")
    patients, own = {}, {}
    for s in sites:  # line 1
        random = [seeds(SEED, "own", s.name, n).random((size, RANK)) for n, size in enumerate(shape)]
        own[s.name] = open_factors([f / np.linalg.norm(f, axis=0) for f in random], zeros="missing")
        patients[s.name] = open_patients(s.patients, RANK, zeros="missing", modes=3, seed=SEED)
    for t in range(ROUNDS):
        for s in sites:
            A, (B, C) = patients[s.name].copy(), [f.copy() for f in own[s.name]]
            for k in range(tau):
                entries = shuffle(s.counts(), seeds(SEED, "pass", t * tau + k + 1))
                for i, j, m, value in zip(*entries.where, entries.values):
                    error = A[i] @ (B[j] * C[m]) - value
                    da, db, dc = error * B[j] * C[m], error * A[i] * C[m], error * A[i] * B[j]
                    if elastic:  # eq. 17
                        db, dc = db + gamma * (B[j] - G[0][j]), dc + gamma * (C[m] - G[1][m])
                    A[i], B[j], C[m] = A[i] - rate * da, B[j] - rate * db, C[m] - rate * dc  # eq. 13, 17
                norm = np.sqrt(np.square(A).sum(0))
                A = A * np.maximum(0, 1 - mu / norm) if mu else A  # eq. 12, 14
            patients[s.name], own[s.name] = A, [B, C]
        for n in range(2):  # eq. 19 and 3.12
            G[n] = G[n] + rate * sum(gamma * (own[s.name][n] - G[n]) for s in sites)
        if not elastic:
            own = {s.name: list(G) for s in sites}
    return G


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_localtf_is_algorithm_3(sites: Matrix, tau: int, mu: float) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "elastic": 5.0, "sparsity": mu, "local_passes": tau}
    model = pc.LocalTF(rank=RANK, rounds=ROUNDS, tol=0.0, seed=SEED, variant="paper", **settings)
    printed = local_sgd(sites, 0.01, 5.0, mu, tau, elastic=False)
    for a, b in zip(run(model, sites).public.factors, printed):
        assert np.abs(a - b).max() <= 1e-8 * np.abs(b).max()


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_dpfact_is_algorithm_1(sites: Matrix, tau: int, mu: float) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "elastic": 5.0, "sparsity": mu, "local_passes": tau}
    model = pc.DPFact(rank=RANK, rounds=ROUNDS, tol=0.0, seed=SEED, variant="paper", **settings)
    printed = local_sgd(sites, 0.01, 5.0, mu, tau, elastic=True)
    for a, b in zip(run(model, sites).public.factors, printed):
        assert np.abs(a - b).max() <= 1e-8 * np.abs(b).max()


@pytest.mark.parametrize("cls", [pc.LocalTF, pc.DPFact])
def test_a_printed_rate_that_diverges_names_a_rate_that_runs(sites: Matrix, cls: type) -> None:
    settings: dict[str, Any] = {
        "rank": RANK,
        "rounds": 5,
        "seed": SEED,
        "variant": "paper",
        "elastic": 0.01,
        "sparsity": 0.0,
    }
    with pytest.raises(Divergence) as refused:
        cls(learning_rate=5.0, **settings).fit(sites)
    rate = float(str(refused.value.hint).rsplit("try ", 1)[1])
    assert np.isfinite(cls(learning_rate=rate, **settings).fit(sites).score(sites))


# ---- private EM: eq. 2 to 4


def printed_em(x: Matrix, weights: Matrix, means: Matrix, covariances: Matrix) -> Matrices:
    for _ in range(ROUNDS):
        away = x[:, None] - means
        size = np.einsum("njp,jpq,njq->nj", away, np.linalg.inv(covariances), away)
        density = weights * np.exp(-size / 2) / np.sqrt(np.linalg.det(2 * np.pi * covariances))
        p = density / density.sum(1, keepdims=True)  # eq. 2
        a = p.sum(0)
        b, c = p.T @ x, np.einsum("nj,njp,njq->jpq", p, away, away)  # eq. 3: around the means of step t
        weights, means, covariances = a / len(x), b / a[:, None], c / a[:, None, None]
    return [weights, means, covariances]


def test_the_mixture_is_em_as_printed() -> None:
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.normal(size=(60, 2)) @ rng.normal(size=(2, 2)) + c for c in ([0, 0], [3, 1], [-1, 4])])
    parts = [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(rng.permutation(x), 4))]
    begun = np.full(3, 1 / 3), x[[0, 60, 120]], np.stack([np.eye(2)] * 3)
    model = pc.GaussianMixture(
        n_components=3, rounds=ROUNDS, tol=0, reg_covar=0.0, variant="paper",
        weights_init=begun[0], means_init=begun[1], precisions_init=begun[2],
    ).fit(parts)  # fmt: skip
    weights, means, covariances = printed_em(x, *begun)
    for ours, printed in ((model.weights_, weights), (model.means_, means), (model.covariances_, covariances)):
        assert np.abs(ours - printed).max() <= 1e-8 * np.abs(printed).max()
