"""Losses for counts and yes/no: what the likelihood promises, against pyttb's generalised CP from the same start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.methods.rounds.losses import begun, likelihood_step
from polyclinic.methods.starts.random import start
from polyclinic.records.sites.site import pooled
from polyclinic.tensors.kernels.counts import log_likelihood, place
from polyclinic.tensors.likelihood import constant_fit, deviance, placed
from polyclinic.tensors.sparse import SparseTensor

RANK, SHAPE = 3, (14, 17)
LOSSES = ("poisson", "bernoulli")


def drawn(patients: int, loss: str, seed: int) -> SparseTensor:
    """Counts (or their presence) of planted rates."""
    truth = np.random.default_rng(0)
    factors = [truth.dirichlet(np.full(n, 0.3), RANK).T for n in SHAPE]
    rng = np.random.default_rng([1, seed])
    a = rng.gamma(0.7, 30.0, (patients, RANK))
    x = rng.poisson(np.einsum("ir,jr,kr->ijk", a, *factors)).astype(float)
    return pc.from_numpy(np.minimum(x, 1.0) if loss == "bernoulli" else x)


def cut(tensor: SparseTensor, parts: int) -> list[pc.Site]:
    index = np.array_split(np.arange(tensor.patients), parts)
    return [pc.Site(f"s{k}", tensor.take(i)) for k, i in enumerate(index)]


def dense_log_likelihood(x: np.ndarray, m: np.ndarray, loss: str) -> float:
    m = m + 1e-10
    if loss == "poisson":
        return float((x * np.log(m) - m).sum())
    return float(np.where(x > 0, np.log(-np.expm1(-m)), -m).sum())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_likelihood_over_nonzeros_is_that_of_all_cells(loss: str) -> None:
    t = drawn(40, loss, 0)
    rng = np.random.default_rng(0)
    factors = begun([rng.random((n, RANK)) for n in SHAPE])
    a = rng.random((40, RANK)) * 20
    x = np.zeros(t.shape)
    x[tuple(t.coords.T)] = t.values
    m = np.einsum("ir,jr,kr->ijk", a, *factors)
    assert np.isclose(log_likelihood(t, np.concatenate(factors), loss, a), dense_log_likelihood(x, m, loss), atol=1e-4)  # type: ignore[arg-type]
    flat = np.full_like(m, x.mean() if loss == "poisson" else -np.log1p(-x.mean()))
    assert np.isclose(constant_fit(x.sum(), x.size, loss), dense_log_likelihood(x, flat, loss), rtol=1e-7)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_never_lowers_the_likelihood(loss: str) -> None:
    t = drawn(80, loss, 1)
    factors, a, before = begun(start(SHAPE, RANK, 0)), None, -np.inf
    for _ in range(15):
        a, events, value = likelihood_step(t, factors, loss, a)  # type: ignore[arg-type]
        assert value >= before - 1e-9 * abs(value)
        before = value
        assert np.isclose(events[: SHAPE[0]].sum(), events[SHAPE[0] :].sum())
        factors = tuple(e / e.sum(0) for e in np.split(events, [SHAPE[0]]))


@pytest.mark.parametrize("loss", LOSSES)
def test_memberships_are_those_of_highest_likelihood(loss: str) -> None:
    t = drawn(30, loss, 2)
    stacked = np.concatenate(begun(start(SHAPE, RANK, 3)))
    a = place(t, stacked, loss, steps=5000, tol=1e-12)  # type: ignore[arg-type]
    best = log_likelihood(t, stacked, loss, a)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert log_likelihood(t, stacked, loss, np.maximum(a + rng.normal(0, 0.3, a.shape), 0)) < best  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_sums_give_the_pooled_model(loss: str, aggregation: str) -> None:
    t = drawn(150, loss, 4)
    settings = {"rank": RANK, "loss": loss, "start": "random", "rounds": 25, "seed": 0}
    several = pc.SumALS(aggregation=aggregation, **settings).fit(cut(t, 4))  # type: ignore[arg-type]
    one = pc.SumALS(**settings).fit([pc.Site("all", t)])  # type: ignore[arg-type]
    assert abs(several.score(t) - one.score(t)) < 1e-8
    gap = max(np.abs(a - b).max() for a, b in zip(several.factors_, one.factors_))
    assert gap < (1e-8 if aggregation == "plain" else 1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_score_is_the_share_of_deviance_explained(loss: str) -> None:
    t = drawn(150, loss, 5)
    m = pc.SumALS(rank=RANK, loss=loss, seed=0).fit(cut(t, 3))  # type: ignore[arg-type]
    model = deviance(t, m.factors_, loss, m.transform(t))  # type: ignore[arg-type]
    x = t.values
    top = float(x @ np.log(x) - x.sum()) if loss == "poisson" else 0.0
    null = 2 * (top - constant_fit(float(x.sum()), float(np.prod(t.shape)), loss))  # type: ignore[arg-type]
    assert np.isclose(m.score(t), 1 - model / null)
    assert m.quality(t)["deviance_explained"] == m.score(t)
    assert 0.3 < m.score(t) < 1
    assert np.isclose(m.history_[-1]["deviance_explained"], m.score(t), atol=1e-3)
    assert np.allclose(np.concatenate([m.memberships_[f"s{k}"] for k in range(3)]), m.transform(t))


@pytest.mark.parametrize("loss", LOSSES)
def test_not_worse_than_pyttb_from_the_same_start(loss: str) -> None:
    """Held-out deviance within 0.1 % of generalised CP's, which sees every cell and runs L-BFGS."""
    ttb = pytest.importorskip("pyttb")
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB

    learn, held = drawn(200, loss, 6), drawn(200, loss, 7)
    factors = begun(start(SHAPE, RANK, 1))
    a, _, _ = likelihood_step(learn, factors, loss, None)  # type: ignore[arg-type]
    x = np.zeros(learn.shape)
    x[tuple(learn.coords.T)] = learn.values
    # Bernoulli: the loss of the same link, as a loss of one's own; pyttb's own links explain other probabilities.
    link = (
        lambda x, m: m - x * np.log(np.expm1(m + 1e-10)),
        lambda x, m: 1.0 - x / -np.expm1(-(m + 1e-10)),
        0.0,
    )
    size = np.cbrt(np.prod([np.linalg.norm(f, axis=0) for f in (a, *factors)], axis=0))
    init = ttb.ktensor([f / np.linalg.norm(f, axis=0) * size for f in (a, *factors)])
    found, _, _ = ttb.gcp_opt(
        ttb.tensor(x),
        RANK,
        Objectives.POISSON if loss == "poisson" else link,
        LBFGSB(maxiter=2000),
        init=init,
        printitn=0,
    )
    theirs = deviance(held, found.factor_matrices[1:], loss, placed(held, found.factor_matrices[1:], loss))  # type: ignore[arg-type]
    m = pc.CPALS(rank=RANK, loss=loss, rounds=500).fit(learn, start=list(factors))  # type: ignore[arg-type]
    ours = deviance(held, m.factors_, loss, m.transform(held))  # type: ignore[arg-type]
    assert ours <= 1.001 * theirs


