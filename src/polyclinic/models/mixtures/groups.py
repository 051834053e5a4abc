"""Groups of patients: a mixture's shares, centres and spreads, ready for patients it has never seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.errors import DataError
from polyclinic.models.base import Array, Unseen, Value, frozen
from polyclinic.models.feature_rows import records_of
from polyclinic.models.mixtures.gaussian import CovarianceType, Mixture
from polyclinic.util.table import Table


@dataclass(frozen=True, eq=False)
class Groups(Value):
    """Keep a Gaussian mixture as a value: save, load, apply to new patients. ``GaussianMixture(...).fit(sites).result_`` is one.

    Parameters
    ----------
    weights, means, covariances
        (k,), (k, d) and spreads shaped by ``covariance_type``, as in scikit-learn.
    covariance_type
        ``"full"``, ``"tied"``, ``"diag"`` or ``"spherical"``.
    columns
        Names of the d features, or None.

    See Also
    --------
    GaussianMixture : fits the mixture.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = [pc.Site("a", features=[[-4.0], [-3.0]] * 20), pc.Site("b", features=[[3.0], [4.0]] * 20)]
    >>> g = pc.GaussianMixture(n_components=2, seed=0).fit(sites).result_
    >>> g.weights.round(2).tolist(), g.transform([[4.0]]).round(2).max()
    ([0.5, 0.5], np.float64(1.0))
    """

    weights: Array
    means: Array
    covariances: Array
    covariance_type: CovarianceType
    columns: tuple[str, ...] | None = None

    kind: ClassVar[str] = "groups"
    keys: ClassVar[tuple[str, ...]] = ("covariance_type", "columns")

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        k, d = self.means.shape if self.means.ndim == 2 else (-1, -1)
        shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
        faults = [] if self.weights.shape == (k,) else [f"{self.weights.shape} weights for means {self.means.shape}"]
        if self.covariances.shape != shapes.get(self.covariance_type):
            faults.append(f"covariances {self.covariances.shape} are not {self.covariance_type} for {k} groups of {d}")
        if self.columns is not None and len(self.columns) != d:
            faults.append(f"{len(self.columns)} names for {d} features")
        if not all(np.isfinite(a).all() for a in (self.weights, self.means, self.covariances)):
            faults.append("numbers that are not finite")
        if faults:
            raise DataError("these are not groups", faults=faults)

    @property
    def rank(self) -> int:
        """Number of groups."""
        return len(self.weights)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns or tuple(f"feature {j}" for j in range(self.means.shape[1]))

    @cached_property
    def mixture(self) -> Mixture:
        """The mixture itself: densities, samples."""
        return Mixture(self.weights, self.means, self.covariances, self.covariance_type)

    def transform(self, data: object, *, unseen: Unseen = "error") -> Array:
        """(patients, k) probability of each group."""
        return self.mixture.responsibilities(records_of(data, self.columns, self.means.shape[1], unseen))

    def score(self, data: object, y: object = None) -> float:
        """Mean log-likelihood of the records; larger is better."""
        densities = self.mixture.log_density(records_of(data, self.columns, self.means.shape[1]))
        return float(densities.mean()) if len(densities) else 0.0

    def quality(self, data: object) -> dict[str, float]:
        """``log_likelihood`` per patient."""
        return {"log_likelihood": self.score(data)}

    def table(self) -> Table:
        """One row per group and feature: the group's share, its centre and spread there."""
        k, d = self.means.shape
        match self.covariance_type:
            case "full":
                variance = np.einsum("kii->ki", self.covariances)
            case "tied":
                variance = np.broadcast_to(np.diagonal(self.covariances), (k, d))
            case "diag":
                variance = self.covariances
            case "spherical":
                variance = np.broadcast_to(self.covariances[:, None], (k, d))
        rows = [
            [g, float(self.weights[g]), name, float(self.means[g, j]), float(np.sqrt(variance[g, j]))]
            for g in range(k)
            for j, name in enumerate(self.axes)
        ]
        return Table(["group", "share", "feature", "mean", "sd"], rows)

    def __repr__(self) -> str:
        return f"<Groups {self.rank} by {self.method} in {self.means.shape[1]} features; {self.card.headline}>"
