"""The floor: a code that fewer than ``minimum_patients`` patients have, over all sites, takes no part.

Counted at one hospital alone it would remove phenotypes that are thinly spread, and every code of a small hospital.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.sparse import SparseTensor


def carriers(tensor: SparseTensor, mode: int) -> NDArray[np.int64]:
    """How many patients have each code of a feature mode in at least one cell.

    Examples
    --------
    >>> carriers(SparseTensor([[0, 0, 0], [0, 0, 1], [1, 1, 1]], [1.0, 2.0, 1.0], (2, 2, 2)), 2).tolist()
    [1, 2]
    """
    size = tensor.shape[mode]
    patient = np.repeat(np.arange(len(tensor.indptr) - 1), np.diff(tensor.indptr))
    pairs = np.unique(patient * size + tensor.codes[mode - 1])
    return np.bincount(pairs % size, minlength=size)


def floor(sites: Sequence[Site], minimum: int) -> Sites:
    """The sites without codes of fewer than ``minimum`` patients over all of them.

    A code of a public list keeps its place and loses its cells: the axis is the list's, not the data's. Codes are counted
    once: a patient who loses the last cell leaves, and what remains is not counted again.
    """
    with_tensor = [s for s in sites if s.tensor is not None]
    if minimum <= 1 or not with_tensor:
        return Sites(sites, truth_of(sites))
    modes = range(1, with_tensor[0].counts().ndim)
    rare: list[set[str]] = []
    for n in modes:
        total: dict[str, int] = {}
        for s in with_tensor:
            axis = s.counts().axes[n]
            for label, k in zip(axis.labels or (), carriers(s.counts(), n).tolist()):
                total[label] = total.get(label, 0) + k
        rare.append({x for x, k in total.items() if k < minimum})
        if total and len(rare[-1]) == len(total):
            name = with_tensor[0].counts().axes[n].name
            raise DataError(
                f"mode {name!r}: none of {len(total)} codes has {minimum} patients over all sites",
                hint=f"[tensor] minimum_patients (now {minimum}), or coarser codes: [codes.{name}] to = ...",
            )
    reduced = [_without(s, rare) if s.tensor is not None else s for s in sites]
    remaining = [s for s in reduced if s is not None]
    if not remaining:
        raise DataError(
            f"no patient has codes of every mode that {minimum} patients have",
            hint="lower [tensor] minimum_patients, or roll codes up: [codes.KIND] to = ...",
        )
    return Sites(remaining, truth_of(sites))


def _without(site: Site, few: Sequence[set[str]]) -> Site | None:
    """The site without some codes, and without patients who have no cell left; None if nobody is left."""
    tensor = site.counts()
    masks = [np.array([x not in out for x in a.labels or ()], bool) for a, out in zip(tensor.axes[1:], few)]
    if all(m.all() for m in masks):
        return site
    keep = _cells_left(tensor, masks)
    patient = np.repeat(tensor.rows, np.diff(tensor.indptr))[keep]
    if not len(patient):
        return None
    stay = [np.ones_like(m) if a.vocabulary == "public" else m for a, m in zip(tensor.axes[1:], masks)]
    places = [np.cumsum(m) - 1 for m in stay]
    axes = [a if m.all() else a.take(np.flatnonzero(m).tolist()) for a, m in zip(tensor.axes[1:], stay)]
    coords = np.column_stack([patient, *(w[c[keep]] for w, c in zip(places, tensor.codes))])
    shape = (tensor.patients, *(len(m) if m.all() else int(m.sum()) for m in stay))
    less = SparseTensor(coords, tensor.values[keep], shape, (tensor.axes[0], *axes))
    return replace(site, tensor=less).take(np.unique(patient))


def _cells_left(tensor: SparseTensor, masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    keep = np.ones(tensor.nnz, bool)
    for mask, codes in zip(masks, tensor.codes):
        keep &= np.asarray(mask, bool)[codes]
    return keep


def without_cells(site: Site, masks: Sequence[NDArray[np.bool_]]) -> Site:
    """The site without the cells of codes that its masks (one a feature mode) leave out; axes and patients stay.

    >>> t = SparseTensor([[0, 0, 0], [1, 1, 0]], [1.0, 1.0], (2, 2, 1))
    >>> without_cells(Site("a", t), [np.array([True, False]), np.array([True])]).counts().nnz
    1
    """
    tensor = site.counts()
    keep = _cells_left(tensor, masks)
    if keep.all():
        return site
    less = SparseTensor(tensor.coords[keep], tensor.values[keep], tensor.shape, tensor.axes)
    return replace(site, tensor=less)
