"""Sum what EM needs to know of the patients, three sums per group (eq. 4 of the private EM paper), and take its M-step.

Everything is centred at the OLD centres, which are public: the sums stay small, so nothing cancels, and
``b_j = sum r (x - mu_j)`` is directly the move of the centre. With ``d_j = b_j / a_j`` the exact M-step is
``Sigma = C_j / a_j - d_j d_j'``; the paper's formula leaves out ``d_j d_j'`` (ERRATA E4.9).

A secure sum also needs a public bound of what a site adds (:func:`bounds`) and public units (:func:`scaled`). Both follow from
the moments of all patients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from polyclinic.methods.moments.moments import ROOM, SummedMoments, whole
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture, blocks, squared_distance
from polyclinic.models.mixtures.missing import Patterns
from polyclinic.protocol.interfaces import Arrays

FLOOR = 10 * np.finfo(float).eps  # limit: scikit-learn's guard against dividing by an empty group


@dataclass(frozen=True)
class Statistics:
    """Sums over patients of one E-step.

    ``a`` (k,) patients per group; ``b`` (k, d) first moments around the old centres; ``C`` second moments around them
    as the covariance type needs them: (k, d(d+1)/2) full, (d(d+1)/2,) tied, (k, d) diag, (k,) spherical (the trace);
    ``loglik`` sum of log densities under the OLD mixture.
    """

    a: Array
    b: Array
    C: Array
    loglik: float


def shapes(kind: CovarianceType, k: int, d: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the three sums: c (1 + d + d(d+1)/2) scalars for full covariances (ERRATA E4.10)."""
    pairs = d * (d + 1) // 2
    second: dict[str, tuple[int, ...]] = {"full": (k, pairs), "tied": (pairs,), "diag": (k, d), "spherical": (k,)}
    return {"a": (k,), "b": (k, d), "C": second[kind]}


class GroupSums:
    """The statistics while they are summed: products of features in full, one matrix or vector a group (tied: one in all)."""

    def __init__(self, mixture: Mixture) -> None:
        k, d = mixture.k, mixture.d
        self.kind = mixture.kind
        self.a, self.b, self.loglik = np.zeros(k), np.zeros((k, d)), 0.0
        self.C = np.zeros({"full": (k, d, d), "tied": (1, d, d), "diag": (k, d), "spherical": (k, d)}[self.kind])

    def add(self, j: int, share: Array, difference: Array, spread: Array | None = None) -> None:
        """Add records to group j by their share in it; ``spread``: what missing values add to the products."""
        weighted = difference * share[:, None]
        self.b[j] += weighted.sum(0)
        if self.kind in ("full", "tied"):
            product = weighted.T @ difference
        else:
            product = np.einsum("ip,ip->p", weighted, difference)
        self.C[j % len(self.C)] += product if spread is None else product + spread

    def statistics(self) -> Statistics:
        """Return what leaves: of the products the upper triangle (full, tied), the diagonal (diag), its sum (spherical)."""
        second = self.C
        if self.kind in ("full", "tied"):
            upper = np.triu_indices(second.shape[-1])
            second = second[..., upper[0], upper[1]]
        if self.kind in ("tied", "spherical"):
            second = second[0] if self.kind == "tied" else second.sum(1)
        return Statistics(self.a, self.b, np.ascontiguousarray(second), self.loglik)


def expect(X: Array, mixture: Mixture, *, mass: Array | None = None, hard: bool = False) -> Statistics:
    """Take the E-step of one site, streamed in blocks.

    Parameters
    ----------
    X
        (n, d) records; NaN where a value is missing: then moments are expected ones (``models.mixtures.missing``).
    mixture
        The public mixture.
    mass
        (n,) how many patients each record stands for; None = one each.
    hard
        Give every record to its nearest group alone (a Lloyd step of k-means).

    Examples
    --------
    >>> m = Mixture(np.ones(1), np.zeros((1, 2)), np.ones(1), "spherical")
    >>> s = expect(np.array([[1.0, 0.0], [0.0, 2.0]]), m)
    >>> s.a, s.b, s.C
    (array([2.]), array([[1., 2.]]), array([5.]))
    """
    sums, factors = GroupSums(mixture), mixture.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = mixture.log_constants(factors)
    for s in blocks(len(X), mixture.d):
        x, counts = X[s], None if mass is None else mass[s]
        if np.isnan(x.sum()):
            gaps = np.isnan(x).any(1)
            _add_gaps(sums, x[gaps], mixture, None if counts is None else counts[gaps], hard)
            x, counts = x[~gaps], None if counts is None else counts[~gaps]
        joint = np.empty((mixture.k, len(x)))  # component-major: every row below is contiguous
        for j in range(mixture.k):
            joint[j] = squared_distance(mixture.kind, x - mixture.means[j], factors, j)
        joint *= -0.5
        joint += constants[:, None]
        r = _responsibilities(sums, joint, counts, hard)
        for j in range(mixture.k):
            sums.add(j, r[j], x - mixture.means[j])
    return sums.statistics()


