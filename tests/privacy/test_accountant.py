"""The accountant agrees with the papers, with dp-accounting and with prv-accountant."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from polyclinic.errors import ConfigError, LedgerError
from polyclinic.privacy.accounting import accountant as acc
from polyclinic.privacy.accounting.accountant import ZCDP, DiscreteGaussian, Gaussian, SubsampledGaussian, Unbounded

PAPERS = [(20, 1.2, 1.254, 0.991, 0.889), (49, 1.9, 1.998, 1.638, 1.478), (39, 1.7, 1.773, 1.441, 1.298)]


@pytest.mark.paper
@pytest.mark.parametrize(("epochs", "claimed", "printed", "renyi", "tight"), PAPERS)
def test_the_papers_settings_cost_what_the_table_says(
    epochs: Any, claimed: Any, printed: Any, renyi: Any, tight: Any
) -> None:
    rho, delta = 1e-3, 1e-4
    assert acc.prop_2_8(2 * epochs * rho, delta) == pytest.approx(printed, abs=0.005)
    assert acc.epsilon([ZCDP(rho, 2 * epochs)], delta) == pytest.approx(renyi, abs=0.005)
    assert acc.epsilon([Gaussian((2 * rho) ** -0.5, 2 * epochs)], delta) == pytest.approx(tight, abs=0.005)


@pytest.mark.paper
@pytest.mark.parametrize(
    ("epochs", "claim", "thm", "exact", "tight"),
    [(20, 1.2, 22.62, 23.34, 17.15), (49, 1.9, 22.36, 23.46, 17.95), (39, 1.7, 22.30, 23.28, 17.65)],
)
def test_noise_for_the_claimed_epsilon_matches_the_table(
    epochs: int, claim: float, thm: float, exact: float, tight: float
) -> None:
    delta = 1e-4
    assert (2 * acc.theorem_4_1(claim, delta, epochs=epochs)) ** -0.5 == pytest.approx(thm, abs=0.01)
    assert (2 * acc.theorem_4_1(claim, delta, epochs=epochs, exact=True)) ** -0.5 == pytest.approx(exact, abs=0.01)
    assert acc.calibrate(claim, delta, rounds=2 * epochs)[0] == pytest.approx(tight, abs=0.01)


def test_theorem_4_1_counts_every_feature_mode() -> None:
    three, five = (acc.theorem_4_1(1.0, 1e-4, epochs=10, modes=n, exact=True) for n in (3, 5))
    assert three == pytest.approx(2 * five)
    assert acc.prop_2_8(10 * 4 * five, 1e-4) == pytest.approx(1.0)


@pytest.mark.parametrize(("sigma", "count", "delta"), [(10.0, 8, 1e-6), (1.0, 3, 1e-5), (25.0, 40, 1e-4)])
def test_closed_form_equals_the_privacy_loss_distribution(sigma: float, count: int, delta: float) -> None:
    import dp_accounting as dpa
    from dp_accounting import pld

    a = pld.PLDAccountant()
    a.compose(dpa.GaussianDpEvent(sigma), count)
    assert acc.epsilon([Gaussian(sigma, count)], delta) == pytest.approx(a.get_epsilon(delta), abs=2e-3)


@pytest.mark.parametrize(
    ("q", "sigma", "count", "delta", "renyi", "tight"),
    [(0.1, 2.0, 80, 1e-6, 2.618, 2.397), (0.01, 1.0, 1000, 1e-5, 2.101, 1.829)],
)
def test_subsampled_release_agrees_with_prv_accountant(
    q: float, sigma: float, count: int, delta: float, renyi: float, tight: float
) -> None:
    prv = pytest.importorskip("prv_accountant")
    events = [SubsampledGaussian(q, sigma, count)]
    ours = acc.epsilon(events, delta)
    assert ours == pytest.approx(tight, abs=0.005)
    assert acc.epsilon_rdp(events, delta) == pytest.approx(renyi, abs=0.005)
    other = prv.PRVAccountant(
        prvs=[prv.PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=q)],
        max_self_compositions=[count],
        eps_error=0.01,
        delta_error=delta / 1000,
    )
    low, estimate, high = other.compute_epsilon(delta, [count])
    assert ours == pytest.approx(estimate, abs=0.02)
    assert low - 0.005 <= ours <= high + 0.005


def test_gaussian_curve_agrees_with_prv_accountant() -> None:
    prv = pytest.importorskip("prv_accountant")
    other = prv.PRVAccountant(
        prvs=[prv.GaussianMechanism(10.0)], max_self_compositions=[8], eps_error=0.01, delta_error=1e-9
    )
    assert acc.epsilon([Gaussian(10.0, 8)], 1e-6) == pytest.approx(other.compute_epsilon(1e-6, [8])[1], abs=0.02)


def test_releases_with_unequal_noise_compose_like_one() -> None:
    events = [Gaussian(3.0), Gaussian(4.0, 2), DiscreteGaussian(5.0, sd=2e5)]
    one = Gaussian((1 / 9 + 2 / 16 + 1 / 25) ** -0.5)
    assert acc.epsilon(events, 1e-6) == pytest.approx(acc.epsilon([one], 1e-6), abs=1e-9)  # type: ignore[arg-type]


def test_fine_discrete_gaussian_has_the_continuous_curve() -> None:
    """Hockey-stick divergence of the discrete Gaussian summed on its own lattice, at the coarsest grid accepted."""
    import numpy as np

    sd, shift = acc.FINE, acc.FINE / 2
    x = np.arange(-12 * int(sd), 12 * int(sd) + 1)
    p = np.exp(-(x**2) / (2 * sd**2))
    p /= p.sum()
    q = np.exp(-((x - shift) ** 2) / (2 * sd**2))
    q /= q.sum()
    for eps in (0.5, 1.0, 2.0):
        exact = float(np.clip(q - np.exp(eps) * p, 0, None).sum())
        assert acc.gaussian_delta(eps, 0.5) == pytest.approx(exact, rel=1e-4)


def test_coarse_discrete_gaussian_pays_by_its_zcdp_bound() -> None:
    assert acc.epsilon([DiscreteGaussian(5.0, sd=2.0)], 1e-6) == pytest.approx(
        acc.epsilon([ZCDP(1 / 50)], 1e-6), abs=1e-9
    )


def test_one_unbounded_release_leaves_no_bound() -> None:
    assert acc.epsilon([Gaussian(100.0), Unbounded()], 1e-6) == math.inf
    assert acc.epsilon_rdp([Unbounded()], 1e-6) == math.inf


@pytest.mark.parametrize(("eps", "delta"), [(0.01, 1e-9), (0.5, 1e-6), (1.0, 1e-6), (8.0, 1e-5), (50.0, 1e-6)])
def test_calibration_never_overspends_and_wastes_nothing(eps: float, delta: float) -> None:
    multipliers = acc.calibrate(eps, delta, shares=(0.07, 0.2, 0.3, 0.43))
    spent = acc.epsilon([Gaussian(m) for m in multipliers], delta)
    assert spent <= eps + 1e-9
    assert spent == pytest.approx(eps, rel=1e-6)


def test_calibration_names_every_fault() -> None:
    with pytest.raises(ConfigError) as e:
        acc.calibrate(-1.0, 1e-6, shares=(0.9, 0.2))
    assert len(e.value.faults) == 2


@pytest.mark.parametrize(
    "event", [Gaussian(2.0, 3), DiscreteGaussian(2.0, 100.0), ZCDP(0.1), SubsampledGaussian(0.1, 2.0, 5), Unbounded()]
)
def test_events_survive_the_ledger(event: Any) -> None:
    assert acc.from_json(json.loads(json.dumps(acc.to_json(event)))) == event


def test_unknown_event_is_refused() -> None:
    with pytest.raises(LedgerError):
        acc.from_json({"kind": "laplace", "scale": 1})


def test_gaussian_events_have_a_multiplier_and_others_none() -> None:
    gaussian: list[acc.Event] = [Gaussian(3.0), DiscreteGaussian(3.0, 100.0), SubsampledGaussian(0.1, 3.0)]
    assert [acc.multiplier_of(e) for e in gaussian] == [3.0, 3.0, 3.0]
    others: list[acc.Event | None] = [ZCDP(0.1), Unbounded(), None]
    assert [acc.multiplier_of(e) for e in others] == [None, None, None]
