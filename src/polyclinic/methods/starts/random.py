"""The public start of every phenotype model: same seed, same start, central or federated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import seeds


def start(shape: Sequence[int], rank: int, seed: int) -> list[NDArray[np.float64]]:
    """Random non-negative feature factors, (I_n, rank) each, columns of length 1.

    >>> [f.shape for f in start((3, 4), 2, seed=0)]
    [(3, 2), (4, 2)]
    """
    rng = seeds(seed, "start")
    factors = [rng.random((size, rank)) for size in shape]
    return [f / np.linalg.norm(f, axis=0) for f in factors]
