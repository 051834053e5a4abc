"""Does a prior fit the patients of this study? One number says it: how many it explains better, less how many worse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import device, em_kernels
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["votes"]

Array = NDArray[np.float64]


def votes(
    tensor: SparseTensor, stacked: Array, rivals: Sequence[Sequence[Array]], prior: Array, *, steps: int
) -> Array:
    """(patients,) 1 where a model predicts a patient's events better than every rival does, -1 where worse, 0 where equal.

    Every second cell of a patient places the patient among the phenotypes; the log-probability of the other cells is
    compared. A patient's vote is a whole number of size at most 1, so the sum over patients has sensitivity 1.

    Parameters
    ----------
    tensor
        The patients.
    stacked
        (codes of all modes, K) the model, columns of every mode on the simplex.
    rivals
        Models without phenotypes: (I_n,) per mode each.
    prior
        (K,) prior counts of a patient.
    steps
        EM steps of a placing.

    Examples
    --------
    >>> two = SparseTensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], [9.0] * 4, (1, 4, 2))
    >>> half = [np.full(4, 0.25), np.full(2, 0.5)]
    >>> right = np.array([[0.5, 0], [0.5, 0], [0, 0.5], [0, 0.5], [0.5, 0.5], [0.5, 0.5]])
    >>> votes(two, right, [half], np.full(2, 0.05), steps=20).tolist()
    [1.0]
    """
    sizes = np.diff(tensor.indptr)
    who = np.repeat(tensor.rows, sizes)
    second = (np.arange(tensor.nnz) - np.repeat(tensor.indptr[:-1], sizes)) % 2 == 1
    if not second.any():
        return np.zeros(tensor.patients)
    coords = tensor.coords
    seen = SparseTensor(coords[~second], tensor.values[~second], tensor.shape, tensor.axes)
    share = device.memberships(seen, stacked, prior, steps=steps)
    rows, who = em_kernels.stacked_rows(tensor)[second], who[second]
    plain = [np.log(np.concatenate(r)) for r in rivals]
    gain = np.empty((len(plain), len(rows)))
    for lo in range(0, len(rows), 65_536):
        part = slice(lo, lo + 65_536)
        p = share[who[part]]
        for mode in rows[part].T:
            p = p * stacked[mode]
        mine = np.log(np.maximum(p.sum(1), 1e-300))
        for k, log in enumerate(plain):
            gain[k, part] = mine - log[rows[part]].sum(1)
    weight = tensor.values[second]
    return np.asarray(np.sign(np.min([np.bincount(who, weight * g, tensor.patients) for g in gain], axis=0)))
