"""Sum EM statistics with a bounded row per patient, so that one noisy release a round protects every patient.

Every record is measured in units of each group's own, public, covariance: ``y = P_j'(x - mu_j)`` with the OLD centre, so that
one release serves the whole M-step. A patient's row is ``r_j (1, y / c, y y' / c^2) / sqrt 3`` over all groups, pulled back to
length 1 where it is longer. Inside the radius ``c`` its length is at most ``|r|_2 sqrt(1 + 1 + 1) / sqrt 3 <= 1`` already, so
typical patients are untouched, and the sensitivity is 1 whatever the record (docs/dev/decisions/0005-mixture-units.md). Against raw moments in a ball of radius R
(sensitivity sqrt 3 in units of R^2) the noise on a covariance falls from R^2 to c^2 times the group's own variance.

Pulling back outliers shrinks covariances a little; under a Gaussian the factor is a known constant, and is divided out.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import logsumexp
from scipy.stats import chi2

from polyclinic.methods.mixtures.statistics import shapes
from polyclinic.methods.moments.moments import unit_rows, whole
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture, blocks, whitened
from polyclinic.models.mixtures.missing import Patterns

ROOT3 = np.sqrt(3.0)  # definition: a patient's row has three parts, each of length at most 1
SHRINK, GROW = 0.2, 5.0  # how far one noisy release may narrow or widen a group along any direction


def reach(d: int) -> float:
    """Return the radius c, in standard deviations, up to which a row is not pulled back: 95 % of a Gaussian group.

    >>> round(reach(2), 2)
    2.45
    """
    return float(np.sqrt(chi2.ppf(0.95, d)))


@cache
def consistency(d: int) -> float:
    """Return the factor by which pulling back outliers narrows the covariance of a Gaussian group.

    >>> 0.85 < consistency(2) < 1.0
    True
    """
    # midpoints of equal slices of probability: an integral over the chi-square law without its density
    m2 = chi2.ppf((np.arange(20_000) + 0.5) / 20_000, d)
    t = m2 / reach(d) ** 2
    pull = np.minimum(1.0, ROOT3 / np.sqrt(1 + t + t * t))
    return float((pull * m2).sum() / (d * pull.sum()))


def widths(kind: CovarianceType, d: int) -> int:
    """Count the scalars of second moments per group (for tied: in all)."""
    return {"full": d * (d + 1) // 2, "tied": d * (d + 1) // 2, "diag": d, "spherical": 1}[kind]


def patient_rows(z: Array, mixture: Mixture, factors: Array) -> Array:
    """(n, k + kd + second moments) one row per patient, before it is pulled back to length 1."""
    k, d, kind = mixture.k, mixture.d, mixture.kind
    joint = mixture.log_joint(z, factors)
    r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    first = np.empty((len(z), k, d))
    second = np.zeros((len(z), 1 if kind == "tied" else k, widths(kind, d)))
    gaps = np.isnan(z).any(1)
    patterns = Patterns.found(z[gaps])
    for g in range(k):
        # Missing values are what the patient's own values and the public group let expect: still one row of one patient.
        view = mixture.seen(z[gaps], patterns, g) if gaps.any() else None
        difference = z - mixture.means[g]
        if view is not None:
            difference[gaps] = view.difference
        y = whitened(kind, difference, factors, g) / reach(d)
        square = _squares(kind, y)
        if view is not None:
            square[gaps] += _expected_squares(kind, view.spread, factors if kind == "tied" else factors[g])[patterns.of]
        if kind == "spherical":
            square = square.sum(1, keepdims=True)
        first[:, g] = r[:, [g]] * y
        second[:, g % second.shape[1]] += r[:, [g]] * square
    return np.asarray(np.concatenate([r, first.reshape(len(z), -1), second.reshape(len(z), -1)], 1) / ROOT3)


def _squares(kind: CovarianceType, y: Array) -> Array:
    """(n, pairs or features) second moments of each record; pairs times sqrt 2, so that lengths are those of yy'."""
    if kind in ("full", "tied"):
        i, j = np.triu_indices(y.shape[1])
        return np.asarray(y[:, i] * y[:, j] * np.where(i == j, 1.0, np.sqrt(2.0)))
    return y**2


