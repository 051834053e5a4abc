"""Decide whether one more exact sum, over another list of hospitals, gives away one hospital's part.

The sum over {a, b, c, d} less the sum over {a, b, c} is d, without any error. A list of sites is a row of zeros and ones; exact
sums can be combined as their rows can, and a combination that vanishes outside a set T of sites exists iff

    rank(rows without the columns of T) < rank(rows).

No T of one or two sites may have one: one of them may pool what it knows, and then two others must be left to hide one. The
site's own ledger has every list of sites that was counted. Which patients were counted does not matter: whoever orders a study
chooses them, and one frequent code more selects almost the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def exposed(lists: Sequence[Sequence[str]], new: Iterable[str]) -> tuple[str, ...]:
    """One or two sites whose parts a sum over ``new`` gives away, after sums over ``lists``; () if there are none.

    A list that was counted before gives nothing new.

    >>> exposed([["a", "b", "c", "d"]], ["a", "b", "c"])
    ('d',)
    >>> exposed([["a", "b", "c", "d"]], ["a", "b", "c", "d"])
    ()
    >>> exposed([["a", "b", "c", "d", "e", "f"]], ["a", "b", "c"])
    ()
    """
    counted, candidate = {frozenset(x) for x in lists}, frozenset(new)
    if candidate in counted or not counted:
        return ()
    sites = sorted(frozenset().union(candidate, *counted))
    rows = np.array([[s in x for s in sites] for x in (*sorted(counted, key=sorted), candidate)], np.float64)
    given_away = _given_away(rows) & ~_given_away(rows[:-1])
    single_sites = np.flatnonzero(given_away.diagonal())
    pairs = single_sites[:1] if len(single_sites) else np.argwhere(given_away)[:1].ravel()
    return tuple(sites[i] for i in pairs)


def _given_away(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(sites, sites) whether a combination of the rows vanishes outside sites i and j; on the diagonal: outside of i.

    With P the projection onto the span of the rows there is one iff the largest eigenvalue of P on {i, j} is 1.
    """
    _, size, basis = np.linalg.svd(rows, full_matrices=False)
    span = basis[size > 1e-9 * max(1.0, float(size.max(initial=0.0)))]
    p = span.T @ span
    a = p.diagonal()
    mean, half = (a[:, None] + a[None, :]) / 2, (a[:, None] - a[None, :]) / 2
    largest = mean + np.sqrt(half**2 + p**2)
    np.fill_diagonal(largest, a)
    return np.asarray(largest > 1 - 1e-7)
