"""A Gaussian mixture: a handful of patient groups, each with a share, a centre and a spread. Pure values, no fitting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, Divergence
from polyclinic.models.mixtures.missing import Patterns, View, view

Array = NDArray[np.float64]
CovarianceType = Literal["full", "tied", "diag", "spherical"]
# bytes of one block of records: it stays in a core's cache while all components read it, and is below the
BLOCK = 1 << 18
# size from which BLAS starts threads (which fight for cores when sites run side by side)


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of records that stream through the cache; memory does not grow with the number of patients.

    >>> [s.stop - s.start for s in blocks(5000, 20)]
    [1638, 1638, 1638, 86]
    """
    size = max(256, BLOCK // (8 * max(1, width)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@dataclass(frozen=True)
class Mixture:
    """Shares, centres and spreads of ``k`` groups in ``d`` features (eq. 1 of the private EM paper).

    Parameters
    ----------
    weights
        (k,) shares beta, sum 1.
    means
        (k, d) centres mu.
    covariances
        Sigma: (k, d, d) full, (d, d) tied, (k, d) diag, (k,) spherical, as in scikit-learn.
    kind
        Which of the four.

    Examples
    --------
    >>> m = Mixture(np.array([0.5, 0.5]), np.array([[-3.0], [3.0]]), np.array([1.0, 1.0]), "spherical")
    >>> m.log_density(np.array([[3.0]])).round(4)
    array([-1.6121])
    """

    weights: Array
    means: Array
    covariances: Array
    kind: CovarianceType

    def __post_init__(self) -> None:
        if self.kind not in get_args(CovarianceType):
            raise ConfigError(f"unknown covariance type {self.kind!r}", hint="use one of full, tied, diag, spherical")

    @property
    def k(self) -> int:
        """Number of groups."""
        return len(self.means)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.means.shape[1])

    @property
    def parameters(self) -> int:
        """Free parameters, for BIC and AIC."""
        pairs = self.d * (self.d + 1) // 2
        spread = {"full": self.k * pairs, "tied": pairs, "diag": self.k * self.d, "spherical": self.k}[self.kind]
        return spread + self.k * self.d + self.k - 1

    def precisions_cholesky(self) -> Array:
        """Upper factors P with ``P P' = Sigma^-1`` (scikit-learn's convention), or 1 / sd for diag and spherical."""
        if self.kind in ("diag", "spherical"):
            if not (self.covariances > 0).all():
                raise _collapsed()
            return np.asarray(1.0 / np.sqrt(self.covariances))
        if self.kind == "tied":
            return _upper(self.covariances)
        return np.stack([_upper(c) for c in self.covariances])

    def covariance(self, j: int) -> Array:
        """(d, d) covariance of one group, whatever the type."""
        if self.kind == "full":
            return np.asarray(self.covariances[j])
        if self.kind == "tied":
            return self.covariances
        if self.kind == "diag":
            return np.diag(self.covariances[j])
        return np.asarray(self.covariances[j] * np.eye(self.d))

    def overall(self) -> tuple[Array, Array]:
        """Mean (d,) and covariance (d, d) of the whole mixture."""
        mean = self.weights @ self.means
        within = np.einsum("j,jpq->pq", self.weights, np.stack([self.covariance(j) for j in range(self.k)]))
        between = np.einsum("j,jp,jq->pq", self.weights, self.means - mean, self.means - mean)
        return mean, within + between

    def log_joint(self, X: Array, factors: Array | None = None) -> Array:
        """(n, k) log of share times density, for one block of records; of the values that are there, where some are NaN."""
        p = self.precisions_cholesky() if factors is None else factors
        out = np.empty((len(X), self.k))
        for j in range(self.k):
            out[:, j] = squared_distance(self.kind, X - self.means[j], p, j)
        out *= -0.5
        with np.errstate(divide="ignore"):  # a share of zero is a component nobody belongs to
            out += self.log_constants(p)
            gaps = np.isnan(X).any(1)
            if gaps.any():
                patterns = Patterns.found(X[gaps])
                for j in range(self.k):
                    out[gaps, j] = np.log(self.weights[j]) + self.seen(X[gaps], patterns, j).log_density
        return out

    def seen(self, X: Array, patterns: Patterns, j: int) -> View:
        """Records with missing values (NaN) as group ``j`` sees them."""
        covariance = self.covariance(j)
        if self.kind in ("diag", "spherical"):
            covariance = np.diag(covariance)
        return view(X, patterns, self.means[j], covariance)

    def log_constants(self, factors: Array) -> Array:
        """(k,) the part of the log joint that does not depend on the record."""
        if self.kind == "full":
            logdet = np.log(np.einsum("jpp->jp", factors)).sum(1)
        elif self.kind == "tied":
            logdet = np.full(self.k, np.log(np.diag(factors)).sum())
        elif self.kind == "diag":
            logdet = np.log(factors).sum(1)
        else:
            logdet = self.d * np.log(factors)
        return np.asarray(np.log(self.weights) + logdet - 0.5 * self.d * np.log(2 * np.pi))

    def log_density(self, X: Array) -> Array:
        """(n,) log-likelihood of each record, by log-sum-exp, streamed in blocks."""
        from scipy.special import logsumexp  # here: importing it takes a fresh process longer than a small fit

        p = self.precisions_cholesky()
        out = np.empty(len(X))
        for s in blocks(len(X), self.d):
            out[s] = logsumexp(self.log_joint(X[s], p), axis=1)
        return out

    def responsibilities(self, X: Array) -> Array:
        """(n, k) posterior probability that a record belongs to each group (eq. 2; ERRATA E4.10)."""
        from scipy.special import logsumexp

        p = self.precisions_cholesky()
        out = np.empty((len(X), self.k))
        for s in blocks(len(X), self.d):
            joint = self.log_joint(X[s], p)
            out[s] = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        return out

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
        """Made-up records (n, d) and the group each came from (n,), groups in order."""
        counts = rng.multinomial(n, self.weights)
        parts = [
            rng.multivariate_normal(self.means[j], self.covariance(j), int(c), method="cholesky")
            for j, c in enumerate(counts)
        ]
        return np.concatenate(parts), np.repeat(np.arange(self.k), counts)

    def moved(self, shift: Array | float, scale: float) -> Mixture:
        """The mixture of ``shift + scale * x`` when this is the mixture of ``x``."""
        return Mixture(self.weights, shift + scale * self.means, scale**2 * self.covariances, self.kind)


def squared_distance(kind: CovarianceType, difference: Array, factors: Array, j: int) -> Array:
    """(n,) squared Mahalanobis length of differences (n, d) to the centre of group ``j``."""
    y = whitened(kind, difference, factors, j)
    return np.asarray(np.einsum("ip,ip->i", y, y))


def whitened(kind: CovarianceType, difference: Array, factors: Array, j: int) -> Array:
    """(n, d) differences in units of group ``j``'s own spread."""
    if kind == "full":
        return np.asarray(difference @ factors[j])
    return np.asarray(difference @ factors if kind == "tied" else difference * factors[j])


def _upper(covariance: Array) -> Array:
    from scipy.linalg import solve_triangular

    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise _collapsed() from None
    return np.asarray(solve_triangular(lower, np.eye(len(lower)), lower=True).T)


def _collapsed() -> Divergence:
    return Divergence(
        "a group's covariance is not positive definite: it collapsed onto too few patients",
        hint="raise reg_covar, lower n_components, or choose covariance_type='tied', 'diag' or 'spherical'",
    )
