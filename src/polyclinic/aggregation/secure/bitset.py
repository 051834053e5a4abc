"""Some of the sites that everybody knows, as bits: a list of 1,000 names is 125 bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

__all__ = ["from_bits", "to_bits"]


def to_bits(names: Collection[str], order: Sequence[str]) -> bytes:
    """Some of the sites that everybody knows, as bits.

    >>> from_bits(to_bits(["a", "c"], "abc"), "abc")
    ['a', 'c']
    """
    here = set(names)
    return np.packbits([s in here for s in order]).tobytes()


def from_bits(bits: bytes, order: Sequence[str]) -> list[str]:
    """Inverse of :func:`to_bits`; in the order of ``order``."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8))
    if len(bits) != (len(order) + 7) // 8 or flags[len(order) :].any():
        raise ValueError("a list of sites has the wrong length")
    return list(order) if flags[: len(order)].all() else [s for s, x in zip(order, flags) if x]
