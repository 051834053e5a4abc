"""Latent classes: pooled by sums, against StepMix, with missing values, and with patient-level privacy."""

from __future__ import annotations

import warnings
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError
from polyclinic.models.mixtures.classes import log_joint
from polyclinic.models.mixtures.columns import Column, Layout

ANSWERS = 12
KINDS = {f"q{j}": ["0", "1", "2"] for j in range(ANSWERS)} | {
    "visits": "count",
    "crp": "continuous",
    "age": "continuous",
}
NAMES = tuple(KINDS)


def drawn(
    n: int, seed: int, *, missing: float = 0.0, classes: int = 3
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Planted classes over twelve answers, a count and two measurements."""
    truth = np.random.default_rng(5)
    p = truth.dirichlet(np.full(3, 0.5), (classes, ANSWERS))
    rate, mean = truth.uniform(1, 9, classes), truth.normal(0, 3, (classes, 2))
    rng = np.random.default_rng([seed, 1])
    z = rng.choice(classes, n, p=np.array([0.5, 0.3, 0.2]) if classes == 3 else None)
    q = np.stack([(rng.random(n)[:, None] > np.cumsum(p[z, j], 1)).sum(1) for j in range(ANSWERS)], 1).clip(0, 2)
    X = np.column_stack([q, rng.poisson(rate[z]), mean[z] + rng.normal(0, 1.0, (n, 2))]).astype(float)
    X[rng.random(X.shape) < missing] = np.nan
    return X, z, {"p": p, "rate": rate, "mean": mean}


def cut(X: np.ndarray, parts: int = 3) -> list[pc.Site]:
    return [pc.Site(f"s{k}", features=x, columns=NAMES) for k, x in enumerate(np.array_split(X, parts))]


def test_the_likelihood_is_the_product_of_the_columns() -> None:
    from scipy.stats import norm, poisson

    layout = Layout(
        (
            Column("a", "categorical", ("x", "y")),
            Column("n", "count", unit=3.0),
            Column("v", "continuous", centre=1.0, unit=2.0),
        )
    )
    w, profiles = np.array([0.3, 0.7]), np.array([[0.2, 0.8, 4.0, 1.0, 2.0], [0.6, 0.4, 1.0, -1.0, 0.5]])
    X = np.array([[1, 3, 0.5], [np.nan, 2, np.nan]])
    found = log_joint(layout, w, profiles, X)
    for j in range(2):
        a = (
            np.log(w[j] * profiles[j, 1])
            + poisson.logpmf(3, profiles[j, 2])
            + norm.logpdf(0.5, profiles[j, 3], np.sqrt(profiles[j, 4]))
        )
        b = np.log(w[j]) + poisson.logpmf(2, profiles[j, 2])
        assert np.allclose(found[:, j], [a, b])


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_sites_give_the_pooled_classes(aggregation: str) -> None:
    X, _, _ = drawn(500, 0, missing=0.1)
    several = pc.LatentClass(n_components=3, kinds=KINDS, aggregation=aggregation, rounds=40).fit(cut(X))
    one = pc.LatentClass(n_components=3, kinds=KINDS, rounds=40).fit([pc.Site("all", features=X, columns=NAMES)])
    assert np.allclose(several.profiles_, one.profiles_, atol=1e-7)
    assert np.isclose(several.log_likelihood_, one.log_likelihood_, rtol=1e-9)
    assert set(several.shares_) == {"s0", "s1", "s2"}
    whole = np.concatenate([several.memberships_[f"s{k}"] for k in range(3)])
    assert np.allclose(whole, several.transform(pc.Site("new", features=X, columns=NAMES)))


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_equal_to_stepmix_from_the_same_start(missing: float) -> None:
    """From StepMix's parameters after one round, further rounds give its likelihood and profiles to 1e-6."""
    stepmix = pytest.importorskip("stepmix")
    X, _, _ = drawn(400, 1, missing=missing)
    X = np.delete(X, ANSWERS, axis=1)  # StepMix has no counts
    names = tuple(n for n in NAMES if n != "visits")
    nan = "_nan" if missing else ""
    parts = {
        "answers": {"model": f"categorical{nan}", "n_columns": ANSWERS},
        "values": {"model": f"gaussian_diag{nan}", "n_columns": 2},
    }

    def theirs(rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
        m = stepmix.StepMix(
            n_components=3, measurement=parts, n_init=1, max_iter=rounds, abs_tol=0, rel_tol=0, random_state=3,
            progress_bar=0, init_params="random",
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it did not converge, which was asked for
            m.fit(X)
        models = m.get_parameters()["measurement"]
        p = np.asarray(models["answers"]["pis"])
        mean, variance = (np.asarray(models["values"][k]) for k in ("means", "covariances"))
        levels = p.reshape(3, -1)
        pairs = np.stack([mean, variance], 2).reshape(3, -1)
        return m.get_parameters()["weights"], np.hstack([levels, pairs]), float(m.score(X))

    w, profiles, _ = theirs(1)
    end_w, end, score = theirs(31)
    kinds = {n: k for n, k in KINDS.items() if n in names}
    m = pc.LatentClass(
        n_components=3, kinds=kinds, rounds=30, tol=0, reg_covar=1e-6, weights_init=tuple(w),
        profiles_init=tuple(map(tuple, profiles)),
    ).fit([pc.Site(f"s{k}", features=x, columns=names) for k, x in enumerate(np.array_split(X, 3))])  # fmt: skip
    order = np.argsort(-end_w, kind="stable")
    assert np.allclose(m.weights_, end_w[order], atol=1e-6)
    assert np.allclose(m.profiles_, end[order], atol=1e-6)
    assert abs(m.score([pc.Site("x", features=X, columns=names)]) - score) < 1e-6


def law(n: int, seed: int, answers: int, missing: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records, classes, and planted profiles in public units, for what is promised of missing values and of privacy.

    The law: three classes with shares .5, .3, .2; ``answers`` questions of three levels with probabilities from Dirichlet(.5), a
    Poisson count of rate uniform in 1 to 9, two measurements of variance 1 around Normal(0, 3) means; all profiles are drawn
    anew with every seed. It was written down before seeds 101 to 105 were drawn, for a short (6) and a long (12) questionnaire.
    """
    rng, k = np.random.default_rng([seed, 77]), 3
    p, rate, mean = rng.dirichlet(np.full(3, 0.5), (k, answers)), rng.uniform(1, 9, k), rng.normal(0, 3, (k, 2))
    z = rng.choice(k, n, p=[0.5, 0.3, 0.2])
    q = np.stack([(rng.random(n)[:, None] > np.cumsum(p[z, j], 1)).sum(1) for j in range(answers)], 1).clip(0, 2)
    X = np.column_stack([q, rng.poisson(rate[z]), mean[z] + rng.normal(0, 1, (n, 2))]).astype(float)
    X[rng.random(X.shape) < missing] = np.nan
    return X, z, np.hstack([p.reshape(3, -1), rate[:, None] / 20, mean / 24])


def questionnaire(X: np.ndarray, answers: int) -> tuple[list[pc.Site], dict[str, list[str] | str]]:
    kinds = {n: k for n, k in KINDS.items() if not n.startswith("q") or int(n[1:]) < answers}
    parts = np.array_split(X, 3)
    return [pc.Site(f"s{k}", features=x, columns=tuple(kinds)) for k, x in enumerate(parts)], kinds


@pytest.mark.parametrize("answers", [6, 12])
@pytest.mark.parametrize("seed", [101, *(pytest.param(s, marks=pytest.mark.slow) for s in range(102, 106))])
def test_a_fifth_of_the_values_missing_costs_little(seed: int, answers: int) -> None:
    ari = {}
    for missing in (0.0, 0.2):
        X, z, _ = law(1500, seed, answers, missing)
        sites, kinds = questionnaire(X, answers)
        m = pc.LatentClass(n_components=3, kinds=kinds, seed=seed).fit(sites)
        ari[missing] = adjusted_rand_score(z, np.concatenate([m.memberships_[f"s{k}"].argmax(1) for k in range(3)]))
    print(seed, answers, ari)
    assert ari[0.0] > 0.9
    assert ari[0.2] >= ari[0.0] - 0.05, ari


def test_bic_finds_the_number_of_classes() -> None:
    X, _, _ = drawn(1200, 20)
    bic = [pc.LatentClass(n_components=k, kinds=KINDS).fit(cut(X)).bic_ for k in (1, 2, 3, 4)]
    assert int(np.argmin(bic)) == 2, bic
    one = pc.LatentClass(n_components=1, kinds=KINDS).fit(cut(X))
    layout = one.layout_
    free = ANSWERS * 2 + 1 + 2 * 2
    loglik = logsumexp(log_joint(layout, one.weights_, one.profiles_, X), axis=1).sum()
    assert np.isclose(one.bic_, free * np.log(1200) - 2 * loglik)


def private_error(seed: int, answers: int) -> float:
    """Largest error of any probability, or of a mean in units of its column's public range, after matching."""
    X, _, planted = law(20_000, seed, answers)
    sites, kinds = questionnaire(X, answers)
    m = pc.LatentClass(
        n_components=3, kinds=kinds, bounds={"visits": (0, 20), "crp": (-12, 12), "age": (-12, 12)}, seed=seed,
        aggregation="masked", privacy=pc.Privacy(epsilon=2, delta=1e-6),
    ).fit(sites)  # fmt: skip
    assert (
        m.privacy_.guarantee == "formal"
        and m.privacy_.epsilon is not None
        and m.privacy_.epsilon <= 2 * 1.001
        and m.privacy_.adjacency == "patient"
    )
    p, n = m.profiles_, 3 * answers
    found = np.hstack([p[:, :n], p[:, n : n + 1] / 20, p[:, [n + 1, n + 3]] / 24])
    return min(float(np.abs(found[list(o)] - planted).max()) for o in permutations(range(3)))


@pytest.mark.parametrize("answers", [6, pytest.param(12, marks=pytest.mark.slow)])
def test_private_classes_are_near_the_planted_ones(answers: int) -> None:
    """The usual fit is within .03. Noise is another every time: of 60 fits over these seeds two were not (.031 and .046)."""
    errors = [private_error(seed, answers) for seed in range(101, 106)]
    print(answers, np.round(errors, 4))
    assert np.median(errors) <= 0.03 and max(errors) <= 0.1  # classes that are mixed up are off by more


def test_one_patient_moves_a_private_sum_by_at_most_one() -> None:
    X, _, _ = drawn(60, 40, missing=0.1)
    X[0, ANSWERS:] = [1e6, -1e6, 1e6]  # far outside the public limits
    m = pc.LatentClass(
        n_components=3, kinds=KINDS, bounds={"visits": (0, 20), "crp": (-12, 12), "age": (-12, 12)},
        privacy=pc.Privacy(epsilon=2, delta=1e-6), profiles_init=tuple(map(tuple, np.abs(np.random.default_rng(0).normal(1, 0.2, (3, 3 * ANSWERS + 5))))),
        weights_init=(0.4, 0.3, 0.3),
    )  # fmt: skip
    from polyclinic.methods.latent_classes.latent_class import GRID
    from polyclinic.methods.latent_classes.state import ClassPrivate
    from polyclinic.protocol.schema import schema_of

    site = pc.Site("a", features=X, columns=NAMES)
    public = m.init_public(schema_of(m, [site]), np.random.default_rng(0))
    step = m.next_step(public)
    assert step is not None and step.sensitivity == 1.0
    for i in range(60):
        alone = m.contribute(step, site.take([i]), ClassPrivate(np.ones(3) / 3), public, np.random.default_rng(0))[1]
        whole = np.rint(alone.arrays["sums"] / GRID)
        assert (whole == alone.arrays["sums"] / GRID).all()
        assert (whole**2).sum() <= 2.0**32


def test_kinds_come_from_the_frame(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    ill = rng.random(300) < 0.5
    frame = pd.DataFrame(
        {
            "grade": pd.Categorical(np.where(ill, "high", "low"), ["low", "mid", "high"]),
            "male": rng.random(300) < 0.5,
            "town": rng.choice(["a", "b"], 300),
            "visits": rng.poisson(np.where(ill, 7, 1)),
            "bmi": rng.normal(np.where(ill, 31, 24), 2.0),
        }
    )
    frame.loc[::7, "town"] = None
    frame.loc[::5, "bmi"] = np.nan
    m = pc.LatentClass(n_components=2, seed=0).fit({"north": frame.iloc[:150], "south": frame.iloc[150:]})
    assert [c.kind for c in m.layout_.columns] == ["categorical"] * 3 + ["count", "continuous"]
    assert m.layout_.columns[0].levels == ("low", "mid", "high") and m.params.kinds == {}
    back = pc.load(m.save(tmp_path / "m.classes"))
    assert np.array_equal(back.transform(frame), m.transform(frame))
    assert adjusted_rand_score(ill, back.transform(frame).argmax(1)) > 0.95
    strange = frame.assign(town="z")
    with pytest.raises(DataError, match="'z' not among its levels a, b"):
        back.transform(strange)


def test_kinds_of_numbers_are_told_by_sums() -> None:
    X, _, _ = drawn(300, 50)
    m = pc.LatentClass(n_components=2).fit(cut(X))
    assert [c.kind for c in m.layout_.columns] == ["categorical"] * ANSWERS + ["count", "continuous", "continuous"]


def test_shares_of_a_site_are_its_own() -> None:
    X, z, _ = drawn(1200, 60)
    order = np.argsort(z, kind="stable")
    skewed = [pc.Site(f"s{k}", features=X[i], columns=NAMES) for k, i in enumerate([order[:700], order[700:]])]
    m = pc.LatentClass(n_components=3, kinds=KINDS, shares="site").fit(skewed)
    assert m.shares_["s0"].max() > 0.75
    assert abs(sum(m.shares_["s1"]) - 1) < 1e-9 and np.abs(m.shares_["s0"] - m.shares_["s1"]).max() > 0.4


def test_faults_are_told_together() -> None:
    with pytest.raises(ConfigError, match=r"levels are public.*bounds: n") as e:
        pc.LatentClass(kinds={"a": "categorical", "n": "count"}, privacy=pc.Privacy(1.0, 1e-6), shares="site")
    assert "shares='site'" in str(e.value)
    X, _, _ = drawn(100, 70)
    X[3, ANSWERS] = 1.5
    with pytest.raises(DataError, match=r"visits: a count is 0, 1, 2, .*1.5"):
        pc.LatentClass(kinds=KINDS).fit(cut(X))
