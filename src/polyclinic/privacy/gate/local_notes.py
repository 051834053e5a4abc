"""What an owner is told about the site's own records beside a step in words; it stays at the site."""

from __future__ import annotations

import numpy as np

from polyclinic.tensors.sparse import SparseTensor

__all__ = ["rare_here"]


def rare_here(tensor: SparseTensor, minimum: int) -> tuple[str, ...]:
    """How many codes few patients of this site have, for each mode: what exact sums by code could tell is about them.

    Parameters
    ----------
    tensor
        The site's counts, patients first.
    minimum
        Patients from which a count may be shown (``[policy] min_cell``).

    Examples
    --------
    >>> coords = np.array([[0, 0], [1, 0], [2, 0], [2, 1]])
    >>> rare_here(SparseTensor(coords, np.ones(4), (3, 5)), 2)
    ("here: 1 of 5 codes of 'mode 1' have fewer than 2 patients (3 have none)",)
    """
    told = []
    patients = np.asarray(tensor.coords[:, 0], np.int64)
    for m in range(1, len(tensor.shape)):
        codes, size = np.asarray(tensor.coords[:, m], np.int64), tensor.shape[m]
        held = np.unique(patients[tensor.values != 0] * size + codes[tensor.values != 0]) % size
        carriers = np.bincount(held, minlength=size)
        few, none = int(((carriers > 0) & (carriers < minimum)).sum()), int((carriers == 0).sum())
        name = tensor.axes[m].name
        told.append(f"here: {few} of {size} codes of {name!r} have fewer than {minimum} patients ({none} have none)")
    return tuple(told)
