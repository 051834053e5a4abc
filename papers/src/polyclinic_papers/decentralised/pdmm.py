"""Average consensus by the primal-dual method of multipliers: neighbours agree on the mean, nobody collects anything.

Equations (8), (9) of the paper "Privacy-preserving distributed expectation maximization ... using subspace perturbation",
in the form of ERRATA E4.1: with ``z_{i|j} = lambda_{j|i} - c B_{i|j} y_j``

    y_i      = (s_i - sum_j B_{i|j} z_{i|j}) / (1 + c d_i)          node i is active
    z_{j|i} <- z_{i|j} + 2 c B_{i|j} y_i                              at i and at its neighbour j, from the broadcast y_i

All nodes are active in every slot (Algorithm 1 activates one random node per slot). Then the duals act only through ``u_i = sum_j B_{i|j} z_{i|j}`` and ``v_i = sum_j B_{j|i} z_{j|i}``:

    y = (s - u) / (1 + c d),   u' = -v - 2 c A y,   v' = -u - 2 c d y

which is 2 n numbers, and gives the rate of convergence, the iterations needed, and the leak (``leak``) exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.release import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST = 20_000  # iterations; a graph that needs more is refused
MANY = 200  # nodes above which a graph is worked on as the sparse matrix that it is
_UNIT = 1 - 1e-9  # eigenvalues above it belong to sums that never move (Sigma u = Sigma v), not to the error


def sign(i: str, j: str) -> float:
    """B_{i|j}: 1 if i comes after j by name, else -1."""
    return 1.0 if i > j else -1.0


def rate_of(a: Array, c: float) -> float:
    """Factor by which the synchronous error shrinks in one iteration: largest eigenvalue that moves (spectral gap)."""
    n, d = len(a), a.sum(axis=1)
    if n > MANY:
        return _decay(a, c)
    p = 1 / (1 + c * d)
    one = np.eye(n)
    m = np.block([[2 * c * a * p, -one], [np.diag(2 * c * d * p) - one, np.zeros((n, n))]])
    size = np.abs(np.linalg.eigvals(m))
    return float(size[size < _UNIT].max(initial=0.0))


def _decay(a: Array, c: float) -> float:
    """The same factor as it shows: by how much an error shrinks from one part in 10^4 to one in 10^10, an iteration on average.

    All 2 n eigenvalues would take n^3 for each constant. The draw is public, so that all nodes find the same.
    """
    rng, near, d = np.random.default_rng(0), sparse(a), a.sum(axis=1)
    i, j = np.nonzero(a)
    z = np.where(i > j, 1.0, -1.0) * rng.standard_normal(len(i))
    u, v = np.bincount(i, z, len(a)), np.bincount(j, z, len(a))
    first, began, size, t = 0.0, 0, 0.0, 0
    for t in range(1, MOST + 1):
        y = -u / (1 + c * d)
        u, v = -v - 2 * c * (near @ y), -u - 2 * c * d * y
        size = float(np.linalg.norm(y))
        first = first or size
        if began and size < 1e-10 * first:
            break
        if not began and size < 1e-4 * first:
            began, first = t, size * 1e4
    return float((size / (1e-4 * first)) ** (1 / max(t - began, 1))) if began else 1.0


def sparse(a: Array) -> csr_matrix:
    """A graph of many nodes as a sparse matrix: a node has tens of neighbours, however many there are."""
    from scipy.sparse import csr_array

    return csr_array(a) if len(a) > MANY else a


def best_constant(a: Array) -> tuple[float, float]:
    """The constant ``c`` with the largest spectral gap on this graph, and its rate. Public: all nodes find the same.

    >>> c, rate = best_constant(np.ones((3, 3)) - np.eye(3))
    >>> 0.2 < c < 1.5 and rate < 0.5
    True
    """
    return _best(a.tobytes(), len(a))


@lru_cache(maxsize=64)
def _best(raw: bytes, n: int) -> tuple[float, float]:
    a = np.frombuffer(raw).reshape(n, n)
    grid = np.geomspace(0.03, 3.0, 9)
    rates = [rate_of(a, float(c)) for c in grid]
    at = int(np.argmin(rates))
    fine = np.geomspace(grid[max(at - 1, 0)], grid[min(at + 1, 8)], 6)[1:-1]
    found = min([(rates[at], float(grid[at])), *((rate_of(a, float(c)), float(c)) for c in fine)])
    return round(found[1], 6), found[0]


def floor_of(a: Array, sd: float) -> float:
    """Rounding error of float64 that stays in the average with masks of this size (measured, ERRATA E4.4; with room)."""
    return float(8 * np.finfo(np.float64).eps * sd * np.sqrt(a.sum(axis=1).max()))


def iterations(a: Array, c: float, sd: float, tolerance: float) -> int:
    """Iterations after which every node's error is below ``tolerance``, for inputs in [-1, 1] and masks of sd ``sd``.

    Exact propagation: the sd of every node's error, as a linear image of the masks, must be 8 times below the tolerance,
    and so must the largest error that the inputs can cause.
    """
    return _iterations(a.tobytes(), len(a), c, sd, tolerance)


@lru_cache(maxsize=256)
def _iterations(raw: bytes, n: int, c: float, sd: float, tolerance: float) -> int:
    a = np.frombuffer(raw).reshape(n, n)
    d = a.sum(axis=1)
    # Covariance of (u, v) under independent duals: u_i and v_j share B_{i|j} z_{i|j}.
    cov = sd**2 * np.block([[np.diag(d), a], [a, np.diag(d)]])
    value, vector = np.linalg.eigh(cov)
    root = vector * np.sqrt(np.where(value > 1e-9 * value.max(), value, 0.0))  # Sigma u = Sigma v holds exactly
    u, v = np.hstack([root[:n], np.zeros((n, n))]), np.hstack([root[n:], np.zeros((n, n))])
    s = np.hstack([np.zeros((n, 2 * n)), np.eye(n)])
    p, near = (1 / (1 + c * d))[:, None], sparse(a)
    for t in range(1, MOST + 1):
        y = (s - u) * p
        u, v = -v - 2 * c * (near @ y), -u - 2 * c * d[:, None] * y
        if t % 4 == 0:
            masks = np.sqrt((y[:, : 2 * n] ** 2).sum(axis=1).max())
            inputs = np.abs(y[:, 2 * n :] - 1 / n).sum(axis=1).max()
            if 8 * masks + inputs < tolerance:
                return t
    raise ConfigError(
        f"consensus on this graph of {n} sites needs more than {MOST} iterations",
        hint="add edges between distant sites, or lower the masks",
    )


def synchronous(a: Array, s: Array, u: Array, v: Array, c: float, count: int) -> Array:
    """All nodes' averages after ``count`` synchronous iterations; ``s``, ``u``, ``v`` of shape (n, scalars)."""
    d = a.sum(axis=1)[:, None]
    p = 1 / (1 + c * d)
    y, near = np.zeros_like(s), sparse(a)
    for _ in range(count):
        y = (s - u) * p
        u, v = -v - 2 * c * (near @ y), -u - 2 * c * d * y
    return y


