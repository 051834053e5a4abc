"""EM for one patient at a time: place the patient among the phenotypes, and sum unit-length statistics in integers.

Model: the counts of patient i are draws from sum_r a_ir b_r (x) c_r (x) ..., all columns on the simplex.
The codes of all feature modes are stacked: row ``offset_m + code`` of one (codes, R) matrix belongs to mode m, so any
number of modes costs one more column of row numbers. Every patient's vector of statistics is divided by its length and
truncated toward zero to whole multiples of 2^-16, so that its length in exact integers never exceeds 2^16: that is the
sensitivity. Sums are int64, hence the same in any order and for any number of threads.

Every processor gives the same integers, because the arithmetic is written down (GPUs follow it too, :mod:`.kernels.cuda`): float64,
each operation rounded once, no fused multiply-add; sums over phenotypes in eight lanes (`_dot`), sums over a patient's
entries in their stored order, one division per sum; the length in integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.tensors.kernels import em_loops
from polyclinic.tensors.kernels.em_loops import LANES, UNIT, products
from polyclinic.util.threads import in_pieces

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor

__all__ = ["GRID", "LANES", "UNIT", "memberships", "padded", "products", "stacked_rows", "unit_statistics"]

GRID: Final = 1.0 / UNIT
CHUNK: Final = 2_048  # patients per task; fixed, though int64 sums would not mind another number

Float = NDArray[np.float64]
Int = NDArray[np.int64]


def padded(w: Float) -> Float:
    """The same columns and zeros up to a multiple of ``LANES``: what is not a phenotype takes part in no sum."""
    spare = -w.shape[-1] % LANES
    return np.ascontiguousarray(np.pad(w, [(0, 0)] * (w.ndim - 1) + [(0, spare)]) if spare else w, np.float64)


def stacked_rows(tensor: SparseTensor) -> NDArray[np.int32]:
    """(nonzeros, modes) row of every entry's code in the stacked factor matrix; negative counts are refused.

    Examples
    --------
    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> stacked_rows(SparseTensor([[0, 1, 2]], [4.0], (1, 2, 3))).tolist()
    [[1, 4]]
    """
    invalid = np.flatnonzero(~(tensor.values > 0))
    if invalid.size:
        raise DataError(
            f"{invalid.size} counts are not positive (the first is {tensor.values[invalid[0]]:g})",
            hint="this method counts events; give counts, not standardised values",
        )
    out = np.empty((tensor.nnz, tensor.ndim - 1), np.int32)
    offset = 0
    for m, (codes, size) in enumerate(zip(tensor.codes, tensor.shape[1:])):
        np.add(codes, offset, out=out[:, m], casting="unsafe")
        offset += size
    return out


def memberships(tensor: SparseTensor, w: Float, prior: Float, *, steps: int = 10) -> Float:
    """Place every patient among R phenotypes: (patients, R), rows on the simplex; patients without events get zeros.

    Parameters
    ----------
    tensor
        Counts.
    w
        (codes of all feature modes, R) factors stacked, each mode's columns on the simplex.
    prior
        (R,) Dirichlet smoothing.
    steps
        EM steps.
    """
    rows = stacked_rows(tensor)
    weights, base = padded(w), padded(prior[None])
    loadings = np.zeros((len(tensor.rows), weights.shape[1]))

    def work(lo: int, hi: int) -> None:
        em_loops.memberships(tensor.indptr[lo : hi + 1], rows, tensor.values, weights, base, steps, loadings[lo:hi])

    in_pieces(work, len(tensor.rows), CHUNK)
    out = np.zeros((tensor.patients, w.shape[1]))
    out[tensor.rows] = loadings[:, : w.shape[1]]
    return out


def unit_statistics(tensor: SparseTensor, w: Float, prior: Float, *, steps: int = 8) -> tuple[Int, float]:
    """Sum over patients of their unit-length expected counts, in whole grid steps: int64 (codes, R).

    One patient more or less moves the result by a vector of integer length at most ``UNIT`` = 2^16. With
    R = 1 these are the marginal counts of every mode. The second value is the sum over patients of their mean
    log-likelihood per event (for runs without privacy: it has no sensitivity bound).
    """
    rows = stacked_rows(tensor)
    weights, base = padded(w), padded(prior[None])
    parts: dict[int, tuple[Int, float]] = {}

    def work(lo: int, hi: int) -> None:
        part, rank = np.zeros(weights.shape, np.int64), w.shape[1]
        sums = em_loops.statistics(tensor.indptr[lo : hi + 1], rows, tensor.values, weights, base, steps, part, rank)
        parts[lo] = part[:, :rank], sums

    in_pieces(work, len(tensor.rows), CHUNK)
    total, likelihood = np.zeros(w.shape, np.int64), 0.0
    for lo in sorted(parts):
        total += parts[lo][0]
        likelihood += parts[lo][1]
    return total, likelihood
