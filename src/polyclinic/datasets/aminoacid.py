"""Bro's amino acids: a dense tensor of known rank 3, the plumb line of every CP solver."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from polyclinic.datasets.open_data import find
from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["load_aminoacid"]


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
