"""Which phenotype of one model is which of another: the best one-to-one match of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from polyclinic.errors import DataError

__all__ = ["Match", "cosines", "match"]

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
    if len(a) != len(b) or any(len(x) != len(y) for x, y in zip(a, b)):
        raise DataError(
            "the two models have different modes",
            faults=[f"first {[np.shape(x) for x in a]}", f"second {[np.shape(y) for y in b]}"],
            hint="compare factors over the same codes (pc.align the sites first)",
        )
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
    table = cosines(a, b) if likeness is None else likeness
    left, right = linear_sum_assignment(-table)
    return Match(left.astype(np.int64), right.astype(np.int64), table[left, right])
