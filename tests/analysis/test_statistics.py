"""Each statistic against an oracle: statsmodels, lifelines, scikit-learn, scipy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.statistics.intervals import adjusted, chi_square, logf, normal_p, wilson
from polyclinic.analysis.statistics.roc import Ranks, calibration, ranked
from polyclinic.analysis.statistics.survival_curves import (
    Survival,
    efron,
    efron_sums,
    kaplan_meier,
    log_rank,
    restricted_mean,
    step_of,
)
from polyclinic.analysis.survival import SurvivalAnalysis, survival_found
from polyclinic.protocol.interfaces import Schema


@dataclass(frozen=True, eq=False)
class Fitted:
    """A maximum of a (penalised) log-likelihood: coefficients, covariance, its height."""

    beta: np.ndarray
    covariance: np.ndarray
    height: float
    steps: int

    @property
    def se(self) -> np.ndarray:
        """(p,) standard errors."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))


def newton(
    derivatives: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]],
    start: np.ndarray,
    *,
    tol: float = 1e-9,
    most: int = 50,
) -> Fitted:
    """Newton's method with halved steps for a concave function given by (value, gradient, information).

    The coordinator's loop over sums does the same one round at a time; this one is for functions at hand.
    """
    beta = np.array(start, np.float64)
    value, gradient, information = derivatives(beta)
    step = 0
    for step in range(1, most + 1):  # noqa: B007
        move = np.linalg.lstsq(information, gradient, rcond=None)[0] if beta.size else gradient
        scale = 1.0
        for _ in range(40):
            trial = derivatives(beta + scale * move)
            if trial[0] >= value - 1e-12 * max(1.0, abs(value)):
                break
            scale /= 2
        beta = beta + scale * move
        value, gradient, information = trial
        if np.abs(scale * move).max(initial=0.0) < tol:
            break
    return Fitted(beta, np.linalg.pinv(information), value, step)


def test_shares_and_false_discovery_rates_equal_statsmodels() -> None:
    from scipy import stats
    from statsmodels.stats.multitest import multipletests
    from statsmodels.stats.proportion import proportion_confint

    for k, n in ((0, 12), (3, 40), (40, 40), (517, 9_000)):
        assert wilson(k, n) == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-12)
    p = np.random.default_rng(0).random(30) ** 3
    assert adjusted(p) == pytest.approx(multipletests(p, method="fdr_bh")[1], abs=1e-12)
    assert normal_p(2.5) == pytest.approx(2 * stats.norm.sf(2.5), rel=1e-12)
    assert chi_square(7.0, 3) == pytest.approx(stats.chi2.sf(7.0, 3), rel=1e-12)


def test_an_unknown_p_value_stays_unknown_and_changes_no_other() -> None:
    with_gap = adjusted([0.01, np.nan, 0.04])
    assert np.isnan(with_gap[1])
    assert with_gap[[0, 2]] == pytest.approx(adjusted([0.01, 0.04]))


