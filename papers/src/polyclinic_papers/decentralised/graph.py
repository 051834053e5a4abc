"""Who talks to whom when there is no coordinator: complete, ring, random geometric or given graphs of sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.release import Array

Edges = frozenset[tuple[str, str]]
MOST: Final = 10**7  # hosts times edges that are looked at


def given(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> Edges:
    """Check a user's list of neighbours: known names, no loops, connected. Each pair is kept once, sorted.

    >>> sorted(given(["a", "b", "c"], [("b", "a"), ("b", "c")]))
    [('a', 'b'), ('b', 'c')]
    """
    pairs = [tuple(sorted(e)) for e in edges]
    known = set(names)
    faults = [f"edge {p}" for p in pairs if len(p) != 2 or p[0] == p[1] or not set(p) <= known]
    out: Edges = frozenset((p[0], p[1]) for p in pairs if len(p) == 2)
    if not faults and not connected(adjacency(names, out)):
        faults.append("the graph falls apart: some sites cannot reach the others")
    if faults:
        raise ConfigError("the graph of sites is not usable", faults=faults)
    return out


def complete(names: Sequence[str]) -> Edges:
    """Everybody talks to everybody."""
    return frozenset(combinations(sorted(names), 2))


def ring(names: Sequence[str]) -> Edges:
    """Everybody talks to two, in order of name."""
    order = sorted(names)
    return given(names, zip(order, [*order[1:], order[0]]))


def geometric(
    names: Sequence[str], rng: np.random.Generator, *, radius: float | None = None, tries: int = 100
) -> Edges:
    """Random points in the unit square; those nearer than ``radius`` talk (default: the paper's sqrt(2 log n / n)).

    Drawn again until the graph is connected.
    """
    n = len(names)
    reach = radius if radius is not None else float(np.sqrt(2 * np.log(n) / n))
    order = sorted(names)
    for _ in range(tries):
        at = rng.random((n, 2))
        near = np.linalg.norm(at[:, None] - at[None], axis=-1) < reach
        np.fill_diagonal(near, False)
        if connected(near.astype(np.float64)):
            return frozenset((order[i], order[j]) for i, j in np.argwhere(np.triu(near)))
    raise ConfigError(
        f"no connected geometric graph of {n} sites with radius {reach:.3g} in {tries} tries", hint="enlarge it"
    )


def adjacency(names: Sequence[str], edges: Edges) -> Array:
    """Symmetric matrix (n, n) of 0 and 1, rows in the order of ``names``."""
    at = {s: i for i, s in enumerate(names)}
    a = np.zeros((len(names), len(names)))
    for i, j in edges:
        a[at[i], at[j]] = a[at[j], at[i]] = 1.0
    return a


def neighbours(me: str, edges: Edges) -> list[str]:
    """Sites that share an edge with ``me``, by name."""
    return sorted({b if a == me else a for a, b in edges if me in (a, b)})


def connected(a: Array) -> bool:
    """Whether every node reaches every other; true for a single node."""
    seen = np.zeros(len(a), bool)
    seen[:1] = True
    while True:
        more = seen | (a[seen] > 0).any(axis=0)
        if (more == seen).all():
            return bool(seen.all())
        seen = more