def _responsibilities(sums: GroupSums, joint: Array, mass: Array | None, hard: bool) -> Array:
    """(k, n) eq. 2, times the patients of each record, from log joint densities; adds ``a`` and the log-likelihood."""
    top = logsumexp(joint, axis=0)
    sums.loglik += float(top.sum() if mass is None else top @ mass)
    if hard:
        joint = np.equal(np.argmax(joint, axis=0), np.arange(len(joint))[:, None]).astype(float)
    else:
        joint -= top
        np.exp(joint, out=joint)
    if mass is not None:
        joint *= mass
    sums.a += joint.sum(1)
    return joint


def _add_gaps(sums: GroupSums, x: Array, mixture: Mixture, mass: Array | None, hard: bool) -> None:
    """Add the expected statistics of records with missing values."""
    for s in blocks(len(x), mixture.d**2):
        patterns = Patterns.found(x[s])
        with np.errstate(divide="ignore"):
            shares = np.log(mixture.weights)
        views = [mixture.seen(x[s], patterns, j) for j in range(mixture.k)]
        joint = np.stack([shares[j] + v.log_density for j, v in enumerate(views)])
        r = _responsibilities(sums, joint, None if mass is None else mass[s], hard)
        for j, v in enumerate(views):
            patients = np.bincount(patterns.of, r[j], len(patterns.there))
            sums.add(j, r[j], v.difference, np.tensordot(patients, v.spread, 1))


def maximise(total: Statistics, old: Mixture, *, reg_covar: Array | float = 0.0, paper: bool = False) -> Mixture:
    """Take the M-step from the summed statistics.

    Parameters
    ----------
    total
        Sums over all sites.
    old
        The mixture under which they were taken.
    reg_covar
        Added to the diagonals, keeps covariances positive definite; a number or one per feature.
    paper
        Keep the old centre in the covariance, as printed (eq. 3); the default subtracts ``d d'`` (ERRATA E4.9).
    """
    d = old.d
    nk = total.a + FLOOR
    move = total.b / nk[:, None]
    weights = nk / nk.sum()
    extra = np.zeros_like(move) if paper else move
    reg = np.broadcast_to(np.asarray(reg_covar, float), (d,))
    if old.kind == "full":
        covariances = whole(total.C / nk[:, None], d) - np.einsum("jp,jq->jpq", extra, extra)
        covariances[:, np.arange(d), np.arange(d)] += reg
    elif old.kind == "tied":
        covariances = (whole(total.C, d) - np.einsum("j,jp,jq->pq", nk, extra, extra)) / nk.sum()
        covariances[np.arange(d), np.arange(d)] += reg
    elif old.kind == "diag":
        covariances = total.C / nk[:, None] - extra**2 + reg
    else:
        covariances = (total.C / nk - (extra**2).sum(1)) / d + reg.mean()
    return Mixture(weights, old.means + move, covariances, old.kind)


def bounds(moments: SummedMoments, m: Mixture) -> tuple[float, float]:
    """Bound every entry of a site's statistics, and choose the unit in which it sends its log-likelihood.

    What one site adds is at most what all patients add, and second moments of all patients around any public
    centre follow from the moments: ``sum (x - mu)^2 = n (variance + (mean - mu)^2)``.
    """
    covariance = moments.covariance()
    variance = np.diag(covariance) / moments.unit**2
    second = variance + ((moments.mean - m.means) / moments.unit) ** 2  # (k, d), in units
    factors = m.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = m.log_constants(factors)
    filled = np.isfinite(constants)  # groups that somebody belongs to
    lengths = _lengths(moments, m, factors)
    if moments.gaps:
        # what is expected of a missing value: E[d_p^2] <= Sigma_pp (1 + |x_O - mu_O|^2 in units of Sigma_OO)
        variances = np.stack([np.diag(m.covariance(j)) for j in range(m.k)]) / moments.unit**2
        second = second + variances * (1 + lengths)[:, None]
    reach = second.sum(0).max() if m.kind == "tied" else second.max()
    n = max(moments.n, 1.0)
    # log p >= log(share of j) + log(density of j), for every j; and it is largest if a record sat on all centres
    top = max(abs(float(logsumexp(constants[filled]))), float(np.abs(constants[filled]).max()))
    if moments.gaps:  # of any part of the features: eigenvalues of a part lie between those of the whole
        values = np.linalg.eigvalsh(np.stack([m.covariance(int(j)) for j in np.flatnonzero(filled)]))
        widest = float(np.abs(np.log(np.maximum(values, 1e-300))).max())
        top = float(np.abs(np.log(m.weights[filled])).max()) + 0.5 * m.d * (np.log(2 * np.pi) + widest)
    largest = n * (top + 0.5 * float(lengths[filled].min())) * ROOM
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
    """Express statistics in the public units of the features, as they travel."""
    return {"a": s.a, "b": s.b / unit, "C": s.C / _units(unit, kind)}


def unscaled(arrays: Arrays, unit: Array, kind: CovarianceType, scale: float) -> Statistics:
    """Invert :func:`scaled`; ``scale`` is the unit of the log-likelihood."""
    loglik = float(arrays["loglik"][0]) * scale if "loglik" in arrays else 0.0
    return Statistics(np.maximum(arrays["a"], 0.0), arrays["b"] * unit, arrays["C"] * _units(unit, kind), loglik)
