"""Coordinates and values as somebody gives them: what is wrong with them, and the layout that a sparse tensor keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis

MAX_CODES: Final = 2**31 - 1
SHOWN: Final = 5  # faulty rows named in an error

Array = NDArray[np.generic]


def code_type(size: int) -> type[np.uint16] | type[np.int32]:
    """16 bits where they are enough."""
    return np.uint16 if size <= 65_535 else np.int32


def pointer_type(nonzeros: int) -> type[np.int32] | type[np.int64]:
    """32 bits where they are enough."""
    return np.int32 if nonzeros <= MAX_CODES else np.int64


def check_shape(shape: Sequence[int], faults: list[str]) -> tuple[int, ...]:
    """The sizes of the modes; what is wrong with them is added to ``faults``."""
    try:
        dims = tuple(int(d) for d in shape)
        integral = all(float(d) == int(d) for d in shape)
    except (TypeError, ValueError, OverflowError):
        faults.append(f"shape {shape!r} is not a list of whole numbers")
        return ()
    if not integral:
        faults.append(f"shape {tuple(shape)!r} holds a fraction")
    if not 2 <= len(dims) <= 8:
        faults.append(f"shape {dims} has {len(dims)} modes, allowed are 2 to 8")
    for n, d in enumerate(dims):
        if d < 0:
            faults.append(f"shape: mode {n} has size {d}, which is negative")
        elif n and d == 0:
            faults.append(f"shape: feature mode {n} has size 0; a mode needs at least one code")
        elif n and d > MAX_CODES:
            faults.append(f"shape: mode {n} has {d} codes, more than a 32-bit index can hold ({MAX_CODES})")
        elif d > 2**62:
            faults.append(f"shape: {d} patients overflow a 64-bit index")
    return dims


def _label_faults(axis: Axis, size: int, *, patients: bool) -> Iterator[str]:
    """What is wrong with the labels and names of a mode of this size. A patient's label is never shown."""
    for what, texts in (("labels", axis.labels), ("names", axis.names)):
        if texts is not None and len(texts) != size:
            yield f"{len(texts)} {what}, {'more' if len(texts) > size else 'fewer'} than its {size} codes"
    duplicate = next((label for label, times in Counter(axis.labels or ()).items() if times > 1), None)
    if duplicate is not None:
        yield f"the label {'of a patient' if patients else repr(duplicate)} twice"


def check_axes(
    axes: Sequence[Axis | Sequence[str] | str | None] | None, dims: tuple[int, ...], faults: list[str]
) -> tuple[Axis, ...]:
    """An axis for every mode."""
    axis_list = list(axes) if axes is not None else [None] * len(dims)
    if len(axis_list) == len(dims) - 1:
        axis_list.insert(0, None)
    if len(axis_list) != len(dims):
        faults.append(f"axes: {len(axis_list)} axes for {len(dims)} modes")
        return ()
    out = tuple(Axis.of(a, n) for n, a in enumerate(axis_list))
    for n, (a, d) in enumerate(zip(out, dims)):
        faults.extend(f"axes: mode {n} ({a.name}) has {fault}" for fault in _label_faults(a, d, patients=n == 0))
    return out


def check_coords(coords: object, dims: tuple[int, ...], faults: list[str]) -> NDArray[np.int64] | None:
    """Whole numbers within the shape, or None."""
    try:
        xs = np.asarray(coords)
    except ValueError:
        faults.append("coords: rows of different length")
        return None
    if xs.size == 0:
        xs = np.empty((0, len(dims)), np.int64)
    if xs.ndim != 2 or xs.shape[1] != len(dims):
        faults.append(f"coords: array of shape {xs.shape}, expected (nonzeros, {len(dims)})")
        return None
    if xs.dtype.kind not in "iu":
        try:
            as_float = xs.astype(np.float64)
        except (TypeError, ValueError):
            faults.append(f"coords: type {xs.dtype} is not integer")
            return None
        invalid = np.flatnonzero(~(as_float == np.floor(as_float)).all(1) | ~np.isfinite(as_float).all(1))
        if invalid.size:
            faults += [f"coords: row {i} is {as_float[i].tolist()}, not whole numbers" for i in invalid[:SHOWN]]
            faults += [f"coords: ... and {invalid.size - SHOWN} more such rows"] if invalid.size > SHOWN else []
            return None
    for n, d in enumerate(dims):
        column = xs[:, n]
        invalid = np.flatnonzero((column < 0) | (column >= max(d, 0)))
        faults += [
            f"coords: row {i}, mode {n}: index {column[i]} is {'negative' if column[i] < 0 else f'not below {d}'}"
            for i in invalid[:SHOWN]
        ]
        if invalid.size > SHOWN:
            faults.append(f"coords: mode {n}: ... and {invalid.size - SHOWN} more rows out of range")
    return None if faults else xs.astype(np.int64, copy=False)


