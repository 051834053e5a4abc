"""Whether two states of a method are the same bits, or near."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.wire import encoding as wire


def bits_of(public: object) -> bytes:
    return wire.encode(wire.pack(public), limit=2**40)


def near(a: object, b: object, tolerance: float) -> tuple[bool, float]:
    """Largest difference between two states, relative to the largest value of each array."""
    worst = 0.0

    def walk(x: object, y: Any) -> None:
        nonlocal worst
        if isinstance(x, dict):
            for k in x:
                walk(x[k], y[k])
        elif isinstance(x, list | tuple):
            for u, v in zip(x, y):
                walk(u, v)
        elif isinstance(x, np.ndarray | float) and not isinstance(x, bool) and y is not None:
            u, v = np.asarray(x, float), np.asarray(y, float)
            # a residual near zero is noise of the last digits: scalars count in units of one
            scale = max(float(np.abs(u).max(initial=0.0)), 1e-9 if isinstance(x, np.ndarray) else 1.0)
            worst = max(worst, float(np.abs(u - v).max(initial=0.0)) / scale)

    walk(wire.pack(a), wire.pack(b))
    return worst <= tolerance, worst


def arrays_in(tree: object) -> list[NDArray[np.generic]]:
    if isinstance(tree, dict):
        return [a for v in tree.values() for a in arrays_in(v)]
    if isinstance(tree, list | tuple):
        return [a for v in tree for a in arrays_in(v)]
    return [tree] if isinstance(tree, np.ndarray) else []
