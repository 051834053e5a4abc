"""Latent classes: shares and profiles over columns of any kind, ready for patients whose values are partly missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.models.base import Array, StoredArrays, Unseen, frozen
from polyclinic.models.feature_rows import records_of
from polyclinic.models.mixtures.columns import Layout, encoded
from polyclinic.models.mixtures.gaussian import blocks
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.origin import Origin
from polyclinic.records.sites.frames import column_of, columns_of
from polyclinic.records.sites.site import Site
from polyclinic.util.json_types import JsonMap
from polyclinic.util.table import Table


def log_joint(layout: Layout, weights: Array, profiles: Array, X: Array) -> Array:
    """(n, k) log of share times likelihood of the values that are known."""
    theta = layout.natural(weights, profiles)
    out = np.empty((len(X), len(weights)))
    for s in blocks(len(X), layout.width):
        F, base = layout.read(X[s])
        out[s] = F @ theta.T + base[:, None]
    return out


@dataclass(frozen=True, eq=False)
class Classes(Groups):
    """Keep latent classes as a value: save, load, apply to new patients. ``LatentClass(...).fit(sites).result_`` is one.

    ``means`` are expected values: probabilities of levels, rates, means.

    Parameters
    ----------
    profiles
        (k, profile) probabilities of every level, rates of counts, mean and variance of measurements, column by column.
    layout
        The columns and their kinds.

    See Also
    --------
    LatentClass : fits the classes.

    Examples
    --------
    >>> import polyclinic as pc
    >>> frame = {"smoker": ["yes"] * 40 + ["no"] * 40, "visits": [8] * 40 + [1] * 40}
    >>> c = pc.LatentClass(n_components=2, seed=0).fit({"north": frame}).result_
    >>> c.weights.round(2).tolist(), c.columns
    ([0.5, 0.5], ('smoker = no', 'smoker = yes', 'visits'))
    """

    profiles: Array = field(default_factory=lambda: np.zeros((0, 0)))
    layout: Layout = field(default_factory=lambda: Layout(()))

    kind: ClassVar[str] = "classes"
    keys: ClassVar[tuple[str, ...]] = ("columns",)

    @classmethod
    def of(cls, origin: Origin, weights: Array, profiles: Array, layout: Layout) -> Self:
        """From shares and profiles."""
        means, variances = layout.expected(profiles)
        names = tuple(x for c in layout.columns for x in c.spoken)
        return cls(origin, weights, means, variances, "diag", names, profiles, layout)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "profiles", frozen(self.profiles))
        if self.profiles.shape != (self.rank, self.layout.profile) or not np.isfinite(self.profiles).all():
            raise DataError("these are not classes", faults=[f"profiles {self.profiles.shape} for {self.rank} classes"])

    def records(self, data: object, unseen: Unseen = "error") -> Array:
        """(patients, d) values in the model's order; texts become positions in their levels; NaN where unknown."""
        names = tuple(c.name for c in self.layout.columns)
        if not isinstance(data, Site) and columns_of(data) is not None and any(
            column_of(data, c.name).values.dtype.kind not in "iuf" for c in self.layout.columns
            if c.name in (columns_of(data) or ())
        ):  # fmt: skip
            levels = {c.name: c.levels for c in self.layout.columns if c.kind == "categorical"}
            X, _ = encoded(data, names, levels)
        else:
            X = records_of(data, names, len(names), unseen)
        faults = self.layout.faults(X)
        if faults:
            raise DataError("the values do not fit the columns' kinds", faults=faults)
        return X

    def transform(self, data: object, *, unseen: Unseen = "error") -> Array:
        """(patients, k) probability of each class, from the values that are known."""
        joint = log_joint(self.layout, self.weights, self.profiles, self.records(data, unseen))
        from scipy.special import logsumexp  # here: importing it takes a fresh process longer than a small fit

        return np.asarray(np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))

    def score(self, data: object, y: object = None) -> float:
        """Mean log-likelihood of the known values; larger is better."""
        from scipy.special import logsumexp

        likelihoods = logsumexp(log_joint(self.layout, self.weights, self.profiles, self.records(data)), axis=1)
        return float(likelihoods.mean()) if len(likelihoods) else 0.0

    def table(self) -> Table:
        """One row per class and level, count or measurement: probability, rate, or mean and spread."""
        rows, position = [], 0
        for c in self.layout.columns:
            for name in c.spoken:
                rows += [
                    [g, float(self.weights[g]), c.name, c.kind, name, float(self.means[g, position]),
                     float(np.sqrt(self.covariances[g, position]))]
                    for g in range(self.rank)
                ]  # fmt: skip
                position += 1
        rows.sort(key=lambda r: r[0])
        return Table(["class", "share", "column", "kind", "value", "expected", "sd"], rows)

    def __repr__(self) -> str:
        return f"<Classes {self.rank} by {self.method} in {len(self.layout.columns)} columns; {self.card.headline}>"

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"weights": self.weights, "profiles": self.profiles, "means": self.means}

    def described(self) -> dict[str, object]:
        return {"columns": [c.to_json() for c in self.layout.columns]}

    @classmethod
    def restored(cls, origin: Origin, described: JsonMap, arrays: StoredArrays) -> Self:
        return cls.of(origin, arrays["weights"], arrays["profiles"], Layout.from_json(described["columns"]))
