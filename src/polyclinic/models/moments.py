"""Means and spreads of all patients together, and the directions in which they differ most, ready for new patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyclinic.errors import DataError
from polyclinic.models.base import Array, Unseen, Value, all_finite, frozen
from polyclinic.models.feature_rows import records_of
from polyclinic.util.table import Table


@dataclass(frozen=True, eq=False)
class Moments(Value):
    """Keep means and scales as a value: z = (x - mean) / scale. With ``components`` also principal directions, z C'.

    Parameters
    ----------
    mean, scale
        (d,).
    patients
        How many were counted (noisy under privacy).
    components, variance
        (r, d) directions and (r,) variances along them; None for standardising alone.
    columns
        Names of the d features, or None.

    See Also
    --------
    Standardizer, FederatedPCA : fit the moments.

    Examples
    --------
    >>> import polyclinic as pc
    >>> m = pc.Standardizer().fit([pc.Site("a", features=[[1.0], [3.0]]), pc.Site("b", features=[[5.0]])]).result_
    >>> m.mean.tolist(), m.transform([[5.0]]).round(2).tolist()
    ([3.0], [[1.22]])
    """

    mean: Array
    scale: Array
    patients: float
    components: Array | None = None
    variance: Array | None = None
    columns: tuple[str, ...] | None = None

    kind: ClassVar[str] = "moments"
    keys: ClassVar[tuple[str, ...]] = ("columns",)

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "components", "variance"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, frozen(getattr(self, name)))
        d, faults = len(self.mean), []
        if self.scale.shape != (d,):
            faults.append(f"{self.scale.shape} scales for {d} means")
        if self.components is not None and self.components.shape[1:] != (d,):
            faults.append(f"directions {self.components.shape} for {d} features")
        shapes = [() if a is None else a.shape[:1] for a in (self.variance, self.components)]
        if shapes[0] != shapes[1]:
            faults.append("as many variances as directions are needed")
        if self.columns is not None and len(self.columns) != d:
            faults.append(f"{len(self.columns)} names for {d} features")
        if not all_finite(self.mean, self.scale, self.components, self.variance):
            faults.append("numbers that are not finite")
        if faults:
            raise DataError("these are not moments", faults=faults)

    @property
    def rank(self) -> int:
        """Features that come out."""
        return len(self.mean) if self.components is None else len(self.components)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the features that go in."""
        return self.columns or tuple(f"feature {j}" for j in range(len(self.mean)))

    def transform(self, data: object, *, unseen: Unseen = "error") -> Array:
        """(patients, d) standardised features, or (patients, r) principal ones."""
        z = (records_of(data, self.columns, len(self.mean), unseen) - self.mean) / self.scale
        return np.asarray(z if self.components is None else z @ self.components.T)

    def table(self) -> Table:
        """One row per feature: mean, unit, and its part of every direction."""
        directions = np.zeros((0, len(self.mean))) if self.components is None else self.components
        names = [f"direction {r}" for r in range(len(directions))]
        return Table(
            ["feature", "mean", "scale", *names],
            [
                [name, float(self.mean[j]), float(self.scale[j]), *(float(v) for v in directions[:, j])]
                for j, name in enumerate(self.axes)
            ],
        )

    def __repr__(self) -> str:
        directions = "" if self.components is None else f", {self.rank} directions"
        return (
            f"<Moments of {len(self.mean)} features{directions}, {self.patients:,.0f} patients; {self.card.headline}>"
        )