def _expected_squares(kind: CovarianceType, spread: Array, factor: Array) -> Array:
    """(patterns, pairs or features) what is uncertain about missing values adds to them."""
    d = spread.shape[1]
    if kind in ("full", "tied"):
        i, j = np.triu_indices(d)
        square = np.einsum("pr,tpq,qs->trs", factor, spread, factor) / reach(d) ** 2
        return np.asarray(square[:, i, j] * np.where(i == j, 1.0, np.sqrt(2.0)))
    return np.asarray(spread * np.square(factor) / reach(d) ** 2)


def bounded(Z: Array, mixture: Mixture) -> dict[str, Array]:
    """Sum one site's bounded rows, shaped like exact statistics, to whole multiples of 2^-20.

    Parameters
    ----------
    Z
        (n, d) records in units of the public ball.
    mixture
        The public mixture in the same units.
    """
    k, d, kind = mixture.k, mixture.d, mixture.kind
    factors, forms = mixture.precisions_cholesky(), shapes(kind, k, d)
    total = np.zeros(k + k * d + int(np.prod(forms["C"])))
    for s in blocks(len(Z), len(total)):
        total += unit_rows(patient_rows(Z[s], mixture, factors)).sum(0)
    return {
        "a": total[:k],
        "b": total[k : k + k * d].reshape(k, d),
        "C": total[k + k * d :].reshape(forms["C"]),
    }


def improve(sums: dict[str, Array], noise_sd: float, old: Mixture, *, reg_covar: float) -> Mixture:
    """Take the M-step from noisy sums; covariances stay positive definite, and groups drowned in noise keep their place.

    Parameters
    ----------
    sums
        Totals of :func:`bounded`.
    noise_sd
        Standard deviation of the noise in every entry of the totals.
    old
        The mixture under which the rows were made.
    reg_covar
        Ridge, in the units of the records.
    """
    d, kind, c = old.d, old.kind, reach(old.d)
    floor = 4 * noise_sd  # fewer patients than this cannot be told from noise
    a = np.maximum(sums["a"], floor if floor > 0 else 1e-12)
    visible = sums["a"] > floor
    move = np.where(visible[:, None], c * sums["b"] / a[:, None], 0.0)
    length = np.sqrt((move**2).sum(1, keepdims=True))
    move = move / np.maximum(length / c, 1.0)  # nobody moves further than the radius in one round
    weights = a / a.sum()
    fix = c * c / consistency(d)
    if kind in ("full", "tied"):
        i, j = np.triu_indices(d)
        square = whole(sums["C"] / np.where(i == j, 1.0, np.sqrt(2.0)), d) * fix
        if kind == "tied":
            inner = _between(square / a.sum() - np.einsum("g,gp,gq->pq", weights, move, move))
            lower = np.linalg.cholesky(old.covariances)
            covariances = lower @ inner @ lower.T + reg_covar * np.eye(d)
            means = old.means + move @ lower.T
        else:
            covariances, means = old.covariances.copy(), old.means.copy()
            for g in np.flatnonzero(visible):
                inner = _between(square[g] / a[g] - np.outer(move[g], move[g]))
                lower = np.linalg.cholesky(old.covariances[g])
                covariances[g] = lower @ inner @ lower.T + reg_covar * np.eye(d)
                means[g] = old.means[g] + lower @ move[g]
        return Mixture(weights, means, covariances, kind)
    if kind == "diag":
        inner = np.clip(fix * sums["C"] / a[:, None] - move**2, SHRINK, GROW)
        inner[~visible] = 1.0
        sd = np.sqrt(old.covariances)
    else:
        inner = np.clip((fix * sums["C"] / a - (move**2).sum(1)) / d, SHRINK, GROW)
        inner[~visible] = 1.0
        sd = np.sqrt(old.covariances)[:, None]
    return Mixture(weights, old.means + move * sd, old.covariances * inner + reg_covar, kind)


def _between(square: Array) -> Array:
    """Return the nearest matrix whose directions are neither collapsed nor blown up: noise may not decide that."""
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    return np.asarray((vectors * np.clip(values, SHRINK, GROW)) @ vectors.T)
