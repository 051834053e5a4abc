"""The synthetic data of the UnPSL paper: pairs of patients whose similarity a planted metric decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError

__all__ = ["PlantedSimilarity", "unpsl_synthetic"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlantedSimilarity:
    """Patients and the metric that says who is similar.

    Parameters
    ----------
    features
        (n, 3d) matrix; columns 2d to 3d - 1 are noisy averages of the others.
    weights
        (3d, 3d) matrix W of the paper.
    metric
        (3d, 3d) matrix M of the similarity s(x, z) = x' M z.
    redundant
        Indices of the redundant features.
    threshold
        Pairs with s >= threshold are similar (eq. 3.2 has its even odds at 1).
    """

    features: Matrix
    weights: Matrix
    metric: Matrix
    redundant: NDArray[np.int64]
    threshold: float = 1.0

    def similarity(self, rows: NDArray[np.int64] | None = None) -> Matrix:
        """(n, n) similarity of all pairs, or of those among some patients."""
        xs = self.features if rows is None else self.features[rows]
        return np.asarray(xs @ self.metric @ xs.T)

    def pairs(self, rows: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs i < j among some patients, as (pairs, 2) positions, and +1 similar or -1 not."""
        s = self.similarity(rows)
        i, j = np.triu_indices(len(s), 1)
        return np.column_stack([i, j]), np.where(s[i, j] >= self.threshold, 1, -1)


def unpsl_synthetic(
    d: int = 20, n: int = 400, seed: int = 0, *, variant: Literal["corrected", "paper"] = "corrected"
) -> PlantedSimilarity:
    """Make the paper's synthetic patients (section 5.2): d + d independent features and d redundant averages of them.

    Parameters
    ----------
    d
        Features of each of the three blocks (20, 40 and 60 in the paper).
    n
        Patients (400 there, 600 with d = 10 for the distributed experiment).
    seed
        The same seed gives the same patients.
    variant
        ``corrected``: s = x'WW'z, so that the zero rows of W make the redundant block irrelevant, as the text means
        it. ``paper``: s = x'W'Wz as printed, where they stay relevant (ERRATA E3.2).

    Examples
    --------
    >>> data = unpsl_synthetic(d=5, n=40)
    >>> data.features.shape, float(abs(data.metric[data.redundant]).max())
    ((40, 15), 0.0)
    >>> bool(abs(unpsl_synthetic(d=5, n=40, variant="paper").metric[data.redundant]).max() > 0)
    True
    """
    faults = [
        f"{name} = {value}, must be at least {low}" for name, value, low in (("d", d, 1), ("n", n, 2)) if value < low
    ]
    if variant not in ("corrected", "paper"):
        faults.append(f"variant {variant!r} is neither 'corrected' nor 'paper'")
    if faults:
        raise ConfigError("unpsl_synthetic cannot make this data", faults=faults)
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((n, d)), rng.standard_normal((n, d))
    noise = rng.normal(-0.1, np.sqrt(0.1), (n, d))  # the paper gives mean -0.1 and covariance 0.1 I
    features = np.hstack([first, second, (first + second) / 2 + noise])
    weights = rng.uniform(-0.5, 0.5, (3 * d, 3 * d))
    weights[2 * d :] = 0.0
    metric = weights @ weights.T if variant == "corrected" else weights.T @ weights  # ERRATA E3.2
    return PlantedSimilarity(features, weights, metric, np.arange(2 * d, 3 * d))
