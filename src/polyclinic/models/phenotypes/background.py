"""Background: components that describe all patients instead of a group of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST: Final = 0.75  # docs/howto/findings.md: share of the patients who carry it
NEAR: Final = 0.8  # docs/howto/findings.md: cosine to the other components together, in every mode


def background(
    factors: Sequence[Array], weights: Array, carried: Sequence[float | None] | None = None
) -> NDArray[np.bool_]:
    """Say which components are background: no phenotype, and without an odds ratio.

    Parameters
    ----------
    factors
        Per mode (I_n, R), columns of length 1.
    weights
        (R,) size of every component.
    carried
        Share of the patients who carry each component, None where it is unknown.

    Returns
    -------
    NDArray
        (R,) True where a component is close to all others together in every mode, or where most patients carry it.

    Examples
    --------
    >>> flat = np.column_stack([np.eye(4)[:, :3], np.full(4, 0.5)])
    >>> background([flat], np.ones(4)).tolist()
    [False, False, False, True]
    >>> background([np.eye(2)], np.ones(2), [0.2, 0.95]).tolist()
    [False, True]
    """
    # of two components each is all that the other is not
    alike: NDArray[np.bool_] = np.full(len(weights), len(weights) > 2)
    for f in factors:
        size = np.abs(f) * weights
        remainder = size.sum(1, keepdims=True) - size
        length = np.linalg.norm(size, axis=0) * np.linalg.norm(remainder, axis=0)
        alike &= (size * remainder).sum(0) >= NEAR * np.maximum(length, 1e-300)
    most = [share is not None and share >= MOST for share in carried or [None] * len(weights)]
    return np.logical_or(alike, most)
