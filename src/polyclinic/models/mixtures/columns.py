"""Columns of different kinds side by side: categories, counts, measurements. How they are read, and what they add up to.

Every kind is an exponential family, so a class is one row of natural parameters ``theta`` and a patient one row of statistics
``f(x)``: the log-likelihood is ``theta f(x) + base(x)``, and EM needs nothing of the patients but ``sum_i r_i f(x_i)``. An
empty value has the statistics 0: it says nothing, which is EM for values that are missing at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.frames import FrameColumn, column_of, columns_of
from polyclinic.util.json_types import JsonMap

Array = NDArray[np.float64]
ColumnKind = Literal["categorical", "count", "continuous"]
FLOOR: Final = 1e-12  # probabilities, rates and variances stay above it
LOG_2PI: Final = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Column:
    """One column.

    Parameters
    ----------
    name, kind
        As the frame calls it; ``"categorical"``, ``"count"`` or ``"continuous"``.
    levels
        Of categories: their names; a value is a position in them.
    centre, unit
        Public numbers near its mean and spread, in which it is summed.
    low, high
        Public limits to which values are clipped (privacy), or None.
    """

    name: str
    kind: ColumnKind
    levels: tuple[str, ...] = ()
    centre: float = 0.0
    unit: float = 1.0
    low: float | None = None
    high: float | None = None

    @property
    def statistics(self) -> int:
        """Numbers that a patient adds."""
        return len(self.levels) if self.kind == "categorical" else {"count": 2, "continuous": 3}[self.kind]

    @property
    def parameters(self) -> int:
        """Numbers of a class's profile: probabilities; a rate; mean and variance."""
        return len(self.levels) if self.kind == "categorical" else {"count": 1, "continuous": 2}[self.kind]

    @property
    def free(self) -> int:
        """Of them free."""
        return self.parameters - (self.kind == "categorical")

    @property
    def spoken(self) -> tuple[str, ...]:
        """What the expected values of a class are called: one a level, else the column."""
        return tuple(f"{self.name} = {x}" for x in self.levels) if self.kind == "categorical" else (self.name,)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "levels": [*self.levels],
            "centre": self.centre,
            "unit": self.unit,
            "low": self.low,
            "high": self.high,
        }


