"""How much of a phenotype is left when the codes that may not be shown are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# definition: of a phenotype that can be named
NAMED: Final = 0.5  # a phenotype has a name if its shown codes hold this part of the squared weight in each mode

Array = NDArray[np.float64]


def kept_shares(factors: Sequence[Array], hidden: Sequence[NDArray[np.bool_]]) -> tuple[tuple[float, ...], ...]:
    """(R, modes) share of every phenotype's squared weight that is left when hidden codes are taken out.

    >>> kept_shares([np.array([[3.0], [4.0]])], [np.array([[False], [True]])])
    ((0.36,),)
    """
    columns = []
    for f, hide in zip(factors, hidden):
        square = np.square(f)
        total = square.sum(0)
        columns.append(np.where(total > 0, np.where(hide, 0.0, square).sum(0) / np.where(total > 0, total, 1.0), 0.0))
    return tuple(tuple(round(float(x), 4) for x in row) for row in np.array(columns).T)
