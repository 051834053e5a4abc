"""How likely counts (or yes/no) are under a CP model: scale of the factors, placing, deviance, and the constant model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.kernels.counts import Likelihood, log_likelihood, place
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]


def same_scale(factors: Sequence[Array]) -> tuple[tuple[Array, ...], Array]:
    """Columns that sum to 1, and the product of the sums (R,): what memberships are multiplied by.

    >>> f, s = same_scale([np.array([[1.0], [3.0]]), np.array([[2.0]])])
    >>> f[0].ravel().tolist(), s.tolist()
    ([0.25, 0.75], [8.0])
    """
    scale, out = np.ones(factors[0].shape[1]), []
    for f in factors:
        size = f.sum(0)
        out.append(np.where(size > 0, f / np.where(size > 0, size, 1.0), 1.0 / len(f)))
        scale = scale * size
    return tuple(out), scale


def deviance(tensor: SparseTensor, factors: Sequence[Array], loss: Likelihood, patients: Array) -> float:
    """2 (log-likelihood of a model that knows every cell - that of this one), over all cells.

    >>> t = SparseTensor([[0, 0]], [2.0], (1, 1))
    >>> abs(deviance(t, [np.ones((1, 1))], "poisson", np.array([[2.0]]))) < 1e-9  # it knows the only cell
    True
    """
    flat, scale = same_scale(factors)
    value = log_likelihood(tensor, np.concatenate(flat), loss, patients * scale)
    return 2.0 * (ceiling(tensor, loss) - value)


def constant_fit(events: float, cells: float, loss: Likelihood) -> float:
    """Log-likelihood of one rate for all cells, from the number of events (``bernoulli``: of ones) and of cells."""
    if events <= 0 or cells <= 0:
        return 0.0
    rate = min(events / cells, 1.0)
    if loss == "poisson":
        return float(events * np.log(events / cells) - events)
    zeros_part = (cells - events) * np.log1p(-rate) if rate < 1 else 0.0
    return float(events * np.log(rate) + zeros_part)


def ceiling(tensor: SparseTensor, loss: Likelihood) -> float:
    """Log-likelihood of a model that knows every cell, without the constant."""
    if loss == "bernoulli":
        return 0.0
    x = tensor.values
    return float(x @ np.log(x) - x.sum()) if len(x) else 0.0


def placed(tensor: SparseTensor, factors: Sequence[Array], loss: Likelihood) -> Array:
    """(patients, R) memberships of highest likelihood on factors of any scale."""
    flat, scale = same_scale(factors)
    return place(tensor, np.concatenate(flat), loss) / np.where(scale > 0, scale, 1.0)


def explained(value: float, events: float, top: float, cells: float, loss: Likelihood) -> float:
    """Share of deviance explained, 1 - D / D0, where D0 is that of one rate for all cells.

    Parameters
    ----------
    value, events, top
        Sums over the patients: log-likelihood, events, :func:`ceiling`.
    cells
        Number of cells, zeros included.
    """
    null = constant_fit(events, cells, loss)
    return (value - null) / (top - null) if top > null else 1.0