def test_counts_are_told_from_presence() -> None:
    t = drawn(60, "poisson", 8)
    with pytest.raises(ConfigError, match=r"cells are not 1 where something is present"):
        pc.SumALS(rank=2, loss="bernoulli").fit(t)
    broken = SparseTensor(t.coords, t.values * 0.5, t.shape)
    with pytest.warns(UserWarning, match="not whole"), pytest.raises(ConfigError, match="not counts"):
        pc.CPALS(rank=2, loss="poisson").fit(broken)
    with pytest.raises(ConfigError, match="nonnegative=True; a cell without an event"):
        pc.SumALS(rank=2, loss="poisson", nonnegative=False, zeros="missing")


def test_a_loss_survives_the_file(tmp_path: Path) -> None:
    t = drawn(80, "bernoulli", 9)
    m = pc.SumALS(rank=2, loss="bernoulli", rounds=10).fit(cut(t, 2))
    back = pc.load(m.save(tmp_path / "m.phenotypes"))
    assert np.array_equal(back.transform(t), m.transform(t))
    assert back.score(t) == m.score(t)  # type: ignore[union-attr]


def test_planted_rates_are_found_where_squares_are_led_by_few_patients() -> None:
    """Counts of very unlike patients: the likelihood weighs a count by its own noise."""
    truth = np.random.default_rng(0)
    factors = [truth.dirichlet(np.full(n, 0.3), RANK).T for n in SHAPE]
    t = drawn(600, "poisson", 10)
    m = pc.SumALS(rank=RANK, loss="poisson", seed=0).fit(cut(t, 3))
    assert pc.metrics.factor_match_score(factors, m.factors_) > 0.98
    assert pooled(cut(t, 3)).patients == 600
