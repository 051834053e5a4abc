"""Measure models: reconstruction errors (the three that the papers mix up), fit, and the similarity of two models.

>>> import numpy as np
>>> from polyclinic.metrics import factor_match_score
>>> a = [np.eye(3)[:, :2], np.eye(4)[:, :2]]
>>> round(factor_match_score(a, [f[:, ::-1] for f in a]), 2)
1.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.matching import factor_match_score, recovery
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["factor_match_score", "fit", "held_out", "recovery", "rmse", "rmse_at", "squared_error"]

Matrix = NDArray[np.float64]
Over = Literal["observed", "full", "per_nonzero"]


def squared_error(tensor: SparseTensor, factors: Sequence[Matrix], *, over: Literal["observed", "full"]) -> float:
    """Sum of squared residuals over the nonzeros, or over all cells in closed form (ERRATA E0.5).

    >>> t = SparseTensor([[0, 0]], [2.0], (1, 2))
    >>> squared_error(t, [np.ones((1, 1)), np.ones((2, 1))], over="full")
    2.0
    """
    _same_modes(tensor, factors)
    if over == "observed":
        return kernels.squared_error(tensor, factors)
    inner = float(tensor.values @ kernels.model(tensor, factors))  # zeros add nothing
    return cp.residual_norm_squared(tensor.norm_squared(), inner, cp.gram(factors))


def rmse(tensor: SparseTensor, factors: Sequence[Matrix], *, over: Over = "observed") -> float:
    """Root mean squared error of a model.

    Parameters
    ----------
    tensor
        The data.
    factors
        One (I_n, R) factor per mode, patients first, weights multiplied in.
    over
        ``"observed"``: over the nonzeros (what DPFact and LocalTF evidently report). ``"full"``: over all cells.
        ``"per_nonzero"``: full residual divided by sqrt(nonzeros) (TRIP's sister code). They differ wildly (E0.5).

    Examples
    --------
    >>> t = SparseTensor([[0, 0]], [2.0], (1, 2))
    >>> f = [np.ones((1, 1)), np.ones((2, 1))]
    >>> rmse(t, f), rmse(t, f, over="full"), round(rmse(t, f, over="per_nonzero"), 4)
    (1.0, 1.0, 1.4142)
    """
    if over not in ("observed", "full", "per_nonzero"):
        raise ConfigError(f"rmse over {over!r} is not known", hint="use 'observed', 'full' or 'per_nonzero'")
    error = squared_error(tensor, factors, over="observed" if over == "observed" else "full")
    cells = float(np.prod([float(d) for d in tensor.shape])) if over == "full" else float(tensor.nnz)
    return float(np.sqrt(error / cells)) if cells else 0.0


def rmse_at(coords: NDArray[np.int64], values: NDArray[np.float64], factors: Sequence[Matrix]) -> float:
    """Root mean squared error at given cells: a held-out set, zeros allowed.

    >>> rmse_at(np.array([[0, 0], [0, 1]]), np.array([1.0, 3.0]), [np.ones((1, 1)), np.ones((2, 1))])
    1.4142135623730951
    """
    if not len(coords):
        raise DataError("no cells to score at")
    r = np.asarray(values, np.float64) - kernels.model_at(np.asarray(coords, np.int64), factors)
    return float(np.sqrt(np.mean(r * r)))


def fit(tensor: SparseTensor, factors: Sequence[Matrix]) -> float:
    """Part of the data that the model explains: 1 - ||O - X|| / ||O|| over all cells; 1 is perfect, 0 the empty model.

    >>> fit(SparseTensor([[0, 0]], [2.0], (1, 1)), [np.ones((1, 1)), np.full((1, 1), 2.0)])
    1.0
    """
    norm = tensor.norm_squared()
    if norm == 0:
        return 1.0 if squared_error(tensor, factors, over="full") == 0 else -np.inf
    return 1.0 - float(np.sqrt(squared_error(tensor, factors, over="full") / norm))


def held_out(
    tensor: SparseTensor, share: float, rng: np.random.Generator
) -> tuple[SparseTensor, NDArray[np.int64], NDArray[np.float64]]:
    """Hide a share of the nonzeros: what is left to learn from, and coordinates and values to score at (`rmse_at`).

    Examples
    --------
    >>> t = SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1]], [1.0, 2.0, 3.0, 4.0], (2, 2))
    >>> train, coords, values = held_out(t, 0.25, np.random.default_rng(0))
    >>> train.nnz, len(values)
    (3, 1)
    """
    if not 0 < share < 1:
        raise ConfigError(f"share {share} of hidden entries is not between 0 and 1")
    mask = np.zeros(tensor.nnz, bool)
    mask[rng.choice(tensor.nnz, max(1, round(share * tensor.nnz)), replace=False)] = True
    coords = tensor.coords
    train = SparseTensor(coords[~mask], tensor.values[~mask], tensor.shape, tensor.axes)
    return train, coords[mask], np.array(tensor.values[mask])


def _same_modes(tensor: SparseTensor, factors: Sequence[Matrix]) -> None:
    shapes = [np.shape(f) for f in factors]
    if [s[0] for s in shapes] != list(tensor.shape) or len({s[1] for s in shapes}) != 1:
        raise DataError(
            f"factors of shapes {shapes} do not fit a tensor of shape {tensor.shape}",
            hint="pass [memberships, *model.factors_], one per mode, the same number of columns",
        )
