"""Visits in order: which of a patient's visits a row belongs to, counted by time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.frames import FrameColumn

__all__ = ["visit_positions"]

Int = NDArray[np.int64]


def visit_positions(patient: Int, time: FrameColumn, visit: Int | None = None) -> Int:
    """(rows,) position of every row's visit among the patient's, 0 for the first.

    Rows of one patient are one visit where they have the same ``visit`` (placed at its first time), else the same time.

    >>> visit_positions(np.array([0, 0, 0, 1]), FrameColumn("day", np.array([5, 2, 5, 9]))).tolist()
    [1, 0, 1, 0]
    """
    when = _sortable(time)
    if visit is not None:
        _, stay = np.unique(np.column_stack([patient, visit]), axis=0, return_inverse=True)
        stay = stay.ravel()
        first = np.full(int(stay.max(initial=-1)) + 1, np.inf)
        np.minimum.at(first, stay, when)
        keys = np.column_stack([patient.astype(float), first[stay], stay.astype(float)])
    else:
        keys = np.column_stack([patient.astype(float), when])
    units, of = np.unique(keys, axis=0, return_inverse=True)
    begins = np.searchsorted(units[:, 0], units[:, 0])
    return np.asarray((np.arange(len(units)) - begins)[of.ravel()], np.int64)


def _sortable(time: FrameColumn) -> NDArray[np.float64]:
    """Dates and times as seconds, numbers as they are; an empty or unreadable one is an error."""
    empty = time.empty()
    if empty.any():
        raise DataError(f"{time.name}: {int(empty.sum())} rows have no time", hint="leave them out, or give their time")
    values = time.values
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").astype(np.int64) / 1e6
    numbers = time.numbers()
    if numbers is not None:
        return numbers
    try:
        return np.array([np.datetime64(str(v).strip()) for v in values]).astype("datetime64[us]").astype(np.int64) / 1e6
    except ValueError:
        seen = ", ".join(sorted({str(v) for v in values})[:3])
        raise DataError(
            f"{time.name}: {seen} is neither a time nor a number", hint="dates as 2020-03-01, or a column of dates"
        ) from None
