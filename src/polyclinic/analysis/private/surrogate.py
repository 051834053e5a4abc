"""A regression from noisy sums: surrogate patients that agree with paid moments, and a posterior that knows the noise.

1. ``surrogate``: of all distributions that agree with the paid first and second moments up to their noise, the one nearest to
   independent columns (relaxed maximum entropy): weights exp(theta'f) on independent draws, where theta minimises
   ``log sum exp(theta'f) - theta'm + 1/2 sum beta theta^2``, ``beta = PRIOR (noise of the moment)^2``. No patient is in it: it is a
   function of paid sums and of a public seed.
2. ``posterior``: with S(b) = n E[x mu(b)] and H(b) = n E[x v x'] of the surrogate, a paid gradient at b_k is
   ``g_k = S(beta) - S(b_k) + e``, and the paid ``X'y = S(beta) + e``; e has the known noise s^2 and the sampling error of a score, H.
   With beta ~ N(0, 0.7^2) (intercept 3^2), by Gauss-Newton: ``C = (H (H + s^2)^-1 H + P)^-1``, the interval is of C.

All of it is what every party computes from a total, so every sum has one written order: all parties get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.simd.jit import kernel

Array = NDArray[np.float64]
# limit: precision of the simulated patients
DRAWS: Final = 4000
# limit: iterations of the tilt
SWEEPS: Final = 40
PRIOR: Final = 100.0  # patients whose word it is that columns are independent
WIDTH: Final = 0.7  # prior of a log odds ratio
LEVEL: Final = 3.0  # prior of the intercept
MODEL: Final = 0.003  # of all patients: how far the surrogate's E[x mu] may be off; only X'y leans on it


@kernel
def _tilt(f, m, beta, w, theta, sweeps):  # type: ignore[no-untyped-def]
    """Newton steps, one coordinate after the other; ``w`` stays a distribution."""
    features, n = f.shape
    for _ in range(sweeps):
        longest = 0.0
        for k in range(features):
            mean, second = 0.0, 0.0
            for i in range(n):
                x = f[k, i]
                if x != 0.0:
                    mean += w[i] * x
                    second += w[i] * x * x
            step = -(mean - m[k] + beta[k] * theta[k]) / (second - mean * mean + beta[k] + 1e-9)
            step = min(max(step, -1.0), 1.0)
            theta[k] += step
            longest = max(longest, abs(step))
            total = 0.0
            for i in range(n):
                if f[k, i] != 0.0:
                    w[i] *= np.exp(step * f[k, i])
                total += w[i]
            for i in range(n):
                w[i] /= total
        if longest < 1e-6:
            return


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Weighted patients who never were: columns with the intercept first, weights that sum to 1."""

    x: Array
    w: Array

    def risk(self, b: Array) -> Array:
        """Of every row."""
        eta = np.clip(ordered.product(self.x, b[:, None])[:, 0], -30.0, 30.0)
        out: Array = 0.5 * (1.0 + np.tanh(eta / 2.0))
        return out

    def expected(self, b: Array, n: float) -> Array:
        """S(b) = n E[x mu(b)]."""
        return n * ordered.transposed_product(self.x, (self.w * self.risk(b))[:, None])[:, 0]

    def information(self, b: Array, n: float) -> Array:
        """H(b) = n E[x v x']."""
        mu = self.risk(b)
        return n * ordered.transposed_product(self.x * (self.w * mu * (1 - mu))[:, None], self.x)

    def spread(self, b: Array) -> tuple[float, float]:
        """Mean and standard deviation of the score x'b."""
        eta = ordered.product(self.x, b[:, None])[:, 0]
        mean = ordered.inner(self.w, eta)
        return mean, max(ordered.inner(self.w, np.square(eta - mean)) ** 0.5, 1e-3)


def surrogate(
    means: Array,
    number: NDArray[np.bool_],
    squares: Array,
    pairs: Array,
    noise: tuple[Array, float],
    rng: np.random.Generator,
) -> Surrogate:
    """Surrogate patients.

    Parameters
    ----------
    means
        (p,) mean of every column.
    number
        (p,) whether a column is a number in [-1, 1]; else it is 0 or 1.
    squares
        Mean square of each number.
    pairs
        (p (p - 1) / 2,) mean of every product of two columns, row by row of the upper triangle.
    noise
        Standard deviation of every mean, and of every mean product or square.
    """
    p = len(means)
    x = np.empty((DRAWS, p))
    spread = np.ones(p)
    spread[number] = np.sqrt(np.clip(squares - means[number] ** 2, 0.01, 1.0))
    for j in range(p):
        if number[j]:
            x[:, j] = np.clip(means[j] + spread[j] * rng.standard_normal(DRAWS), -1.0, 1.0)
        else:
            x[:, j] = rng.random(DRAWS) < np.clip(means[j], 0.002, 0.998)
    a, b = np.triu_indices(p, 1)
    features = np.ascontiguousarray(np.concatenate([x, x[:, a] * x[:, b], np.square(x[:, number])], axis=1).T)
    target = np.concatenate([means, pairs, squares])
    sd = np.concatenate([noise[0], np.full(len(pairs) + len(squares), noise[1])])
    w = np.full(DRAWS, 1.0 / DRAWS)
    _tilt(features, target, PRIOR * np.square(sd), w, np.zeros(len(target)), SWEEPS)
    return Surrogate(np.column_stack([np.ones(DRAWS), x]), w)


@dataclass(frozen=True, eq=False)
class Observed:
    """A paid sum: X'(y - mu(at)) with its noise, or X'y where ``at`` is None."""

    at: Array | None
    value: Array
    sd: float


def posterior(s: Surrogate, n: float, seen: Sequence[Observed], start: Array) -> tuple[Array, Array]:
    """Coefficients and their covariance, known noise and sampling error together."""
    p = s.x.shape[1]
    prior = np.full(p, 1.0 / WIDTH**2)
    prior[0] = 1.0 / LEVEL**2
    sds = [o.sd if o.at is not None else float(np.hypot(o.sd, MODEL * n)) for o in seen]
    precision = sum(1.0 / x**2 for x in sds)
    noise = 1.0 / precision
    b, eye = start.copy(), np.eye(p)
    covariance = eye
    for _ in range(40):
        h, expectation = s.information(b, n), s.expected(b, n)
        gap = np.zeros(p)
        for o, sd in zip(seen, sds):
            previous = 0.0 if o.at is None else s.expected(o.at, n)
            gap = gap + (o.value - (expectation - previous)) / sd**2
        gap = gap * noise
        hv = ordered.solve(h + noise * eye, h, ridge=0.0)  # H (H + s^2)^-1
        inner = ordered.product(hv, h)
        covariance = ordered.solve((inner + inner.T) / 2 + np.diag(prior), eye, ridge=0.0)
        pull = ordered.product(hv, gap[:, None])[:, 0] - prior * b
        step = ordered.product(covariance, pull[:, None])[:, 0]
        longest = float(np.abs(step).max())
        b = np.clip(b + step * min(1.0, 1.0 / max(longest, 1e-300)), -8.0, 8.0)
        if longest < 1e-7:
            break
    return b, covariance
