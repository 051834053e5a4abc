"""Reading and writing tensors: one ``.npz`` file with a header, the layout and the axes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.atomic_files import atomic

VERSION: Final = 1


def save(tensor: SparseTensor, path: Path) -> Path:
    """Write a tensor to an ``.npz`` file, whole or not at all."""
    _check_name(path)
    header = {"version": VERSION, "shape": tensor.shape, "axes": [a.to_json() for a in tensor.axes]}
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "rows": tensor.rows,
        "indptr": tensor.indptr.astype(np.int64),  # as every version has written it
        "values": tensor.values,
        **{f"codes{n}": c for n, c in enumerate(tensor.codes, start=1)},
    }
    with atomic(path) as temporary, open(temporary, "wb") as f:
        np.savez(f, **arrays)
    return path


def load(path: Path) -> SparseTensor:
    """Read a tensor that :func:`save` wrote."""
    _check_name(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="check the path")
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


def _check_name(path: Path) -> None:
    if path.suffix.lower() != ".npz":
        raise DataError(
            f"{path}: unknown kind of tensor file",
            hint="use a name that ends in .npz; a table of codes is read by pc.from_frame",
        )
