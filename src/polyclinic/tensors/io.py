"""Reading and writing tensors: ``.npz``, FROSTT ``.tns`` (also gzipped), Parquet triples."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.atomic_files import atomic
from polyclinic.util.database_errors import said

__all__ = ["atomic", "load", "save"]

VERSION: Final = 1


def _kind(path: Path) -> str:
    name = path.name.lower()
    for ending in (".npz", ".tns.gz", ".tns", ".parquet"):
        if name.endswith(ending):
            return ending
    raise DataError(f"{path}: unknown kind of tensor file", hint="use .npz, .tns, .tns.gz or .parquet")


def save(tensor: SparseTensor, path: Path) -> Path:
    """Write a tensor; the ending of the name decides the format."""
    kind = _kind(path)
    with atomic(path) as temporary:
        if kind == ".npz":
            header = {"version": VERSION, "shape": tensor.shape, "axes": [a.to_json() for a in tensor.axes]}
            with open(temporary, "wb") as f:
                arrays: dict[str, Any] = {
                    "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
                    "rows": tensor.rows,
                    "indptr": tensor.indptr.astype(np.int64),  # as every version has written it
                    "values": tensor.values,
                    **{f"codes{n}": c for n, c in enumerate(tensor.codes, start=1)},
                }
                np.savez(f, **arrays)
        elif kind == ".parquet":
            _write_parquet(tensor, temporary)
        else:
            opener = gzip.open if kind.endswith(".gz") else open
            with opener(temporary, "wt", encoding="ascii") as g:
                coords, values = tensor.coords + 1, tensor.values
                for a in range(0, len(values), 500_000):
                    part = slice(a, a + 500_000)
                    g.write(
                        "".join(
                            f"{' '.join(map(str, x))} {v!r}\n"
                            for x, v in zip(coords[part].tolist(), values[part].tolist())
                        )
                    )
    return path


def load(path: Path, shape: Sequence[int] | None = None) -> SparseTensor:
    """Read a tensor; the ending of the name decides the format."""
    kind = _kind(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="check the path")
    if kind == ".npz":
        return _read_npz(path)
    if kind == ".parquet":
        return _read_parquet(path, shape)
    return _read_tns(path, shape)


def _read_npz(path: Path) -> SparseTensor:
    try:
        with np.load(path, allow_pickle=False) as z:
            header = json.loads(bytes(z["header"]))
            if header["version"] != VERSION:
                raise DataError(f"{path}: tensor file version {header['version']}, this Polyclinic reads {VERSION}")
            return SparseTensor.from_layout(
                z["rows"],
                z["indptr"],
                [z[f"codes{n}"] for n in range(1, len(header["shape"]))],
                z["values"],
                header["shape"],
                [Axis.from_json(a) for a in header["axes"]],
            )
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as e:
        if isinstance(e, DataError):
            raise
        raise DataError(
            f"{path}: not a tensor written by Polyclinic ({e})", hint="write it with tensor.save(path)"
        ) from e


def _read_tns(path: Path, shape: Sequence[int] | None) -> SparseTensor:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="ascii") as f:
            table = np.loadtxt(f, comments="#", ndmin=2, dtype=np.float64)
    except (ValueError, OSError, EOFError) as e:
        raise DataError(
            f"{path}: not a FROSTT file", faults=[str(e)], hint="one line per nonzero: i j k value, 1-based"
        ) from e
    if table.size == 0 and shape is None:
        raise DataError(f"{path}: no nonzeros and no shape", hint="pass shape=")
    coords = table[:, :-1] - 1 if table.size else np.empty((0, len(shape or ())))
    size = tuple(shape) if shape is not None else tuple(int(m) + 1 for m in coords.max(0))
    return SparseTensor(coords, table[:, -1] if table.size else [], size)


def _write_parquet(tensor: SparseTensor, path: Path) -> None:
    import duckdb

    names = [a.name for a in tensor.axes]
    if len(set(names)) != len(names):
        names = [f"{n} ({k})" for k, n in enumerate(names)]
    coords = tensor.coords
    table = {f"c{n}": np.ascontiguousarray(coords[:, n]) for n in range(tensor.ndim)}
    table["v"] = np.array(tensor.values)
    columns = ", ".join(f'c{n} AS "{name.replace(chr(34), chr(34) * 2)}"' for n, name in enumerate(names))
    header = json.dumps({"version": VERSION, "shape": tensor.shape, "axes": [a.to_json() for a in tensor.axes]})
    with duckdb.connect() as con:
        con.register("entries", table)
        con.execute(
            f"COPY (SELECT {columns}, v AS value FROM entries) TO '{_quote(path)}' "
            f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{polyclinic: '{header.replace(chr(39), chr(39) * 2)}'}})"
        )


def _quote(path: Path) -> str:
    return str(path).replace("'", "''")


def _read_parquet(path: Path, shape: Sequence[int] | None) -> SparseTensor:
    """Triples: every column but the last is a mode (index or text code), the last is the value."""
    import duckdb

    try:
        with duckdb.connect() as con:
            meta = con.execute(
                f"SELECT decode(value) FROM parquet_kv_metadata('{_quote(path)}') WHERE decode(key) = 'polyclinic'"
            ).fetchone()
            relation = con.execute(f"SELECT * FROM read_parquet('{_quote(path)}')")
            names = [d[0] for d in relation.description]
            columns = list(relation.fetchnumpy().values())
    except duckdb.Error as e:
        raise DataError(f"{path}: not a readable Parquet table", faults=[said(e)]) from None
    if len(columns) < 3:
        raise DataError(f"{path}: columns {names}", hint="need at least two modes and a value column, value last")
    missing = [
        f"column {n!r}: {int(np.ma.getmaskarray(c).sum())} empty cells"
        for n, c in zip(names, columns)
        if np.ma.is_masked(c)
    ]
    if missing:
        raise DataError(f"{path}: cells are missing", faults=missing, hint="drop or fill them in the source")
    if meta is not None:
        header = json.loads(meta[0])
        return SparseTensor(
            np.column_stack([np.asarray(c) for c in columns[:-1]]) if len(columns[0]) else [],
            columns[-1],
            header["shape"],
            [Axis.from_json(a) for a in header["axes"]],
        )
    axes: list[Axis] = []
    indices = []
    for name, column in zip(names[:-1], columns[:-1]):
        values = np.asarray(column)
        if values.dtype.kind in "iu":
            indices.append(values.astype(np.int64))
            axes.append(Axis(name))
        else:
            labels, inverse = np.unique(values.astype(str), return_inverse=True)
            indices.append(inverse.astype(np.int64))
            axes.append(Axis(name, tuple(labels.tolist())))
    size = (
        tuple(shape)
        if shape is not None
        else tuple(len(a.labels) if a.labels is not None else int(i.max(initial=-1)) + 1 for a, i in zip(axes, indices))
    )
    return SparseTensor(np.column_stack(indices), columns[-1], size, axes)
