"""Modes side by side: one row per patient over the codes of all modes, one mode under another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
Int = NDArray[np.int64]
Damping = Literal["log", "presence", "none"]


@dataclass(frozen=True)
class CodeRows:
    """Patients in compressed rows: patient i has the stacked ``codes[indptr[i]:indptr[i + 1]]``."""

    indptr: Int
    codes: Int
    values: Array
    size: int  # codes of all modes

    @property
    def patients(self) -> int:
        return len(self.indptr) - 1

    @property
    def owner(self) -> Int:
        """(entries,) the patient of every entry."""
        return np.repeat(np.arange(self.patients), np.diff(self.indptr))

    @property
    def totals(self) -> Array:
        """(patients,) sum of the values."""
        out: Array = np.bincount(self.owner, self.values, self.patients).astype(np.float64)
        return out

    def where(self, keep: NDArray[np.bool_]) -> CodeRows:
        """Some of the entries. Patients stay."""
        ends = np.concatenate([[0], np.cumsum(keep)])[self.indptr]
        return CodeRows(ends, self.codes[keep], self.values[keep], self.size)

    def weighted(self, weights: Array) -> CodeRows:
        """The values multiplied by the weight of their code."""
        return replace(self, values=self.values * weights[self.codes])

    def dense(self, chosen: Int) -> Array:
        """(patients, chosen) the values of some codes."""
        place = np.full(self.size, -1)
        place[chosen] = np.arange(len(chosen))
        return self.grouped(place, len(chosen))

    def grouped(self, groups: Int, number: int) -> Array:
        """(patients, number) the values summed over groups of codes. Codes of group -1 are left out."""
        spot = groups[self.codes]
        place = (self.owner * number + spot)[spot >= 0]
        summed = np.bincount(place, self.values[spot >= 0], self.patients * number).astype(np.float64)
        return summed.reshape(-1, number)


def side_by_side(tensor: SparseTensor, damping: Damping = "log") -> CodeRows:
    """Return each patient's codes of all modes, counted over the cells that hold them.

    Parameters
    ----------
    damping
        ``"log"``: a count x becomes 1 + log x, so that codes that are repeated count less. ``"presence"``: 1.
        ``"none"``: x.

    Examples
    --------
    >>> rows = side_by_side(SparseTensor([[0, 1, 0], [0, 1, 2]], [1.0, 1.0], (1, 2, 3)), "none")
    >>> rows.codes.tolist(), rows.values.tolist()
    ([1, 2, 4], [2.0, 1.0, 1.0])
    """
    patient = np.repeat(tensor.rows, np.diff(tensor.indptr)).astype(np.int64)
    total, offset = int(sum(tensor.shape[1:])), 0
    keys, values = [], []
    for codes, size in zip(tensor.codes, tensor.shape[1:]):
        key, inverse = np.unique(patient * total + offset + codes, return_inverse=True)
        count: Array = np.bincount(inverse, tensor.values, len(key)).astype(np.float64)
        if damping != "none":
            count = np.ones(len(key)) if damping == "presence" else 1.0 + np.log(np.maximum(count, 1.0))
        keys.append(key)
        values.append(count)
        offset += size
    key = np.concatenate(keys)
    order = np.argsort(key, kind="stable")
    owner, codes = np.divmod(key[order], max(total, 1))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=tensor.patients))])
    return CodeRows(indptr, codes, np.concatenate(values)[order], total)
