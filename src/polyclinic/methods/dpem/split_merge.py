"""Join phenotypes that were found in pieces, split those that may hold two: a way out of EM's local optima.

An over-complete EM ends with some true phenotypes shared out over several columns and some columns that hold the union
of two. Joining repairs the first; splitting heavy columns and letting EM go on repairs the second. Both are functions
of released values and public random numbers, so they cost no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# docs/dev/decisions/0013-dpem-budget-plan.md
BROAD: Final = 1.5  # a union broader than this many times the median phenotype holds more than one
# definition: bisection
CLOSER: Final = 0.5  # such a union is asked again at a likeness that is by this part of what is left nearer to 1


def alike(factors: Sequence[Array], marginals: Sequence[Array]) -> Array:
    """(R, R) likeness of phenotypes in [0, 1]: geometric mean over modes of the cosine of what they have beyond the marginals.

    Columns are compared in the chi-square metric around the marginals, so a code that everybody has makes no two
    phenotypes alike. All modes have to agree: two that share their medications alone are not alike.

    Examples
    --------
    >>> f = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    >>> alike([f], [np.array([0.3, 0.3, 0.4])]).round(2)[0].tolist()
    [1.0, 1.0, 0.0]
    """
    out = np.ones((factors[0].shape[1],) * 2)
    for f, m in zip(factors, marginals):
        x = (f - m[:, None]) / np.sqrt(m)[:, None]
        x = x / np.maximum(np.linalg.norm(x, axis=0), 1e-12)
        out *= np.maximum(x.T @ x, 0.0)
    return np.minimum(out ** (1.0 / len(factors)), 1.0)


def breadth(factors: Sequence[Array], marginals: Sequence[Array]) -> Array:
    """(R,) over how many codes a phenotype spreads what it has beyond the marginals, geometric mean over modes.

    A column that holds two phenotypes is twice as broad as others.

    Examples
    --------
    >>> breadth([np.array([[0.5, 0.9], [0.5, 0.1], [0.0, 0.0]])], [np.array([0.1, 0.1, 0.8])]).tolist()
    [2.0, 1.0]
    """
    out = np.ones(factors[0].shape[1])
    for f, m in zip(factors, marginals):
        x = np.maximum(f - m[:, None], 0.0)
        out *= np.square(x.sum(0)) / np.maximum(np.square(x).sum(0), 1e-300)
    return np.asarray(out ** (1.0 / len(factors)))


def groups(likeness: Array, mass: Array, threshold: float) -> list[list[int]]:
    """Phenotypes that belong together: the heaviest takes everything alike, then the next of those that are left.

    Examples
    --------
    >>> groups(np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.1], [0.0, 0.1, 1.0]]), np.array([1.0, 3.0, 2.0]), 0.5)
    [[1, 0], [2]]
    """
    ungrouped = [int(r) for r in np.argsort(-mass, kind="stable")]
    out = []
    while ungrouped:
        first = ungrouped[0]
        out.append([first, *(r for r in ungrouped[1:] if likeness[first, r] > threshold)])
        ungrouped = [r for r in ungrouped if r not in out[-1]]
    return out


def joined(factors: Sequence[Array], mass: Array, found: Sequence[Sequence[int]]) -> list[Array]:
    """(I_n, groups) per mode: every group's mean by mass."""
    return [np.stack([f[:, g] @ (mass[g] / mass[g].sum()) for g in map(list, found)], axis=1) for f in factors]


def pieces(
    factors: Sequence[Array], marginals: Sequence[Array], mass: Array, threshold: float
) -> tuple[list[list[int]], list[list[int]]]:
    """Columns that are one phenotype, the heaviest first; and those that only look so, since together they hold two.

    EM leaves two phenotypes in two columns that each hold some of both. They are alike, but their union is about twice as
    broad as a phenotype: such a group is divided at higher and higher likeness until its parts are not, at last into
    single columns. The second list has the groups that were divided.

    Examples
    --------
    >>> flat = np.full(40, 1 / 40)
    >>> f = np.zeros((40, 6))
    >>> for r, codes in enumerate([range(8), range(8), range(8, 12), range(12, 16), range(16, 20), range(20, 24)]):
    ...     f[codes, r] = 1 / len(codes)
    >>> f[:4, 0] *= 3; f[4:8, 1] *= 3; f /= f.sum(0)
    >>> pieces([f], [flat], np.arange(6.0, 0.0, -1.0), 0.25)
    ([[0], [1], [2], [3], [4], [5]], [[0, 1]])
    """
    likeness = alike(factors, marginals)
    clusters = groups(likeness, mass, threshold)
    usual = float(np.median(breadth(joined(factors, mass, clusters), marginals)))
    out, distances = [], []
    todo = [(g, threshold) for g in clusters]
    while todo:
        g, least = todo.pop(0)
        if len(g) == 1 or breadth(joined(factors, mass, [g]), marginals)[0] <= BROAD * usual:
            out.append(g)
            continue
        if g in clusters:
            distances.append(g)
        nearer = least + CLOSER * (1.0 - least)
        parts = [[r] for r in g]
        if nearer < 0.99:
            parts = [[g[k] for k in part] for part in groups(likeness[np.ix_(g, g)], mass[g], nearer)]
        todo = [(part, nearer) for part in parts] + todo
    return out, distances


def drawn_apart(factors: Sequence[Array], mass: Array, apart: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Columns of a group that holds two phenotypes, with what differs between them doubled: f_r <- f_r (f_r / union).

    EM tells such columns apart by and by, faster the more they differ.
    """
    out = [f.copy() for f in factors]
    for g in map(list, apart):
        for f, union in zip(out, joined(factors, mass, [g])):
            x = np.square(f[:, g]) / np.maximum(union, 1e-300)
            f[:, g] = x / x.sum(0)
    return tuple(out)


def split(
    factors: Sequence[Array], mass: Array, rank: int, rng: np.random.Generator
) -> tuple[tuple[Array, ...], Array]:
    """Bring the number of columns up to ``rank`` by halving the first ones: each code goes at random, more to one half."""
    columns, masses = [list(f.T) for f in factors], list(mass)
    for k in range(rank - len(mass)):
        p = k % len(mass)
        for mode in columns:
            part = rng.uniform(size=len(mode[p]))
            mode.append(mode[p] * (1 - part))
            mode[p] = mode[p] * part
        masses[p] /= 2
        masses.append(masses[p])
    stacked = [np.stack(mode, axis=1) for mode in columns]
    return tuple(s / s.sum(0) for s in stacked), np.array(masses)
