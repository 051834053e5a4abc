"""The E-step of DPEM on the device of this process, with the same whole numbers on every device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.device import Matrix, card_of, cuda, on_card
from polyclinic.tensors.kernels import em
from polyclinic.tensors.sparse import SparseTensor


def unit_statistics(
    tensor: SparseTensor, w: Matrix, prior: Matrix, *, steps: int = 8
) -> tuple[NDArray[np.int64], float]:
    """:func:`.kernels.em.unit_statistics`, the same whole numbers on every device."""
    if not on_card(tensor, w.shape[1]):
        return em.unit_statistics(tensor, w, prior, steps=steps)
    sums: tuple[NDArray[np.int64], float] = cuda().unit_statistics(card_of(tensor), w, prior, steps=steps)
    return sums


def memberships(tensor: SparseTensor, w: Matrix, prior: Matrix, *, steps: int = 10) -> Matrix:
    """:func:`.kernels.em.memberships`, the same bits on every device."""
    if not on_card(tensor, w.shape[1]):
        return em.memberships(tensor, w, prior, steps=steps)
    shares: Matrix = cuda().memberships(card_of(tensor), w, prior, steps=steps)
    return shares
