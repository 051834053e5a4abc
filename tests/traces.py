"""A search for patients in files: as text, as arrays, as tables; in zipped ones, too."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

ENDS = (b"'", b'"', b"-0", b",", b" ", b"\n", b"\x00", b"\t")


def files_with_patients(folders: Iterable[Path], name: str, patients: int = 25) -> list[Path]:
    """Files below these folders with a word of a patient of hospital ``name``: an id, or a visit (which begins with one)."""
    words = [f"{name}-{p}".encode() + end for p in range(patients) for end in ENDS]
    found = []
    for f in (f for folder in folders for f in folder.rglob("*") if f.is_file()):
        data = _readable(f)
        if any(w in data for w in words):
            found.append(f)
    return found


def _readable(f: Path) -> bytes:
    import numpy as np
    import pyarrow.parquet as parquet

    if f.suffix == ".npz":
        with np.load(f, allow_pickle=False) as z:
            return b" ".join(str(v.tolist()).encode() for v in z.values() if v.dtype.kind in "USO")
    if f.suffix == ".parquet":
        return str(parquet.read_table(f).to_pydict()).encode()
    if zipfile.is_zipfile(f):
        with zipfile.ZipFile(f) as z:
            return b" ".join(z.read(n) for n in z.namelist())
    return f.read_bytes()
