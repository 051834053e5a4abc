"""What a coordinator that carries everybody's letters can compute of one site: sums and differences of what it can read.

Shares of a contribution look random one by one and are the contribution together; so is what a site passes on less what it
was handed. With readable arrays x_1 ... x_k of letters that a site sent or got, tried are::

    c_1 x_1 + ... + c_k x_k,    c in {-1, 0, 1}^k   (k up to 6; above: pairs, all that was sent, that less all that was got)

whole numbers modulo their width, others as reals; and for reals the nearest of all linear combinations (least squares).
Other moduli, products and letters of several sites together are not tried: passing proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import Message

Numbers = NDArray[Any]
ALL: Final = 6  # arrays of which every combination is tried
FITTED: Final = 40  # arrays at most in a least squares fit
SAME: Final = 0.9  # correlation with the contribution: what is put together again is it, not a part of a sum


def readable(tree: object) -> list[Numbers]:
    """The arrays of numbers in a letter's body; what is sealed is bytes."""
    if isinstance(tree, Mapping):
        return [a for v in tree.values() for a in readable(v)]
    if isinstance(tree, list | tuple):
        return [a for v in tree for a in readable(v)]
    return [tree] if isinstance(tree, np.ndarray) and tree.dtype.kind in "fiu" else []


def read_by_relay(letters: Sequence[Message], site: str, mine: NDArray[np.float64]) -> str:
    """By which letters whoever carries them all has this site's contribution; empty where none of what is tried gives it.

    >>> def letter(to, a): return Message("a", to, f"to {to}", 1, "s", 0, {"x": a})
    >>> mine, mask = np.arange(-50.0, 50.0), np.random.default_rng(0).integers(0, 2**64, 100, np.uint64)
    >>> left, right = mine.astype(np.int64).view(np.uint64) - mask, mask
    >>> read_by_relay([letter("c", left)], "a", mine), read_by_relay([letter("c", left), letter("b", right)], "a", mine)
    ('', "'to b' and 'to c'")
    """
    outgoing: list[tuple[str, Numbers]] = []
    incoming: list[tuple[str, Numbers]] = []
    for m in letters:
        row = outgoing if m.sender == site else incoming if m.to == site else []
        row += [(m.kind, a.ravel()) for a in readable(m.body) if a.size == mine.size]
    for dtype in {a.dtype for _, a in (*outgoing, *incoming)}:
        out, into = ([x for x in row if x[1].dtype == dtype] for row in (outgoing, incoming))
        names, arrays = [n for n, _ in (*out, *into)], [a for _, a in (*out, *into)]
        kinds = _combined(names, arrays, len(out), mine)
        if kinds:
            return kinds
    return ""


def _combined(names: Sequence[str], arrays: Sequence[Numbers], sent: int, mine: NDArray[np.float64]) -> str:
    """By which of the arrays, the first ones sent, the others got, the contribution is put together; empty: by none."""
    for weights in _tried(sent, len(arrays) - sent):
        if likeness(_summed(arrays, weights), mine) >= SAME:
            return " and ".join(sorted({repr(n) for n, w in zip(names, weights) if w}))
    if arrays[0].dtype.kind == "f" and 1 < len(arrays) <= FITTED:
        basis = np.stack([a.astype(np.float64) for a in arrays], axis=1)
        if np.isfinite(basis).all() and likeness(basis @ np.linalg.lstsq(basis, mine, rcond=None)[0], mine) >= SAME:
            return " and ".join(sorted({repr(n) for n in names}))
    return ""


def _tried(sent: int, got: int) -> Iterator[tuple[int, ...]]:
    """Coefficients of at least two arrays; one alone is another question."""
    k = sent + got
    if k <= ALL:
        yield from (c for c in product((0, 1, -1), repeat=k) if sum(map(abs, c)) > 1)
        return
    for i, j in combinations(range(k), 2):
        for sign in (1, -1):
            yield tuple(1 if n == i else sign if n == j else 0 for n in range(k))
    yield (*(1,) * sent, *(0,) * got)
    yield (*(1,) * sent, *(-1,) * got)


def _summed(arrays: Sequence[Numbers], weights: Sequence[int]) -> NDArray[np.float64]:
    """The combination: whole numbers wrap at their width, and are then read with a sign."""
    total = np.zeros_like(arrays[0])
    with np.errstate(all="ignore"):
        for a, w in zip(arrays, weights):
            total = total + a if w > 0 else total - a if w < 0 else total
    signed = total.view(np.dtype(f"i{total.dtype.itemsize}")) if total.dtype.kind == "u" else total
    return np.asarray(signed, np.float64)


def likeness(array: Numbers, mine: NDArray[np.float64]) -> float:
    """Size of the correlation with a contribution; 0 of another size, of constants and of numbers that are not finite."""
    a = array.astype(np.float64).ravel()
    if a.size != mine.size or not np.isfinite(a).all() or np.ptp(a) == 0 or np.ptp(mine) == 0:
        return 0.0
    return abs(float(np.corrcoef(a, mine)[0, 1]))
