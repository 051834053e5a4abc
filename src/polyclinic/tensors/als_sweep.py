"""One sweep of alternating least squares over all modes, all cells counted, on the processor or on a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
F = TypeVar("F")  # a factor where it is worked on: an array of numpy or of the card


@dataclass(frozen=True)
class Swept(Generic[F]):
    """What a sweep leaves: ||O - X||^2 over all cells, the feature modes' Grams, and the patients' MTTKRP if it is on its way."""

    sse: float
    grams: list[Matrix]
    ahead: F | None


class Workplace(Protocol[F]):
    """Where factors lie and what is done with them there; R x R matrices and vectors of R are numpy's everywhere.

    ``ahead``: a sweep goes on from the Grams of the one before instead of taking them anew.
    """

    ahead: bool

    def put(self, factor: Matrix) -> F: ...
    def get(self, factor: F) -> Matrix: ...
    def mttkrp(self, factors: Sequence[F], mode: int) -> F: ...
    def gram(self, a: F) -> Matrix: ...
    def hals(self, factor: F, gram: Matrix, m: F, scale: Matrix, *, sweeps: int, ridge: float) -> F: ...
    def descend(self, factor: F, gram: Matrix, m: F, scale: Matrix, steepest: float) -> F: ...
    def close(self, factors: list[F], n: int, new: F, m: F, scale: Matrix) -> tuple[Matrix, float, F | None]:
        """Put ``new`` in place of factor ``n``, a feature's columns brought to length 1.

        Returns the Gram of ``new`` as given, <new, M diag(scale)> if it is the last mode (else 0), and the next mode's MTTKRP:
        a card works on it while the processor looks at the Gram. After the last mode it is the patients', or None.
        """
        ...

    def scaled(self, factor: F, by: Matrix) -> F: ...


class Processor:
    """The workplace of every machine: numpy arrays and the kernels of :mod:`.kernels.mttkrp`."""

    ahead = False

    def __init__(self, tensor: SparseTensor, rank: int, threads: int = 1) -> None:
        self.tensor, self.threads = tensor, threads
        self._patients = np.zeros((tensor.patients, rank))  # fresh memory would cost as much as the arithmetic

    def put(self, factor: Matrix) -> Matrix:
        """The factor itself."""
        return factor

    def get(self, factor: Matrix) -> Matrix:
        """The factor itself."""
        return factor

    def mttkrp(self, factors: Sequence[Matrix], mode: int) -> Matrix:
        """What the data say about one mode."""
        return kernels.mttkrp(self.tensor, factors, mode, threads=self.threads, out=None if mode else self._patients)

    def gram(self, a: Matrix) -> Matrix:
        """A'A."""
        return a.T @ a

    def hals(self, factor: Matrix, gram: Matrix, m: Matrix, scale: Matrix, *, sweeps: int, ridge: float) -> Matrix:
        """Non-negative columns one by one, in place."""
        return cp.hals(factor, gram, _times(m, scale), sweeps=sweeps, ridge=ridge, out=factor)

    def descend(self, factor: Matrix, gram: Matrix, m: Matrix, scale: Matrix, steepest: float) -> Matrix:
        """max(0, A - (A G - M) / steepest)."""
        return np.maximum(factor - (factor @ gram - m * scale) / steepest, 0.0)

    def close(
        self, factors: list[Matrix], n: int, new: Matrix, m: Matrix, scale: Matrix
    ) -> tuple[Matrix, float, Matrix | None]:
        """The Gram, the inner product, and the next MTTKRP, one after the other."""
        gram, last = self.gram(new), n == len(factors) - 1
        inner = float(np.einsum("ir,ir->", new, m * scale)) if last else 0.0
        length = np.sqrt(np.diagonal(gram))
        factors[n] = new / np.where(length > 0, length, 1.0) if n else new
        return gram, inner, None if last else self.mttkrp(factors, n + 1)

    def scaled(self, factor: Matrix, by: Matrix) -> Matrix:
        """Columns times ``by``, in place."""
        factor *= by
        return factor


def _times(m: Matrix, scale: Matrix) -> Matrix:
    """M diag(scale); the patients' M is large and never scaled."""
    return m if (scale == 1.0).all() else m * scale


def sweep(
    work: Workplace[F],
    factors: list[F],
    norm: float,
    update: Callable[[int, F, Matrix, F, Matrix], F],
    *,
    carry: bool = True,
    before: Swept[F] | None = None,
) -> Swept[F]:
    """Improve every mode once; changes ``factors``; returns what it leaves.

    Feature columns get length 1 and their scale goes to the patients (ERRATA E2.7): it is kept aside until the end, so that
    the large patients' factor is rewritten once. <O, X> comes from the last MTTKRP: zeros are never touched.

    Parameters
    ----------
    norm
        ||O||^2.
    update
        ``update(mode, factor, gram, mttkrp, scale)`` improves a factor; the MTTKRP is to be taken times ``scale``.
    carry
        Bring the scale to the patients at the end (who starts from nothing each time does not need it).
    before
        What the sweep before left.
    """
    reusable = before is not None and work.ahead
    grams = [np.empty(0), *(before.grams if reusable and before else [work.gram(f) for f in factors[1:]])]
    scale, sse = np.ones(len(grams[1])), 0.0
    m = before.ahead if reusable and before else work.mttkrp(factors, 0)
    for n in range(len(factors)):
        g = np.prod([x for k, x in enumerate(grams) if k != n], axis=0)
        if n:
            g = g * np.outer(scale, scale)
        assert m is not None  # a workplace leaves the next mode's, but after the last mode
        new = update(n, factors[n], g, m, scale)
        grams[n], inner, m = work.close(factors, n, new, m, scale)
        if n == len(factors) - 1:
            sse = max(0.0, norm - 2 * inner + float((grams[n] * g).sum()))
        if n:
            length = np.sqrt(np.diagonal(grams[n]))
            safe = np.where(length > 0, length, 1.0)
            grams[n], scale = grams[n] / np.outer(safe, safe), scale * length
    if carry:
        factors[0] = work.scaled(factors[0], scale)
    return Swept(sse, grams[1:], m)
