"""Whether one more exact sum over almost the same patients gives away one hospital.

The sum over {a, b, c, d} less the sum over {a, b, c} is d, without any error. A list of sites is a row of zeros and ones; exact
sums over the same patients can be combined as their rows can, and a combination that vanishes outside a set T of sites exists iff

    rank(rows without the columns of T) < rank(rows).

No T of fewer than c + 2 sites may have one, c of them pooling what they know. What was counted before stands in the site's own
book: which sites, and a keyed sketch of the patients, never a name.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np

__all__ = ["HIDDEN", "alike", "exposed", "sketch"]

HIDDEN: Final = (
    3  # sites that two sums must differ by: one that pools what it knows, and two others among whom one is hidden
)
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


def exposed(lists: Sequence[Sequence[str]], new: Iterable[str], hidden: int = HIDDEN) -> tuple[str, ...]:
    """Fewer than ``hidden`` sites whose parts a sum over ``new`` gives away, after sums over ``lists``; () if none.

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
    before = sorted(known, key=sorted)
    sites = sorted(frozenset().union(now, *known))
    rows = np.array([[s in x for s in sites] for x in (*before, now)], np.float64)
    whole, old = _rank(rows), _rank(rows[:-1])
    for chosen in _apart(rows, hidden):
        rest = np.delete(rows, chosen, axis=1)
        if whole - _rank(rest) > old - _rank(rest[:-1]):
            return tuple(sites[i] for i in chosen)
    return ()


def _apart(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]], hidden: int) -> Iterator[tuple[int, ...]]:
    """Sets of fewer than ``hidden`` sites that a combination can be of: it is the same at sites that are in the same lists."""
    groups: dict[bytes, list[int]] = {}
    for i, column in enumerate(rows.T):
        groups.setdefault(column.tobytes(), []).append(i)
    small = [g for g in groups.values() if len(g) < hidden]
    for n in range(1, hidden):
        for some in combinations(small, n):
            if sum(map(len, some)) < hidden:
                yield tuple(sorted(i for g in some for i in g))


def _rank(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> int:
    return int(np.linalg.matrix_rank(rows)) if rows.size else 0
