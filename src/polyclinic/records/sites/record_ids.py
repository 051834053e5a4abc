"""What a patient without an id is called: after the record itself, so that nobody is called differently when another patient leaves."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

_KEPT: WeakKeyDictionary[Site, list[str]] = WeakKeyDictionary()


def record_names(site: Site) -> list[str]:
    """(patients,) SHA-256 of the record, and which of the patients with exactly this record it is: ``digest/k``.

    Whatever is drawn by these names is drawn by f(record, k), and the sum over patients is sum_records sum_{k < n(record)} f. One
    patient more or less changes one n by one, so the sum by one f: the patients that are left keep their names or, where
    several have the same record, exchange them with those of the same record. (By the row's number all after the one that leaves
    would be called differently.)

    >>> two = Site("north", features=[[0.0], [1.0], [0.0]])
    >>> names = record_names(two)
    >>> record_names(two.take([1, 2])) == [names[1], names[0]]
    True
    """
    cached = _KEPT.get(site)
    if cached is None:
        counts: Counter[bytes] = Counter()
        cached = []
        for record in _records(site):
            digest = hashlib.sha256(record).digest()
            cached.append(f"{digest.hex()}/{counts[digest]}")
            counts[digest] += 1
        _KEPT[site] = cached
    return list(cached)


def _records(site: Site) -> list[bytes]:
    """Everything that is known of each patient as bytes that do not depend on other patients, nor on the order of entries."""
    parts: list[list[bytes]] = []
    if site.tensor is not None:
        parts.append(_entries(site.tensor))
    if site.features is not None:
        parts.append([_numbers(row).tobytes() for row in site.features])
    if site.labels is not None:
        parts.append(_column(site.labels))
    if site.people is not None:
        parts += _people(site.people)
    return [b"".join(len(x).to_bytes(8, "little") + x for x in row) for row in zip(*parts)]


def _entries(t: SparseTensor) -> list[bytes]:
    """Of each patient the entries (code of every mode, value), sorted; codes by their labels where they have some."""
    patient = np.repeat(t.rows, np.diff(t.indptr))
    columns = [_codes(axis, size)[c] for axis, size, c in zip(t.axes[1:], t.shape[1:], t.codes)]
    columns.append(_numbers(t.values).view(np.uint64))
    order = np.lexsort((*columns[::-1], patient))
    table = np.column_stack(columns)[order]
    ends = np.searchsorted(patient[order], np.arange(t.patients + 1))
    return [table[a:b].tobytes() for a, b in pairwise(ends)]


def _codes(axis: Axis, size: int) -> NDArray[np.uint64]:
    """A number for every code that its label tells alone; without labels its place."""
    if axis.labels is None:
        return np.arange(size, dtype=np.uint64)
    short = (hashlib.blake2b(x.encode(), digest_size=8).digest() for x in axis.labels)
    return np.array([int.from_bytes(x, "little") for x in short], np.uint64)


def _people(people: People) -> list[list[bytes]]:
    columns = [people.columns[n] for n in sorted(people.columns)]
    columns += [x for x in (people.time, people.event) if x is not None]
    return [_column(c) for c in columns]


def _column(values: NDArray[np.generic]) -> list[bytes]:
    if values.dtype.kind in "biuf":
        return [x.tobytes() for x in _numbers(values.astype(np.float64))]
    return [str(x).encode() for x in values.tolist()]


def _numbers(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same bits for equal numbers: one zero, one NaN."""
    return np.where(np.isnan(values), np.nan, np.ascontiguousarray(values) + 0.0)
