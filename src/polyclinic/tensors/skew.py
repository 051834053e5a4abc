"""How unevenly patients weigh in a tensor: a few long records can decide every phenotype."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil
from typing import Final

import numpy as np

from polyclinic.tensors.sparse import SparseTensor

SKEWED: Final = 0.25  # the heaviest hundredth of the patients holds more than this: say so
BLOCK: Final = 50_000  # patients at a time
FEW: Final = 3  # a patient with fewer cells says little


@dataclass(frozen=True)
class Skew:
    """Figures of a tensor's cells.

    Parameters
    ----------
    cells, largest
        Number of cells, and the largest value.
    top1
        Share of the squared cells that the heaviest hundredth of the patients (rounded up) holds.
    top5
        The same of the five heaviest patients.
    few
        Patients with fewer than three cells.
    repeats
        Share of events that repeat within their visit or day, about; None where it was not counted.
    """

    cells: int
    largest: float
    top1: float
    top5: float
    few: int
    repeats: float | None = None

    @property
    def skewed(self) -> bool:
        """Whether a few patients decide, unless the method weights them."""
        return self.top1 > SKEWED

    def to_json(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}

    def words(self) -> str:
        """One line for a person."""
        repeat_note = (
            "" if self.repeats is None else f". Events that repeat in a visit or day: about {self.repeats:.0%}"
        )
        return (
            f"{self.cells:,} cells, largest {self.largest:g}. The heaviest 1 % of patients hold {self.top1:.0%} of the "
            f"squared cells, the heaviest five {self.top5:.0%}. Patients with fewer than {FEW} cells: {self.few:,}{repeat_note}"
        )

    def advice(self) -> str | None:
        """What to do about it, where something should be done and the method does not weight patients."""
        if not self.skewed:
            return None
        return (
            f"the heaviest five patients carry {self.top5:.0%} of the weight; use weighting = 'saturating' "
            "or count = 'presence'"
        )


def skew(tensor: SparseTensor, repeats: float | None = None) -> Skew:
    """Measure a tensor.

    Examples
    --------
    >>> t = SparseTensor([[0, 0], [0, 1], [1, 0], [2, 1]], [3.0, 4.0, 1.0, 2.0], (3, 2))
    >>> skew(t).to_json()
    {'cells': 4, 'largest': 4.0, 'top1': 0.8333, 'top5': 1.0, 'few': 3, 'repeats': None}
    """
    if not tensor.nnz:
        return Skew(0, 0.0, 0.0, 0.0, 0, repeats)
    squares = np.concatenate(
        [  # some patients at a time: the squares of all cells would need as much memory as the cells
            np.add.reduceat(
                tensor.values[tensor.indptr[a] : tensor.indptr[b]] ** 2, tensor.indptr[a:b] - tensor.indptr[a]
            )
            for a, b in pairwise([*range(0, len(tensor.indptr) - 1, BLOCK), len(tensor.indptr) - 1])
        ]
    )
    heavy = np.sort(squares)[::-1] / squares.sum()
    first = ceil(tensor.patients / 100)
    short_records = int((np.diff(tensor.indptr) < FEW).sum())
    return Skew(
        tensor.nnz,
        float(tensor.values.max()),
        float(heavy[:first].sum()),
        float(heavy[:5].sum()),
        short_records,
        repeats,
    )
