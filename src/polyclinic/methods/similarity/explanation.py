"""Why two patients are similar: every feature's part of the similarity, as a table and as a chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError

if TYPE_CHECKING:
    from polyclinic.methods.similarity.metric import SimilarityMetric

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """The similarity of two patients, feature by feature.

    Parameters
    ----------
    names
        The features.
    first, second
        (d,) the two patients, in standardised units.
    contributions
        (d,) parts that add up to ``similarity``.
    similarity, bias, probability
        s(x, z), the threshold b, and the probability of (3.2) that the two are similar.
    """

    names: tuple[str, ...]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    contributions: NDArray[np.float64]
    similarity: float
    bias: float
    probability: float

    def table(self, top: int | None = None) -> list[dict[str, object]]:
        """One row per feature, largest part first."""
        order = np.argsort(-np.abs(self.contributions), kind="stable")[:top]
        return [
            {
                "feature": self.names[k],
                "first": float(self.first[k]),
                "second": float(self.second[k]),
                "contribution": float(self.contributions[k]),
            }
            for k in order
        ]

    def chart(self, top: int = 15) -> dict[str, object]:
        """A Vega-Lite bar chart of the largest parts; what is left over is one bar, so that the bars add up to s."""
        rows = [{"feature": r["feature"], "contribution": r["contribution"]} for r in self.table(top)]
        if top < len(self.names):
            rest = self.similarity - float(
                self.contributions[np.argsort(-np.abs(self.contributions), kind="stable")[:top]].sum()
            )
            rows.append({"feature": "all other features", "contribution": rest})
        verdict = "similar" if self.similarity >= self.bias else "not similar"
        return {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "title": f"similarity {self.similarity:.3g} ({verdict}: threshold {self.bias:g})",
            "data": {"values": rows},
            "mark": "bar",
            "encoding": {
                "y": {"field": "feature", "type": "nominal", "sort": None, "title": None},
                "x": {"field": "contribution", "type": "quantitative", "title": "part of the similarity"},
                "color": {
                    "condition": {"test": "datum.contribution >= 0", "value": "#0072B2"},
                    "value": "#D55E00",
                },
            },
        }


def explain(metric: SimilarityMetric, x: ArrayLike, z: ArrayLike) -> Explanation:
    """Split s(x, z) = x'Mz into one part per feature: c_k = (x_k (Mz)_k + z_k (Mx)_k) / 2, so that sum_k c_k = s.

    Symmetric in the two patients; a feature that was not selected has the part 0.

    Examples
    --------
    >>> from polyclinic.methods.similarity.unpsl import UnPSL
    >>> metric = UnPSL(seed=0).fit([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.5]], [0, 1, 1, 0])
    >>> found = explain(metric, [1.0, 2.0], [3.0, 4.0])
    >>> bool(np.isclose(found.contributions.sum(), found.similarity))
    True
    """
    from scipy.special import expit

    a, b = ((_row(metric, patient) - metric.mean_) / metric.scale_ for patient in (x, z))
    W = metric.components_.T
    parts = 0.5 * (a * (W @ (W.T @ b)) + b * (W @ (W.T @ a)))
    s = float(parts.sum())
    names = vars(metric).get("feature_names_in_")
    labels = tuple(str(n) for n in names) if names is not None else tuple(f"x{k}" for k in range(len(a)))
    return Explanation(labels, a, b, parts, s, float(metric.bias_), float(expit(s - metric.bias_)))


def _row(metric: SimilarityMetric, patient: Any) -> NDArray[np.float64]:
    """One patient as (d,) numbers in the metric's order of features; names, where both have them, must be the same."""
    names, own = vars(metric).get("feature_names_in_"), None
    if hasattr(patient, "iloc"):  # a row of a frame, or a frame of one row
        own = getattr(patient, "columns", patient.index)
    if names is not None and own is not None:
        known, given = [str(n) for n in names], [str(n) for n in own]
        if sorted(known) != sorted(given):
            raise DataError(
                "a patient's features are not those that the metric was learned on",
                faults=[f"missing: {n}" for n in sorted(set(known) - set(given))]
                + [f"unknown: {n}" for n in sorted(set(given) - set(known))],
            )
        patient = np.asarray(patient, float).reshape(-1)[[given.index(n) for n in known]]
    row = np.asarray(patient, float).reshape(-1)
    if len(row) != metric.n_features_in_:
        raise DataError(f"a patient has {len(row)} features, the metric was learned on {metric.n_features_in_}")
    if not np.isfinite(row).all():
        at = ", ".join(str(names[k]) if names is not None else f"x{k}" for k in np.flatnonzero(~np.isfinite(row)))
        raise DataError(f"a patient's values are not finite: {at}", hint="fill in or leave out what is missing")
    return row
