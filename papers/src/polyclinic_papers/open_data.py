"""Where the open data lie: nothing is inside the package, everything is found by path."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

OPEN_DATA: Final = (
    "aminoacid",
    "cms_desynpuf",
    "colon_alon1999",
    "diabetes130",
    "leukemia_golub1999",
    "mimic3_demo",
    "parkinsons",
    "synthea27nj_omop",
)


def open_data(name: str) -> Path:
    """The folder of one open data set, under the folder that the variable ``POLYCLINIC_DATA`` names.

    Without the variable, ``shared/data`` beside the working directory or beside one of its parents is taken.

    Examples
    --------
    >>> open_data("no such data")
    Traceback (most recent call last):
    ...
    polyclinic.errors.DataError: [PC300] open data set 'no such data' is not known ...
    """
    variable = os.environ.get("POLYCLINIC_DATA")
    folder = Path.cwd()
    bases = [Path(variable)] if variable else [p / "shared" / "data" for p in (folder, *folder.parents)]
    if name not in OPEN_DATA:
        raise DataError(f"open data set {name!r} is not known", hint=f"known: {', '.join(OPEN_DATA)}")
    for base in bases:
        if (base / name).is_dir():
            return base / name
    raise DataError(
        f"open data set {name!r} was not found",
        faults=[f"not in {bases[0]}"],
        hint="set POLYCLINIC_DATA to the folder that holds it, or give the path",
    )


def find(name: str, path: str | Path | None, file: str) -> Path:
    """A file of a data set: from its folder, from the path of the file itself, or by name."""
    place = open_data(name) if path is None else Path(path)
    result = place / file if place.is_dir() else place
    if not result.exists():
        raise DataError(f"{name}: file {file!r} was not found", faults=[f"looked at {result}"])
    return result


def load_aminoacid(path: str | Path | None = None) -> SparseTensor:
    """Read five mixtures x 201 emission x 61 excitation wavelengths; three amino acids explain 97.5 % of it.

    Parameters
    ----------
    path
        Folder or file ``aminoacid_data.txt.gz`` (text: ``sptensor``, order, sizes, nonzeros, then i j k value).
    """
    file = find("aminoacid", path, "aminoacid_data.txt.gz")
    with gzip.open(file, "rt", encoding="ascii") as stream:
        word, order, sizes, number = (stream.readline().strip() for _ in range(4))
        rows = np.loadtxt(stream)
    shape = tuple(int(n) for n in sizes.split())
    if word != "sptensor" or int(order) != len(shape) or len(rows) != int(number):
        raise DataError(f"{file.name} is not the expected text tensor", faults=[f"{word} {order} {sizes} {number}"])
    axes = (Axis("mixture"), Axis("emission"), Axis("excitation"))
    return SparseTensor(rows[:, :3].astype(np.int64), rows[:, 3], shape, axes)
