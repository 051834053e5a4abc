"""Likelihood of counts and of yes/no under a CP model, over the nonzeros only: places patients of saved models.

Model: cell (i, j, k, ...) has the rate m = sum_r a_ir b_jr c_kr ..., every factor at least 0 and feature columns summing to 1,
so that all cells of patient i together have the rate sum_r a_ir: zeros are counted without being touched.

``poisson``: x ~ Poisson(m). Log-likelihood sum x log m - sum_r a_r (and a constant).

``bernoulli``: x = 1 where a Poisson(m) count is above 0, so P(x = 1) = 1 - exp(-m) (Zhou 2015, the Bernoulli-Poisson
link). Log-likelihood sum over ones of log(exp(m) - 1) - sum_r a_r. The odds or logit link would need every zero cell.

EM: the expected events of phenotype r in a cell are ``w a_r b_jr c_kr`` with w = x / m, or 1 / (1 - exp(-m)). Their sums over
a patient's cells are the new memberships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

import polyclinic.tensors.simd.jit  # noqa: F401  (where compiled kernels are kept)
from polyclinic.tensors.kernels.em import products, stacked_rows
from polyclinic.util.threads import in_pieces

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Likelihood = Literal["poisson", "bernoulli"]
EPS: Final = 1e-10  # rates are kept off zero by this, as in pyttb: a code no phenotype knows has a finite cost
PIECES: Final = 16  # private outputs at most; cut by the data alone, so that any number of threads gives the same bits
LEAST: Final = 2_048  # patients a piece

_FAST = {"reassoc", "contract", "nsz"}


@njit(nogil=True, cache=True, fastmath=_FAST)  # type: ignore[untyped-decorator]
def _climb(values: Float, phi: Float, ones: bool, steps: int, tol: float, a: Float, spare: Float) -> None:
    """At most ``steps`` EM steps of one patient's memberships; ends when no step moves more than ``tol`` of the whole."""
    n, rank = len(values), len(a)
    for _ in range(steps):
        for r in range(rank):
            spare[r] = 0.0
        for e in range(n):
            mix = EPS
            for r in range(rank):
                mix += a[r] * phi[e, r]
            scale = -1.0 / np.expm1(-mix) if ones else values[e] / mix
            for r in range(rank):
                spare[r] += scale * phi[e, r]
        change, total = 0.0, 0.0
        for r in range(rank):
            new = a[r] * spare[r]
            change = max(change, abs(new - a[r]))
            total += new
            a[r] = new
        if change <= tol * total:
            break


@njit(nogil=True, cache=True, fastmath=_FAST)  # type: ignore[untyped-decorator]
def _place(
    indptr: Int, rows: NDArray[np.int32], values: Float, w: Float, ones: bool, steps: int, tol: float, out: Float
) -> None:
    rank = w.shape[1]
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    phi, spare = np.empty((longest, rank)), np.empty(rank)
    for i in range(len(indptr) - 1):
        lo, hi = indptr[i], indptr[i + 1]
        products(rows[lo:hi], w, phi[: hi - lo])
        _climb(values[lo:hi], phi[: hi - lo], ones, steps, tol, out[i], spare)


def place(
    tensor: SparseTensor,
    stacked: Float,
    loss: Likelihood,
    *,
    steps: int = 200,
    tol: float = 1e-6,
) -> Float:
    """(patients, R) memberships of highest likelihood, factors held; patients without events have none.

    Parameters
    ----------
    stacked
        (codes of all modes, R) factors under one another, each mode's columns summing to 1.
    loss
        ``"poisson"`` or ``"bernoulli"``.
    steps, tol
        EM steps at most; a patient is done when a step moves no membership by more than ``tol`` of their sum.

    Examples
    --------
    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> t = SparseTensor([[0, 0, 0], [1, 1, 0]], [4.0, 6.0], (3, 2, 1))
    >>> place(t, np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), "poisson").round(3).tolist()
    [[4.0, 0.0], [0.0, 6.0], [0.0, 0.0]]
    """
    rows, ones = stacked_rows(tensor), loss == "bernoulli"
    events = np.add.reduceat(tensor.values, tensor.indptr[:-1]) if tensor.nnz else np.zeros(0)
    rank = stacked.shape[1]
    loadings = np.repeat(events[:, None] / rank, rank, axis=1)  # a patient's events are shared out evenly

    def work(lo: int, hi: int) -> None:
        _place(tensor.indptr[lo : hi + 1], rows, tensor.values, stacked, ones, steps, tol, loadings[lo:hi])

    in_pieces(work, len(tensor.rows), max(LEAST, -(-len(tensor.rows) // PIECES)))
    out = np.zeros((tensor.patients, stacked.shape[1]))
    out[tensor.rows] = loadings
    return out
