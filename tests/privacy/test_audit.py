"""The audit passes what is right and finds what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from polyclinic.auditing.run import audit
from polyclinic.auditing.statistics import judge, mu_estimate, one_run_epsilon, one_run_p_value
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import calibrate, gaussian_epsilon
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.card.card import make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.facts import MethodFacts
from polyclinic.privacy.release import Release
from polyclinic.protocol.interfaces import Contribution, Method, Step
from polyclinic.protocol.params import Params

GRID = 2.0**-16


@dataclass(frozen=True)
class Public:
    round: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Private:
    done: int = 0


class UnitSums(Method[Any, Any, Any]):
    """The smallest private method: every round releases the sum of patients' vectors of length 1."""

    name = "unitsums"
    Params = Params
    Public = Public
    Private = Private

    def __init__(self, *, normalise: bool = True, **values: Any) -> None:
        self.params = Params(**values)
        self.normalise = normalise

    def init_public(self, setting: Any, rng: np.random.Generator) -> Any:
        return Public(1, setting.shape)

    def next_step(self, public: Any) -> Step | None:
        p = self.params
        if public.round > p.rounds:
            return None
        shapes = {f"mode{n}": (d,) for n, d in enumerate(public.shape, start=1)}
        multiplier = calibrate(p.privacy.epsilon, p.privacy.delta, rounds=p.rounds)[0]
        return Step(public.round, "sums", shapes, bound=1e9, sensitivity=1.0, multiplier=multiplier, grid=GRID)

    def update_public(self, step: Step, public: Any, total: Any) -> Any:
        return replace(public, round=public.round + 1)

    def init_site(self, site: Any, public: Any, rng: np.random.Generator) -> Any:
        return Private()

    def contribute(self, step: Step, site: Any, private: Any, public: Any, rng: np.random.Generator) -> Any:
        t = site.counts()
        wide = [np.zeros((t.patients, d)) for d in public.shape]
        for w, column in zip(wide, t.coords[:, 1:].T):
            np.add.at(w, (t.coords[:, 0], column), t.values)
        if self.normalise:
            length = np.sqrt(sum((w**2).sum(1) for w in wide))
            wide = [w / np.maximum(length, 1e-300)[:, None] for w in wide]
        arrays = {f"mode{n}": np.trunc(w / GRID).sum(0) * GRID for n, w in enumerate(wide, start=1)}
        return private, Contribution(arrays)

    def finalize_site(self, site: Any, private: Any, public: Any) -> Any:
        return {}


class Scaled(SimulatedNoise):
    """A broken source: noise too small by a factor."""

    def __init__(self, factor: float, seed: int = 0) -> None:
        super().__init__(np.random.default_rng(seed))
        self.factor = factor

    def integers(self, sd: float, shape: Any) -> Any:
        return super().integers(sd / self.factor, shape)


def private(eps: float = 2.0, **more: Any) -> UnitSums:
    return UnitSums(rounds=4, privacy=Privacy(eps, 1e-6), **more)


# ---- the statistics


@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_one_run_p_value_holds_for_randomised_response(eps: float) -> None:
    """Randomised response is the worst case of pure privacy: its p-values are valid, and tight."""
    rng = np.random.default_rng(0)
    correct = rng.binomial(200, 1 / (1 + math.exp(-eps)), 3000)
    small = np.mean([one_run_p_value(200, 200, int(v), eps, 0.0) <= 0.05 for v in correct])
    assert 0.02 < small < 0.065


def test_delta_only_weakens_the_bound() -> None:
    assert one_run_p_value(500, 100, 90, 1.0, 1e-5) > one_run_p_value(500, 100, 90, 1.0, 0.0)


@pytest.mark.parametrize("mu", [0.237, 0.448, 1.532])
def test_one_run_bound_stays_below_the_truth(mu: float) -> None:
    rng = np.random.default_rng(1)
    truth = gaussian_epsilon(mu, 1e-6)
    bounds = []
    for _ in range(20):
        included = rng.random(1000) < 0.5
        bounds.append(one_run_epsilon(rng.standard_normal(1000) + mu * included, included, delta=1e-6))
    assert max(bounds) < truth
    assert max(bounds) > 0.3 * truth, "a bound that never rises would be no test"


def test_mu_estimate_is_unbiased_with_the_stated_error() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(300):
        included = rng.random(400) < 0.5
        found.append(mu_estimate(3 * (rng.standard_normal(400) + 0.5 * included), included)[0])
    assert np.mean(found) == pytest.approx(0.5, abs=0.02)
    assert np.std(found) == pytest.approx(0.1, abs=0.015)


def test_scores_that_ignore_the_canaries_have_no_power() -> None:
    rng = np.random.default_rng(3)
    included = rng.random(1000) < 0.5
    result = judge("deaf", rng.standard_normal(1000), included, epsilon=2.0, delta=1e-6, mu=0.448)
    assert result.verdict == "no power"
    assert not result.passed


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        mu_estimate(np.zeros(6), np.array([True, False] * 3))


# ---- whole runs


@pytest.mark.parametrize("eps", [1.0, 8.0])
def test_the_right_implementation_passes(eps: float) -> None:
    result = audit(private(eps), noise=SimulatedNoise(np.random.default_rng(5)))
    assert result.passed, str(result)
    assert result.epsilon == pytest.approx(eps, abs=1e-6)
    assert result.lower_bound <= eps
    assert result.largest_norm == pytest.approx(1, abs=1e-3)


SABOTAGE = {
    "noise halved": (private(), Scaled(2)),
    "noise / 5": (private(), Scaled(5)),
    "normalisation skipped": (private(normalise=False), Scaled(1)),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_the_audit_fails(name: str) -> None:
    method, noise = SABOTAGE[name]
    result = audit(method, canaries=1000, noise=noise)
    assert result.verdict == "failed", str(result)
    assert any("mu" in f for f in result.faults)
    if name != "noise halved":  # too small a fault for the assumption-free bound (PRIVACY 3.7)
        assert result.lower_bound > result.epsilon


def test_noise_that_is_missing_altogether_is_found() -> None:
    assert audit(private(), canaries=100, noise=Scaled(1e9)).verdict == "failed"


def test_nothing_to_audit_is_said_so() -> None:
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit(UnitSums(rounds=2))


def test_the_result_stands_on_the_card_and_never_bare() -> None:
    result = audit(private(), canaries=300, noise=SimulatedNoise(np.random.default_rng(7)))
    step = private().next_step(Public(1, (3, 4)))
    releases = [Release(k, step) for k in range(4)]  # type: ignore[arg-type]
    card = make_card(MethodFacts(formal=True), ReleaseHistory.of("unitsums", releases)).with_audit(result.summary())
    assert "one-run lower bound" in str(card)
    for line in (*str(card).splitlines(), *str(result).splitlines()):
        if "epsilon" in line and any(c.isdigit() for c in line):
            assert "delta" in line
            assert "patient" in line
