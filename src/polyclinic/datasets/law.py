"""The law of all planted counts: every event belongs to one phenotype and draws one code per mode from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.datasets.truth import expected_auc

Matrix = NDArray[np.float64]


def draw_events(
    memberships: Matrix, codes: Sequence[Matrix], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw Poisson counts of a CP model; one pass per phenotype, none per patient.

    Parameters
    ----------
    memberships
        (patients, R) expected number of events.
    codes
        Per feature mode a (codes, R) matrix whose columns sum to 1.

    Returns
    -------
    coordinates
        (events, modes) integers, one row per event (duplicates are to be summed).
    values
        Ones.

    Notes
    -----
    X[i, j, k] ~ Poisson(sum_r A[i, r] B[j, r] C[k, r]) is the same law as: draw n[i, r] ~ Poisson(A[i, r]), then
    for each of these events a code per mode. The cost grows with the events, never with the cells.
    """
    number = rng.poisson(memberships)
    parts = []
    for r in range(memberships.shape[1]):
        patient = np.repeat(np.arange(len(memberships)), number[:, r])
        drawn = [_draw(matrix[:, r], len(patient), rng) for matrix in codes]
        parts.append(np.column_stack([patient, *drawn]))
    coords = np.concatenate(parts)
    return coords, np.ones(len(coords))


def draw_outcome(
    memberships: Matrix, coefficients: Matrix, rate: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], float, float]:
    """Draw a yes/no outcome by a logistic model whose intercept gives the wanted overall rate.

    Returns
    -------
    outcome
        (patients,) 0 or 1.
    intercept
        Found by bisection.
    auc
        Expected AUC of the true risks.
    """
    score = memberships @ coefficients
    low, high = -60.0 - float(score.max(initial=0)), 60.0 - float(score.min(initial=0))
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _logistic(score + middle).mean() > rate else (middle, high)
    risk = _logistic(score + (low + high) / 2)
    return (rng.random(len(risk)) < risk).astype(np.int64), (low + high) / 2, expected_auc(risk)


def unit_columns(matrix: Matrix) -> Matrix:
    """The same columns with Euclidean length 1."""
    return np.asarray(matrix / np.linalg.norm(matrix, axis=0))


def _logistic(x: Matrix) -> Matrix:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def _draw(weights: Matrix, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    edges = np.cumsum(weights)
    position = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
    return np.asarray(np.minimum(position, len(edges) - 1))
