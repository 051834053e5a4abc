"""Settings of UnPSL that cross-validation tries, and how they did on held-out patients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.similarity.pairs import Pairs
from polyclinic.methods.similarity.unpsl import Reach

__all__ = ["FEW", "TRIED", "Grid", "Trial", "paired"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# what None means: neighbours of labelled patients want a metric near the Euclidean one, judged pairs a good fit
LABELS: Final[dict[str, Any]] = {
    "l1s": (1e-3,), "l2s": (1e-3,), "start_scales": (1.0,), "standardizes": ("zscore",),
    "compares": ("distance",), "reaches": ("all", "near"), "decorrelation": "trace",
    "penalty": 3.0, "iterations": 8, "cv": 5, "repeats": 2,
}  # fmt: skip
WIDE: Final[dict[str, Any]] = {  # more features than patients
    **LABELS, "compares": ("product",), "reaches": ("all",), "iterations": 5, "repeats": 1,
}  # fmt: skip
JUDGED: Final[dict[str, Any]] = {
    "l1s": (1e-4,), "l2s": (3e-4,), "start_scales": (2.0, 3.0), "standardizes": ("scale",),
    "compares": ("product",), "reaches": ("all",), "decorrelation": "convex",
    "penalty": 0.2, "iterations": 60, "cv": 4, "repeats": 1,
}  # fmt: skip
# what changes when few features are asked for: stronger sparsity on a path long enough for rows to vanish
FEW: Final[dict[str, dict[str, Any]]] = {
    "labels": {"l1s": (1e-2, 3e-2, 6e-2, 1e-1), "l2s": (1e-2,), "reaches": ("near",), "decorrelation": "convex", "iterations": 30},
    "wide": {"l1s": (3e-2, 1e-1, 3e-1), "iterations": 30},
    "judged": {"l1s": (3e-4, 1e-3, 3e-3, 1e-2), "start_scales": (2.0,)},
}  # fmt: skip
TRIED: Final = {"labels": LABELS, "wide": WIDE, "judged": JUDGED}


@dataclass(frozen=True, eq=False)
class Trial:
    """On whom settings are tried.

    Parameters
    ----------
    X
        (n, d) patients.
    part
        Pairs of some patients.
    score
        Marks of held-out patients (or one mark of a fold) from embedded training and held-out patients and their positions.
    held
        Training and held-out positions of every fold.
    by_patient
        Whether every patient has a mark of its own.
    """

    X: Array
    part: Callable[[Index, Reach], Pairs]
    score: Callable[[Array, Array, Index, Index], Array]
    held: list[tuple[Index, Index]]
    by_patient: bool


@dataclass(frozen=True, eq=False)
class Grid:
    """Settings tried and how they did: ``marks`` (candidate, iteration, patient or fold), ``features`` used on average."""

    tried: dict[str, Any]
    candidates: list[dict[str, Any]]
    marks: Array
    features: Array

    @property
    def best(self) -> tuple[int, int]:
        means = self.marks.mean(-1)
        c, t = np.unravel_index(means.argmax(), means.shape)
        return int(c), int(t)

    @property
    def top(self) -> Array:
        """Marks of the best."""
        return np.asarray(self.marks[self.best])

    def setting(self, c: int, t: int) -> dict[str, Any]:
        return {**self.candidates[c], "iterations": t + 1}

    def results(self) -> list[dict[str, Any]]:
        """Every candidate at its best iteration."""
        means = self.marks.mean(-1)
        return [
            {**self.setting(c, t), "score": float(means[c, t]), "features": float(self.features[c, t])}
            for c, t in enumerate(int(row.argmax()) for row in means)
        ]


def paired(differences: Array) -> tuple[Array, Array]:
    """Mean over the last axis, and its standard error."""
    n = differences.shape[-1]
    error = differences.std(-1, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(differences.shape[:-1])
    return differences.mean(-1), error
