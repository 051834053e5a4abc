"""Courses of patients: records of visits in order, and the inner loops of PARAFAC2 with non-negative, smooth courses.

Patient k has T_k visits; X_k (T_k, codes) is modelled as B_k diag(w_k) V'. B_k (T_k, R) is the patient's course: at least 0,
smooth from visit to visit, and close to Q_k H with Q_k'Q_k = I, so that B_k'B_k is about H'H for everybody (PARAFAC2, by
flexible coupling: Cohen and Bro 2018). Per patient this alternates

    w_k  coordinate descent of non-negative least squares
    Q_k  the orthogonal factor nearest to B_k H'
    B_k  coordinate descent of |X_k - B D V'|^2 + mu |B - Q_k H|^2 + lam sum_t |b_t - b_{t+1}|^2, B >= 0

with mu and lam in units of the mean of w_k^2. None of the three leaves; V and H need only their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

import polyclinic.tensors.simd.jit  # noqa: F401  (where compiled kernels are kept)
from polyclinic.util.threads import in_pieces

if TYPE_CHECKING:
    from polyclinic.tensors.sparse import SparseTensor

Float = NDArray[np.float64]
Int = NDArray[np.int64]
PIECES: Final = 16
LEAST: Final = 512  # patients a piece
WEAK: Final = 1e-6  # of the largest, below which a direction of a patient's course is none
FIRST: Final = 8  # alternations of a patient who begins with a flat course


@dataclass(frozen=True, eq=False)
class Visits:
    """One site's records by visit.

    Parameters
    ----------
    patients
        Number of patients, with and without visits.
    rows, first
        Patients with visits, and where each one's visits begin (len(rows) + 1).
    place
        (visits,) position of every visit on the ordered axis.
    indptr, codes, values
        The entries of every visit.
    """

    patients: int
    rows: Int
    first: Int
    place: Int
    indptr: Int
    codes: Int
    values: Float


@dataclass(frozen=True, eq=False)
class CourseSums:
    """What V and H need of the patients: sum of X'BD (codes, R), of DB'BD, of mu Q'B (R, R), and four numbers:
    squared norm, squared error, sum of mu, sum of mu |B - QH|^2."""

    codes: Float
    gram: Float
    shape: Float
    scores: Float


def visits_of(tensor: SparseTensor, order: int) -> Visits:
    """Records by visit; ``order`` (1 or 2) is the mode whose positions are visits in order, the other mode holds codes.

    A visit without any code of the other mode is not there: what is not recorded at a visit that took place cannot be told
    from a visit that did not.

    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> t = SparseTensor([[0, 0, 1], [0, 2, 0], [2, 1, 1]], [1.0, 2.0, 3.0], (3, 3, 2))
    >>> v = visits_of(t, 1)
    >>> v.rows.tolist(), v.first.tolist(), v.place.tolist()
    ([0, 2], [0, 2, 3], [0, 2, 1])
    """
    time = tensor.codes[order - 1].astype(np.int64)
    codes = tensor.codes[2 - order].astype(np.int64)
    patient = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    order_of_entries = np.lexsort((codes, time, patient))
    patient, time, codes, values = (
        patient[order_of_entries],
        time[order_of_entries],
        codes[order_of_entries],
        tensor.values[order_of_entries],
    )
    new = np.ones(len(patient), bool)
    new[1:] = (patient[1:] != patient[:-1]) | (time[1:] != time[:-1])
    starts = np.flatnonzero(new)
    indptr = np.append(starts, len(patient)).astype(np.int64)
    counts = np.bincount(patient[starts], minlength=len(tensor.rows)) if len(patient) else np.zeros(0, np.int64)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Visits(tensor.patients, tensor.rows, first, time[starts], indptr, codes, np.ascontiguousarray(values))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})  # type: ignore[untyped-decorator]
def _sweep(
    first: Int,
    indptr: Int,
    codes: Int,
    values: Float,
    V: Float,
    VV: Float,
    H: Float,
    coupling: float,
    smooth: float,
    steps: int,
    w: Float,
    B: Float,
    sxb: Float,
    sg: Float,
    sh: Float,
    scores: Float,
) -> None:
    R = V.shape[1]
    longest = 0
    for p in range(len(first) - 1):
        longest = max(longest, first[p + 1] - first[p])
    XV, M, Q, QH = (np.empty((longest, R)), np.empty((longest, R)), np.empty((longest, R)), np.empty((longest, R)))
    G, BB = np.empty((R, R)), np.empty((R, R))
    for p in range(len(first) - 1):
        lo = first[p]
        T = first[p + 1] - lo
        b, wp = B[lo : lo + T], w[p]
        square = 0.0
        for t in range(T):
            for r in range(R):
                XV[t, r] = 0.0
            for e in range(indptr[lo + t], indptr[lo + t + 1]):
                x, c = values[e], codes[e]
                square += x * x
                for r in range(R):
                    XV[t, r] += x * V[c, r]
        mu = 0.0
        for _ in range(steps):
            for r in range(R):
                for s in range(r + 1):
                    a = 0.0
                    for t in range(T):
                        a += b[t, r] * b[t, s]
                    BB[r, s] = a
                    BB[s, r] = a
            for _w in range(5):
                for r in range(R):
                    a = 0.0
                    for t in range(T):
                        a += b[t, r] * XV[t, r]
                    for s in range(R):
                        if s != r:
                            a -= BB[r, s] * VV[r, s] * wp[s]
                    d = BB[r, r] * VV[r, r]
                    wp[r] = max(a / d, 0.0) if d > 1e-12 else 0.0
            mean = 0.0
            for r in range(R):
                mean += wp[r] * wp[r] * VV[r, r]
            mean /= R
            mu, lam = coupling * mean + 1e-9, smooth * mean
            for t in range(T):
                for r in range(R):
                    a = 0.0
                    for s in range(R):
                        a += b[t, s] * H[r, s]
                    M[t, r] = a
                    Q[t, r] = 0.0
            for r in range(R):
                for s in range(r + 1):
                    a = 0.0
                    for t in range(T):
                        a += M[t, r] * M[t, s]
                    G[r, s] = a
                    G[s, r] = a
            val, vec = np.linalg.eigh(G)
            for k in range(R):
                # M (M'M + eps)^(-1/2): directions that a patient's visits do not fill fade out and never jump
                f = 1.0 / np.sqrt(max(val[k], 0.0) + WEAK * val[R - 1] + 1e-300)
                for t in range(T):
                    a = 0.0
                    for r in range(R):
                        a += M[t, r] * vec[r, k]
                    a *= f
                    for r in range(R):
                        Q[t, r] += a * vec[r, k]
            for t in range(T):
                for r in range(R):
                    a = 0.0
                    for s in range(R):
                        a += Q[t, s] * H[s, r]
                    QH[t, r] = a
            for _b in range(2):
                for r in range(R):
                    own = wp[r] * wp[r] * VV[r, r] + mu
                    for t in range(T):
                        a = XV[t, r] * wp[r] + mu * QH[t, r]
                        for s in range(R):
                            if s != r:
                                a -= b[t, s] * wp[s] * wp[r] * VV[s, r]
                        d = own
                        if t > 0:
                            a += lam * b[t - 1, r]
                            d += lam
                        if t < T - 1:
                            a += lam * b[t + 1, r]
                            d += lam
                        b[t, r] = max(a / d, 0.0)
        inner, model, gap = 0.0, 0.0, 0.0
        for r in range(R):
            for s in range(R):
                a, h = 0.0, 0.0
                for t in range(T):
                    a += b[t, r] * b[t, s]
                    h += Q[t, r] * b[t, s]
                a *= wp[r] * wp[s]
                sg[r, s] += a
                model += a * VV[r, s]
                sh[r, s] += mu * h
            for t in range(T):
                inner += b[t, r] * XV[t, r] * wp[r]
                gap += (b[t, r] - QH[t, r]) ** 2
        for t in range(T):
            for e in range(indptr[lo + t], indptr[lo + t + 1]):
                x, c = values[e], codes[e]
                for r in range(R):
                    sxb[c, r] += x * b[t, r] * wp[r]
        scores[0] += square
        scores[1] += square - 2 * inner + model
        scores[2] += mu
        scores[3] += mu * gap


def course_sweep(
    visits: Visits,
    V: Float,
    H: Float,
    patients: Float | None,
    courses: Float | None,
    *,
    coupling: float,
    smooth: float,
    steps: int,
) -> tuple[Float, Float, CourseSums]:
    """New memberships (patients with visits, R) and courses (visits, R), and what V and H need of them.

    ``patients`` and ``courses`` are those to begin from (None: a flat course, and more alternations).
    """
    rank, n = V.shape[1], len(visits.rows)
    begins = patients is None or courses is None
    if patients is None or courses is None:
        length = np.repeat(np.diff(visits.first), np.diff(visits.first))
        B = np.repeat(1.0 / np.sqrt(np.maximum(length, 1.0))[:, None], rank, axis=1)
        w = np.ones((n, rank))
    else:
        w, B = np.array(patients), np.array(courses)
    VV = V.T @ V
    size = max(LEAST, -(-n // PIECES))
    parts: dict[int, tuple[Float, Float, Float, Float]] = {}

    def work(lo: int, hi: int) -> None:
        part = (np.zeros(V.shape), np.zeros((rank, rank)), np.zeros((rank, rank)), np.zeros(4))
        _sweep(
            visits.first[lo : hi + 1], visits.indptr, visits.codes, visits.values, V, VV, H, coupling, smooth,
            FIRST if begins else steps, w[lo:hi], B, *part,
        )  # fmt: skip
        parts[lo] = part

    in_pieces(work, n, size)
    total = (np.zeros(V.shape), np.zeros((rank, rank)), np.zeros((rank, rank)), np.zeros(4))
    for lo in sorted(parts):
        for whole, part in zip(total, parts[lo]):
            whole += part
    return w, B, CourseSums(*total)
