"""Inverting EM's sums: what colluding sites learn of the others' patients (ERRATA E4.8).

The colluders know the public mixture before every round and the total of every round. They subtract what they added
themselves; what is left are the sums ``(a, b, C)`` over the honest sites' records: k (1 + d + d(d+1)/2) equations a round for
n d unknowns. With a few records one round is enough, and no way of adding helps: the sums themselves are the leak. With noise
that is paid for at the level of patients the same solver finds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares, linear_sum_assignment

from polyclinic.errors import ConfigError
from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture, MixturePublic, unscaled
from polyclinic.methods.mixtures.private_statistics import bounded, patient_rows
from polyclinic.methods.mixtures.statistics import expect
from polyclinic.methods.moments.moments import in_ball
from polyclinic.models.mixtures.gaussian import Array, Mixture
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import Step, Total
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site


@dataclass(frozen=True)
class AttackerView:
    """What colluders hold of one round: the public mixture, and the honest sites' sums as one vector."""

    mixture: Mixture
    sums: Array
    paid: bool


@dataclass(frozen=True)
class Inversion:
    """The outcome of an attack.

    ``error`` is the largest distance between a true record and the one guessed for it, best matching; ``guess`` is the
    same for records drawn from the public mixture, which needs no attack; ``spread`` the records' standard deviation.
    """

    records: Array
    truth: Array
    error: float
    guess: float
    spread: float
    residual: float

    @property
    def succeeded(self) -> bool:
        """Every record is known to a thousandth of the spread."""
        return self.error < 1e-3 * self.spread


class _Witness(GaussianMixture):
    """The method as it is, with somebody at the coordinator's elbow who writes down totals."""

    def update_public(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        if step.name == "statistics":
            self.__dict__.setdefault("seen", []).append((public, dict(total.arrays)))
        return super().update_public(step, public, total)


def _exact(X: Array, mixture: Mixture) -> Array:
    s = expect(X, mixture)
    return np.concatenate([s.a, s.b.ravel(), s.C.ravel()])


def _paid(Z: Array, mixture: Mixture) -> Array:
    rows = patient_rows(Z, mixture, mixture.precisions_cholesky())
    length = np.sqrt((rows**2).sum(1, keepdims=True))
    return np.asarray((rows / np.maximum(length, 1.0)).sum(0))


def watch(sites: Sequence[Site], honest: Collection[str], **params: Any) -> list[AttackerView]:
    """Run the mixture, and collect what the sites that are not honest know about the rest."""
    method = _Witness(**params)
    Simulation(method, sites).run()
    corrupt = [s.matrix() for s in sites if s.name not in set(honest)]
    views = []
    for public, arrays in method.__dict__["seen"]:
        if not noisy(method.params.privacy):
            total = unscaled(arrays, public.moments.unit, method.params.covariance_type, 1.0)
            sums = np.concatenate([total.a, total.b.ravel(), total.C.ravel()])
            own = sum((_exact(x, public.mixture) for x in corrupt), np.zeros(len(sums)))
        else:
            sums = np.concatenate([arrays[n].ravel() for n in ("a", "b", "C")])
            parts = [bounded(in_ball(x, method._center(x.shape[1]), method._radius), public.mixture) for x in corrupt]
            own = sum((np.concatenate([p[n].ravel() for n in ("a", "b", "C")]) for p in parts), np.zeros(len(sums)))
        views.append(AttackerView(public.mixture, sums - own, noisy(method.params.privacy)))
    return views


def invert(
    views: Sequence[AttackerView], records: int, rng: np.random.Generator, *, starts: int = 40
) -> tuple[Array, float]:
    """Records (n, d), in the mixture's units, that explain the honest sums best, and the residual.

    Parameters
    ----------
    views
        One or more rounds.
    records
        How many records the honest sites hold; the sums tell it themselves when they are exact (the sum of ``a``).
    rng
        For the starts, drawn from the public mixture.
    starts
        How often to try; the search ends early when the sums are explained to rounding.
    """
    if not views or records < 1:
        raise ConfigError("nothing to invert", faults=[f"{len(views)} rounds, {records} records"])
    model = _paid if views[0].paid else _exact
    d = views[0].mixture.d
    size = max(1.0, max(float(np.abs(v.sums).max()) for v in views))

    def residuals(flat: Array) -> Array:
        X = flat.reshape(records, d)
        return np.concatenate([model(X, v.mixture) - v.sums for v in views]) / size

    best, least = np.zeros((records, d)), np.inf
    for _ in range(starts):
        x0 = views[-1].mixture.sample(records, rng)[0]
        found = least_squares(residuals, x0.ravel(), method="trf", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60)
        if found.cost < least:
            best, least = found.x.reshape(records, d), float(found.cost)
        if least < 1e-24:
            break
    return best, float(np.sqrt(2 * least))


def distance(truth: Array, guess: Array) -> float:
    """Largest distance of a record to its partner, over the best matching: sums do not tell who is who."""
    gaps = np.sqrt(((truth[:, None] - guess[None]) ** 2).sum(2))
    rows, columns = linear_sum_assignment(gaps)
    return float(gaps[rows, columns].max())


def run(
    sites: Sequence[Site], honest: Collection[str], *, watched: int = 1, seed: int = 0, starts: int = 40, **params: Any
) -> Inversion:
    """The whole attack: fit, watch ``watched`` rounds, subtract, solve, and compare with the truth.

    Parameters
    ----------
    sites
        All sites.
    honest
        Names of the sites under attack; all others collude.
    watched
        How many rounds the colluders use.
    **params
        Of :class:`~polyclinic.methods.mixtures.gaussian_mixture.GaussianMixture`.
    """
    rng = np.random.default_rng(seed)
    views = watch(sites, honest, seed=seed, **params)
    truth = np.concatenate([s.matrix() for s in sites if s.name in set(honest)])
    used = views[:watched] if params.get("privacy") is None else views[-watched:]  # later rounds carry less noise
    found, residual = invert(used, len(truth), rng, starts=starts)
    drawn = used[-1].mixture.sample(len(truth), rng)[0]
    if params.get("privacy") is not None:
        centre = np.zeros(truth.shape[1]) if params.get("center") is None else np.asarray(params["center"], float)
        found, drawn = centre + params["radius"] * found, centre + params["radius"] * drawn
    everybody = np.concatenate([s.matrix() for s in sites])
    return Inversion(
        found, truth, distance(truth, found), distance(truth, drawn), float(everybody.std(0).mean()), residual
    )
