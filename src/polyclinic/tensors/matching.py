"""Which phenotype of one model is which of another: the best one-to-one match of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Pairs (left[k], right[k]) of columns with their likeness in [0, 1], best for the sum of likeness."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    likeness: NDArray[np.float64]


def cosines(a: Sequence[Matrix], b: Sequence[Matrix]) -> Matrix:
    """(R_a, R_b) product over modes of |cos| between columns; a zero column is like nothing.

    >>> cosines([np.eye(2)], [np.array([[2.0], [0.0]])]).tolist()
    [[1.0], [0.0]]
    """
    for place, model in (("first", a), ("second", b)):
        if not isinstance(model, Sequence | np.ndarray):
            what = (
                f"the {place} model is of type {type(model).__name__}, expected a list of factors, one array per mode"
            )
            raise DataError(what, hint="give the factors of a fitted model: model.factors_")
    if len(a) != len(b) or any(len(x) != len(y) for x, y in zip(a, b)):
        raise DataError(
            "the two models have different modes",
            faults=[f"first {[np.shape(x) for x in a]}", f"second {[np.shape(y) for y in b]}"],
            hint="compare factors over the same codes (pc.align the sites first)",
        )
    if not all(np.isfinite(x).all() for x in (*a, *b)):
        raise DataError("factors hold NaN or infinity: nothing can be matched", hint="did the fit diverge?")
    out = np.ones((a[0].shape[1], b[0].shape[1]))
    for x, y in zip(a, b):
        out *= np.abs(_unit(x).T @ _unit(y))
    return np.minimum(out, 1.0)


def _unit(x: Matrix) -> Matrix:
    norm = np.linalg.norm(x, axis=0)
    return np.asarray(x, np.float64) / np.where(norm > 0, norm, 1.0)


def match(a: Sequence[Matrix], b: Sequence[Matrix], likeness: Matrix | None = None) -> Match:
    """Match the columns of two models (Hungarian method; ERRATA E0.15).

    Parameters
    ----------
    a, b
        Lists of (I_n, R_a) and (I_n, R_b) factors over the same modes.
    likeness
        (R_a, R_b) to use instead of the product of |cos|.

    Returns
    -------
    Match
        min(R_a, R_b) pairs, ``left`` ascending.

    Examples
    --------
    >>> match([np.eye(3)], [np.eye(3)[:, [2, 0]]]).left.tolist()
    [0, 2]
    """
    from scipy.optimize import linear_sum_assignment  # half a second to import: only when needed

    table = cosines(a, b) if likeness is None else likeness
    rows, right = linear_sum_assignment(-table)
    return Match(rows.astype(np.int64), right.astype(np.int64), table[rows, right])


@dataclass(frozen=True)
class ComponentRecovery:
    """How much of the true components a model recovers, and how much of the model is true.

    Parameters
    ----------
    recall
        Summed likeness of the matched pairs over the number of true components: the factor match score.
    precision
        The same sum over the number of components of the model.
    components
        Components of the model that are not empty.
    """

    recall: float
    precision: float
    components: int


def recovery(truth: Sequence[Matrix], model: Sequence[Matrix]) -> ComponentRecovery:
    """Match a model to the truth, and divide by the components of each.

    >>> recovery([np.eye(4)], [np.eye(4)[:, [2, 0]]])
    ComponentRecovery(recall=0.5, precision=1.0, components=2)
    """
    recall = factor_match_score(truth, model)
    components = int(np.all([np.abs(f).sum(0) > 0 for f in model], axis=0).sum())
    return ComponentRecovery(recall, recall * truth[0].shape[1] / max(components, 1), components)


def factor_match_score(
    truth: Sequence[Matrix],
    model: Sequence[Matrix],
    weights: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """Return how much of ``truth`` a model recovers, from 0 (nothing) to 1 (every component, in any order and sign).

    Parameters
    ----------
    truth, model
        Lists of factors, (I_n, R_truth) and (I_n, R_model). Columns are scaled to length 1, and |cos| is multiplied over
        modes. Columns are matched by the Hungarian method. The sum is divided by R_truth: a component that the model
        lacks counts as 0 (ERRATA E0.15). :func:`recovery` gives the precision as well.
    weights
        (R_truth,) and (R_model,) weights: adds the papers' penalty 1 - |w_a - w_b| / max(w_a, w_b) for each pair,
        before matching.

    Examples
    --------
    >>> factor_match_score([np.eye(3)], [-np.eye(3)[:, [2, 0, 1]]])
    1.0
    >>> factor_match_score([np.eye(2)], [np.eye(2)[:, :1]])
    0.5
    >>> factor_match_score([np.eye(2)], [np.eye(2)], weights=([1.0, 2.0], [1.0, 1.0]))
    0.75
    """
    table = cosines(truth, model)
    if min(table.shape) == 0:
        raise DataError("a model without phenotypes has no match score")
    if weights is not None:
        x = np.abs(np.asarray(weights[0], np.float64))[:, None]
        y = np.abs(np.asarray(weights[1], np.float64))[None, :]
        if (x.shape[0], y.shape[1]) != table.shape:
            raise DataError(f"weights of lengths {x.shape[0]} and {y.shape[1]} for ranks {table.shape}")
        top = np.maximum(x, y)
        table = table * np.where(top > 0, 1.0 - np.abs(x - y) / np.where(top > 0, top, 1.0), 1.0)
    return float(match(truth, model, table).likeness.sum() / len(table))
