"""Values missing at random in a Gaussian mixture: the EM of the textbook by plain loops, StepMix, and the same by sums."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

import polyclinic as pc
from polyclinic.errors import DataError, PolicyRefusal
from polyclinic.methods.mixtures import private_statistics as paid
from polyclinic.models.mixtures.gaussian import CovarianceType, Mixture

KINDS: tuple[CovarianceType, ...] = ("full", "tied", "diag", "spherical")
Array = NDArray[np.float64]


def planted(seed: int, n: int = 360, d: int = 4, gone: float = 0.25, apart: float = 2.0) -> tuple[Array, Array, Array]:
    """Three groups with correlated features; complete records, the same with values missing at random, groups."""
    rng = np.random.default_rng([seed, 31])
    centres, shapes = rng.normal(size=(3, d)) * apart, rng.normal(size=(3, d, d)) / np.sqrt(d) + np.eye(d)
    z = rng.integers(0, 3, n)
    x = np.einsum("ipq,iq->ip", shapes[z], rng.normal(size=(n, d))) + centres[z]
    holes = np.where(rng.random(x.shape) < gone, np.nan, x)
    return x, holes, z  # type: ignore[return-value]


def split(x: Array, sites: int = 3) -> list[pc.Site]:
    return [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, sites))]


def begin(x: Array, kind: CovarianceType) -> dict[str, Array]:
    d = x.shape[1]
    shapes = {"full": np.stack([np.eye(d)] * 3), "tied": np.eye(d), "diag": np.ones((3, d)), "spherical": np.ones(3)}
    return {"weights_init": np.full(3, 1 / 3), "means_init": x[:3].copy(), "precisions_init": shapes[kind]}


def textbook(x: Array, means: Array, kind: CovarianceType, rounds: int, ridge: float = 1e-6) -> tuple[Array, ...]:
    """EM for incomplete records (Ghahramani, Jordan 1994), one record and one group at a time."""
    k, d = means.shape
    w, S = np.full(k, 1 / k), np.stack([np.eye(d)] * k)
    for _ in range(rounds):
        r, filled, spread = np.zeros((len(x), k)), np.zeros((len(x), k, d)), np.zeros((len(x), k, d, d))
        for i, row in enumerate(x):
            o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
            for j in range(k):
                gap, A = row[o] - means[j][o], np.linalg.inv(S[j][np.ix_(o, o)]) if len(o) else np.zeros((0, 0))
                density = -0.5 * (gap @ A @ gap + len(o) * np.log(2 * np.pi))
                r[i, j] = np.log(w[j]) + density + (0.5 * np.linalg.slogdet(A)[1] if len(o) else 0.0)
                B = S[j][np.ix_(m, o)] @ A
                filled[i, j, o], filled[i, j, m] = row[o], means[j][m] + B @ gap
                spread[i, j][np.ix_(m, m)] = S[j][np.ix_(m, m)] - B @ S[j][np.ix_(o, m)]
        loglik = np.logaddexp.reduce(r, axis=1)
        r = np.exp(r - loglik[:, None])
        w = r.mean(0)
        means = np.einsum("ij,ijp->jp", r, filled) / r.sum(0)[:, None]
        gap = filled - means
        S = np.einsum("ij,ijp,ijq->jpq", r, gap, gap) + np.einsum("ij,ijpq->jpq", r, spread)
        S = np.stack([S.sum(0) / len(x)] * k) if kind == "tied" else S / r.sum(0)[:, None, None]
        if kind == "diag":
            S = np.stack([np.diag(np.diag(s)) for s in S])
        elif kind == "spherical":
            S = np.stack([np.eye(d) * np.trace(s) / d for s in S])
        S = S + ridge * np.eye(d)
    return w, means, S, np.asarray(loglik.mean())


@pytest.mark.parametrize(("kind", "aggregation"), [*((k, "plain") for k in KINDS), ("full", "masked")])
def test_equals_the_textbook(kind: CovarianceType, aggregation: str) -> None:
    x, holes, _ = planted(0, n=150)
    holes[7] = np.nan  # a patient of whom nothing is known counts, and moves nothing
    w, means, S, loglik = textbook(holes, x[:3], kind, 12)
    m = pc.GaussianMixture(
        n_components=3,
        covariance_type=kind,
        tol=0,
        rounds=12,
        aggregation=aggregation,
        **begin(x, kind),  # type: ignore[arg-type]
    ).fit(split(holes))
    assert np.allclose(m.weights_, w, rtol=0, atol=1e-9)
    assert np.allclose(m.means_, means, rtol=1e-8, atol=1e-8)
    assert np.allclose(np.stack([m.mixture_.covariance(j) for j in range(3)]), S, rtol=1e-8, atol=1e-8)
    assert np.isclose(m.lower_bound_, loglik, rtol=1e-9)


def test_equals_stepmix() -> None:
    stepmix = pytest.importorskip("stepmix.stepmix")
    _, holes, _ = planted(1, n=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = stepmix.StepMix(3, measurement="continuous_nan", random_state=0, abs_tol=1e-10, max_iter=400, n_init=1)
        theirs.fit(holes)
        known = theirs.get_parameters()["measurement"]
        start = {"weights_init": theirs.get_parameters()["weights"], "means_init": known["means"]}
        m = pc.GaussianMixture(
            n_components=3, covariance_type="diag", precisions_init=1 / known["covariances"], rounds=2000, tol=1e-12,
            reg_covar=1e-6, **start,
        ).fit(split(holes))  # fmt: skip
        # a maximum of theirs is one of ours: nothing moves
        assert np.allclose(m.means_, known["means"], atol=2e-4)
        assert np.isclose(m.log_likelihood_, theirs.score(holes) * len(holes), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_likelihood_never_falls_and_sites_give_the_pooled_fit(kind: CovarianceType) -> None:
    _, holes, _ = planted(2)
    m = pc.GaussianMixture(n_components=3, covariance_type=kind, tol=0, rounds=30, reg_covar=1e-9, seed=1)
    several, one = m.with_params().fit(split(holes, 4)), m.with_params().fit(holes)
    curve = [h["lower_bound"] for h in several.history_ if h["lower_bound"] is not None]
    assert np.diff(curve).min() > -1e-8 and curve[-1] > curve[0]
    assert np.allclose(several.means_, one.means_, atol=1e-6) and np.isclose(several.bic_, one.bic_, rtol=1e-9)


def test_subspace_adds_the_same() -> None:
    x, holes, _ = planted(3, n=120, d=2)
    start = begin(x, "full")
    one, two = (
        pc.GaussianMixture(n_components=3, tol=0, rounds=3, aggregation=a, **start).fit(split(holes, 5))  # type: ignore[arg-type]
        for a in ("plain", "subspace")
    )
    assert np.allclose(one.means_, two.means_, atol=1e-6) and np.allclose(one.covariances_, two.covariances_, atol=1e-6)


@pytest.mark.parametrize("seed", [4, *(pytest.param(s, marks=pytest.mark.slow) for s in (5, 6))])
def test_missing_values_cost_less_than_filling_in_means(seed: int) -> None:
    x, holes, z = planted(seed, n=1500, d=5, gone=0.2, apart=2.5)
    whole, em = (pc.GaussianMixture(n_components=3, n_starts=3, seed=0).fit(split(a)) for a in (x, holes))
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    naive = pc.GaussianMixture(n_components=3, n_starts=3, seed=0).fit(split(filled))
    scores = [adjusted_rand_score(z, m.predict(a)) for m, a in ((whole, x), (em, holes), (naive, filled))]
    print(seed, [round(s, 3) for s in scores])
    assert scores[1] > scores[2] and scores[1] > scores[0] - 0.15
    near = np.abs(whole.means_[:, None] - em.means_[None]).max(2).min(1)
    assert near.max() < 0.35


def test_a_model_places_patients_with_gaps(tmp_path: Path) -> None:
    _, holes, _ = planted(8)
    m = pc.GaussianMixture(n_components=3, rounds=10).fit(split(holes))
    assert np.allclose(m.predict_proba(holes).sum(1), 1) and np.isfinite(m.score(holes))
    back = pc.load(m.save(tmp_path / "m.groups"))
    assert np.allclose(back.transform(holes), m.predict_proba(holes))  # type: ignore[call-overload]
    nothing = np.full((1, 4), np.nan)
    assert np.allclose(m.predict_proba(nothing)[0], m.weights_)


@pytest.mark.parametrize("kind", KINDS)
def test_a_patients_paid_row_has_length_at_most_one_whatever_is_missing(kind: CovarianceType) -> None:
    rng = np.random.default_rng(9)
    x, _, _ = planted(9, d=3)
    s = {"full": np.stack([np.eye(3)] * 2) * 0.01, "tied": np.eye(3) * 0.01, "diag": np.full((2, 3), 0.01)}
    m = Mixture(np.array([0.5, 0.5]), x[:2] / 10, s.get(kind, np.full(2, 0.01)), kind)
    for _ in range(60):
        z = rng.normal(size=(1, 3))
        z = z / max(1.0, float(np.linalg.norm(z))) * rng.choice([1.0, 1e-3])
        z[0, rng.random(3) < 0.5] = np.nan
        sums = paid.bounded(z, m)
        assert sum(float(np.square(a).sum()) for a in sums.values()) <= 1.0


def test_private_with_gaps_is_near_private_without() -> None:
    found = []
    for seed in (10, 11, 12):
        x, holes, z = planted(seed, n=12_000, d=2, gone=0.15, apart=3.0)
        centres = np.stack([x[z == j].mean(0) for j in range(3)])
        far = [
            float(np.abs(centres[:, None] - m.means_[None]).max(2).min(1).max())
            for a in (x, holes)
            for m in [
                pc.GaussianMixture(n_components=3, privacy=pc.Privacy(2.0, 1e-6), radius=15.0, seed=0).fit(split(a))
            ]
        ]
        found.append(far)
    print(np.round(found, 3))
    assert np.median([b for _, b in found]) < 0.3


def test_what_nobody_or_hardly_anybody_has_is_refused() -> None:
    _, holes, _ = planted(13)
    holes[:, 1], holes[3:, 2] = np.nan, np.nan
    with pytest.raises(PolicyRefusal) as e:
        pc.GaussianMixture(n_components=2).fit(split(holes))
    known = int((~np.isnan(holes[:, 2])).sum())
    assert e.value.faults == ("feature 1: known of 0 patients", f"feature 2: known of {known} patients")
    with pytest.raises(DataError, match="infinite"):
        pc.GaussianMixture(n_components=2).fit(np.where(np.isnan(holes), np.inf, holes))
