"""Records with empty values under a Gaussian group: what the values that are there say about those that are not.

With ``O`` the observed and ``M`` the missing features of a record, ``d = x - mu``:

    log density  log N(x_O; mu_O, Sigma_OO)
    expectation  E[d_M | x_O] = Sigma_MO Sigma_OO^-1 d_O
    spread       Cov[d_M | x_O] = Sigma_MM - Sigma_MO Sigma_OO^-1 Sigma_OM

(values missing at random: Dempster, Laird, Rubin 1977). Records that lack the same features share one inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Patterns:
    """Which features are there: ``there`` (patterns, d), and ``of`` (n,) the pattern of every record.

    >>> p = Patterns.found(np.array([[1.0, np.nan], [2.0, 3.0], [4.0, np.nan]]))
    >>> p.there.tolist(), p.of.tolist()
    ([[True, False], [True, True]], [0, 1, 0])
    """

    there: NDArray[np.bool_]
    of: NDArray[np.int64]

    @classmethod
    def found(cls, x: Array) -> Patterns:
        """The patterns of some records."""
        patterns, pattern_of = np.unique(~np.isnan(x), axis=0, return_inverse=True)
        return cls(patterns, pattern_of.ravel())


@dataclass(frozen=True, eq=False)
class View:
    """Some records as one group sees them.

    Parameters
    ----------
    log_density
        (n,) of the values that are there.
    difference
        (n, d) to the centre; expected where a value is missing.
    spread
        What is uncertain about missing values, per pattern: (patterns, d, d), or (patterns, d) where features are independent.
    """

    log_density: Array
    difference: Array
    spread: Array


def view(x: Array, patterns: Patterns, mean: Array, covariance: Array) -> View:
    """Records (n, d) with NaN as a group with this centre and covariance (d, d), or variances (d,), sees them.

    Examples
    --------
    >>> x = np.array([[1.0, np.nan]])
    >>> v = view(x, Patterns.found(x), np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]))
    >>> v.difference.tolist(), v.spread.round(2).tolist()
    ([[1.0, 0.5]], [[[0.0, 0.0], [0.0, 0.75]]])
    """
    present, pattern = patterns.there, patterns.of
    is_present = present[pattern]
    d = np.where(is_present, x - mean, 0.0)
    constant = present.sum(1)[pattern] * np.log(2 * np.pi)
    if covariance.ndim == 1:
        logs = np.where(present, np.log(covariance), 0.0).sum(1)[pattern]
        return View(-0.5 * (constant + logs + (d * d / covariance).sum(1)), d, np.where(present, 0.0, covariance))
    # Missing features are given variance 1 and no company: the inverse of what is there stands alone in its block.
    pairs_present = present[:, :, None] & present[:, None, :]
    padded = np.where(pairs_present, covariance, np.eye(len(mean)))
    lower = np.linalg.cholesky(padded)
    logs = 2 * np.log(np.einsum("tpp->tp", lower)).sum(1)[pattern]
    inverse = np.where(pairs_present, np.linalg.inv(padded), 0.0)
    weighted = np.einsum("ipq,iq->ip", inverse[pattern], d)
    expected = weighted @ covariance
    pairs_missing = ~present[:, :, None] & ~present[:, None, :]
    spread = np.where(pairs_missing, covariance - covariance @ inverse @ covariance, 0.0)
    density = -0.5 * (constant + logs + np.einsum("ip,ip->i", weighted, d))
    return View(density, np.where(is_present, d, expected), spread)