class PdmmNode:
    """One node's numbers: its input, and for every neighbour the two duals of their edge.

    Parameters
    ----------
    me, s
        Name, and the input of shape (scalars,).
    mine, theirs
        Initial duals by neighbour: ``mine[j] = lambda_{i|j}`` that this node drew, ``theirs[j] = lambda_{j|i}``.
    """

    def __init__(self, me: str, s: Array, mine: Mapping[str, Array], theirs: Mapping[str, Array], c: float) -> None:
        self.me, self.s, self.c = me, s, c
        self.sign = {j: sign(me, j) for j in sorted(mine)}
        self._near = {j: np.array(theirs[j]) for j in self.sign}  # z_{i|j}, starts at lambda_{j|i} since y(0) = 0
        self._far = {j: np.array(mine[j]) for j in self.sign}  # z_{j|i}

    def value(self) -> Array:
        """Equation (8)."""
        total = self.s.copy()
        for j, b in self.sign.items():
            total -= b * self._near[j]
        return total / (1 + self.c * len(self.sign))

    def absorb(self, mine: Array, theirs: Mapping[str, Array]) -> None:
        """Equation (9) on every edge: my own broadcast, and those of my neighbours."""
        for j, b in self.sign.items():
            near, far = self._near[j], self._far[j]
            self._far[j] = near + 2 * self.c * b * mine
            self._near[j] = far - 2 * self.c * b * theirs[j]
