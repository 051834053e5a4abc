"""The audit of the real private method: the right one passes, sabotaged ones fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.dpem.state import patient_prior, stacked
from polyclinic.privacy.accounting.mechanisms import ExactNoise, SimulatedNoise
from polyclinic.protocol.interfaces import Contribution, Step
from polyclinic.tensors.kernels import em as em_kernels


class Scaled(SimulatedNoise):
    def __init__(self, factor: float) -> None:
        super().__init__(np.random.default_rng(11))
        self.factor = factor

    def integers(self, sd: float, shape: Any) -> Any:
        return super().integers(sd / self.factor, shape)


class NotNormalised(pc.DPEM):
    """DPEM that forgets to divide a patient's statistics by their length."""

    def contribute(self, step: Step, site: Any, private: Any, public: Any, rng: np.random.Generator) -> Any:
        if step.name == "size":
            return super().contribute(step, site, private, public, rng)
        tensor = site.counts()
        offsets = np.concatenate([[0], np.cumsum([len(m) for m in public.marginals])])[:-1]
        first = step.name == "marginals"
        ones = np.ones((sum(len(m) for m in public.marginals), 1))
        w = ones if first else stacked(public.factors, public.marginals, len(public.mixture))
        prior = np.ones(1) if first else patient_prior(public.mixture, self.params.smoothing)
        a = em_kernels.memberships(tensor, w, prior, steps=8)
        rows = tensor.coords[:, 1:] + offsets
        p = a[tensor.coords[:, 0]] * np.prod([w[r] for r in rows.T], axis=0)
        p = tensor.values[:, None] * p / np.maximum(p.sum(1, keepdims=True), 1e-300)
        sums = np.zeros(w.shape)
        for r in rows.T:
            np.add.at(sums, r, np.trunc(p / em_kernels.GRID))
        return private, Contribution({"sums": sums * em_kernels.GRID})


def private(kind: type = pc.DPEM, eps: float = 2.0) -> pc.DPEM:
    return kind(rank=6, rounds=4, privacy=pc.Privacy(eps, 1e-6))  # type: ignore[no-any-return]


def test_dpem_passes_and_the_canaries_are_seen_as_far_as_the_ledger_allows() -> None:
    result = pc.audit(private(), canaries=1000, patients=500, noise=SimulatedNoise(np.random.default_rng(3)))
    assert result.passed, str(result)
    assert result.epsilon == pytest.approx(2.0, abs=1e-6)
    assert 0.9999 < result.largest_norm <= 1


def test_dpem_passes_with_the_exact_noise_of_a_real_federation() -> None:
    pytest.importorskip("opendp")
    assert pc.audit(private(eps=4.0), canaries=250, patients=300, noise=ExactNoise()).verdict != "failed"


SABOTAGE = {
    "noise halved": (private(), Scaled(2)),
    "noise / 5": (private(), Scaled(5)),
    "normalisation skipped": (private(NotNormalised), Scaled(1)),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_sabotaged_dpem_fails(name: str) -> None:
    method, noise = SABOTAGE[name]
    result = pc.audit(method, canaries=1000, patients=500, noise=noise)
    assert result.verdict == "failed", str(result)
    assert result.mu_hat > result.mu + 5 * result.mu_se
    if name != "noise halved":
        assert result.lower_bound > result.epsilon


def test_canaries_hide_among_real_sites() -> None:
    sites = pc.datasets.planted_counts(600, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    assert pc.audit(private(), sites, canaries=300, noise=SimulatedNoise(np.random.default_rng(3))).passed


def test_a_fit_with_a_prior_passes() -> None:
    """Every canary has codes of its own, so the prior must have room for them. The vote is one number, which no canary
    moves more than another: test_dpem_prior.py bounds it in whole numbers."""
    law, many = {"procedures": 20, "diagnoses": 30, "phenotypes": 3, "codes": (4, 5)}, 300
    sites = pc.datasets.planted_counts(600, sites=3, seed=0, **law)  # type: ignore[arg-type]
    t = pc.datasets.planted_counts(400, seed=1, **law)[0].counts()  # type: ignore[arg-type]
    wide = pc.SparseTensor(t.coords, t.values, (t.patients, *(d + many for d in t.shape[1:])))
    prior = pc.DPEM(rank=4, rounds=4, seed=0).fit([pc.Site("other", wide)])
    method = pc.DPEM(rank=4, rounds=3, privacy=pc.Privacy(2.0, 1e-6), prior=prior, prior_is_public=True)
    result = pc.audit(method, sites, canaries=many, noise=SimulatedNoise(np.random.default_rng(4)))
    assert result.passed, str(result)
    assert result.epsilon == pytest.approx(2.0, abs=1e-6)
    assert result.largest_norm <= 1
    assert not pc.audit(method, sites, canaries=many, noise=Scaled(4)).passed
