"""The same work by other libraries: pyttb, GenTen (its Python wheel) and plain scipy; and a plain numba loop."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]


class Scipy:
    """MTTKRP by gathering the other modes' rows, multiplying, and one sparse product that adds up."""

    def __init__(self, tensor: SparseTensor) -> None:
        self.coords = [np.ascontiguousarray(tensor.coords[:, n]) for n in range(tensor.ndim)]
        self.values = np.array(tensor.values)
        ones, at = np.ones(tensor.nnz), np.arange(tensor.nnz)
        self.adders = [sp.csr_matrix((ones, (c, at)), shape=(d, tensor.nnz)) for c, d in zip(self.coords, tensor.shape)]

    def mttkrp(self, factors: Sequence[Matrix], mode: int) -> Matrix:
        product = np.repeat(self.values[:, None], factors[0].shape[1], axis=1)
        for n, f in enumerate(factors):
            if n != mode:
                product *= f[self.coords[n]]
        return np.asarray(self.adders[mode] @ product)


class Pyttb:
    """pyttb (Python tensor toolbox)."""

    def __init__(self, tensor: SparseTensor) -> None:
        import pyttb

        self.ttb = pyttb
        self.data = pyttb.sptensor(tensor.coords, np.array(tensor.values)[:, None], tensor.shape)

    def mttkrp(self, factors: Sequence[Matrix], mode: int) -> Matrix:
        return np.asarray(self.data.mttkrp(list(factors), mode))

    def als(self, factors: Sequence[Matrix], iterations: int) -> None:
        start = self.ttb.ktensor([np.array(f, order="F") for f in factors])
        self.ttb.cp_als(self.data, factors[0].shape[1], init=start, maxiters=iterations, stoptol=0, printitn=0)


class Genten:
    """GenTen through its Python wheel; its own time of the iterations, set-up not counted."""

    def __init__(self, tensor: SparseTensor) -> None:
        import pygenten

        self.gt = pygenten
        self.tensor = tensor
        import pyttb

        self.ttb = pyttb
        self.data = pyttb.sptensor(tensor.coords, np.array(tensor.values)[:, None], tensor.shape)

    def als(self, factors: Sequence[Matrix], iterations: int) -> None:
        start = self.ttb.ktensor([np.array(f, order="F") for f in factors])
        with _silent():
            self.gt.cp_als(self.data, rank=factors[0].shape[1], init=start, maxiters=iterations, tol=0.0, printitn=0)


@contextlib.contextmanager
def _silent() -> Any:
    """GenTen prints from C++: turn the process's standard output away for a moment."""
    saved, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nothing)


@numba.njit(cache=False)  # type: ignore[misc]
def _plain(i, j, k, v, order, a, b, c, rate):  # type: ignore[no-untyped-def]
    rank = a.shape[1]
    for q in range(len(order)):
        e = order[q]
        x, y, z = i[e], j[e], k[e]
        model = 0.0
        for r in range(rank):
            model += a[x, r] * b[y, r] * c[z, r]
        step = rate * (model - v[e])
        for r in range(rank):
            s, t, u = a[x, r], b[y, r], c[z, r]
            a[x, r] = max(0.0, s - step * t * u)
            b[y, r] = max(0.0, t - step * s * u)
            c[z, r] = max(0.0, u - step * s * t)


def plain_sgd(tensor: SparseTensor, factors: Sequence[Matrix]) -> Callable[[NDArray[np.int64]], None]:
    """A pass as one would write it first: a numba loop over a permutation of the entries."""
    columns = [np.ascontiguousarray(tensor.coords[:, n]).astype(np.int32) for n in range(3)]
    fs = [np.array(f) for f in factors]
    _plain(*columns, tensor.values, np.arange(1), *fs, 1e-4)
    return lambda order: _plain(*columns, tensor.values, order, *fs, 1e-4)
