"""Does a prior fit the patients of this study, and does the fit that leans on it do better? One number each says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import expectation
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
# docs/benchmarks/private-em.md, a prior
NATS: Final = 4.0  # a patient whom one of two models explains better by so much, or more, speaks with the whole voice
# limit: votes are whole multiples of it, so that their sum is exact
VERDICT_GRID: Final = 2.0**-10


def _explained(rows: NDArray[np.int32], who: NDArray[np.int64], w: Array, share: Array) -> Array:
    """Log-probability of cells (``rows``, of patients ``who``), given what share of everything each patient has."""
    out = np.empty(len(rows))
    for lo in range(0, len(rows), 65_536):
        part = slice(lo, lo + 65_536)
        p = share[who[part]]
        for mode in rows[part].T:
            p = p * w[mode]
        out[part] = np.log(np.maximum(p.sum(1), 1e-300))
    return out


def gains(tensor: SparseTensor, mine: tuple[Array, Array], other: tuple[Array, Array], *, steps: int) -> Array:
    """(patients,) how much better a model explains a patient's events than another does, cut at one and on a grid::

        g_p = round(min(max((L_p - L'_p) / NATS, -1), 1) / VERDICT_GRID) VERDICT_GRID

    L_p the log-likelihood of all events of p, placed by the same events: what the structure kept is made of. No patient
    moves the sum over patients by more than 1.

    Parameters
    ----------
    tensor
        The patients.
    mine, other
        (codes of all modes, K) columns of every mode on the simplex, and (K,) prior counts of a patient.
    steps
        EM steps of a placing.

    Examples
    --------
    >>> t = SparseTensor([[0, 0], [0, 1]], [9.0, 9.0], (1, 3))
    >>> right, flat = (np.array([[0.5], [0.5], [0.0]]), np.ones(1)), (np.full((3, 1), 1 / 3), np.ones(1))
    >>> gains(t, right, flat, steps=2).tolist(), gains(t, flat, right, steps=2).tolist(), gains(t, flat, flat, steps=2).tolist()
    ([1.0], [-1.0], [0.0])
    """
    rows, patient = em_kernels.stacked_rows(tensor), np.repeat(tensor.rows, np.diff(tensor.indptr))
    a, b = (_explained(rows, patient, w, expectation.memberships(tensor, w, p, steps=steps)) for w, p in (mine, other))
    voice = np.clip(np.bincount(patient, tensor.values * (a - b), tensor.patients) / NATS, -1.0, 1.0)
    return np.asarray(np.rint(voice / VERDICT_GRID) * VERDICT_GRID)


def votes(
    tensor: SparseTensor,
    stacked: Array,
    rivals: Sequence[Sequence[Array]],
    prior: Array,
    *,
    steps: int,
    torn: Array | None = None,
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
    torn
        A rival with phenotypes, shaped like ``stacked``: the model's own, of which each mode was taken from another column. Where
        cells are pairs of codes, a hidden cell's codes are seen in other cells, and any phenotypes predict them better than
        marginals do; only a model whose modes belong together beats itself torn apart.

    Examples
    --------
    >>> two = SparseTensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], [9.0] * 4, (1, 4, 2))
    >>> half = [np.full(4, 0.25), np.full(2, 0.5)]
    >>> right = np.array([[0.5, 0], [0.5, 0], [0, 0.5], [0, 0.5], [0.5, 0.5], [0.5, 0.5]])
    >>> votes(two, right, [half], np.full(2, 0.05), steps=20).tolist()
    [1.0]
    """
    sizes = np.diff(tensor.indptr)
    patient = np.repeat(tensor.rows, sizes)
    second = (np.arange(tensor.nnz) - np.repeat(tensor.indptr[:-1], sizes)) % 2 == 1
    if not second.any():
        return np.zeros(tensor.patients)
    coords = tensor.coords
    first_half = SparseTensor(coords[~second], tensor.values[~second], tensor.shape, tensor.axes)
    rows, patient = em_kernels.stacked_rows(tensor)[second], patient[second]

    def predicted(w: Array) -> Array:
        """Log-probability of the hidden cells, the patients placed by the seen ones."""
        return _explained(rows, patient, w, expectation.memberships(first_half, w, prior, steps=steps))

    rival_gains = [np.log(np.concatenate(r))[rows].sum(1) for r in rivals]
    if torn is not None:
        rival_gains.append(predicted(torn))
    own_gain, weight = predicted(stacked), tensor.values[second]
    gains = [np.bincount(patient, weight * (own_gain - other), tensor.patients) for other in rival_gains]
    return np.asarray(np.sign(np.min(gains, axis=0)))
