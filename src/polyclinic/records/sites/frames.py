"""Columns of anybody's data frame, as arrays; pandas is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError

__all__ = ["FrameColumn", "KeyColumns", "column_of", "columns_of"]


@dataclass(frozen=True)
class KeyColumns:
    """A column as positions in a sorted list of different texts; -1 where it is empty."""

    name: str
    index: NDArray[np.int64]
    labels: tuple[str, ...]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where it is empty."""
        return self.index < 0


@dataclass(frozen=True)
class FrameColumn:
    """One column."""

    name: str
    values: NDArray[np.generic]

    def empty(self) -> NDArray[np.bool_]:
        """Where nothing is recorded: None, NaN, NaT, pandas' NA, or a text without letters."""
        v = self.values
        if v.dtype.kind == "f":
            return np.asarray(np.isnan(v), bool)
        if v.dtype.kind in "mM":
            return np.asarray(np.isnat(v), bool)
        if v.dtype.kind in "iub":
            return np.zeros(len(v), bool)
        return np.asarray(np.frompyfunc(_nothing, 1, 1)(v), bool).reshape(len(v))

    def keys(self) -> KeyColumns:
        """The column as codes or identifiers."""
        empty, v = self.empty(), self.values
        kept = v[~empty]
        if kept.dtype.kind == "O" and len(kept) and all(isinstance(x, float) for x in kept[:100]):
            kept = kept.astype(float)
        if kept.dtype.kind == "f":
            if (kept != np.rint(kept)).any():
                bad = kept[kept != np.rint(kept)][0]
                raise DataError(
                    f"{self.name}: codes are texts, not numbers such as {bad:g}",
                    hint="read the column as text (dtype=str): as numbers 428 and 428.0 are one code",
                )
            kept = kept.astype(np.int64)
        texts = kept.astype(str) if kept.dtype.kind != "U" else kept
        texts = np.char.strip(texts.astype(np.str_)) if len(texts) else texts.astype("U1")
        labels, place = np.unique(texts, return_inverse=True)
        index = np.full(len(v), -1, np.int64)
        index[~empty] = place.ravel()
        return KeyColumns(self.name, index, tuple(str(x) for x in labels))

    def numbers(self) -> NDArray[np.float64] | None:
        """The column as numbers, NaN where empty; None where it holds something else."""
        out = np.full(len(self.values), np.nan)
        try:
            out[~self.empty()] = self.values[~self.empty()].astype(np.float64)
        except (TypeError, ValueError):
            return None
        return out


def _nothing(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas' NA is neither equal nor different
        return True


def columns_of(frame: object) -> tuple[str, ...] | None:
    """Names of the columns; None if this is no table."""
    if isinstance(frame, Mapping):
        return tuple(str(k) for k in frame)
    named = getattr(frame, "column_names", None)  # Arrow
    if isinstance(named, list | tuple):
        return tuple(str(c) for c in named)
    found = getattr(frame, "columns", None)
    if found is None or callable(found):
        return None
    return tuple(str(c) for c in found)


def column_of(frame: Any, name: str) -> FrameColumn:
    """One column of a frame of any library."""
    found = frame[name]
    numpy = getattr(found, "to_numpy", None)
    if callable(numpy):
        try:
            values = numpy()
        except (TypeError, ValueError):
            values = numpy(zero_copy_only=False)  # Arrow, where numbers are missing
    else:
        values = np.asarray(found, object) if isinstance(found, list | tuple) else np.asarray(found)
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {array.shape}, expected one value a row")
    return FrameColumn(name, array)