def test_log_f_equals_a_regression_on_augmented_data() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(1)
    x = rng.random((80, 2)) < 0.3
    x = x.astype(float)
    y = (rng.random(80) < 0.4).astype(float)
    y[x[:, 1] == 1] = 1.0  # separated

    def derivatives(b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        design = np.column_stack([np.ones(80), x])
        eta = design @ b
        mu = 1 / (1 + np.exp(-eta))
        height, score, information = logf(b[1:])
        gradient = design.T @ (y - mu)
        gradient[1:] += score
        more = np.diag([0.0, *information])
        return (
            float(y @ eta - np.logaddexp(0, eta).sum()) + height,
            gradient,
            (design * (mu * (1 - mu))[:, None]).T @ design + more,
        )

    found = newton(derivatives, np.zeros(3))
    # one more row a coefficient: covariate 1, no intercept, half an event and half a non-event
    design = np.vstack([np.column_stack([np.ones(80), x]), [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    outcome = np.r_[y, 1, 0, 1, 0]
    weights = np.r_[np.ones(80), 0.5, 0.5, 0.5, 0.5]
    oracle = sm.GLM(outcome, design, family=sm.families.Binomial(), freq_weights=weights).fit(tol=1e-14, maxiter=200)
    assert found.beta == pytest.approx(oracle.params, abs=1e-6)
    assert found.se == pytest.approx(oracle.bse, rel=1e-5)


def _ranks(*hospitals: tuple[np.ndarray, np.ndarray]) -> Ranks:
    """Of (scores, outcome) of some hospitals; everybody is in the first half."""
    sums = sum(ranked(np.atleast_2d(s), y) for s, y in hospitals)
    return Ranks(np.stack([sums, np.zeros_like(sums)]))


def test_the_area_equals_scikit_learn_and_its_variance_delongs() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(2)
    y = (rng.random(900) < 0.2).astype(int)
    score = np.round(rng.standard_normal(900) + 0.9 * y, 2)  # ties
    area = _ranks((score, y)).area(0)
    assert area.value == pytest.approx(roc_auc_score(y, score), abs=1e-12)
    kernel = (score[y == 1][:, None] > score[y == 0]) + 0.5 * (score[y == 1][:, None] == score[y == 0])
    variance = kernel.mean(1).var() / (y == 1).sum() + kernel.mean(0).var() / (y == 0).sum()
    assert area.variance == pytest.approx(variance, rel=1e-10)
    assert (area.cases, area.others) == (int(y.sum()), int((1 - y).sum()))


def test_patients_of_different_hospitals_are_never_compared() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(3)
    hospitals, weights, values = [], [], []
    for n, shift in ((300, 0.0), (120, 50.0), (80, -9.0)):
        y = (rng.random(n) < 0.3).astype(int)
        score = rng.standard_normal(n) + y + shift
        hospitals.append((score, y))
        weights.append(y.sum() * (1 - y).sum() / n)
        values.append(roc_auc_score(y, score))
    hospitals.append((rng.standard_normal(40), np.zeros(40, int)))  # without the outcome a hospital says nothing
    assert _ranks(*hospitals).value(0) == pytest.approx(np.average(values, weights=weights), abs=1e-12)


def test_the_paired_gain_equals_the_difference_and_knows_the_pairing() -> None:
    rng = np.random.default_rng(4)
    y = (rng.random(600) < 0.3).astype(int)
    a = rng.standard_normal(600) + y
    found = _ranks((np.stack([a, a + 0.05 * rng.standard_normal(600)]), y))
    gap, low, high = found.gain(1)
    areas = [found.area(i) for i in (0, 1)]
    assert gap == pytest.approx(areas[0].value - areas[1].value, abs=1e-12)
    assert high - low < 0.2 * (areas[0].high - areas[0].low)


def test_intervals_stay_open_where_everything_is_ranked_right() -> None:
    area = _ranks((np.r_[np.zeros(100), np.ones(5)], np.r_[np.zeros(100), np.ones(5)])).area(0)
    assert (area.value, area.high) == (1.0, 1.0)
    assert 0.4 < area.low < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("true", [0.76, 0.96, 0.98])
@pytest.mark.parametrize("shape", ["normal", "exponential", "wide"])
def test_intervals_of_the_area_cover_with_eleven_cases(true: float, shape: str) -> None:
    from scipy.stats import norm

    rng, covered = np.random.default_rng(int(1000 * true) + len(shape)), 0
    for _ in range(500):
        if shape == "exponential":
            scores = rng.exponential(true / (1 - true), 11), rng.exponential(1.0, 289)
        else:
            sd = 2.0 if shape == "wide" else 1.0
            scores = sd * rng.standard_normal(11) + norm.ppf(true) * np.hypot(1, sd), rng.standard_normal(289)
        area = _ranks((np.concatenate(scores), np.r_[np.ones(11), np.zeros(289)])).area(0)
        covered += area.low <= true <= area.high
    assert covered / 500 >= 0.92


def test_calibration_groups_hold_enough_of_both_kinds() -> None:
    rng = np.random.default_rng(5)
    risk = np.linspace(0.01, 0.6, 50)
    size = np.full(50, 40.0)
    cases = rng.binomial(40, risk).astype(float)
    groups = calibration(cases, size - cases, risk)
    assert 2 <= len(groups) <= 10
    assert all(low <= seen <= high for _, seen, low, high in groups)
    assert calibration(np.r_[3.0, np.zeros(9)], np.full(10, 20.0), np.linspace(0, 1, 10)) == ()


@pytest.fixture(scope="module")
def stays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(6)
    x = np.column_stack([rng.random(400) < 0.3, rng.standard_normal(400)]).astype(float)
    hidden = rng.exponential(8 * np.exp(-0.6 * x[:, 0] - 0.3 * x[:, 1]))
    leave = rng.exponential(12, 400)
    time = np.minimum(np.minimum(hidden, leave), 13.5).astype(int)
    return x, time, (hidden <= leave) & (hidden < 13.5)


def test_survival_equals_lifelines(stays: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    from lifelines import KaplanMeierFitter
    from lifelines.statistics import logrank_test

    x, time, event = stays
    groups = []
    for carrier in (1, 0):
        use = x[:, 0] == carrier
        groups.append(tuple(np.bincount(time[use & (event == k)], minlength=14) * 1.0 for k in (False, True)))
        fitted = KaplanMeierFitter().fit(time[use] + 1, event[use])
        curve = kaplan_meier(*groups[-1])  # type: ignore[arg-type]
        at = np.arange(1, 15)
        assert curve.share == pytest.approx(fitted.survival_function_at_times(at).to_numpy(), abs=1e-12)
        ours = np.column_stack([curve.low, curve.high])
        theirs = fitted.confidence_interval_survival_function_.reindex(at).ffill().to_numpy()
        assert ours == pytest.approx(theirs, abs=1e-8)
    use = x[:, 0] == 1
    oracle = logrank_test(time[use], time[~use], event[use], event[~use])
    statistic, p = log_rank(*groups)  # type: ignore[arg-type]
    assert statistic == pytest.approx(oracle.test_statistic, rel=1e-10)
    assert p == pytest.approx(oracle.p_value, rel=1e-9)


def _gaps(time: np.ndarray, event: np.ndarray, width: int, until: float) -> tuple[np.ndarray, Survival, Any]:
    """Distances between the curve on a grid and lifelines' Kaplan-Meier of exact times, at every grid point; and both."""
    from lifelines import KaplanMeierFitter

    steps = int(until // width)
    fitted = KaplanMeierFitter().fit(time, event)
    step = np.minimum(step_of(time, width), steps)
    gone = [np.bincount(step[event == k], minlength=steps + 1)[:steps].astype(np.float64) for k in (False, True)]
    beyond = float((step == steps).sum())
    low, curve, high = (kaplan_meier(gone[0], gone[1], beyond, m) for m in (1.0, 0.5, 0.0))
    exact = fitted.survival_function_at_times(width * np.arange(1, steps + 1)).to_numpy()
    assert (low.share - 1e-9 <= exact).all() and (exact <= high.share + 1e-9).all(), "whatever the order within a step"
    return np.abs(curve.share - exact), curve, fitted


@pytest.mark.parametrize("width", [30, 90, 180, 365])
def test_survival_on_a_grid_is_within_a_thousandth_of_exact_times(width: int) -> None:
    from lifelines.utils import restricted_mean_survival_time

    rng = np.random.default_rng(width)
    death, leave = 9_000 * rng.weibull(1.3, 40_000), rng.exponential(4_000, 40_000)
    gaps, curve, fitted = _gaps(np.minimum(death, leave), death <= leave, width, 3650)
    assert gaps.max() < 1e-3
    mean = restricted_mean_survival_time(fitted, t=float(width * len(gaps)))
    assert restricted_mean(curve, width) == pytest.approx(mean, rel=1e-3)


def test_survival_of_the_demo_is_within_a_thousandth_of_exact_times() -> None:
    """Its times fall fast at first, so that its grid is a week. On coarser grids the findings say how far off they may be."""
    sites = pc.datasets.icu_network(patients=3000, seed=0, people=True)
    time, event = (np.concatenate([getattr(s.people, k) for s in sites]) for k in ("time", "event"))
    model = pc.SumALS(rank=2, rounds=2, seed=0).fit(sites)
    gaps, _, fitted = _gaps(time, event.astype(bool), 7, 182)
    assert gaps.max() < 1e-3
    for width, coarse in ((7, False), (30, False), (90, True), (180, True)):
        act = SurvivalAnalysis(model=Projector.of(model.result_), width=width, until=182.0)
        table = np.zeros((3, 2, act.grid + 1, 2))
        np.add.at(table[-1, 0], (np.minimum(step_of(time, width), act.grid), event.astype(int)), 1.0)
        public = act.init_public(Schema((12, 15), (), ("north",)), np.random.default_rng(0))
        (found,) = survival_found(act, replace(public, table=table))
        rows = [r for r in found.curve if 0 < r["time"] <= 182]
        exact = fitted.survival_function_at_times([r["time"] for r in rows]).to_numpy()
        gap = np.abs(np.array([r["survival"] for r in rows]) - exact).max()
        assert gap <= found.grid_error and bool(found.warnings) == coarse == (found.grid_error > 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "most"), [(30, 1e-3), (90, 1e-3), (180, 1e-3), (365, 2e-3)])
def test_survival_of_claims_on_a_grid_is_near_exact_times(
    width: int, most: float, data_path: Callable[[str], Path]
) -> None:
    """Deaths after the first stay of DE-SynPUF, until the end of 2010."""
    import duckdb

    folder = data_path("cms_desynpuf")
    day = "strptime({}, '%Y%m%d')".format
    stays = f"read_csv('{folder}/sample_*/inpatient_claims.csv.gz', all_varchar = true)"
    lives = f"read_csv('{folder}/sample_*/beneficiary_*.csv.gz', all_varchar = true)"
    columns = duckdb.sql(
        f"SELECT date_diff('day', first, coalesce(dead, TIMESTAMP '2010-12-31')) + 0.5 AS time, dead IS NOT NULL AS event FROM "
        f"(SELECT DESYNPUF_ID, min({day('CLM_FROM_DT')}) AS first FROM {stays} WHERE CLM_FROM_DT <> '' GROUP BY 1) LEFT JOIN "
        f"(SELECT DESYNPUF_ID, min({day('BENE_DEATH_DT')}) AS dead FROM {lives} WHERE BENE_DEATH_DT <> '' GROUP BY 1) USING (DESYNPUF_ID)"
    ).fetchnumpy()
    time, event = np.asarray(columns["time"], np.float64), np.asarray(columns["event"], bool)
    assert _gaps(time, event, width, time.max())[0].max() < most


def test_cox_with_efrons_ties_equals_statsmodels(stays: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    from statsmodels.duration.hazard_regression import PHReg

    x, time, event = stays
    fit = newton(lambda b: efron(efron_sums(x, time, event, 14, b), b), np.zeros(2))
    oracle = PHReg(time, x, status=event.astype(int), ties="efron").fit(disp=0)
    assert fit.beta == pytest.approx(oracle.params, rel=1e-6)
    assert fit.se == pytest.approx(oracle.bse, rel=1e-6)
