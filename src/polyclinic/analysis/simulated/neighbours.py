"""Does a learned similarity bring like patients together, and which features do it? Sums over many pairs, no pair alone.

Neighbours are looked for among patients of the same hospital, for no other can be seen there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.analysis.simulated.presence import MINIMUM
from polyclinic.privacy.small_cells import suppress
from polyclinic.records.sites.site import Site


def ranks_of(x: ArrayLike) -> NDArray[np.float64]:
    """1 for the smallest; equal numbers share the mean of their ranks.

    >>> ranks_of([0.3, 0.1, 0.3, 7.0]).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, place, counts = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbours:
    """What a similarity is worth on the patients it was learned from, each judged by the others.

    Attributes
    ----------
    k
        Neighbours that vote.
    figures
        ``pair_auc``: how often two patients of one class are more similar than two of different classes. And, unless a
        cell of the table of right and wrong votes holds 1 to ``minimum`` - 1 patients, accuracy and, for two classes,
        recall, f1 and f2 of the second.
    same, different
        (d,) mean part of every feature in the similarity of two patients of one class, and of two classes: they add up
        to the mean similarity of such pairs.
    """

    k: int
    patients: int
    figures: dict[str, float]
    same: tuple[float, ...]
    different: tuple[float, ...]
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def neighbours(model: Any, sites: Sequence[Site], *, k: int = 5, minimum: int = MINIMUM) -> Neighbours | None:
    """Judge a fitted similarity; None where patients have no class or a class is too rare to speak of.

    Parameters
    ----------
    model
        Has ``components_``, ``mean_`` and ``scale_``.
    sites
        Hospitals with features and classes.
    k
        Neighbours that vote on a patient's class, the patient left out.
    minimum
        Smallest count of patients that may be derived from a figure.
    """
    if any(s.features is None or s.labels is None for s in sites):
        return None
    classes, sizes = np.unique(np.concatenate([np.asarray(s.labels) for s in sites]), return_counts=True)
    if len(classes) < 2 or sizes.min() < 2 * minimum:
        return None
    table = np.zeros((len(classes), len(classes)), np.int64)
    parts = np.zeros((2, model.components_.shape[1]))
    pairs = np.zeros(2)
    order = np.zeros(2)
    for site in sites:
        A = (site.matrix() - model.mean_) / model.scale_
        y = np.searchsorted(classes, np.asarray(site.labels))
        Z = A @ model.components_.T
        _vote(Z, y, k, table)
        order += _pair_order(Z, y)
        _add_parts(A, model.components_, y, len(classes), parts, pairs)
    mean = parts / np.maximum(pairs, 1.0)[:, None]
    open_ = not suppress(table, minimum=minimum).any()
    note = "" if open_ else f"fewer than {minimum} patients in a cell of right and wrong votes: accuracy is not shown"
    figures = {"pair_auc": float(order[0] / order[1])} if order[1] else {}
    figures |= _figures(table) if open_ else {}
    return Neighbours(k, int(table.sum()), figures, tuple(mean[0].tolist()), tuple(mean[1].tolist()), note)


def _vote(Z: Array, y: NDArray[np.int64], k: int, table: NDArray[np.int64]) -> None:
    """Add a site's votes to the table (true class, voted class); ties go to the nearer neighbours."""
    if len(y) <= k:
        return
    from sklearn.neighbors import NearestNeighbors

    neighbours = NearestNeighbors(n_neighbors=k + 1).fit(Z).kneighbors(Z, return_distance=False)
    for i, row in enumerate(neighbours):
        nearest = [j for j in row if j != i][:k]
        votes = np.bincount(y[nearest], weights=1 + 1e-3 / (1 + np.arange(len(nearest))), minlength=len(table))
        table[y[i], votes.argmax()] += 1


def _pair_order(Z: Array, y: NDArray[np.int64], most: int = 1500) -> Array:
    """AUC of similarity for "same class" over a site's pairs (its first ``most`` patients), and its weight: pairs compared."""
    Z, y = Z[:most], y[:most]
    i, j = np.triu_indices(len(y), 1)
    same_class = y[i] == y[j]
    a, b = int(same_class.sum()), int((~same_class).sum())
    if not a or not b:
        return np.zeros(2)
    ranks = ranks_of((Z @ Z.T)[i, j])
    auc = (ranks[same_class].sum() - a * (a + 1) / 2) / (a * b)
    return np.array([auc * a * b, float(a) * b])


def _add_parts(A: Array, components: Array, y: NDArray[np.int64], k: int, parts: Array, pairs: Array) -> None:
    """Sum over pairs i != j of c_k = (a_ik (M a_j)_k + a_jk (M a_i)_k) / 2, apart for one class and two, in closed form."""
    B = (A @ components.T) @ components
    products = A * B
    within = np.zeros(A.shape[1])
    for c in range(k):
        in_class = y == c
        within += A[in_class].sum(0) * B[in_class].sum(0) - products[in_class].sum(0)
        pairs[0] += in_class.sum() * (in_class.sum() - 1.0)
        pairs[1] -= in_class.sum() * float(in_class.sum())
    parts[0] += within
    parts[1] += A.sum(0) * B.sum(0) - products.sum(0) - within
    pairs[1] += float(len(y)) ** 2


def _figures(table: NDArray[np.int64]) -> dict[str, float]:
    out = {"accuracy": float(np.trace(table) / table.sum())}
    if len(table) == 2:
        right, false_negatives, false_positives = table[1, 1], table[1, 0], table[0, 1]
        out["recall"] = float(right / max(right + false_negatives, 1))
        for beta in (1, 2):
            b = beta**2
            out[f"f{beta}"] = float((1 + b) * right / max((1 + b) * right + b * false_negatives + false_positives, 1))
    return out
