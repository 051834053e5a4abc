"""Small open tables of patients x measurements: voices and gene expression."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic_papers.open_data import find

__all__ = ["Samples", "gene_filter", "load_colon", "load_leukemia", "load_parkinsons"]


class Samples(NamedTuple):
    """A table: ``X, y, subjects, features = load_parkinsons()``.

    ``X`` is (samples, d), ``y`` is 1 for the disease and 0 otherwise, ``subjects`` tells which samples come from the
    same person (a split by sample lets a person sit on both sides), ``features`` names the columns.
    """

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    subjects: NDArray[Any]
    features: tuple[str, ...]


def load_parkinsons(path: str | Path | None = None) -> Samples:
    """Read the UCI Parkinsons voice table: 195 recordings of 32 people, 22 measurements, 147 of them with the disease.

    Parameters
    ----------
    path
        Folder or file ``parkinsons.data``; found under ``POLYCLINIC_DATA`` by default.
    """
    header, rows = _read(find("parkinsons", path, "parkinsons.data"))
    keep = [j for j, name in enumerate(header) if name not in ("name", "status")]  # status stands in the middle
    people = np.array([row[header.index("name")].rsplit("_", 1)[0] for row in rows])
    status = np.array([int(row[header.index("status")]) for row in rows], np.int64)
    return Samples(_numbers(rows, keep), status, people, tuple(header[j] for j in keep))


def load_colon(path: str | Path | None = None, *, log: bool = True) -> Samples:
    """Read Alon's colon tissues: 62 samples of 40 patients x 2,000 genes, 40 tumours (y = 1) and 22 normal.

    Parameters
    ----------
    path
        Folder or file ``colon.csv.gz``.
    log
        log10 of the intensities (all are positive).
    """
    header, rows = _read(find("colon_alon1999", path, "colon.csv.gz"))
    genes = list(range(3, len(header)))
    values = _numbers(rows, genes)
    return Samples(
        np.log10(values) if log else values,
        np.array([row[2] == "t" for row in rows], np.int64),
        np.array([row[1] for row in rows]),
        tuple(header[3:]),
    )


def load_leukemia(path: str | Path | None = None, *, filtered: bool = True, split: str = "all") -> Samples:
    """Read Golub's leukemias: 72 patients x 7,129 probes, 25 acute myeloid (y = 1) and 47 lymphoblastic.

    Parameters
    ----------
    path
        Folder or file ``leukemia.csv.gz``.
    filtered
        The filter of the UnPSL paper, see :func:`gene_filter`: 3,571 genes over all patients, 3,051 when only the 38
        training patients choose the genes.
    split
        ``all``, ``train`` (38) or ``test`` (34, with the genes that the training patients choose).
    """
    if split not in ("all", "train", "test"):
        raise DataError(f"load_leukemia: split {split!r}", hint="use all, train or test")
    header, rows = _read(find("leukemia_golub1999", path, "leukemia.csv.gz"))
    values = _numbers(rows, list(range(6, len(header))))
    part = np.array([row[1] for row in rows])
    names = np.array(header[6:])
    if filtered:
        choosing = values if split == "all" else values[part == "train"]
        values, names = _clip_log(values)[:, gene_filter(choosing)], names[gene_filter(choosing)]
    wanted = np.ones(len(rows), bool) if split == "all" else part == split
    return Samples(
        values[wanted],
        np.array([row[2] == "AML" for row in rows], np.int64)[wanted],
        np.array([row[0] for row in rows])[wanted],
        tuple(str(n) for n in names),
    )


def gene_filter(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which genes vary enough: floor 100, ceiling 16,000, then max - min above 500 and max / min above 5.

    Examples
    --------
    >>> gene_filter(np.array([[100.0, 100.0, 5000.0], [2000.0, 590.0, 5600.0]])).tolist()
    [True, False, False]
    """
    clipped = np.clip(values, 100, 16_000)
    high, low = clipped.max(0), clipped.min(0)
    return np.asarray((high - low > 500) & (high / low > 5))


def _clip_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log10(np.clip(values, 100, 16_000)))


def _read(file: Path) -> tuple[list[str], list[list[str]]]:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", newline="") as stream:
        lines = [row for row in csv.reader(stream) if row]
    return lines[0], lines[1:]


def _numbers(rows: list[list[str]], columns: list[int]) -> NDArray[np.float64]:
    return np.array([[float(row[j]) for j in columns] for row in rows])
