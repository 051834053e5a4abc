"""Columns of anybody's data frame, as arrays; pandas is not needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from polyclinic.errors import DataError

Index = NDArray[np.int64]
COUNT: Final = "count of the matrix"  # a column that no table has


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
        present = v[~empty]
        if present.dtype.kind == "O" and len(present) and all(isinstance(x, float) for x in present[:100]):
            present = present.astype(float)
        if present.dtype.kind == "f":
            if (present != np.rint(present)).any():
                fraction = present[present != np.rint(present)][0]
                raise DataError(
                    f"{self.name}: codes are texts, not numbers such as {fraction:g}",
                    hint="read the column as text (dtype=str): as numbers 428 and 428.0 are one code",
                )
            present = present.astype(np.int64)
        texts = present.astype(str) if present.dtype.kind != "U" else present
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
    arrow_names = getattr(frame, "column_names", None)  # Arrow
    if isinstance(arrow_names, list | tuple):
        return tuple(str(c) for c in arrow_names)
    columns = getattr(frame, "columns", None)
    if columns is None or callable(columns):
        return None
    return tuple(str(c) for c in columns)


def column_of(frame: Any, name: str) -> FrameColumn:
    """One column of a frame of any library."""
    column = frame[name]
    numpy = getattr(column, "to_numpy", None)
    if callable(numpy):
        try:
            values = numpy()
        except (TypeError, ValueError):
            values = numpy(zero_copy_only=False)  # Arrow, where numbers are missing
    else:
        values = np.asarray(column, object) if isinstance(column, list | tuple) else np.asarray(column)
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {array.shape}, expected one value a row")
    return FrameColumn(name, array)


@dataclass(frozen=True)
class FrameRows:
    """The rows of a table that are used; None: all of them."""

    frame: object
    used: NDArray[np.bool_] | None = None

    def column(self, name: str) -> FrameColumn:
        """One column of these rows."""
        column = column_of(self.frame, name)
        return column if self.used is None else FrameColumn(name, column.values[self.used])

    def with_site(self, site: str, without: str) -> FrameRows:
        """Leave out the rows without a site, where that was asked for, and count them."""
        if without not in ("refuse", "leave out"):
            raise DataError(f"without_site = {without!r}", hint="'refuse' or 'leave out'")
        empty = self.column(site).empty()
        if without == "refuse" or not empty.any():
            return self
        warnings.warn(f"{site}: {int(empty.sum())} of {len(empty)} rows are empty: left out", stacklevel=3)
        return FrameRows(self.frame, ~empty)

    def codes(self, modes: Sequence[str] | Mapping[str, str]) -> list[KeyColumns]:
        """The codes of every mode; of a long table, empty in the rows of the other modes."""
        if not isinstance(modes, Mapping):
            return [self.column(m).keys() for m in modes]
        ((kind, code),) = modes.items()
        kinds, codes = self.column(kind).keys(), self.column(code).keys()
        if kinds.missing.any():
            raise DataError(
                f"{kind}: {int(kinds.missing.sum())} of {len(kinds.index)} rows are empty",
                hint="every row of a long table says the mode of its code",
            )
        return [_of_kind(name, codes, kinds.index == k) for k, name in enumerate(kinds.labels)]


def _of_kind(name: str, codes: KeyColumns, rows: NDArray[np.bool_]) -> KeyColumns:
    index = np.where(rows, codes.index, -1)
    places, position = np.unique(index[index >= 0], return_inverse=True)
    index[index >= 0] = position.ravel()
    return KeyColumns(name, index, tuple(codes.labels[i] for i in places))


def is_annotated(frame: object) -> bool:
    """Whether this is an AnnData (or ehrdata): a matrix with names and a table of its rows."""
    return all(hasattr(frame, a) for a in ("X", "obs", "obs_names", "var_names"))


def unrolled(
    annotated: Any, patient: str, modes: Sequence[str] | Mapping[str, str], count: str | None
) -> dict[str, object]:
    """An AnnData as columns: one row a non-zero count, and one without a code for who has none."""
    if isinstance(modes, str | Mapping) or len(modes) != 1 or count is not None:
        raise DataError(
            "an AnnData has one mode, its variables, and its matrix has the counts",
            hint='modes=["code"], without count',
        )
    matrix = coo_array(annotated.X)
    nobody = np.setdiff1d(np.arange(matrix.shape[0]), matrix.row)
    rows = np.concatenate([matrix.row, nobody])
    codes = np.array([*np.asarray(annotated.var_names, object)[matrix.col], *[None] * len(nobody)], object)
    about = {str(c): column_of(annotated.obs, c).values[rows] for c in annotated.obs}
    names = {patient: np.asarray(annotated.obs_names, object)[rows], modes[0]: codes}
    return about | names | {COUNT: np.concatenate([matrix.data, np.zeros(len(nobody))])}


def visit_positions(
    patient: NDArray[np.int64], time: FrameColumn, visit: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
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
    units, unit = np.unique(keys, axis=0, return_inverse=True)
    begins = np.searchsorted(units[:, 0], units[:, 0])
    return np.asarray((np.arange(len(units)) - begins)[unit.ravel()], np.int64)


def together(people: Index, visits: Index, codes: Sequence[Index]) -> Index:
    """(cells, 1 + modes) every combination of codes of one patient's visit, once."""
    _, stay = np.unique(np.column_stack([people, visits]), axis=0, return_inverse=True)
    stay = stay.ravel()
    patient = np.zeros(int(stay.max(initial=-1)) + 1, np.int64)
    patient[stay] = people
    unit = np.arange(len(patient))
    columns: list[Index] = []
    for code in codes:
        have = code >= 0
        pairs = np.unique(np.column_stack([stay[have], code[have]]), axis=0).reshape(-1, 2)
        number = np.bincount(pairs[:, 0], minlength=len(patient))
        begins = np.concatenate([[0], np.cumsum(number)])[:-1]
        repeats = number[unit]
        within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        pair_rows = np.repeat(begins[unit], repeats) + within
        columns = [np.repeat(c, repeats) for c in columns] + [pairs[pair_rows, 1]]
        unit = np.repeat(unit, repeats)
    return np.column_stack([patient[unit], *columns])


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
        examples = ", ".join(sorted({str(v) for v in values})[:3])
        raise DataError(
            f"{time.name}: {examples} is neither a time nor a number", hint="dates as 2020-03-01, or a column of dates"
        ) from None


