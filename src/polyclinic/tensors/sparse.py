"""The sparse tensor: counts of patients x codes x codes ..., stored once, patient by patient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.entries import (
    check_axes,
    check_coords,
    check_shape,
    check_values,
    code_type,
    compress,
    layout_faults,
    pointer_type,
)

Array = NDArray[Any]


class SparseTensor:
    """Keep counts of patients x codes x ... as a labelled sparse tensor. Mode 0 is the patients.

    The layout is patient-major flat CSR (one copy serves every mode): ``rows`` (patients that have entries; a bit each where
    some have none), ``indptr`` (where each of them starts, 32 bit below 2^31 nonzeros), one column of code indices per
    feature mode (16 bit where the mode has at most 65,535 codes, 32 bit above) and float64 ``values``: 12 bytes a nonzero
    for three modes, and 4 a patient. Nothing is ever allocated in proportion to the product of the dimensions. Instances
    are frozen.

    Parameters
    ----------
    coords
        (nonzeros, modes) integer coordinates, 0-based. Duplicates are summed.
    values
        (nonzeros,) numbers. Explicit zeros are dropped.
    shape
        Size of every mode, 2 to 8 modes; patients first.
    axes
        Per mode an :class:`Axis`, a list of labels, a name, or None. With one entry fewer than modes, the feature
        modes are meant.

    Examples
    --------
    >>> t = SparseTensor([[0, 1, 2], [0, 1, 2], [3, 0, 0]], [1.0, 2.0, 5.0], (4, 2, 3))
    >>> t.nnz, t.shape
    (2, (4, 2, 3))
    >>> t.coords.tolist(), t.values.tolist()
    ([[0, 1, 2], [3, 0, 0]], [3.0, 5.0])
    """

    __slots__ = ("_norm2", "_rows", "_twin", "axes", "codes", "indptr", "shape", "values")

    shape: tuple[int, ...]
    _rows: Array | None  # patients that have entries: a list, a bit each where that is shorter, None: all of them
    indptr: NDArray[np.int32] | NDArray[np.int64]
    codes: tuple[Array, ...]
    values: NDArray[np.float64]
    axes: tuple[Axis, ...]
    _norm2: float | None
    _twin: tuple[float, SparseTensor] | None  # with saturating weights, once asked for (tensors.weighting)

    def __init__(
        self,
        coords: ArrayLike | Sequence[ArrayLike],
        values: ArrayLike,
        shape: Sequence[int],
        axes: Sequence[Axis | Sequence[str] | str | None] | None = None,
    ) -> None:
        faults: list[str] = []
        dims = check_shape(shape, faults)
        labelled = check_axes(axes, dims, faults)
        xs = check_coords(coords, dims, faults)
        vs = check_values(values, None if xs is None else len(xs), faults)
        if faults or xs is None or vs is None:
            raise DataError(
                "this is not a sparse tensor of patients x codes",
                faults=faults,
                hint="coordinates are 0-based integers below the shape, values are finite numbers",
            )
        self._set(*compress(xs, vs, dims), shape=dims, axes=labelled)

    def _set(
        self,
        rows: Array,
        indptr: Array,
        codes: tuple[Array, ...],
        values: Array,
        *,
        shape: tuple[int, ...],
        axes: tuple[Axis, ...],
    ) -> None:
        for a in (rows, indptr, *codes, values):
            a.flags.writeable = False
        stored: Array | None = rows
        if len(rows) == shape[0]:  # they rise strictly within the shape
            stored = None
        elif shape[0] < 64 * len(rows):
            present = np.zeros(shape[0], bool)
            present[rows] = True
            stored = np.packbits(present)
        for name, value in zip(
            ("_rows", "indptr", "codes", "values", "shape", "axes", "_norm2", "_twin"),
            (stored, indptr, codes, values, shape, axes, None, None),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_layout(
        cls,
        rows: Array,
        indptr: Array,
        codes: Sequence[Array],
        values: Array,
        shape: Sequence[int],
        axes: Sequence[Axis | Sequence[str] | str | None] | None = None,
    ) -> SparseTensor:
        """Wrap arrays that already are in the layout (checked in one linear pass, nothing is copied or sorted)."""
        faults: list[str] = []
        dims = check_shape(shape, faults)
        labelled = check_axes(axes, dims, faults)
        nnz = len(values)
        if not faults:
            faults += layout_faults(rows, indptr, codes, values, dims)
        if faults:
            raise DataError("the stored tensor is damaged", faults=faults, hint="write the file again from its source")
        self = cls.__new__(cls)
        self._set(
            np.asarray(rows, np.int64),
            np.asarray(indptr, pointer_type(nnz)),
            tuple(np.asarray(c, code_type(d)) for c, d in zip(codes, dims[1:])),
            np.asarray(values, np.float64),
            shape=dims,
            axes=labelled,
        )
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"SparseTensor is frozen: cannot set {name!r}; make a new one")

    def __reduce__(self) -> tuple[object, ...]:
        return (
            SparseTensor.from_layout,
            (self.rows, self.indptr, self.codes, self.values, self.shape, self.axes),
        )

    # ---- what it is

    @property
    def rows(self) -> NDArray[np.int64]:
        """Patients that have entries, in order."""
        if self._rows is not None and self._rows.dtype == np.int64:
            return self._rows
        numbers = (
            np.arange(self.patients)
            if self._rows is None
            else np.flatnonzero(np.unpackbits(self._rows, count=self.patients))
        )
        numbers.flags.writeable = False
        return numbers

    @property
    def nnz(self) -> int:
        """Number of stored nonzeros."""
        return len(self.values)

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.shape)

    @property
    def patients(self) -> int:
        """Size of mode 0, patients without entries included."""
        return self.shape[0]

    @property
    def coords(self) -> NDArray[np.int64]:
        """(nonzeros, modes) coordinates, sorted; made on demand."""
        out = np.empty((self.nnz, self.ndim), np.int64)
        out[:, 0] = np.repeat(self.rows, np.diff(self.indptr))
        for n, c in enumerate(self.codes, start=1):
            out[:, n] = c
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layout."""
        rows = [] if self._rows is None else [self._rows]
        return sum(a.nbytes for a in (*rows, self.indptr, *self.codes, self.values))

    def norm_squared(self) -> float:
        """||O||^2."""
        if self._norm2 is None:
            object.__setattr__(self, "_norm2", float(np.einsum("e,e->", self.values, self.values)))
        return float(self._norm2 or 0.0)

    def __repr__(self) -> str:
        modes = " x ".join(f"{d:,} {a.name}" for d, a in zip(self.shape, self.axes))
        return f"<SparseTensor {modes}, {self.nnz:,} nonzeros>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{n}</td><td>{_escape(a.name)}</td><td>{d:,}</td><td>{a.vocabulary if n else ''}</td></tr>"
            for n, (a, d) in enumerate(zip(self.axes, self.shape))
        )
        return (
            f"<table><caption>SparseTensor, {self.nnz:,} nonzeros, {self.nbytes / 2**20:.1f} MiB</caption>"
            f"<tr><th>mode</th><th>axis</th><th>size</th><th>vocabulary</th></tr>{cells}</table>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseTensor):
            return NotImplemented
        return (
            self.shape == other.shape
            and self.axes == other.axes
            and all(
                np.array_equal(a, b)
                for a, b in zip(
                    (self.rows, self.indptr, *self.codes, self.values),
                    (other.rows, other.indptr, *other.codes, other.values),
                )
            )
        )

    __hash__ = None  # type: ignore[assignment]

    # ---- parts of it

    def __len__(self) -> int:
        return self.patients

    def __getitem__(self, rows: Any) -> SparseTensor:
        """Some patients: a slice, positions, or a mask; so a tensor can be an X of scikit-learn.

        >>> SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 2))[1:].coords.tolist()
        [[1, 0]]
        """
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is Ellipsis:
            rows = rows[0]
        if isinstance(rows, tuple):
            raise IndexError("a tensor is indexed by patients only; recode() changes a mode's codes")
        if isinstance(rows, slice):
            return self.take(np.arange(self.patients)[rows])
        if isinstance(rows, int | np.integer):
            raise IndexError(f"tensor[{rows}] is one patient; tensor[[{rows}]] is a tensor with one")
        index = np.asarray(rows)
        if index.dtype == bool and index.shape != (self.patients,):
            raise IndexError(f"a mask of {index.shape} for {self.patients} patients")
        if index.dtype.kind == "i":
            index = np.where(index < 0, index + self.patients, index)
        return self.take(index)

    def take(self, patients: ArrayLike) -> SparseTensor:
        """The given patients, in the given order, renumbered 0, 1, 2 ...

        Examples
        --------
        >>> t = SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 2))
        >>> t.take([2, 1]).coords.tolist()
        [[0, 0]]
        """
        positions = np.asarray(patients)
        if positions.dtype == bool:
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.patients):
            raise DataError(f"patients {positions.min()}..{positions.max()} asked for, there are {self.patients}")
        row = np.searchsorted(self.rows, positions)
        present = np.zeros(len(positions), bool)
        valid = row < len(self.rows)
        present[valid] = self.rows[row[valid]] == positions[valid]
        src = row[present]
        lengths = self.indptr[src + 1] - self.indptr[src]
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        entries = np.arange(indptr[-1]) + np.repeat(self.indptr[src] - indptr[:-1], lengths)
        axis = self.axes[0]
        return SparseTensor.from_layout(
            np.flatnonzero(present),
            indptr,
            [c[entries] for c in self.codes],
            self.values[entries],
            (len(positions), *self.shape[1:]),
            (axis.take([int(i) for i in positions]), *self.axes[1:]),
        )

    def recode(self, mode: int, index: ArrayLike, axis: Axis, size: int) -> SparseTensor:
        """The same entries with code ``c`` of ``mode`` moved to ``index[c]`` of a new axis (-1 drops it)."""
        target = np.asarray(index, np.int64)
        coords, values = self.coords, self.values
        coords[:, mode] = target[coords[:, mode]]
        keep = coords[:, mode] >= 0
        shape = tuple(size if n == mode else d for n, d in enumerate(self.shape))
        axes = tuple(axis if n == mode else a for n, a in enumerate(self.axes))
        return SparseTensor(coords[keep], values[keep], shape, axes)

    def with_axes(self, axes: Sequence[Axis | Sequence[str] | str | None]) -> SparseTensor:
        """The same entries under other axes."""
        return SparseTensor.from_layout(self.rows, self.indptr, self.codes, self.values, self.shape, axes)

    @staticmethod
    def stack(tensors: Sequence[SparseTensor]) -> SparseTensor:
        """Patients of several tensors under one another (the union a central method sees)."""
        if not tensors:
            raise DataError("nothing to stack: the list of tensors is empty")
        first = tensors[0]
        mismatches = [f"tensor {k}: {t.shape[1:]}" for k, t in enumerate(tensors) if t.shape[1:] != first.shape[1:]]
        if mismatches:
            raise DataError(
                f"feature modes differ from {first.shape[1:]}",
                faults=mismatches,
                hint="call pc.align(sites) first",
            )
        starts = np.cumsum([0, *(t.patients for t in tensors)])
        offsets = np.cumsum([0, *(t.nnz for t in tensors)])
        return SparseTensor.from_layout(
            np.concatenate([t.rows + s for t, s in zip(tensors, starts)]),
            np.concatenate([[0], *(t.indptr[1:] + o for t, o in zip(tensors, offsets))]).astype(np.int64),
            [np.concatenate(columns) for columns in zip(*(t.codes for t in tensors))],
            np.concatenate([t.values for t in tensors]),
            (int(starts[-1]), *first.shape[1:]),
            (_patients_of([t.axes[0] for t in tensors]), *first.axes[1:]),
        )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a SparseTensor is not iterated entry by entry; use .coords and .values")

    # ---- files

    def save(self, path: str | Path) -> Path:
        """Write the tensor to an ``.npz`` file, whole or not at all."""
        from polyclinic.tensors import io as files

        return files.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> SparseTensor:
        """Read a tensor that :meth:`save` wrote."""
        from polyclinic.tensors import io as files

        return files.load(Path(path))


def _patients_of(axes: Sequence[Axis]) -> Axis:
    """The patients of several tensors under one another; without labels where one has none."""
    labels = [a.labels for a in axes if a.labels is not None]
    joined = tuple(x for part in labels for x in part) if len(labels) == len(axes) else None
    return Axis(axes[0].name, joined)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
