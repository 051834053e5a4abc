"""Which features tell the same: R o R, the squared correlations, and the penalties that use them (eq. 3.6-3.7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TWIN_CORRELATION = 0.9999  # limit: above it two features say exactly the same (docs/papers/unpsl.md)


@dataclass(frozen=True, eq=False)
class Redundancy:
    """The (d, d) matrix R o R, held either whole or as F with F'F = R o R.

    R = Z'Z/n has rank <= n, so R o R is the Gram matrix of the products z_i * z_j, n(n+1)/2 rows; with 38 patients and
    3,571 genes that is 741 rows instead of 12.7 million numbers. It is positive semidefinite by Schur (ERRATA E3.4).

    Parameters
    ----------
    matrix
        (d, d) R o R, or None.
    factor
        (m, d) F, or None.
    """

    matrix: Array | None
    factor: Array | None

    @classmethod
    def of_patients(cls, Z: Array) -> Redundancy:
        """From standardised patients (n, d): columns of mean 0 and variance 1, or all zero (constant; ERRATA E3.6).

        >>> Redundancy.of_patients(np.array([[1.0, -1.0], [-1.0, 1.0]])).times(np.eye(2))
        array([[1., 1.],
               [1., 1.]])
        """
        n, d = Z.shape
        if n * (n + 1) >= d:  # F would have more than half as many rows as R: the whole matrix is cheaper
            return cls.of_correlation(Z.T @ Z / n)
        i, j = np.triu_indices(n)
        return cls(None, Z[i] * Z[j] * (np.where(i == j, 1.0, np.sqrt(2.0)) / n)[:, None])

    @classmethod
    def of_correlation(cls, R: Array) -> Redundancy:
        """From correlations (d, d), however they were summed up."""
        return cls(R * R, None)

    @cached_property
    def gram(self) -> Array:
        """F F', which several penalties share."""
        assert self.factor is not None
        return np.asarray(self.factor @ self.factor.T)

    def times(self, W: Array) -> Array:
        """(R o R) W."""
        if self.matrix is not None:
            return np.asarray(self.matrix @ W)
        assert self.factor is not None
        return np.asarray(self.factor.T @ (self.factor @ W))

    def trace(self, W: Array) -> float:
        """Trace(W W' (R o R)), eq. (3.7)."""
        return float(np.vdot(W, self.times(W)))

    def exclusive(self, W: Array) -> float:
        """sum_kl r_kl^2 |w_k| |w_l|: two redundant features cost, whichever way their rows point.

        ERRATA E3.4 sums over k != l; that form is not convex (for two features it is 2 r^2 |w_1| |w_2|), with k = l it is.
        """
        a = row_norms(W)
        return float(a @ self.times(a))

    def solver(self, l2: float, rho: float) -> Solver:
        """B -> rho (2 l2 (R o R) + 2 rho I)^-1 B, eq. (3.18), factorised once."""
        from scipy.linalg import cho_factor

        if l2 == 0.0:
            return Solver(None, None)
        if self.matrix is not None:
            return Solver(cho_factor(2 * l2 / rho * self.matrix + 2 * np.eye(len(self.matrix)), lower=True), None)
        assert self.factor is not None
        # Woodbury: the system has the size of F's rows
        return Solver(cho_factor(rho / l2 * np.eye(len(self.gram)) + self.gram, lower=True), self.factor)


@dataclass(frozen=True, eq=False)
class Solver:
    """The factorised linear system of the Z-update."""

    cho: tuple[Array, bool] | None
    factor: Array | None

    def __call__(self, B: Array) -> Array:
        from scipy.linalg import cho_solve

        if self.cho is None:
            return np.asarray(0.5 * B)
        if self.factor is None:
            return np.asarray(cho_solve(self.cho, B))
        return np.asarray(0.5 * (B - self.factor.T @ cho_solve(self.cho, self.factor @ B)))


def row_norms(W: Array) -> Array:
    """Length of every row: the weight of a feature, eq. (3.5)."""
    return np.asarray(np.sqrt(np.einsum("kr,kr->k", W, W)))


def row_shrink(T: Array, threshold: float) -> Array:
    """Shorten every row by ``threshold``; rows shorter than it become zero, also 0/0 (eq. 3.17, ERRATA E3.5).

    >>> row_shrink(np.array([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0]]), 1.0)
    array([[2.4, 3.2],
           [0. , 0. ],
           [0. , 0. ]])
    """
    t = row_norms(T)
    return np.asarray(T * (np.maximum(t - threshold, 0.0) / np.where(t > 0, t, 1.0))[:, None])


def shrink_norms(T: Array, redundancy: Redundancy, l1: float, l2: float, rho: float, steps: int = 200) -> Array:
    """Proximal step of l1 sum |w_k| + l2 sum_kl r_kl^2 |w_k| |w_l|: rows keep their direction, lengths solve a small QP.

    min over a >= 0 of l1 1'a + l2 a'(R o R)a + rho/2 |a - t|^2 by accelerated projected gradients.
    """
    t = row_norms(T)
    if l2 == 0.0:
        return row_shrink(T, l1 / rho)
    probe = np.ones(len(t))
    for _ in range(20):  # largest eigenvalue of a non-negative matrix
        probe = redundancy.times(probe)
        top = float(np.linalg.norm(probe))
        probe /= max(top, 1e-300)
    lipschitz, strong = 2 * l2 * top * 1.01 + rho, rho
    momentum = (np.sqrt(lipschitz) - np.sqrt(strong)) / (np.sqrt(lipschitz) + np.sqrt(strong))
    a = old = np.maximum(t - l1 / rho, 0.0)
    for _ in range(steps):
        b = a + momentum * (a - old)
        new = np.maximum(b - (l1 + 2 * l2 * redundancy.times(b) + rho * (b - t)) / lipschitz, 0.0)
        old, a = a, new
        if np.abs(a - old).max() <= 1e-12 * max(float(t.max()), 1e-300):
            break
    return np.asarray(T * (a / np.where(t > 0, t, 1.0))[:, None])


def speak_once(W: Array, R: Array, patients: float) -> Array:
    """Of features that say exactly the same (r > 0.9999) the first speaks for all: it gets the sum of their rows.

    The similarity of patients, (3.7) and the loss stay as they are, and (3.5) cannot grow; without this, W W' has no one
    value where a feature repeats another (in Parkinsons: RAP and DDP, APQ3 and DDA), and nothing could be compared. A
    feature and its opposite are left alone: the trace has one best answer there (ERRATA E3.4). Fewer than 10 patients
    show no such thing.

    >>> speak_once(np.array([[1.0], [3.0], [2.0]]), np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]]), 50)
    array([[4.],
           [0.],
           [2.]])
    """
    alike = np.triu(R > TWIN_CORRELATION, 1)
    if patients < 10 or not alike.any():
        return W
    W = W.copy()
    for first in np.flatnonzero(alike.any(1)):
        for other in np.flatnonzero(alike[first]):
            W[first] += W[other]  # a row that was handed on already is zero
            W[other] = 0.0
    return W
