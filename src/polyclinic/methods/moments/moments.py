"""Sum means, spreads and correlations of all patients: what standardising, PCA, mixtures and latent classes begin with.

A secure sum needs a public bound before any data is read, and a bound that fits every feature is far too wide for most (blood
cells in billions next to a jitter of 1e-5). So four sums zoom in, with a public centre m and unit s per feature, first 0 and
``radius``, and z = (x - m) / s:

    count             n  = sum_k n_k
    zoom-1, zoom-2    m' = m + s sum z / n,   s' = s sum |z| / n           no site can exceed n, then 2n
    second-moments    m' = m + s sum z / n,   C  = sum z z' / n - (sum z / n)(sum z / n)'

Around the last centre the second moments are at most (sum |z|)^2 <= (2n)^2. That bound is tight and public, and nothing cancels
(docs/dev/decisions/0005-mixture-units.md). With privacy one noisy release of records in a public ball replaces the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from polyclinic.errors import DataError, PolicyRefusal
from polyclinic.protocol.interfaces import Answer, Contribution, Pri, Step, Total
from polyclinic.protocol.phases import Phase, PhaseDispatch, Staged
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
GRID = 2.0**-20  # limit: noisy statistics are whole multiples of it, so that sums and noise are exact integers
ROOM = 1 + 1e-9  # limit: rounding of float64 sums, granted above a mathematical bound
ZOOMS = 2  # docs/dev/decisions/0005-mixture-units.md
RADIUS = 1e6  # limit: no value exceeds it, unless a study says otherwise


def half(square: Array) -> Array:
    """Take upper triangles of symmetric matrices, (..., d, d) -> (..., d(d+1)/2): what has to travel (ERRATA E4.10).

    >>> half(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    i, j = np.triu_indices(square.shape[-1])
    return np.ascontiguousarray(square[..., i, j])


def whole(triangle: Array, d: int) -> Array:
    """Invert :func:`half`.

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
    """Return the site's records, or raise an error that counts missing (and too large) values per feature.

    ``gaps``: values may be missing (NaN), but not infinite.
    """
    X = site.matrix()
    names = [f"feature {j}" for j in range(X.shape[1])]
    if site.columns is not None:
        names = [f"column {c!r}" for c in site.columns]
    if gaps:
        unusable, fault = np.isinf(X), "infinite value(s)"
        hint = "leave them empty (NaN): values missing at random are allowed here"
    else:
        unusable, fault = ~np.isfinite(X), "missing or infinite value(s)"
        hint = "fill in or drop missing values first; this method does not guess them"
    if radius is not None and not unusable.any():
        unusable, fault = np.abs(X) > radius, f"value(s) beyond the public radius {radius:g}"
        hint = "give a larger radius (a public number), or another unit"
    if unusable.any():
        faults = [f"{name}: {c} {fault}" for name, c in zip(names, np.count_nonzero(unusable, axis=0)) if c]
        raise DataError(f"site {site.name!r}: the feature matrix is not usable", faults=faults, hint=hint)
    return X


def in_ball(X: Array, center: Array | float, radius: float) -> Array:
    """Express records in units of a public ball: ``(x - center) / radius``, pulled back to length 1 where they lie outside.

    >>> in_ball(np.array([[3.0, 4.0], [0.0, 1.0]]), 0.0, 2.0)
    array([[0.6, 0.8],
           [0. , 0.5]])
    """
    # Beyond 1e300 only the direction counts: every finite record is placed, none can make a sum NaN (and so stop a study).
    D = np.clip(X, -1e300, 1e300) - center
    huge = np.abs(D).max(1, initial=0.0) > 1e150 * min(radius, 1.0)
    Z = np.where(huge[:, None], 0.0, D) / radius
    length = np.sqrt(np.einsum("ip,ip->i", Z, Z))
    Z /= np.maximum(length, 1.0)[:, None]
    if huge.any():
        V = D[huge] / np.abs(D[huge]).max(1)[:, None]
        Z[huge] = V / np.sqrt(np.einsum("ip,ip->i", V, V))[:, None]
    return np.asarray(Z)


def unit_rows(V: Array) -> Array:
    """Shorten rows to length at most 1, on the grid 2^-20, truncated toward zero so that no length can grow.

    One patient's row is all that a sum of them changes by, so its sensitivity is 1 by construction.

    >>> float(np.linalg.norm(unit_rows(np.array([[3.0, 4.0]])))) <= 1.0
    True
    """
    length = np.sqrt(np.einsum("ip,ip->i", V, V))
    shrink = (1 - 2.0**-40) / np.maximum(length, 1 - 2.0**-40)  # below 1 by more than rounding can add
    return np.asarray(np.trunc(V * (shrink / GRID)[:, None]) * GRID)


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
        """Announce the next sum."""
        d, n = len(self.mean), max(self.n, 1.0)
        shapes: dict[str, tuple[int, ...]]
        if self.stage == 0:
            shapes = {"n": (1,)} if self.known is None else {"n": (1,), "known": (d,)}
            return Step(0, "count", shapes, bound=float(max_patients), counts=False)
        if self.last:
            shapes = {"first": (d,), "second": self.second.shape}
            return Step(0, "second-moments", shapes, bound=(2 * n) ** 2 * ROOM, counts=False)
        reach = n if self.stage == 1 else 2 * n  # |x - m'| <= |x - m| + |m' - m|, and the second is at most s'
        shapes = {"first": (d,), "absolute": (d,)}
        return Step(0, f"zoom-{self.stage}", shapes, bound=reach * ROOM, counts=False)

    @property
    def last(self) -> bool:
        """The next sum is the last one."""
        return self.stage == ZOOMS + 1

    @property
    def crossed(self) -> bool:
        """Correlations are asked for, not variances alone."""
        return len(self.second) != len(self.mean)

    def contribute(self, X: Array) -> Contribution:
        """n_k; then sum_i z_i with z = (x - mean) / unit, sum_i |z_i| (zooming) or sum_i z_i z_i' (at the end)."""
        if self.stage == 0:
            counts = {"n": np.array([float(len(X))])}
            if self.known is not None:
                counts["known"] = np.count_nonzero(~np.isnan(X), axis=0).astype(float)
            return Contribution(counts)
        return Contribution(self._second_sums(X) if self.last else self._zoom_sums(X))

    def _zoom_sums(self, X: Array) -> dict[str, Array]:
        first, absolute = np.zeros(len(self.mean)), np.zeros(len(self.mean))
        for z in self._blocks(X):
            first += z.sum(0)
            absolute += np.abs(z).sum(0)
        return {"first": first, "absolute": absolute}

    def _second_sums(self, X: Array) -> dict[str, Array]:
        d = len(self.mean)
        first, second = np.zeros(d), np.zeros((d, d) if self.crossed else d)
        for z in self._blocks(X):
            first += z.sum(0)
            second += z.T @ z if self.crossed else np.einsum("ip,ip->p", z, z)
        return {"first": first, "second": half(second) if self.crossed else second}

    def _blocks(self, X: Array) -> Iterator[Array]:
        """Records in the public units, a block that fits the cache at a time; missing values at the centre."""
        rows = max(256, (1 << 18) // (8 * len(self.mean)))
        for start in range(0, len(X), rows):
            z = (X[start : start + rows] - self.mean) / self.unit
            yield np.where(np.isnan(z), 0.0, z) if self.gaps else z

    def combine(self, total: Total) -> SummedMoments:
        """n = sum_k n_k; then mean' = mean + unit * first / n, and last C = second / n - (first / n)(first / n)'."""
        stage = self.stage + 1
        if self.stage == 0:
            counts = None if self.known is None else np.rint(total.arrays["known"])
            return replace(self, stage=stage, n=float(np.rint(total.arrays["n"][0])), known=counts)
        n: Any = np.maximum(np.asarray(self.known), 1.0) if self.gaps else max(self.n, 1.0)
        move = total.arrays["first"] / n
        mean = self.mean + self.unit * move
        if self.last:
            if self.crossed and self.gaps:
                return replace(self, stage=stage, mean=mean, second=self._stretched(total, n))
            square = half(np.outer(move, move)) if self.crossed else move**2
            return replace(self, stage=stage, mean=mean, second=total.arrays["second"] / n - square)
        spread = self.unit * np.abs(total.arrays["absolute"]) / n
        # A feature far smaller than its unit (a jitter of 1e-9 next to a radius of 1e6) would be lost in the last bits of
        # a secure sum of squares: its unit follows it down, by at most 1e-14 a step, which those bits still resolve.
        # One that never varies keeps a unit above rounding, so that nothing divides by zero.
        return replace(self, stage=stage, mean=mean, unit=np.maximum(spread, 1e-14 * self.unit))

    def _stretched(self, total: Total, known: Array) -> Array:
        """Stretch the covariance of filled-in records to the variances of the values that are there: no direction is lost."""
        first, S = total.arrays["first"], whole(total.arrays["second"], len(self.mean))
        filled = S / self.n - np.outer(first, first) / self.n**2
        variances = np.diag(S) / known - (first / known) ** 2
        narrowed = np.diag(filled)
        stretch = np.sqrt(
            np.where(narrowed > 0, np.maximum(variances, 0.0) / np.where(narrowed > 0, narrowed, 1.0), 1.0)
        )
        return half(filled * np.outer(stretch, stretch))

    def covariance(self) -> Array:
        """(d, d) covariance in the features' own units, divisor n; off-diagonals 0 if they were not asked for."""
        scaled = whole(self.second, len(self.mean)) if self.crossed else np.diag(self.second)
        return np.asarray(scaled * np.outer(self.unit, self.unit))


def moment_rows(z: Array, *, crossed: bool = True) -> Array:
    """Sum one site's part of noisy moments of records in the unit ball: (1 + d + d(d+1)/2,), or (1 + 2d,).

    A patient's row is ``(1, z, zz') / sqrt 3`` with off-diagonals times sqrt 2, so its length is
    ``sqrt(1 + |z|^2 + |z|^4) / sqrt 3 <= 1`` exactly, and so is what one patient changes.
    """
    i, j = np.triu_indices(z.shape[1])
    second = z[:, i] * z[:, j] * np.where(i == j, 1.0, np.sqrt(2.0)) if crossed else z**2
    return np.asarray(unit_rows(np.concatenate([np.ones((len(z), 1)), z, second], 1) / np.sqrt(3.0)).sum(0))


def noisy_moments(rows: Array, noise_sd: float, d: int, *, crossed: bool = True) -> SummedMoments:
    """Read moments in units of the ball from noisy sums; noise may not make a variance negative."""
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


class HasMoments(Staged, Protocol):
    """A public state with summed moments."""

    @property
    def moments(self) -> SummedMoments: ...


Pub = TypeVar("Pub", bound=HasMoments)


class MomentsPhase(Phase[Pub, Pri]):
    """The four sums of the zoom."""

    def step(self, public: Pub) -> Step:
        return public.moments.step(self.fit.params.max_patients)

    def records(self, site: Site, public: Pub) -> Array:
        """Return the records that are summed."""
        return site.matrix()

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = n_k, then sum_i z_i and sum_i |z_i|, last sum_i z_i and sum_i z_i z_i'."""
        return private, public.moments.contribute(self.records(site, public))

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """mean' = mean + unit * sum_k sum_i z_i / n, and the next unit or the covariance."""
        moments = public.moments.combine(total)
        if public.moments.stage == 0:
            self.refuse_few(moments, total.members)
        public = replace(public, moments=moments)
        return self.fit.onward(public) if moments.done else public

    def refuse_few(self, moments: SummedMoments, members: int) -> None:
        """Refuse a fit over so few patients that exact sums over its rounds would reveal their records (ERRATA E4.8)."""
        least = self.fit.params.min_patients
        if members > 1 and moments.n < least:
            raise PolicyRefusal(
                f"fewer than {least} patients in all: exact sums over rounds would give their records away",
                hint="add sites, lower min_patients knowingly, or ask for privacy=pc.Privacy(...)",
            )


class WithMoments(PhaseDispatch[Pub, Pri], Generic[Pub, Pri]):
    """A method that begins with the moments of all patients or, with privacy, with the public ball of their records."""

    params: Any

    @property
    def _radius(self) -> float:
        return RADIUS if self.params.radius is None else float(self.params.radius)

    def _center(self, d: int) -> Array:
        return np.zeros(d) if self.params.center is None else np.asarray(self.params.center, float)
