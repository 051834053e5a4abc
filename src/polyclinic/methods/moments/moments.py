"""Means, spreads and correlations of all patients together, by sums only; what standardising and PCA need.

The zoom. A secure sum needs a public bound before any data is read, and a bound that fits every feature is far too wide
for most (blood cells in billions beside a jitter of 1e-5). So the sums zoom in: first the number of patients ``n``; then,
with a public centre ``m`` and unit ``s`` per feature (at first 0 and ``radius``), the sums of ``z = (x - m) / s`` and of
``|z|``, which no site can exceed ``n`` in; they give the next centre and unit, and so on. Around the last centre the second
moments are at most ``(sum |z|)^2 <= (2n)^2``: tight, public, and free of cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.records.sites.site import Site

__all__ = ["SummedMoments", "complete", "half", "in_ball", "moment_rows", "noisy_moments", "unit_rows", "whole"]

Array = NDArray[np.float64]
GRID = 2.0**-20  # paid statistics are whole multiples of it, so that sums and noise are exact integers
ROOM = 1 + 1e-9  # rounding of float64 sums, granted above a mathematical bound
ZOOMS = 2
RADIUS = 1e6  # no value exceeds it, unless a study says otherwise


def half(square: Array) -> Array:
    """Upper triangles of symmetric matrices, (..., d, d) -> (..., d(d+1)/2): what has to travel (ERRATA E4.10).

    >>> half(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    i, j = np.triu_indices(square.shape[-1])
    return np.ascontiguousarray(square[..., i, j])


def whole(triangle: Array, d: int) -> Array:
    """Inverse of :func:`half`.

    >>> whole(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    i, j = np.triu_indices(d)
    square = np.empty((*triangle.shape[:-1], d, d))
    square[..., i, j] = triangle
    square[..., j, i] = triangle
    return square


def complete(site: Site, radius: float | None = None, *, gaps: bool = False) -> Array:
    """The site's records, or an error that counts missing (and too large) values per feature.

    ``gaps``: values may be missing (NaN), but not infinite.
    """
    X = site.matrix()
    missing = np.count_nonzero(np.isinf(X) if gaps else ~np.isfinite(X), axis=0)
    called = (
        [f"feature {j}" for j in range(X.shape[1])] if site.columns is None else [f"column {c!r}" for c in site.columns]
    )
    what = "infinite" if gaps else "missing or infinite"
    faults = [f"{called[j]}: {c} {what} value(s)" for j, c in enumerate(missing) if c]
    hint = "fill in or drop missing values first; this method does not guess them"
    if gaps:
        hint = "leave them empty (NaN): values missing at random are allowed here"
    if radius is not None and not faults:
        large = np.count_nonzero(np.abs(X) > radius, axis=0)
        faults = [f"{called[j]}: {c} value(s) beyond the public radius {radius:g}" for j, c in enumerate(large) if c]
        hint = "give a larger radius (a public number), or another unit"
    if faults:
        raise DataError(f"site {site.name!r}: the feature matrix is not usable", faults=faults, hint=hint)
    return X


def in_ball(X: Array, center: Array | float, radius: float) -> Array:
    """Records in units of a public ball: ``(x - center) / radius``, pulled back to length 1 where they lie outside.

    >>> in_ball(np.array([[3.0, 4.0], [0.0, 1.0]]), 0.0, 2.0)
    array([[0.6, 0.8],
           [0. , 0.5]])
    """
    # Beyond 1e300 only the direction counts: every finite record is placed, none can make a sum NaN (and so stop a study).
    D = np.clip(X, -1e300, 1e300) - center
    far = np.abs(D).max(1, initial=0.0) > 1e150 * min(radius, 1.0)
    Z = np.where(far[:, None], 0.0, D) / radius
    length = np.sqrt(np.einsum("ip,ip->i", Z, Z))
    Z /= np.maximum(length, 1.0)[:, None]
    if far.any():
        V = D[far] / np.abs(D[far]).max(1)[:, None]
        Z[far] = V / np.sqrt(np.einsum("ip,ip->i", V, V))[:, None]
    return np.asarray(Z)


def unit_rows(V: Array) -> Array:
    """Rows of length at most 1, on the grid 2^-20, truncated toward zero so that no length can grow.

    One patient's row is all that a sum of them changes by, so its sensitivity is 1 by construction.

    >>> float(np.linalg.norm(unit_rows(np.array([[3.0, 4.0]])))) <= 1.0
    True
    """
    length = np.sqrt(np.einsum("ip,ip->i", V, V))
    shrink = (1 - 2.0**-40) / np.maximum(length, 1 - 2.0**-40)  # below 1 by more than rounding can add
    return np.asarray(np.trunc(V * (shrink / GRID)[:, None]) * GRID)


# ---- the zoom, as a value with its three functions


@dataclass(frozen=True)
class SummedMoments:
    """What is public about the patients so far.

    ``stage`` counts the sums taken; ``n`` patients; ``mean`` and ``unit`` (d,) the centre and unit of the next sum;
    ``second`` the covariance in those units once the last sum is taken (d(d+1)/2,) or its diagonal (d,). ``known`` (d,) patients
    whose value is there, or None where all must be: then means and variances are those of the values that are there, and
    correlations those of records filled in with the centre.
    """

    stage: int
    n: float
    mean: Array
    unit: Array
    second: Array
    known: Array | None = None

    @classmethod
    def begin(cls, d: int, radius: float, *, crossed: bool = True, gaps: bool = False) -> SummedMoments:
        """Nothing is known but the radius; ``gaps``: values may be missing."""
        second = np.zeros(d * (d + 1) // 2 if crossed else d)
        return cls(0, 0.0, np.zeros(d), np.full(d, float(radius)), second, np.zeros(d) if gaps else None)

    @property
    def gaps(self) -> bool:
        """Some value is missing, somewhere."""
        return self.known is not None and bool((self.known < self.n).any())

    @property
    def done(self) -> bool:
        """All sums are taken."""
        return self.stage > ZOOMS + 1

    def step(self, max_patients: int) -> Step:
        """The next sum."""
        d = len(self.mean)
        if self.stage == 0:
            asked: dict[str, tuple[int, ...]] = {"n": (1,)} if self.known is None else {"n": (1,), "known": (d,)}
            return Step(0, "count", asked, bound=float(max_patients), counts=False)
        name, n = f"zoom-{self.stage}", max(self.n, 1.0)
        if self.stage <= ZOOMS:
            reach = n if self.stage == 1 else 2 * n  # |x - m'| <= |x - m| + |m' - m|, and the second is at most s'
            return Step(0, name, {"first": (d,), "absolute": (d,)}, bound=reach * ROOM, counts=False)
        shapes = {"first": (d,), "second": self.second.shape}
        return Step(0, "second-moments", shapes, bound=(2 * n) ** 2 * ROOM, counts=False)

    @property
    def last(self) -> bool:
        """The next sum is the last one."""
        return self.stage == ZOOMS + 1

    def contribute(self, X: Array) -> Contribution:
        """n_k; then sum_i z_i with z = (x - mean) / unit, sum_i |z_i| (zooming) or sum_i z_i z_i' (at the end)."""
        if self.stage == 0:
            there = {} if self.known is None else {"known": np.count_nonzero(~np.isnan(X), axis=0).astype(float)}
            return Contribution({"n": np.array([float(len(X))]), **there})
        d = len(self.mean)
        rows = max(256, (1 << 18) // (8 * d))
        first, other = np.zeros(d), np.zeros(d if self.stage <= ZOOMS or len(self.second) == d else (d, d))
        for start in range(0, len(X), rows):
            z = (X[start : start + rows] - self.mean) / self.unit
            if self.gaps:
                z = np.where(np.isnan(z), 0.0, z)
            first += z.sum(0)
            if self.stage <= ZOOMS:
                other += np.abs(z).sum(0)
            else:
                other += z.T @ z if other.ndim == 2 else np.einsum("ip,ip->p", z, z)
        if self.stage <= ZOOMS:
            return Contribution({"first": first, "absolute": other})
        return Contribution({"first": first, "second": half(other) if other.ndim == 2 else other})

    def combine(self, total: Total) -> SummedMoments:
        """n = sum_k n_k; then mean' = mean + unit * first / n, and last C = second / n - (first / n)(first / n)'."""
        stage = self.stage + 1
        if self.stage == 0:
            known = None if self.known is None else np.rint(total.arrays["known"])
            return replace(self, stage=stage, n=float(np.rint(total.arrays["n"][0])), known=known)
        n: Any = max(self.n, 1.0) if not self.gaps else np.maximum(np.asarray(self.known), 1.0)
        move = total.arrays["first"] / n
        mean = self.mean + self.unit * move
        if self.stage <= ZOOMS:
            spread = self.unit * np.abs(total.arrays["absolute"]) / n
            # A feature far smaller than its unit (a jitter of 1e-9 beside a radius of 1e6) would be lost in the last bits of
            # a secure sum of squares: its unit follows it down, by at most 1e-14 a step, which those bits still resolve.
            # One that never varies keeps a unit above rounding, so that nothing divides by zero.
            unit = np.maximum(spread, 1e-14 * self.unit)
            return replace(self, stage=stage, mean=mean, unit=unit)
        crossed = len(self.second) != len(self.mean)
        if crossed and self.gaps:
            return replace(self, stage=stage, mean=mean, second=self._stretched(total, n))
        square = half(np.outer(move, move)) if crossed else move**2
        return replace(self, stage=stage, mean=mean, second=total.arrays["second"] / n - square)

    def _stretched(self, total: Total, known: Array) -> Array:
        """The covariance of filled-in records, stretched to the variances of the values that are there: no direction is lost."""
        first, S = total.arrays["first"], whole(total.arrays["second"], len(self.mean))
        filled = S / self.n - np.outer(first, first) / self.n**2
        alone = np.diag(S) / known - (first / known) ** 2
        flat = np.diag(filled)
        stretch = np.sqrt(np.where(flat > 0, np.maximum(alone, 0.0) / np.where(flat > 0, flat, 1.0), 1.0))
        return half(filled * np.outer(stretch, stretch))

    def covariance(self) -> Array:
        """(d, d) covariance in the features' own units, divisor n; off-diagonals 0 if they were not asked for."""
        d = len(self.mean)
        scaled = whole(self.second, d) if len(self.second) != d or d == 1 else np.diag(self.second)
        return np.asarray(scaled * np.outer(self.unit, self.unit))


# ---- the same, paid for in one release


def moment_rows(z: Array, *, crossed: bool = True) -> Array:
    """One site's part of noisy moments of records in the unit ball: (1 + d + d(d+1)/2,), or (1 + 2d,).

    A patient's row is ``(1, z, zz') / sqrt 3`` with off-diagonals times sqrt 2, so its length is
    ``sqrt(1 + |z|^2 + |z|^4) / sqrt 3 <= 1`` exactly (PRIVACY 3.6).
    """
    i, j = np.triu_indices(z.shape[1])
    second = z[:, i] * z[:, j] * np.where(i == j, 1.0, np.sqrt(2.0)) if crossed else z**2
    return np.asarray(unit_rows(np.concatenate([np.ones((len(z), 1)), z, second], 1) / np.sqrt(3.0)).sum(0))


def noisy_moments(rows: Array, noise_sd: float, d: int, *, crossed: bool = True) -> SummedMoments:
    """Moments in units of the ball; noise may not make a variance negative."""
    rows, noise = rows * np.sqrt(3.0), noise_sd * np.sqrt(3.0)
    n = max(float(rows[0]), 1.0)
    mean, second = rows[1 : d + 1] / n, rows[d + 1 :] / n
    if crossed:
        i, j = np.triu_indices(d)
        square = whole(second / np.where(i == j, 1.0, np.sqrt(2.0)), d) - np.outer(mean, mean)
        values, vectors = np.linalg.eigh(square)
        second = half((vectors * np.maximum(values, noise / n)) @ vectors.T)
    else:
        second = np.maximum(second - mean**2, noise / n)
    return SummedMoments(ZOOMS + 2, n, mean, np.ones(d), second)
