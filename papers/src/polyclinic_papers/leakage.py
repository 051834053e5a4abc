"""How much one site's number leaks through a federated sum, a cycle or a subspace sum, in bits: exactly, and estimated from runs.

Every message of these protocols is a linear function of the sites' numbers and of random offsets, so that what corrupt sites
learn has a closed form for Gaussian numbers (see :mod:`polyclinic_papers.decentralised.leakage`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, log2
from typing import Literal

import numpy as np

from polyclinic.privacy.release import Array
from polyclinic_papers.decentralised.graph import Edges, adjacency
from polyclinic_papers.decentralised.leakage import ideal_bits, subspace_bits

How = Literal["federated", "ideal", "cycle", "subspace"]


def leak(
    how: How,
    names: Sequence[str],
    edges: Edges = frozenset(),
    corrupt: Collection[str] = (),
    *,
    sd: float = 1e3,
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
        return dict(zip(honest, subspace_bits(a[np.ix_(at, at)], sd).tolist()))
    f, g = views(order or names, corrupt, sd)
    at = [list(order or names).index(s) for s in honest]
    return {s: linear_gaussian(f[:, at], g, k) for k, s in enumerate(honest)}


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
