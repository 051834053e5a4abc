"""How much one site's number leaks through a sum, in bits: exactly, for Gaussian numbers, and estimated from runs.

Every message of these protocols is a linear function of the sites' numbers and of random offsets. With Gaussian numbers
of variance 1 and Gaussian offsets, what corrupt sites or an eavesdropper learn about site i is
``I(S_i; V) = 1/2 log2(var(S_i) / var(S_i | V))``, computed below without simulation. For Gaussian offsets a Gaussian input
is the one that leaks most among inputs of the same variance.

The ideal is what the output itself tells: the sum of the honest sites. It cannot be avoided by any protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, inf, log2, sqrt
from typing import Final, Literal

import numpy as np

from polyclinic.aggregation.decentralised.graph import Edges, adjacency, connected
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.release import Array, Step

MANY: Final = 200  # sites above which the graphs without one of them are not built
How = Literal["federated", "ideal", "cycle", "subspace"]
Schedule = Literal["synchronous", "asynchronous"]


def leak(
    how: How,
    names: Sequence[str],
    edges: Edges = frozenset(),
    corrupt: Collection[str] = (),
    *,
    sd: float = 1e3,
    schedule: Schedule = "synchronous",
    order: Sequence[str] = (),
) -> dict[str, float]:
    """Bits about every honest site that corrupt sites learn together; no corrupt site: an eavesdropper on all lines.

    Parameters
    ----------
    how
        ``"federated"`` (a server sees each number), ``"cycle"``, ``"subspace"``, or ``"ideal"`` (the sum only).
    names, edges
        Sites and their graph (``subspace``).
    corrupt
        Sites that pool what they see. Under ``subspace`` they are assumed to hear ALL broadcasts (no more is possible).
    sd
        Standard deviation of initial duals, or of the cycle's offset; the numbers have 1.
    order
        The cycle, its first site draws the offset.

    Examples
    --------
    The five-node graph of the paper, nodes 2 and 4 corrupt (ERRATA E4.5, E4.12):

    >>> edges = frozenset({("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("1", "5"), ("1", "3"), ("3", "5")})
    >>> bits = {h: leak(h, "12345", edges, "24", order="12345")["1"] for h in ("federated", "cycle", "subspace", "ideal")}
    >>> {h: round(b, 4) for h, b in bits.items()}
    {'federated': inf, 'cycle': 0.5, 'subspace': 0.2925, 'ideal': 0.2925}
    """
    honest = [s for s in names if s not in set(corrupt)]
    n = len(honest)
    if how == "federated":
        return dict.fromkeys(honest, inf)
    if how == "ideal":
        return dict.fromkeys(honest, ideal_bits(n))
    if how == "subspace":
        a = adjacency(names, edges)
        at = [i for i, s in enumerate(names) if s in set(honest)]
        return dict(zip(honest, _subspace(a[np.ix_(at, at)], sd, schedule).tolist()))
    f, g = views(order or names, corrupt, sd)
    at = [list(order or names).index(s) for s in honest]
    return {s: linear_gaussian(f[:, at], g, k) for k, s in enumerate(honest)}


def ideal_bits(honest: int) -> float:
    """What the sum of ``honest`` independent Gaussian numbers tells about one of them."""
    return 0.5 * log2(honest / (honest - 1)) if honest > 1 else inf


def _subspace(a: Array, sd: float, schedule: Schedule) -> Array:
    """Leak of every node of the honest subgraph.

    The whole transcript is, per node, two views ``s_i - sum_j B lambda_{j|i}(0)`` and ``s_i - sum_j B lambda_{i|j}(0)``
    (ERRATA E4.5). Their difference does not depend on s; their mean has noise covariance ``sd^2 L / 2``, L the Laplacian.
    Under random activation one dual of every edge is overwritten before use: one view, noise covariance ``sd^2 L``.
    """
    if not len(a):
        return np.empty(0)
    repeats = 2.0 if schedule == "synchronous" else 1.0
    value, vector = np.linalg.eigh(np.diag(a.sum(axis=1)) - a)
    noise = sd**2 * np.where(value > 1e-9, value, 0.0)
    remaining = (vector**2) @ (noise / (repeats + noise))  # var(S_i | views), without cancellation
    with np.errstate(divide="ignore"):
        return np.asarray(-0.5 * np.log2(remaining))


def views(order: Sequence[str], corrupt: Collection[str], sd: float) -> tuple[Array, Array]:
    """What corrupt sites (or, with none, an eavesdropper) see of a cycle: ``f s + g r`` with ``r`` of variance 1.

    The first site of the order adds its offset r; message k carries r plus the first k numbers; the last row is the sum.
    """
    n, bad = len(order), set(corrupt)
    rows, offsets = [], []
    for k in range(n):  # message k goes from order[k] to order[k + 1]
        if not bad or order[k] in bad or order[(k + 1) % n] in bad:
            rows.append(np.arange(n) <= k)
            offsets.append(sd)
    if order[0] in bad:
        rows.append(np.zeros(n, bool))
        offsets.append(sd)
    rows.append(np.ones(n, bool))
    offsets.append(0.0)
    return np.array(rows, np.float64), np.array(offsets)[:, None]


def linear_gaussian(f: Array, g: Array, i: int) -> float:
    """Exact ``I(S_i; f S + g R)`` in bits for independent standard Gaussian S, R; infinite if S_i follows from the views."""
    m = np.hstack([f, g])
    # S_i given the views: the part of unit vector i outside the row space of [f g].
    _, value, rows = np.linalg.svd(m, full_matrices=False)
    rows = rows[value > 1e-12 * value.max(initial=0.0)]
    remaining = 1.0 - float((rows[:, i] ** 2).sum())
    return inf if remaining < 1e-10 else max(0.0, -0.5 * log2(remaining))


def mask_sd(
    names: Sequence[str], edges: Edges, colluders: int, bits: float, schedule: Schedule = "synchronous"
) -> float:
    """Smallest mask (in units of the largest number) that keeps the WORST honest site's excess leak below ``bits``.

    Excess over the ideal, for every set of ``max(1, colluders)`` corrupt sites and for an eavesdropper; not the authors'
    rule ``1/2 log2(1 + var_s / var_lambda)``, which is no bound (ERRATA E4.5). Refuses a graph that corrupt sites could cut.
    """
    return _mask_sd(tuple(names), edges, max(1, colluders), bits, schedule)


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


def _one_out(a: Array, sd: float, schedule: Schedule) -> float:
    """The worst excess when any ONE of many sites is corrupt, and of an eavesdropper: n graphs from the inverse of one.

    Without node b the Laplacian loses its row and column, and its neighbours N one degree each. With ``K = r I + sd^2 (L + 1 1')``
    (r views) the diagonal of ``K_b^-1`` follows from ``K^-1`` by taking b out and a Woodbury step of rank |N|, and

        var(S_i | views) = 1 - 1/m - r ((K_b^-1)_ii - 1 / (m (r + sd^2 m))),       m nodes are left
    """
    n, r = len(a), 2.0 if schedule == "synchronous" else 1.0
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
def _mask_sd(names: tuple[str, ...], edges: Edges, colluders: int, bits: float, schedule: Schedule) -> float:
    many = len(names) > MANY and colluders == 1
    subgraphs = () if many else _honest(names, edges, colluders)
    whole = _uncut(names, edges) if many else None

    def worst(sd: float) -> float:
        if whole is not None:
            return _one_out(whole, sd, schedule)
        return max(float(_subspace(a, sd, schedule).max()) - ideal_bits(len(a)) for a in subgraphs)

    # The excess falls as 1 / sd^2 for large masks; a second look at the result makes it exact.
    sd = 1e3 * float(np.sqrt(max(worst(1e3), 1e-300) / bits))
    while worst(sd) > bits:
        sd *= 1.1
    return float(f"{sd:.3g}") * 1.01


def ksg(x: Array, y: Array, *, k: int = 3) -> float:
    """Mutual information in bits estimated from samples by nearest neighbours (Kraskov, Stoegbauer, Grassberger 2004).

    Parameters
    ----------
    x, y
        Samples of shape (runs,) or (runs, dimensions); ``y`` is whitened first, which changes no information.
    k
        Neighbours; 3 as in the paper's estimator.
    """
    from scipy.spatial import cKDTree
    from scipy.special import digamma

    x = np.asarray(x, np.float64).reshape(len(x), -1)
    y = np.asarray(y, np.float64).reshape(len(y), -1)
    x, y = _whiten(x), _whiten(y)
    both = np.hstack([x, y])
    reach = cKDTree(both).query(both, k + 1, p=np.inf)[0][:, -1]
    reach = np.nextafter(reach, 0)
    near = [cKDTree(m).query_ball_point(m, reach, p=np.inf, return_length=True) for m in (x, y)]
    nats = digamma(k) + digamma(len(x)) - np.mean(digamma(near[0]) + digamma(near[1]))
    return max(0.0, float(nats) / float(np.log(2)))


def _whiten(m: Array) -> Array:
    centred = m - m.mean(axis=0)
    u, value, _ = np.linalg.svd(centred, full_matrices=False)
    keep = value > 1e-10 * value.max(initial=0.0)
    return np.asarray(u[:, keep] * np.sqrt(len(m)))


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
