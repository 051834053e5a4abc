"""Variational inference for a mixture of topics, one patient at a time.

Model: theta_i ~ Dirichlet(alpha); every event of patient i draws a topic from theta_i, then a code from that topic's column.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def digamma(x: float) -> float:
    """The derivative of log Gamma for x > 0: recurrence up to 6, then the asymptotic series."""
    shift = 0.0
    while x < 6.0:
        shift -= 1.0 / x
        x += 1.0
    f = 1.0 / (x * x)
    series = f * (1 / 12.0 - f * (1 / 120.0 - f * (1 / 252.0 - f * (1 / 240.0 - f / 132.0))))
    return shift + np.log(x) - 0.5 / x - series  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _weights(gamma: Float, log_theta: Float, theta: Float) -> None:
    """log_theta = E log theta under Dirichlet(gamma), theta = exp of it."""
    total = 0.0
    for r in range(len(gamma)):
        total += gamma[r]
    shift = digamma(total)
    for r in range(len(gamma)):
        log_theta[r] = digamma(gamma[r]) - shift
        theta[r] = np.exp(log_theta[r])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def e_step(
    indptr: Int, codes: Int, values: Float, columns: Float, alpha: Float, gamma: Float, steps: int, sums: Float
) -> tuple[float, Float]:
    """Update ``gamma`` (patients, K) by ``steps`` steps, and add the expected counts to ``sums`` (codes, K).

    Returns the sum over events of log sum_r theta_r column_r, and the sum over patients of E log theta (K,).
    """
    rank = columns.shape[1]
    theta, log_theta, mass = np.empty(rank), np.empty(rank), np.empty(rank)
    logs, likelihood = np.zeros(rank), 0.0
    for i in range(len(indptr) - 1):
        for _ in range(steps):
            _weights(gamma[i], log_theta, theta)
            mass[:] = 0.0
            for e in range(indptr[i], indptr[i + 1]):
                j = codes[e]
                z = 1e-300
                for r in range(rank):
                    z += theta[r] * columns[j, r]
                z = values[e] / z
                for r in range(rank):
                    mass[r] += z * columns[j, r]
            for r in range(rank):
                gamma[i, r] = alpha[r] + theta[r] * mass[r]
        _weights(gamma[i], log_theta, theta)
        for e in range(indptr[i], indptr[i + 1]):
            j = codes[e]
            z = 1e-300
            for r in range(rank):
                z += theta[r] * columns[j, r]
            likelihood += values[e] * np.log(z)
            z = values[e] / z
            for r in range(rank):
                sums[j, r] += z * theta[r] * columns[j, r]
        for r in range(rank):
            logs[r] += log_theta[r]
    return likelihood, logs
