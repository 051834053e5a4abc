"""How much one site's number leaks through a sum, in bits: exactly, for Gaussian numbers, and estimated from runs.

Every message of these protocols is a linear function of the sites' numbers and of random offsets. With Gaussian numbers
of variance 1 and Gaussian offsets, what corrupt sites or an eavesdropper learn about site i is
``I(S_i; V) = 1/2 log2(var(S_i) / var(S_i | V))``, computed below without simulation. For Gaussian offsets a Gaussian input
is the one that leaks most among inputs of the same variance.

The ideal is what the output itself tells: the sum of the honest sites. It cannot be avoided by any protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, inf, log2, sqrt
from typing import Final

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.release import Array, Step
from polyclinic_papers.decentralised.graph import Edges, adjacency, connected

MANY: Final = 200  # sites above which the graphs without one of them are not built


def ideal_bits(honest: int) -> float:
    """What the sum of ``honest`` independent Gaussian numbers tells about one of them."""
    return 0.5 * log2(honest / (honest - 1)) if honest > 1 else inf


def subspace_bits(a: Array, sd: float) -> Array:
    """Leak of every node of the honest subgraph.

    The whole transcript is, per node, two views ``s_i - sum_j B lambda_{j|i}(0)`` and ``s_i - sum_j B lambda_{i|j}(0)``
    (ERRATA E4.5). Their difference does not depend on s; their mean has noise covariance ``sd^2 L / 2``, L the Laplacian.
    """
    if not len(a):
        return np.empty(0)
    value, vector = np.linalg.eigh(np.diag(a.sum(axis=1)) - a)
    noise = sd**2 * np.where(value > 1e-9, value, 0.0)
    remaining = (vector**2) @ (noise / (2.0 + noise))  # var(S_i | views), without cancellation
    with np.errstate(divide="ignore"):
        return np.asarray(-0.5 * np.log2(remaining))


def mask_sd(names: Sequence[str], edges: Edges, colluders: int, bits: float) -> float:
    """Smallest mask (in units of the largest number) that keeps the WORST honest site's excess leak below ``bits``.

    Excess over the ideal, for every set of ``max(1, colluders)`` corrupt sites and for an eavesdropper; not the authors'
    rule ``1/2 log2(1 + var_s / var_lambda)``, which is no bound (ERRATA E4.5). Refuses a graph that corrupt sites could cut.
    """
    return _mask_sd(tuple(names), edges, max(1, colluders), bits)


def _uncut(names: tuple[str, ...], edges: Edges) -> Array:
    """The graph of many sites; refused if one of them could cut it."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    a, n = adjacency(names, edges), len(names)
    near, faults = csr_array(a), []
    for b in range(n):
        at = np.delete(np.arange(n), b)
        if connected_components(near[at][:, at], directed=False, return_labels=False) > 1:
            faults.append(f"without {names[b]} the remaining sites are cut off from each other")
    if faults:
        raise ConfigError(
            "the graph does not hide a site from 1 corrupt neighbour(s)",
            faults=faults[:10],
            hint="every site needs several neighbours: use a complete or denser graph",
        )
    return a


@lru_cache(maxsize=64)
def _honest(names: tuple[str, ...], edges: Edges, colluders: int) -> tuple[Array, ...]:
    """Honest subgraphs for every set of corrupt sites, and the whole graph; refuses a graph that can be cut."""
    n = len(names)
    if comb(n, colluders) > 20_000:
        raise ConfigError(
            f"{comb(n, colluders):,} sets of {colluders} colluders among {n} sites cannot all be checked",
            hint="assume fewer colluders, or use aggregation='masked'",
        )
    a = adjacency(names, edges)
    subgraphs, faults = [a], []
    for bad in combinations(range(n), colluders):
        at = [i for i in range(n) if i not in bad]
        subgraphs.append(a[np.ix_(at, at)])
        if len(at) < 2 or not connected(subgraphs[-1]):
            faults.append(f"without {', '.join(names[i] for i in bad)} the remaining sites are cut off from each other")
    if faults:
        raise ConfigError(
            f"the graph does not hide a site from {colluders} corrupt neighbour(s)",
            faults=faults[:10],
            hint="every site needs several neighbours: use a complete or denser graph",
        )
    if len(edges) < n and n > 2:  # ERRATA E4.6
        raise ConfigError(f"{len(edges)} edges among {n} sites: at least {n} are required", hint="close the ring")
    return tuple(subgraphs)


def _one_out(a: Array, sd: float) -> float:
    """The worst excess when any ONE of many sites is corrupt, and of an eavesdropper: n graphs from the inverse of one.

    Without node b the Laplacian loses its row and column, and its neighbours N one degree each. With ``K = r I + sd^2 (L + 1 1')``
    (r views) the diagonal of ``K_b^-1`` follows from ``K^-1`` by taking b out and a Woodbury step of rank |N|, and

        var(S_i | views) = 1 - 1/m - r ((K_b^-1)_ii - 1 / (m (r + sd^2 m))),       m nodes are left
    """
    n, r = len(a), 2.0
    k = np.linalg.inv(r * np.eye(n) + sd**2 * (np.diag(a.sum(axis=1)) - a + 1.0))

    def excess(diagonal: Array, m: int) -> float:
        rest = (1 - 1 / m) - r * (float(diagonal.max()) - 1 / (m * (r + sd**2 * m)))
        return -0.5 * log2(rest) - ideal_bits(m)

    worst = excess(np.diagonal(k), n)
    for b in range(n):
        near = np.flatnonzero(a[b])
        out = k[:, near] - np.outer(k[:, b], k[b, near] / k[b, b])
        change = np.linalg.inv(np.eye(len(near)) / sd**2 - out[near])
        diagonal = np.diagonal(k) - k[:, b] ** 2 / k[b, b] + ((out @ change) * out).sum(axis=1)
        worst = max(worst, excess(np.delete(diagonal, b), n - 1))
    return worst


@lru_cache(maxsize=64)
def _mask_sd(names: tuple[str, ...], edges: Edges, colluders: int, bits: float) -> float:
    many = len(names) > MANY and colluders == 1
    subgraphs = () if many else _honest(names, edges, colluders)
    whole = _uncut(names, edges) if many else None

    def worst(sd: float) -> float:
        if whole is not None:
            return _one_out(whole, sd)
        return max(float(subspace_bits(a, sd).max()) - ideal_bits(len(a)) for a in subgraphs)

    # The excess falls as 1 / sd^2 for large masks; a second look at the result makes it exact.
    sd = 1e3 * float(np.sqrt(max(worst(1e3), 1e-300) / bits))
    while worst(sd) > bits:
        sd *= 1.1
    return float(f"{sd:.3g}") * 1.01


@dataclass(frozen=True)
class Masks:
    """Masks of finite variance under ``subspace``.

    Attributes
    ----------
    sd
        Standard deviation of one mask.
    honest_neighbours
        How many of them hide a site at least; for a graph: the second eigenvalue of the honest sites' Laplacian.
    per_scalar
        Where digits are masked and not the values: the largest change, over all sites, of one number's digits. None:
        values are masked, and change by the step's sensitivity.
    """

    sd: float
    honest_neighbours: float
    per_scalar: float | None = None

    def events(self, step: Step) -> list[Event]:
        """What the masks leak: two noisy views of each contribution. A weight is masked beside the values."""
        if not self.honest_neighbours > 0 or not self.sd > 0:
            return [Unbounded()]
        change = step.sensitivity if self.per_scalar is None else self.per_scalar * sqrt(step.size + 1)
        return [Gaussian(self.sd * sqrt(self.honest_neighbours) / change, 2)] if change else []
