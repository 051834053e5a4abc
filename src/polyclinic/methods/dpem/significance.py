"""Which codes of a phenotype may be shown: those that the known noise does not explain (no ghost phenotypes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def stands_out(released: Float, expected: Float, noise_sd: float | Float, *, fdr: float = 0.01) -> NDArray[np.bool_]:
    """Codes whose released sum exceeds ``expected`` by more than noise of known size would, at a false-discovery rate.

    One-sided z-tests over all codes of all phenotypes together, Benjamini and Hochberg 1995. Post-processing: it costs
    no privacy. Without noise every excess counts. The test answers the noise only: EM also divides data that hold no
    phenotypes, and such a division is really in the sums.

    Examples
    --------
    >>> stands_out(np.array([0.2, 9.0, -1.0, 1.5]), np.zeros(4), 1.0).tolist()
    [False, True, False, False]
    """
    excess = released - expected
    if np.max(noise_sd) <= 0:
        return np.asarray(excess > 0)
    from scipy.special import ndtr  # here: importing it takes a fresh process longer than a small fit

    p = ndtr(-excess / noise_sd).ravel()
    order = np.argsort(p, kind="stable")
    rejected = np.flatnonzero(p[order] <= fdr * np.arange(1, p.size + 1) / p.size)
    out = np.zeros(p.size, bool)
    if rejected.size:
        out[order[: rejected[-1] + 1]] = True
    return out.reshape(released.shape)
