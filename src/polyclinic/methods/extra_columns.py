"""Columns beside those that the Gram found, in the first packed sweep only: what the cells mixed with something else shows there.

Two phenotypes whose codes fall into the same buckets are one over cells, and stay one in the lift: the larger. Records over codes tell them
apart. So the first sweep after a Gram carries a random column or two more, which memberships fit to what the found phenotypes leave; one
sweep turns such a column towards a phenotype that was missed. If the columns beside hold next to nothing of what the swept model explains, they
go again; else an audition decides which R phenotypes go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.starts.candidates import explains
from polyclinic.methods.starts.rounding import roots
from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]
BESIDE: Final = 2  # columns: docs/benchmarks/constants.md
REACH: Final = 0.5  # of a code's root energy: what a sum of such a column may be: docs/benchmarks/constants.md
# docs/benchmarks/constants.md
ENERGY: Final = 1e-4  # of the explained energy: what random columns hold of it, about (2e-5 to 8e-4 on all data tried)
# of the explained energy: what columns beside the found ones hold alone, where one found a phenotype
WORTH: Final = 0.008


def columns_beside(factors: Sequence[Array], patients: Array, seed: int) -> tuple[tuple[Array, ...], Array]:
    """``factors`` with random columns at their right, public by the seed; and A'A, 0 where it is not known.

    >>> [f.shape for f in columns_beside([np.eye(3)[:, :1], np.eye(4)[:, :1]], np.eye(1), 0)[0]]
    [(3, 3), (4, 3)]
    """
    rng, rank = seeds(seed, "beside"), len(patients)
    widened = tuple(np.hstack([f, ordered.unit(rng.random((len(f), BESIDE)))[0]]) for f in factors)
    gram = np.zeros((rank + BESIDE, rank + BESIDE))
    gram[:rank, :rank] = patients
    return widened, gram


def roots_beside(gram: Array, beside: int, explained: float) -> tuple[Array, Array]:
    """G^(-1/2) and G^(1/2) of the found columns; of those beside them, whose memberships nobody has summed yet, by their usual size."""
    white, root, count = np.zeros_like(gram), np.zeros_like(gram), len(gram) - beside
    white[:count, :count], root[:count, :count] = roots(np.ascontiguousarray(gram[:count, :count]))
    size = float(np.sqrt(max(ENERGY * explained, 1e-300)))
    for e in range(count, len(gram)):
        white[e, e], root[e, e] = 1.0 / size, size
    return white, root


def worth_hearing(factors: Sequence[Array], patients: Array, beside: int) -> bool:
    """Whether the found columns alone lose enough of the energy that the swept model explains for an audition."""
    share, total = explains(factors, patients, tuple(range(len(patients) - beside)))
    return total - share > WORTH * total