def check_values(values: ArrayLike, expected: int | None, faults: list[str]) -> NDArray[np.float64] | None:
    """Finite numbers, as many as coordinates, or None."""
    try:
        vs = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        faults.append("values: not numbers")
        return None
    if vs.ndim != 1 or (expected is not None and len(vs) != expected):
        faults.append(
            f"values: array of shape {vs.shape}" + (f", expected ({expected},)" if expected is not None else "")
        )
        return None
    invalid = np.flatnonzero(~np.isfinite(vs))
    faults += [f"values: row {i} is {vs[i]}" for i in invalid[:SHOWN]]
    if invalid.size > SHOWN:
        faults.append(f"values: ... and {invalid.size - SHOWN} more that are not finite")
    return vs


def layout_faults(
    rows: Array, indptr: Array, codes: Sequence[Array], values: Array, dims: tuple[int, ...]
) -> Iterator[str]:
    """What is wrong with arrays that are said to be in the layout."""
    nnz = len(values)
    if len(codes) != len(dims) - 1 or any(len(c) != nnz for c in codes):
        yield f"{len(codes)} code columns of lengths {[len(c) for c in codes]}, expected {len(dims) - 1} of {nnz}"
    if len(indptr) != len(rows) + 1 or indptr[0] != 0 or indptr[-1] != nnz or np.any(np.diff(indptr) <= 0):
        yield "row pointers do not rise from 0 to the number of nonzeros"
    if np.any(np.diff(rows) <= 0) or _outside(rows, dims[0]):
        yield "patients are not strictly increasing within the shape"
    for n, c in enumerate(codes, start=1):
        if _outside(c, dims[n]):
            yield f"mode {n}: code index {int(c.max())} outside 0..{dims[n] - 1}"
    if not np.isfinite(values).all():
        yield "values hold NaN or infinity"


def _outside(numbers: Array, size: int) -> bool:
    """Whether a number is not in 0 .. size - 1."""
    return bool(len(numbers)) and (int(numbers.max()) >= size or int(numbers.min()) < 0)


def compress(
    xs: NDArray[np.int64], vs: NDArray[np.float64], dims: tuple[int, ...]
) -> tuple[Array, Array, tuple[Array, ...], Array]:
    """Sort by patient and code, sum duplicates, drop zeros, and lay out by patient."""
    cells = 1
    for d in dims:
        cells *= d  # a Python integer: never overflows
    if cells < 2**62:
        key = xs[:, 0].copy()
        for n, d in enumerate(dims[1:], start=1):
            key *= d
            key += xs[:, n]
        order = None if np.all(key[1:] > key[:-1]) else np.argsort(key, kind="stable")
        if order is not None:
            xs, vs, key = xs[order], vs[order], key[order]
        new = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, bool)
    else:
        order = np.lexsort(xs.T[::-1])
        xs, vs = xs[order], vs[order]
        new = np.concatenate([[True], (xs[1:] != xs[:-1]).any(1)]) if len(xs) else np.zeros(0, bool)
    starts = np.flatnonzero(new)
    if len(starts) < len(vs):
        with np.errstate(over="ignore"):
            vs = np.add.reduceat(vs, starts)
        if not np.isfinite(vs).all():
            cell = xs[starts[np.flatnonzero(~np.isfinite(vs))[0]]].tolist()
            raise DataError(
                "this is not a sparse tensor of patients x codes", faults=[f"values at {cell} overflow when added"]
            )
        xs = xs[starts]
    keep = vs != 0
    if not keep.all():
        xs, vs = xs[keep], vs[keep]
    first = np.flatnonzero(np.diff(xs[:, 0], prepend=-1))
    rows = xs[first, 0].astype(np.int64)
    indptr = np.append(first, len(vs)).astype(pointer_type(len(vs)))
    codes = tuple(np.ascontiguousarray(xs[:, n]).astype(code_type(d)) for n, d in enumerate(dims[1:], start=1))
    return rows, indptr, codes, np.array(vs, np.float64)
