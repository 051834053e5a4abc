"""Which codes of a phenotype may be shown: those that enough patients have, and that no two patients make.

For code j of phenotype r, with h_ir = patient i carries r and w_ijr = membership x the patient's cells of j as the fit
weighs them::

    n_jr = number of patients who have j and carry r                                >= minimum
    d_jr = share of sum_i w_ijr that two patients may hold, at most
           2^(7/8) (sum_i w_ijr^8)^(1/8) / sum_i w_ijr                              <= 1/2

The second is Hoelder's bound on the two largest of the sum. It needs sums only, so a simulation and a federation judge
alike; no site judges its own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# definition: the dominance rule
HALF: Final = 0.5  # two patients may hold at most this part of a shown code's weight
# definition: of a phenotype that can be named
NAMED: Final = 0.5  # a phenotype has a name if its shown codes hold this part of the squared weight in each mode

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CodeSums:
    """Sums over all patients of all sites for the codes of one feature mode; each (codes, R).

    Attributes
    ----------
    support
        n: patients who have the code and carry the phenotype.
    first, eighth
        Sum of w and of w^8.

    Examples
    --------
    >>> w = np.array([[5.0, 1.0, 1.0], *[[1.0, 1.0, 1.0]] * 11])  # 12 patients: one is heavy in code 0
    >>> sums = CodeSums(np.array([[12.0], [12.0], [3.0]]), w.sum(0)[:, None], (w**8).sum(0)[:, None])
    >>> sums.two_hold().ravel().round(2).tolist()
    [0.57, 0.21, 0.21]
    >>> sums.hidden(11).ravel().tolist()
    [True, False, True]
    """

    support: Array
    first: Array
    eighth: Array

    def two_hold(self) -> Array:
        """At most this part of the weight is held by any two patients; 0 where there is none."""
        positive = self.first > 0
        bound = 2.0**0.875 * self.eighth**0.125 / np.where(positive, self.first, 1.0)
        return np.where(positive, np.minimum(bound, 1.0), 0.0)

    def hidden(self, minimum: int) -> NDArray[np.bool_]:
        """Codes that may not be shown. A code of nobody is hidden too, so that nobody and few look alike."""
        return np.asarray((self.support < minimum - 0.5) | (self.two_hold() > HALF))


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
