"""One sweep of alternating least squares over all modes, all cells counted, on the processor or on a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import cp, kernels
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["Processor", "Workplace", "sweep"]

Matrix = NDArray[np.float64]


class Workplace(Protocol):
    """Where factors lie and what is done with them there; R x R matrices and vectors of R are numpy's everywhere."""

    def put(self, factor: Matrix) -> Any: ...
    def get(self, factor: Any) -> Matrix: ...
    def mttkrp(self, factors: Sequence[Any], mode: int) -> Any: ...
    def gram(self, a: Any) -> Matrix: ...
    def inner(self, a: Any, m: Any, scale: Matrix) -> float: ...
    def hals(self, factor: Any, gram: Matrix, m: Any, scale: Matrix, *, sweeps: int, ridge: float) -> Any: ...
    def descend(self, factor: Any, gram: Matrix, m: Any, scale: Matrix, steepest: float) -> Any: ...
    def divided(self, factor: Any, by: Matrix) -> Any: ...
    def scaled(self, factor: Any, by: Matrix) -> Any: ...


class Processor:
    """The workplace of every machine: numpy arrays and the kernels of :mod:`.kernels`."""

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

    def inner(self, a: Matrix, m: Matrix, scale: Matrix) -> float:
        """<A, M diag(scale)>."""
        return float(np.einsum("ir,ir->", a, m * scale))

    def hals(self, factor: Matrix, gram: Matrix, m: Matrix, scale: Matrix, *, sweeps: int, ridge: float) -> Matrix:
        """Non-negative columns one by one, in place."""
        return cp.hals(factor, gram, _times(m, scale), sweeps=sweeps, ridge=ridge, out=factor)

    def descend(self, factor: Matrix, gram: Matrix, m: Matrix, scale: Matrix, steepest: float) -> Matrix:
        """max(0, A - (A G - M) / steepest)."""
        return np.maximum(factor - (factor @ gram - m * scale) / steepest, 0.0)

    def divided(self, factor: Matrix, by: Matrix) -> Matrix:
        """Columns over ``by``."""
        return factor / by

    def scaled(self, factor: Matrix, by: Matrix) -> Matrix:
        """Columns times ``by``, in place."""
        factor *= by
        return factor


def _times(m: Matrix, scale: Matrix) -> Matrix:
    """M diag(scale); the patients' M is large and never scaled."""
    return m if (scale == 1.0).all() else m * scale


def sweep(
    work: Workplace,
    factors: list[Any],
    norm: float,
    update: Callable[[int, Any, Matrix, Any, Matrix], Any],
    *,
    carry: bool = True,
) -> tuple[float, list[Matrix]]:
    """Improve every mode once; changes ``factors``; returns ||O - X||^2 over all cells and the Grams of the modes.

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
    """
    grams = [np.empty(0), *(work.gram(f) for f in factors[1:])]
    scale, sse = np.ones(len(grams[1])), 0.0
    for n in range(len(factors)):
        g = np.prod([x for k, x in enumerate(grams) if k != n], axis=0)
        if n:
            g = g * np.outer(scale, scale)
        m = work.mttkrp(factors, n)
        new = update(n, factors[n], g, m, scale)
        grams[n] = work.gram(new)
        if n == len(factors) - 1:
            sse = max(0.0, norm - 2 * work.inner(new, m, scale) + float((grams[n] * g).sum()))
        if n:
            length = np.sqrt(np.diagonal(grams[n]))
            safe = np.where(length > 0, length, 1.0)
            new, grams[n], scale = work.divided(new, safe), grams[n] / np.outer(safe, safe), scale * length
        factors[n] = new
    if carry:
        factors[0] = work.scaled(factors[0], scale)
    return sse, grams
