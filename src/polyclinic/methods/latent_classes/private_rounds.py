"""Private latent classes: the phases with patient-level differential privacy.

Kinds, levels and limits of all columns are public. Measurements are summed in units of each class's own, public, centre and spread,
so that noise is small next to them. With y = (x - mu_j) / sd_j, cut off at ``REACH``, one round is

    hospital k     x_k = sum_i v_i,   v_i = r_ij (1, levels, counts, (y / REACH, (y / REACH)^2, 1)) / L,   |v_i| <= 1
    coordinator    T = sum_k x_k + noise, averaged with earlier releases; w, theta = the M-step from T and ``smoothing``

where L is the largest length that a patient's statistics can have. Every row is truncated toward zero to whole multiples of 2^-16,
so that one patient moves a sum by at most 1. Cutting off narrows a Gaussian by a known factor, which is divided out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from polyclinic.methods.latent_classes.pair_start import PairTable, from_bins
from polyclinic.methods.latent_classes.state import ClassPrivate, ClassPublic, LatentClassParams
from polyclinic.models.mixtures.columns import Array, Layout
from polyclinic.models.mixtures.gaussian import blocks
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.interfaces import Answer, Contribution, Step, Total
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.methods.latent_classes.latent_class import LatentClass

GRID: Final = 2.0**-16  # limit: sums are whole multiples of it, so that sums and noise are exact integers

MEMORY: Final = 0.7  # a noisy release counts for so much less with every later one
START_SHARE: Final = 0.2  # of the budget, for the pairwise tables

REACH: Final = 3.0  # limit: standard deviations at which a measurement is cut off
_tail = float(norm.sf(REACH))
NARROWED: Final = 1 - 2 * _tail - 2 * REACH * float(norm.pdf(REACH)) + 2 * REACH**2 * _tail  # E of y^2, cut off


def _multiplier(p: LatentClassParams, share: float) -> float:
    """Return the noise of a release that has this share of the budget."""
    assert p.privacy is not None
    (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(float(share),))
    return multiplier


class NoisyPairs(PairTable):
    """How often two answers occur together, with noise: the start."""

    def step(self, public: ClassPublic) -> Step:
        d = len(public.names)  # a patient adds 1 to at most d (d + 1) / 2 cells
        multiplier = _multiplier(self.fit.params, START_SHARE)
        return replace(super().step(public), sensitivity=float(np.sqrt(d * (d + 1) / 2)), multiplier=multiplier)

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """w_j, theta_j = those of the classes whose tables n sum_j w_j p_ja p_jb are nearest."""
        weights, probabilities = self.fit_tables(public, total)
        return self.fit.onward(replace(public, weights=weights, profiles=from_bins(public.layout, probabilities)))


class NoisyClassEM(Phase[ClassPublic, ClassPrivate]):
    """Rounds of EM."""

    fit: LatentClass

    @property
    def rounds(self) -> int:
        return min(self.fit.params.rounds, self.fit.params.paid_rounds)

    def enter(self, public: ClassPublic) -> ClassPublic:
        return self.fit.begin_rounds(public)

    def step(self, public: ClassPublic) -> Step:
        p = self.fit.params
        weights = np.arange(1, self.rounds + 1, dtype=float)  # later rounds have more of the budget
        start = 0.0 if p.profiles_init is not None else START_SHARE
        return Step(
            public.round,
            "statistics",
            {"sums": (len(public.weights), public.layout.width)},
            bound=float(p.max_patients),
            sensitivity=1.0,
            multiplier=_multiplier(p, (1 - start) * weights[public.round - 1] / weights.sum()),
            grid=GRID,
        )

    def contribute(self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic) -> Answer[ClassPrivate]:
        """x_k = sum_i v_i, |v_i| <= 1, in whole multiples of the grid."""
        X, layout = site.matrix(), public.layout
        theta = layout.natural(public.weights, public.profiles)
        total = np.zeros((len(theta), layout.width), np.int64)
        for s in blocks(len(X), layout.width * len(theta)):
            F, base = layout.read(X[s])
            joint = F @ theta.T + base[:, None]
            r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
            rows = r[:, :, None] * in_own_units(layout, public.profiles, X[s], F) / (layout.longest * GRID)
            total += np.trunc(rows).astype(np.int64).sum(0)  # toward zero: no row's length can grow
        return private, Contribution({"sums": np.multiply(total, GRID, dtype=np.float64)})

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """T = (MEMORY lambda T_old + x / sd^2) / (MEMORY lambda + 1 / sd^2), then the M-step from T."""
        p, layout = self.fit.params, public.layout
        sums = in_public_units(layout, public.profiles, total.arrays["sums"] * layout.longest)
        precision = 1.0 / max(total.noise_sd, 1e-12) ** 2
        if public.released is not None:  # classes move little, and earlier releases cost budget already
            earlier = MEMORY * public.precision
            sums = (earlier * public.released + precision * sums) / (earlier + precision)
            precision += earlier
        # As many average patients as the noise is large: they hold a class that the noise would else invent.
        smoothing = max(p.smoothing, layout.longest / float(np.sqrt(precision)))
        weights, profiles = layout.maximised(sums, smoothing=smoothing, reg_covar=p.reg_covar)
        state = replace(public, weights=weights, profiles=profiles, released=sums, precision=precision)
        return self.fit.onward(state) if public.round >= self.rounds else replace(state, round=public.round + 1)


def in_own_units(layout: Layout, profiles: Array, X: Array, F: Array) -> Array:
    """(n, k, width) statistics with measurements in each class's units; every column's part has its bounded length."""
    out, t, p = np.repeat(F[:, None, :], len(profiles), axis=1), 1, 0
    for j, c in enumerate(layout.columns):
        if c.kind == "continuous":
            x = np.clip(X[:, j], c.low, c.high)[:, None]
            y = np.clip((x - profiles[:, p]) / np.sqrt(profiles[:, p + 1]), -REACH, REACH) / REACH
            y = np.where(np.isnan(y), 0.0, y)
            out[:, :, t], out[:, :, t + 1] = y, y * y
        t, p = t + c.statistics, p + c.parameters
    return out


def in_public_units(layout: Layout, profiles: Array, sums: Array) -> Array:
    """(k, width) sums of :func:`in_own_units` as sums in the columns' public centre and unit."""
    out, t, p = np.array(sums), 1, 0
    for c in layout.columns:
        if c.kind == "continuous":
            shift = (profiles[:, p] - c.centre) / c.unit
            spread = REACH * np.sqrt(profiles[:, p + 1]) / c.unit
            first, present = spread * sums[:, t], np.maximum(sums[:, t + 2], 1.0)
            second = np.maximum(spread**2 * sums[:, t + 1] / NARROWED, first**2 / present)
            out[:, t], out[:, t + 1] = shift * present + first, shift**2 * present + 2 * shift * first + second
            out[:, t + 2] = present
        t, p = t + c.statistics, p + c.parameters
    return out
