"""TRIP's term for distinct phenotypes: the step of the shared factors, of their twins and multipliers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def distinct_step(
    summed: Array,
    weight: float,
    mu: float,
    lam: float,
    twin: Array,
    y: Array,
    nonnegative: bool,
    variant: Literal["corrected", "paper"] = "corrected",
) -> tuple[Array, Array, Array]:
    """A, B and Y of one mode under the distinctness penalty lambda/2 ||I - B'A||^2, B = A (eq. 10-12 corrected, E2.2, E2.3).

    ``summed`` is sum_k (omega A_k - H_k), ``weight`` is K omega, ``mu`` the penalty of B = A. Never forms an I x I matrix (Woodbury).
    """
    a = _shifted_solve(mu + weight, lam, twin, summed + mu * twin + y + lam * twin)
    if nonnegative:
        a = np.maximum(a, 0.0)
    if variant == "paper":  # printed (11), (12) from Y = 0: B is the previous A, the constraint is vacuous (E2.3)
        return a, a, np.zeros_like(y)
    b = _shifted_solve(mu, lam, a, (mu + lam) * a - y)
    return a, b, y + mu * (b - a)


def _shifted_solve(alpha: float, lam: float, b: Array, m: Array) -> Array:
    """(alpha I + lam B B')^-1 M in R x R (E2.2)."""
    inner = alpha * np.eye(b.shape[1]) + lam * (b.T @ b)
    out: Array = (m - lam * (b @ np.linalg.solve(inner, b.T @ m))) / alpha
    return out
