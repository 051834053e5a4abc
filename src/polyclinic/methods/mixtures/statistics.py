"""What EM needs to know of the patients: three sums per group (eq. 4 of the private EM paper), and what it makes of them.

Everything is centred at the OLD centres, which are public: the sums stay small, so nothing cancels, and
``b_j = sum r (x - mu_j)`` is directly the move of the centre. With ``d_j = b_j / a_j`` the exact M-step is
``Sigma = C_j / a_j - d_j d_j'``; the paper's formula leaves out ``d_j d_j'`` (ERRATA E4.9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from polyclinic.methods.moments.moments import whole
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture, blocks, squared_distance
from polyclinic.models.mixtures.missing import Patterns
from polyclinic.tensors.device import records_on_card

__all__ = ["Statistics", "expect", "maximise", "second_moments", "shapes"]

FLOOR = 10 * np.finfo(float).eps  # scikit-learn's guard against dividing by an empty group


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
    """Shapes of the three sums: c (1 + d + d(d+1)/2) scalars for full covariances (ERRATA E4.10)."""
    pairs = d * (d + 1) // 2
    second: dict[str, tuple[int, ...]] = {"full": (k, pairs), "tied": (pairs,), "diag": (k, d), "spherical": (k,)}
    return {"a": (k,), "b": (k, d), "C": second[kind]}


def expect(X: Array, mixture: Mixture, *, mass: Array | None = None, hard: bool = False) -> Statistics:
    """The E-step of one site, streamed in blocks.

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
    if mass is None and records_on_card(X) and not np.isnan(X.sum()):
        from polyclinic.methods.mixtures import gpu as card

        return card.expect(X, mixture, hard=hard)
    k, d, kind = mixture.k, mixture.d, mixture.kind
    factors = mixture.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = mixture.log_constants(factors)
    a, b = np.zeros(k), np.zeros((k, d))
    C = np.zeros({"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k, d)}[kind])
    loglik = 0.0
    for s in blocks(len(X), d):
        x = X[s]
        own = None if mass is None else mass[s]
        if np.isnan(x.sum()):
            gaps = np.isnan(x).any(1)
            loglik += _with_gaps(x[gaps], mixture, None if own is None else own[gaps], hard, a, b, C)
            x, own = x[~gaps], None if own is None else own[~gaps]
        r = np.empty((k, len(x)))  # component-major: every row below is contiguous
        for j in range(k):
            r[j] = squared_distance(kind, x - mixture.means[j], factors, j)
        r *= -0.5
        r += constants[:, None]
        top = logsumexp(r, axis=0)
        loglik += float(top.sum() if own is None else top @ own)
        if hard:
            r = np.equal(np.argmax(r, axis=0), np.arange(k)[:, None]).astype(float)
        else:
            r -= top
            np.exp(r, out=r)
        if own is not None:
            r *= own
        a += r.sum(1)
        for j in range(k):
            difference = x - mixture.means[j]
            weighted = difference * r[j][:, None]
            b[j] += weighted.sum(0)
            if kind == "full":
                C[j] += weighted.T @ difference
            elif kind == "tied":
                C += weighted.T @ difference
            else:
                C[j] += np.einsum("ip,ip->p", weighted, difference)
    return Statistics(a, b, second_moments(kind, C), loglik)


def _with_gaps(x: Array, mixture: Mixture, mass: Array | None, hard: bool, a: Array, b: Array, C: Array) -> float:
    """Add the expected statistics of records with missing values to ``a``, ``b``, ``C``; returns their log-likelihood."""
    loglik = 0.0
    for s in blocks(len(x), mixture.d**2):
        patterns = Patterns.found(x[s])
        with np.errstate(divide="ignore"):
            shares = np.log(mixture.weights)
        views = [mixture.seen(x[s], patterns, j) for j in range(mixture.k)]
        r = np.stack([shares[j] + v.log_density for j, v in enumerate(views)])
        top = logsumexp(r, axis=0)
        loglik += float(top.sum() if mass is None else top @ mass[s])
        r = np.equal(np.argmax(r, axis=0), np.arange(mixture.k)[:, None]).astype(float) if hard else np.exp(r - top)
        if mass is not None:
            r *= mass[s]
        a += r.sum(1)
        for j, v in enumerate(views):
            weighted = v.difference * r[j][:, None]
            b[j] += weighted.sum(0)
            held = np.bincount(patterns.of, r[j], len(patterns.there))
            spread = np.tensordot(held, v.spread, 1)
            if mixture.kind in ("full", "tied"):
                square = weighted.T @ v.difference + spread
            else:
                square = np.einsum("ip,ip->p", weighted, v.difference) + spread
            if mixture.kind == "tied":
                C += square
            else:
                C[j] += square
    return loglik


def second_moments(kind: CovarianceType, C: Array) -> Array:
    """What leaves of the sums of products: the upper triangle (full, tied), the diagonal (diag), its sum (spherical)."""
    if kind in ("full", "tied"):
        upper = np.triu_indices(C.shape[-1])
        return np.ascontiguousarray(C[..., upper[0], upper[1]])
    return np.ascontiguousarray(C.sum(1) if kind == "spherical" else C)


def maximise(total: Statistics, old: Mixture, *, reg_covar: Array | float = 0.0, paper: bool = False) -> Mixture:
    """The M-step from the summed statistics.

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
