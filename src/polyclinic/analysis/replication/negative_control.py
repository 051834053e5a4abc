"""control: what the same pipeline flags where there is nothing to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor


def permuted(sites: Sequence[Site], seed: int = 0) -> list[Site]:
    """The negative control: inside each hospital codes are permuted over the rows of their mode, so no relation is left.

    Same patients, same number of entries each, same frequency of every code; duplicates that arise are summed.

    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(300, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    >>> [s.tensor.values.sum() for s in permuted(sites)] == [s.tensor.values.sum() for s in sites]
    True
    """
    out = []
    for s in sites:
        t, rng = s.counts(), seeds(seed, "permuted", s.name)
        patient = np.repeat(t.rows, np.diff(t.indptr))
        coords = np.column_stack([patient, *(rng.permutation(c) for c in t.codes)])
        out.append(replace(s, tensor=SparseTensor(coords, t.values, t.shape, t.axes)))
    return out
