"""Controls: what models that learned nothing get on the same data.

A claim that a control gets too has the verdict "no signal" (:mod:`polyclinic_papers.claims`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.starts.random import start
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["PERMUTED", "RANDOM", "ZERO", "blank", "each", "energies", "explained", "permuted"]

ZERO: Final = "zero model"
RANDOM: Final = "random factors"
PERMUTED: Final = "permuted labels"


def explained(rmse: float, zero: float) -> float:
    """Explained energy: the share of the squared counts that a model explains, from its RMSE and the zero model's."""
    return 1.0 - (rmse / zero) ** 2


def energies(tensor: SparseTensor, full: float, observed: float) -> dict[str, float]:
    """Both RMSEs with the explained energy over all cells (``energy``) and over nonzeros (``energy_observed``)."""
    square, cells = tensor.norm_squared(), float(np.prod([float(d) for d in tensor.shape]))
    return {
        "full": full,
        "observed": observed,
        "energy": 1.0 - full**2 * cells / square,
        "energy_observed": 1.0 - observed**2 * tensor.nnz / square,
    }


def blank(tensor: SparseTensor, rank: int, seed: int) -> dict[str, dict[str, float]]:
    """RMSE and explained energy of the zero model and of random factors.

    Patients are placed on the random factors as the measure asks: over all cells, or over their nonzeros alone.
    """
    square, cells = tensor.norm_squared(), float(np.prod([float(d) for d in tensor.shape]))
    factors = start(tensor.shape[1:], rank, seed)
    members = cp.solve_memberships(tensor, factors, sweeps=15)
    everyone = [members, *factors]
    full = cp.squared_error(square, members, cp.gram(everyone, 0), kernels.mttkrp(tensor, everyone, 0))
    return {
        ZERO: energies(tensor, float(np.sqrt(square / cells)), float(np.sqrt(square / tensor.nnz))),
        RANDOM: energies(tensor, float(np.sqrt(full / cells)), float(np.sqrt(_nonzeros(tensor, factors) / tensor.nnz))),
    }


def _nonzeros(tensor: SparseTensor, factors: Sequence[NDArray[np.float64]]) -> float:
    """Squared error over nonzeros, every patient placed by least squares on his nonzeros."""
    left = 0.0
    design = np.prod([f[codes] for f, codes in zip(factors, tensor.codes)], axis=0)
    for lo, hi in zip(tensor.indptr[:-1], tensor.indptr[1:]):
        rows, counts = design[lo:hi], tensor.values[lo:hi]
        left += float(((counts - rows @ np.linalg.lstsq(rows, counts, rcond=None)[0]) ** 2).sum())
    return left


def each(names: Sequence[str], figures: Callable[[str], Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The controls of a comparison: the figures with the control in the place of the method."""
    return {name: figures(name) for name in names}


def permuted(labels: Any, seed: int) -> NDArray[Any]:
    """The labels in another order, the same for a seed."""
    return np.asarray(np.random.default_rng([seed, 77]).permutation(np.asarray(labels)))
