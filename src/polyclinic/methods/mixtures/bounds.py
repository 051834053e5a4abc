"""How large a site's statistics can be, from what is public, and the units in which they travel."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from polyclinic.methods.mixtures.statistics import Statistics
from polyclinic.methods.moments.moments import ROOM, SummedMoments
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture
from polyclinic.protocol.interfaces import Arrays

__all__ = ["bounds", "scaled", "unscaled"]


def bounds(moments: SummedMoments, m: Mixture) -> tuple[float, float]:
    """Bound of every entry of a site's statistics, and the unit in which it sends its log-likelihood.

    What one site adds is at most what all patients add, and second moments of all patients around any public
    centre follow from the moments: ``sum (x - mu)^2 = n (variance + (mean - mu)^2)``.
    """
    covariance = moments.covariance()
    variance = np.diag(covariance) / moments.unit**2
    second = variance + ((moments.mean - m.means) / moments.unit) ** 2  # (k, d), in units
    factors = m.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = m.log_constants(factors)
    known = np.isfinite(constants)
    lengths = _lengths(moments, m, factors)
    if moments.gaps:
        # what is expected of a missing value: E[d_p^2] <= Sigma_pp (1 + |x_O - mu_O|^2 in units of Sigma_OO)
        own = np.stack([np.diag(m.covariance(j)) for j in range(m.k)]) / moments.unit**2
        second = second + own * (1 + lengths)[:, None]
    reach = second.sum(0).max() if m.kind == "tied" else second.max()
    n = max(moments.n, 1.0)
    # log p >= log(share of j) + log(density of j), for every j; and it is largest if a record sat on all centres
    top = max(abs(float(logsumexp(constants[known]))), float(np.abs(constants[known]).max()))
    if moments.gaps:  # of any part of the features: eigenvalues of a part lie between those of the whole
        values = np.linalg.eigvalsh(np.stack([m.covariance(int(j)) for j in np.flatnonzero(known)]))
        widest = float(np.abs(np.log(np.maximum(values, 1e-300))).max())
        top = float(np.abs(np.log(m.weights[known])).max()) + 0.5 * m.d * (np.log(2 * np.pi) + widest)
    largest = n * (top + 0.5 * float(lengths[known].min())) * ROOM
    return n * max(1.0, float(reach)) * ROOM, max(largest / n, 1.0)


def _lengths(moments: SummedMoments, m: Mixture, factors: Array) -> Array:
    """(k,) mean squared length of all records in units of each group's spread, or a bound of it where values are missing."""
    covariance, out = moments.covariance(), []
    for j in range(m.k):
        gap = moments.mean - m.means[j]
        around = covariance + np.outer(gap, gap)
        f = factors if m.kind == "tied" else factors[j]
        if f.ndim < 2:
            out.append(float((np.diag(around) * f**2).sum()))
        elif moments.gaps:  # x'Ax <= d sum_p A_pp x_p^2; leaving features out only shortens a record
            out.append(m.d * float((np.diag(around) * np.square(f).sum(1)).sum()))
        else:
            out.append(float(np.einsum("pq,pr,qr->", around, f, f)))
    return np.array(out)


def _units(unit: Array, kind: CovarianceType) -> Array | float:
    """Units of second moments, in the shape in which they travel."""
    if kind == "spherical":
        return float((unit**2).sum())
    if kind == "diag":
        return unit**2
    i, j = np.triu_indices(len(unit))
    return np.asarray(unit[i] * unit[j])


def scaled(s: Statistics, unit: Array, kind: CovarianceType) -> dict[str, Array]:
    """Statistics as they travel: in the public units of the features."""
    return {"a": s.a, "b": s.b / unit, "C": s.C / _units(unit, kind)}


def unscaled(arrays: Arrays, unit: Array, kind: CovarianceType, scale: float) -> Statistics:
    """Inverse of :func:`scaled`; ``scale`` is the unit of the log-likelihood."""
    loglik = float(arrays["loglik"][0]) * scale if "loglik" in arrays else 0.0
    return Statistics(np.maximum(arrays["a"], 0.0), arrays["b"] * unit, arrays["C"] * _units(unit, kind), loglik)
