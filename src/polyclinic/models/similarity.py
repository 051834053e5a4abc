"""A learned similarity: the map after which patients that are alike lie close together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from polyclinic.errors import DataError
from polyclinic.models.base import Array, Unseen, Value, all_finite, frozen
from polyclinic.models.feature_rows import records_of
from polyclinic.util.table import Table


@dataclass(frozen=True, eq=False)
class Similarity(Value):
    """Keep a patient similarity as a value: s(x, z) = <f(x), f(z)> with f(x) = W' (x - mean) / scale.

    Two patients are called similar where s >= bias.

    Parameters
    ----------
    components
        (r, d) the map W'.
    mean, scale
        (d,); a scale of infinity is a feature that never counts.
    bias
        Two patients are called similar when s >= bias.
    columns
        Names of the d features, or None.
    map
        ``"linear"``. ``"angle"``: standardised patients are scaled to length 1 (the cosine baseline).

    See Also
    --------
    UnPSL : fits the similarity.

    Examples
    --------
    >>> import numpy as np, polyclinic as pc
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> s = pc.UnPSL(l1=0.02, l2=0.01).fit(X, (X[:, 0] > 0).astype(int)).result_
    >>> s.kind, s.transform(X[:2]).shape[0]
    ('similarity', 2)
    """

    components: Array
    mean: Array
    scale: Array
    bias: float
    columns: tuple[str, ...] | None = None
    map: Literal["linear", "angle"] = "linear"

    kind: ClassVar[str] = "similarity"
    keys: ClassVar[tuple[str, ...]] = ("columns", "map")

    def __post_init__(self) -> None:
        for name in ("components", "mean", "scale"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        d = len(self.mean)
        faults = []
        if self.components.shape[1:] != (d,) or self.scale.shape != (d,):
            faults.append(f"map {self.components.shape}, mean {self.mean.shape}, scale {self.scale.shape} do not fit")
        if self.columns is not None and len(self.columns) != d:
            faults.append(f"{len(self.columns)} names for {d} features")
        if self.map not in ("linear", "angle"):
            faults.append(f"unknown map {self.map!r}")
        if not all_finite(self.components, self.mean, self.bias):
            faults.append("numbers that are not finite")
        if np.isnan(self.scale).any():
            faults.append("a scale that is not a number")
        if faults:
            raise DataError("this is not a similarity", faults=faults)

    @property
    def rank(self) -> int:
        """Dimensions of the space in which patients are compared."""
        return len(self.components)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns or tuple(f"feature {j}" for j in range(len(self.mean)))

    def transform(self, data: object, *, unseen: Unseen = "error") -> Array:
        """(patients, r) points whose inner products are the similarities."""
        Z = (records_of(data, self.columns, len(self.mean), unseen) - self.mean) / self.scale
        if self.map == "angle":
            return np.asarray(Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-300))
        return np.asarray(Z @ self.components.T)

    def similarity(self, x: object, z: object = None) -> Array:
        """(n, m) similarity of every patient of ``x`` with every patient of ``z`` (default: ``x`` itself)."""
        a = self.transform(x)
        return np.asarray(a @ (a if z is None else self.transform(z)).T)

    def table(self) -> Table:
        """How much every feature counts, most first."""
        length = np.where(np.isinf(self.scale), 0.0, np.linalg.norm(self.components, axis=0))
        order = np.argsort(-length, kind="stable")
        total = float(length.sum()) or 1.0
        return Table(
            ["feature", "weight", "share"], [[self.axes[j], float(length[j]), float(length[j]) / total] for j in order]
        )

    def __repr__(self) -> str:
        return f"<Similarity by {self.method} over {len(self.mean)} features; {self.card.headline}>"
