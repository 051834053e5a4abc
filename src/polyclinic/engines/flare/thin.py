"""The public state travels once: a large array that the other side has already is named by its hash, not sent again.

A sum of TRIP changes the factor of one mode; the other modes' factors are at the sites since the sum before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

__all__ = ["Hashes", "Unknown", "thick", "thin"]

LARGE: Final = 64 * 2**10  # bytes; smaller arrays are simply sent
SAME: Final = "\x00same"
Array = np.ndarray[Any, Any]


class Unknown(Exception):
    """An array was named that is not here (this side was restarted); it must be sent in full."""


class Hashes:
    """Hashes of large arrays; each array object is read once, as states keep those that did not change."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Array, str]] = {}

    def of(self, tree: Any) -> dict[str, Array]:
        """Hash -> array, for every large array of a tree; forgets the arrays of earlier trees."""
        found: dict[int, tuple[Array, str]] = {}

        def see(a: Array) -> Any:
            found[id(a)] = self._known.get(id(a)) or (a, _hash(a))
            return a

        _each(tree, see)
        self._known = found
        return {name: a for a, name in found.values()}


def _hash(a: Array) -> str:
    h = hashlib.sha256(f"{a.dtype.str}{a.shape}".encode())
    h.update(np.ascontiguousarray(a).data)
    return h.hexdigest()


def _each(tree: Any, act: Callable[[Array], Any]) -> Any:
    if isinstance(tree, np.ndarray):
        return act(tree) if tree.nbytes >= LARGE else tree
    if isinstance(tree, Mapping):
        return {k: _each(v, act) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_each(v, act) for v in tree]
    return tree


def thin(tree: Any, arrays: Mapping[str, Array], there: set[str]) -> Any:
    """The tree with the arrays that are ``there`` replaced by their names.

    >>> a = np.zeros(10_000)
    >>> hashes = Hashes().of({"a": a})
    >>> small = thin({"a": a}, hashes, set(hashes))
    >>> thick(small, hashes)["a"] is a
    True
    """
    names = {id(a): name for name, a in arrays.items()}

    def name(a: Array) -> Any:
        known = names.get(id(a))
        return {SAME: known} if known in there else a

    return _each(tree, name)


def thick(tree: Any, here: Mapping[str, Array]) -> Any:
    """Inverse of :func:`thin`; :class:`Unknown` if an array is not here."""
    if isinstance(tree, Mapping):
        if set(tree) == {SAME}:
            found = here.get(str(tree[SAME]))
            if found is None:
                raise Unknown
            return found
        return {k: thick(v, here) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [thick(v, here) for v in tree]
    return tree