@dataclass(frozen=True)
class Layout:
    """All columns, in the order of the matrix."""

    columns: tuple[Column, ...]

    @classmethod
    def from_json(cls, columns: Sequence[JsonMap]) -> Layout:
        """Inverse of the columns' ``to_json``."""
        return cls(tuple(Column(**{**c, "levels": tuple(c["levels"])}) for c in columns))

    @property
    def width(self) -> int:
        """Statistics of a patient: 1, then every column's."""
        return 1 + sum(c.statistics for c in self.columns)

    @property
    def profile(self) -> int:
        """Parameters of a class."""
        return sum(c.parameters for c in self.columns)

    def free(self, k: int) -> int:
        """Free parameters of k classes, for BIC."""
        return k * sum(c.free for c in self.columns) + k - 1

    @property
    def longest(self) -> float:
        """Largest length of a patient's statistics where every column is bounded."""
        return float(np.sqrt(1 + sum({"categorical": 1, "count": 2, "continuous": 3}[c.kind] for c in self.columns)))

    def faults(self, X: Array) -> list[str]:
        """What of a matrix cannot be read as these kinds."""
        out = []
        for j, c in enumerate(self.columns):
            x = X[:, j][~np.isnan(X[:, j])]
            if np.isinf(x).any():
                out.append(f"{c.name}: {int(np.isinf(x).sum())} values are infinite")
            natural = (x == np.rint(x)) & (x >= 0)
            if c.kind == "count" and not natural.all():
                out.append(
                    f"{c.name}: a count is 0, 1, 2, ...; {int((~natural).sum())} are not, e.g. {x[~natural][0]:g}"
                )
            strange = x[~(natural & (x < len(c.levels)))] if c.kind == "categorical" else x[:0]
            if len(strange):
                out.append(
                    f"{c.name}: {len(strange)} values are no position in its {len(c.levels)} levels, e.g. {strange[0]:g}"
                )
        return out

    def read(self, X: Array) -> tuple[Array, Array]:
        """(n, width) statistics of the patients, and (n,) what their likelihood has besides."""
        F, base = np.zeros((len(X), self.width)), np.zeros(len(X))
        F[:, 0], start = 1.0, 1
        for j, c in enumerate(self.columns):
            x, present = X[:, j], ~np.isnan(X[:, j])
            v = np.where(present, x, 0.0)
            if c.low is not None and c.high is not None:
                v = np.where(present, np.clip(v, c.low, c.high), 0.0)
            if c.kind == "categorical":
                rows = np.flatnonzero(present)
                F[rows, start + v[rows].astype(np.int64)] = 1.0
            elif c.kind == "count":
                F[:, start], F[:, start + 1] = v / c.unit, present
                from scipy.special import gammaln  # here: importing it takes a fresh process longer than a small fit

                base -= np.where(present, gammaln(v + 1.0), 0.0)
            else:
                z = np.where(present, (v - c.centre) / c.unit, 0.0)
                F[:, start], F[:, start + 1], F[:, start + 2] = z, z * z, present
                base -= present * (np.log(c.unit) + 0.5 * LOG_2PI)
            start += c.statistics
        return F, base

    def natural(self, weights: Array, profiles: Array) -> Array:
        """(k, width) theta of classes with these shares (k,) and profiles (k, profile)."""
        out = np.zeros((len(weights), self.width))
        out[:, 0], start, p = np.log(np.maximum(weights, 1e-300)), 1, 0
        for c in self.columns:
            profile = profiles[:, p : p + c.parameters]
            if c.kind == "categorical":
                out[:, start : start + len(c.levels)] = np.log(np.maximum(profile, FLOOR))
            elif c.kind == "count":
                rate = np.maximum(profile[:, 0], FLOOR)
                out[:, start], out[:, start + 1] = np.log(rate) * c.unit, -rate
            else:
                mean, variance = (profile[:, 0] - c.centre) / c.unit, np.maximum(profile[:, 1] / c.unit**2, FLOOR)
                out[:, start], out[:, start + 1] = mean / variance, -0.5 / variance
                out[:, start + 2] = -0.5 * (mean * mean / variance + np.log(variance))
            start, p = start + c.statistics, p + c.parameters
        return out

    def maximised(self, sums: Array, *, smoothing: float = 0.0, reg_covar: float = 1e-6) -> tuple[Array, Array]:
        """Shares and profiles of highest likelihood from (k, width) expected statistics.

        ``smoothing`` patients of the average kind are added to every class.
        """
        mass = np.maximum(sums[:, 0], FLOOR)
        average = sums.sum(0) / max(float(sums[:, 0].sum()), FLOOR)
        grown = sums + smoothing * average
        out, start, p = np.zeros((len(sums), self.profile)), 1, 0
        for c in self.columns:
            s = grown[:, start : start + c.statistics]
            if c.kind == "categorical":
                q = np.maximum(s, 0.0) + FLOOR
                out[:, p : p + len(c.levels)] = q / q.sum(1, keepdims=True)
            elif c.kind == "count":
                rate = c.unit * np.maximum(s[:, 0], 0.0) / np.maximum(s[:, 1], FLOOR)
                out[:, p] = np.maximum(rate if c.high is None else np.minimum(rate, c.high), FLOOR)
            else:
                count = np.maximum(s[:, 2], FLOOR)
                mean = s[:, 0] / count
                variance = np.maximum(s[:, 1] / count - mean**2, 0.0)
                if c.low is not None:  # in units of half the public range: no class is wider, or lies outside
                    mean, variance = np.clip(mean, -1.0, 1.0), np.clip(variance, 1e-5, 1.0)
                out[:, p] = c.centre + c.unit * mean
                out[:, p + 1] = variance * c.unit**2 + reg_covar
            start, p = start + c.statistics, p + c.parameters
        return mass / mass.sum(), out

    def expected(self, profiles: Array) -> tuple[Array, Array]:
        """(k, m) expected values and variances of every level, count and measurement, in the order of ``spoken``."""
        means, variances, p = [], [], 0
        for c in self.columns:
            profile = profiles[:, p : p + c.parameters]
            means.append(profile if c.kind == "categorical" else profile[:, :1])
            variances.append(
                {"categorical": profile * (1 - profile), "count": profile[:, :1], "continuous": profile[:, 1:]}[c.kind]
            )
            p += c.parameters
        return np.hstack(means), np.hstack(variances)


def encoded(
    frame: object, columns: Sequence[str], levels: Mapping[str, Sequence[str]]
) -> tuple[Array, dict[str, ColumnKind]]:
    """A frame as a matrix (texts as positions in their levels, NaN where empty), and the kinds that its types say.

    Texts, categories and truth values are categorical, whole numbers of at least 0 counts, other numbers continuous.
    """
    names = columns_of(frame)
    absent = [c for c in columns if names is None or c not in names]
    if absent:
        raise DataError("the frame lacks columns", faults=[f"no column {c!r}" for c in absent])
    out = np.full((len(column_of(frame, columns[0]).values), len(columns)), np.nan)
    kinds: dict[str, ColumnKind] = {}
    faults = []
    for j, name in enumerate(columns):
        column = column_of(frame, name)
        numbers = None if column.values.dtype.kind in "bU" or name in levels else column.numbers()
        try:
            if numbers is None:
                out[:, j], kinds[name] = _positions(column, levels.get(name, ())), "categorical"
            else:
                out[:, j], kinds[name] = numbers, _kind_of(column, numbers)
        except ValueError as e:
            faults.append(f"{name}: {e}")
    if faults:
        raise DataError("values that no level names", faults=faults, hint="name all levels: kinds={'column': [...]}")
    return out, kinds


def _kind_of(column: FrameColumn, numbers: Array) -> ColumnKind:
    values = numbers[~np.isnan(numbers)]
    return "count" if column.values.dtype.kind in "iu" and bool((values >= 0).all()) else "continuous"


def _positions(column: FrameColumn, levels: Sequence[str]) -> Array:
    """Positions of a column's texts in its levels; NaN where empty."""
    keys, order = column.keys(), {str(x): i for i, x in enumerate(levels)}
    strange = [x for x in keys.labels if x not in order]
    if strange:
        raise ValueError(f"{', '.join(map(repr, strange[:5]))} not among its levels {', '.join(order)}")
    return np.array([*map(float, map(order.__getitem__, keys.labels)), np.nan])[keys.index]