def outcomes_of(column: FrameColumn) -> NDArray[np.float64]:
    """Return the outcome of every row, NaN where it is unknown."""
    numbers = column.numbers()
    if numbers is None or not np.isin(numbers[~np.isnan(numbers)], (0.0, 1.0)).all():
        values = sorted(
            {x.item() if isinstance(x, np.generic) else x for x in column.values[~column.empty()][:1000]}, key=str
        )
        texts = ", ".join(map(repr, values[:5]))
        raise DataError(
            f"{column.name}: which of {texts} is the event? An outcome is 0 or 1 (or False, True), and empty where unknown",
            hint=f'frame["{column.name}"] = frame["{column.name}"].map({{EVENT: 1, OTHER: 0}}), where EVENT is one of {texts}',
        )
    levels = np.unique(numbers[~np.isnan(numbers)])
    if len(levels) == 1:
        raise DataError(
            f"{column.name}: the outcome is {levels[0]:g} for everybody",
            hint="0 and 1 must both occur: was the event compared with a value of another type?",
        )
    return numbers


def which_door(given: object) -> str:
    """What to call with something that is neither a tensor nor a site.

    >>> which_door(np.ones((2, 3)))
    'call pc.from_numpy(array, axes=[...]) first'
    """
    module = type(given).__module__.split(".")[0]
    if module == "scipy":
        return "call pc.from_scipy(matrix, columns=[...]) first"
    if columns_of(given) is not None:
        return 'call pc.from_frame(frame, patient="...", modes=["...", "..."]) first'
    if module == "numpy":
        return "call pc.from_numpy(array, axes=[...]) first"
    if isinstance(given, str):
        return f"read the file first, e.g. pandas.read_csv({given!r}, dtype=str)"
    return "make them with pc.from_frame, pc.from_scipy, pc.from_numpy, or pc.SparseTensor"
