"""The installed sampler has the distribution the theorem speaks of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from polyclinic.errors import ConfigError, MissingExtra
from polyclinic.privacy.accounting.mechanisms import ExactNoise, SimulatedNoise, discrete_gaussian, secure_generator

pytest.importorskip("opendp")

ALPHA = 1e-5  # false alarms: about one in 100,000 runs per test


def pmf(sd: float, reach: int) -> np.ndarray:
    k = np.arange(-reach, reach + 1)
    p = np.exp(-(k**2) / (2 * sd**2))
    return p / p.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("sd", [0.8, 3.0])
def test_discrete_gaussian_passes_chi_square(sd: float) -> None:
    n, edge = 40_000, int(np.ceil(2.2 * sd))  # every bin, tails too, expects five and more
    x = discrete_gaussian((n,), sd)
    k = np.arange(-60, 61)
    p = pmf(sd, 60)
    expected = np.array([p[k < -edge].sum(), *p[(k >= -edge) & (k <= edge)], p[k > edge].sum()])
    seen = np.array([(x < -edge).sum(), *[(x == j).sum() for j in range(-edge, edge + 1)], (x > edge).sum()])
    assert stats.chisquare(seen, n * expected).pvalue > ALPHA


def test_discrete_gaussian_passes_kolmogorov_smirnov_at_the_working_scale() -> None:
    x = discrete_gaussian((20_000,), 198_162.0)
    assert stats.kstest(x / 198_162.0, "norm").pvalue > ALPHA
    assert abs(x.mean()) / 198_162.0 < 5 / np.sqrt(20_000)
    assert x.std() / 198_162.0 == pytest.approx(1, abs=5 / np.sqrt(40_000))
    assert abs((x > 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(20_000)


def test_a_wrong_sampler_fails_these_tests() -> None:
    """The checks have power: 5 % too little noise, or a shift of a tenth, is found."""
    x = np.rint(secure_generator().standard_normal(20_000) * 198_162.0)
    assert stats.kstest(0.9 * x / 198_162.0, "norm").pvalue < ALPHA
    assert stats.kstest((x + 19_816) / 198_162.0, "norm").pvalue < ALPHA


def test_coordinates_are_independent() -> None:
    x = discrete_gaussian((10_000, 2), 1000.0)
    assert abs(np.corrcoef(x.T)[0, 1]) < 5 / 100  # type: ignore[index]
    assert abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 5 / 100


def test_simulated_noise_is_labelled_and_right_in_distribution() -> None:
    noise = SimulatedNoise(np.random.default_rng(0))
    assert not noise.exact
    assert "simulation" in noise.label
    assert stats.kstest(noise.integers(1e5, (20_000,)) / 1e5, "norm").pvalue > 1e-3


def test_noise_does_not_follow_any_seed() -> None:
    np.random.seed(0)  # noqa: NPY002 - the promise is that it has no effect
    a = SimulatedNoise().integers(1e6, (50,))
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(a, SimulatedNoise().integers(1e6, (50,)))
    assert not np.array_equal(ExactNoise().integers(1e6, (50,)), ExactNoise().integers(1e6, (50,)))


@pytest.mark.parametrize("sd", [-1.0, float("nan"), 2.0**60])
def test_impossible_noise_is_refused(sd: Any) -> None:
    with pytest.raises(ConfigError):
        SimulatedNoise().integers(sd, (2,))


def test_exact_noise_without_opendp_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(MissingExtra, match="exact"):
        ExactNoise()


def test_no_noise_is_no_noise() -> None:
    assert not discrete_gaussian((4,), 0.0).any()
