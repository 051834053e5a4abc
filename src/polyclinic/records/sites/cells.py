"""How the rows of a table become the cells, outcomes and covariates of each hospital."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.records.sites.frames import FrameColumn, Index, KeyColumns, together
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor


@dataclass(frozen=True)
class Cells:
    """How the rows of a hospital become the cells of its tensor."""

    codes: Sequence[KeyColumns]
    axes: Sequence[Axis]
    visits: KeyColumns | None
    counts: NDArray[np.float64]
    side_by_side: bool

    def tensor(self, members: SitePatients, patient_axis: Axis) -> SparseTensor:
        """Return the tensor of one hospital."""
        if self.side_by_side:
            coords, cells = _stacked([self._together(members, [c]) for c in self.codes], self.axes)
            axes: Sequence[Axis] = [Axis.side_by_side(self.axes)]
        else:
            coords, cells = self._together(members, self.codes)
            axes = self.axes
        shape = (members.patients, *(len(a.labels or ()) for a in axes))
        return SparseTensor(coords, cells, shape, [patient_axis, *axes])

    def _together(self, members: SitePatients, codes: Sequence[KeyColumns]) -> tuple[Index, NDArray[np.float64]]:
        """Return coordinates and counts of one hospital's cells."""
        columns = [c.index[members.rows] for c in codes]
        if self.visits is not None:
            coords = together(members.index, self.visits.index[members.rows], columns)
            return coords, np.ones(len(coords))
        complete = np.all([c >= 0 for c in columns], axis=0)
        return np.column_stack([members.index, *columns])[complete], self.counts[members.rows][complete]


def _stacked(
    parts: Sequence[tuple[Index, NDArray[np.float64]]], axes: Sequence[Axis]
) -> tuple[Index, NDArray[np.float64]]:
    """Return the cells of all modes with their codes under one another."""
    offsets = np.cumsum([0, *(len(a.labels or ()) for a in axes[:-1])])
    coords = [c + np.array([0, offset]) for (c, _), offset in zip(parts, offsets)]
    return np.concatenate(coords), np.concatenate([v for _, v in parts])


@dataclass(frozen=True)
class SitePatients:
    """Rows of the table that belong to one hospital, and the patient of each."""

    site: str
    rows: Index
    index: Index
    patients: int
    conflicts: list[str]

    def labels(self, outcomes: NDArray[np.float64], name: str) -> NDArray[np.generic]:
        """Return (patients,) outcomes, NaN where unknown. They are whole numbers where all are known."""
        out = self._one_value(outcomes[self.rows], name, "patients have 0 and 1")
        return out if np.isnan(out).any() else out.astype(np.int64)

    def covariate(self, column: FrameColumn) -> NDArray[np.generic]:
        """Return (patients,) numbers (NaN: unknown) or texts (empty: unknown)."""
        numbers = column.numbers()
        if numbers is not None:
            return self._one_value(numbers[self.rows], column.name, "patients have several values")
        keys = column.keys()
        position = keys.index[self.rows].astype(float)
        position[position < 0] = np.nan
        position = self._one_value(position, column.name, "patients have several values")
        texts = np.array(["", *keys.labels], dtype=object)
        return np.asarray(texts[np.where(np.isnan(position), 0, position + 1).astype(np.int64)])

    def _one_value(self, values: NDArray[np.float64], name: str, conflict: str) -> NDArray[np.float64]:
        """Return the value of every patient, NaN where no row has one. Rows that differ are a conflict."""
        low, high = np.full(self.patients, np.inf), np.full(self.patients, -np.inf)
        present = ~np.isnan(values)
        np.minimum.at(low, self.index[present], values[present])
        np.maximum.at(high, self.index[present], values[present])
        differing = int((low < high).sum())
        if differing:
            self.conflicts.append(f"{name}, site {self.site!r}: {differing} {conflict}")
        return np.where(np.isinf(low), np.nan, low)
