"""Whether one more exact sum over almost the same patients gives away one hospital.

The sum over {a, b, c, d} less the sum over {a, b, c} is d, without any error. A list of sites is a row of zeros and ones; exact
sums over the same patients can be combined as their rows can, and a combination that vanishes outside a set T of sites exists iff

    rank(rows without the columns of T) < rank(rows).

No T of one or two sites may have one: one of them may pool what it knows, and then two others must be left to hide one. What was
counted before stands in the site's own book: which sites, and a keyed sketch of the patients, never a name.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["alike", "exposed", "sketch"]

SIZE: Final = 128  # hashes of a sketch
DIGITS: Final = 16  # of a hash
ALIKE: Final = 0.5  # patients in common, of all patients of both


def sketch(key: str, people: Iterable[str]) -> str:
    """The smallest keyed hashes of a set of patients; whole where there are few. Without the key it tells nobody's name.

    >>> sketch("key", ["a", "b"]) == sketch("key", ["b", "a", "b"])
    True
    """
    secret = bytes.fromhex(key) if len(key) == 64 else key.encode()
    hashes = {hmac.digest(secret, name.encode(), "sha256").hex()[:DIGITS] for name in people}
    return "".join(sorted(hashes)[:SIZE])


def alike(one: str, other: str) -> bool:
    """Whether two sketches are of almost the same patients: at least half of both sets together are in both.

    The share of the smallest hashes of the union that both sketches have estimates it, within .09 (two standard errors).

    >>> alike(sketch("k", map(str, range(100))), sketch("k", map(str, range(1, 100))))
    True
    >>> alike(sketch("k", map(str, range(100))), sketch("k", map(str, range(60, 160))))
    False
    """
    a, b = _hashes(one), _hashes(other)
    both = sorted(a | b)[:SIZE]
    return one == other or (bool(both) and sum(h in a and h in b for h in both) >= ALIKE * len(both))


def _hashes(text: str) -> set[str]:
    return {text[i : i + DIGITS] for i in range(0, len(text), DIGITS)}


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
    known, now = {frozenset(x) for x in lists}, frozenset(new)
    if now in known or not known:
        return ()
    sites = sorted(frozenset().union(now, *known))
    rows = np.array([[s in x for s in sites] for x in (*sorted(known, key=sorted), now)], np.float64)
    found = _given_away(rows) & ~_given_away(rows[:-1])
    alone = np.flatnonzero(found.diagonal())
    pairs = alone[:1] if len(alone) else np.argwhere(found)[:1].ravel()
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
