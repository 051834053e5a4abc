"""How a patient is placed by a model of courses (PARAFAC2): the patient's own course is found anew, and stays with the patient."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from polyclinic.errors import DataError
from polyclinic.models.base import Array, frozen
from polyclinic.tensors.kernels.parafac2 import CourseSums, Visits, course_sweep, visits_of
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

LAST_STEPS: Final = 20  # alternations of a placing after those from a flat course
_kept: OrderedDict[tuple[int, int], tuple[SparseTensor, Visits]] = OrderedDict()  # a fit asks in every round
KEPT: Final = 16


def by_visit(tensor: SparseTensor, order: int) -> Visits:
    """:func:`visits_of`, kept beside the tensor."""
    key = (id(tensor), order)
    entry = _kept.get(key)
    if entry is None or entry[0] is not tensor:
        entry = _kept[key] = (tensor, visits_of(tensor, order))
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return entry[1]


@dataclass(frozen=True, eq=False)
class Courses:
    """Memberships w of X_k ~ B_k diag(w) V' with a course B_k >= 0, smooth and near Q_k H.

    Parameters
    ----------
    shape
        (R, R) H, what all patients' courses have in common: B_k'B_k is about H'H.
    order
        Feature mode (1 or 2) whose positions are visits or times in order.
    coupling, smooth
        How strongly courses keep to H and to the visit before, in units of a patient's mean squared membership.
    saturation
        n0 of the saturating weights that the fit gave its patients; None: counts as they are.
    """

    shape: Array
    order: int
    coupling: float
    smooth: float
    saturation: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", frozen(self.shape))
        if self.shape.ndim != 2 or self.shape.shape[0] != self.shape.shape[1] or self.order not in (1, 2):
            raise DataError("patients cannot be placed like this", faults=[f"H {self.shape.shape}, mode {self.order}"])

    def visits(self, tensor: SparseTensor) -> Visits:
        """The patients' visits in order, weighted as they were fitted."""
        if tensor.ndim != 3:
            raise DataError(f"a model of trajectories has patients, visits and codes, not {tensor.ndim} modes")
        return by_visit(weighted(tensor, self.saturation), self.order)

    def found(self, tensor: SparseTensor, factors: Sequence[Array]) -> tuple[Array, Array, CourseSums]:
        """Memberships of patients with visits, courses (visits, R), and their sums."""
        visits, V, H = self.visits(tensor), np.array(factors[2 - self.order]), np.array(self.shape)
        w, B, _ = course_sweep(visits, V, H, None, None, coupling=self.coupling, smooth=self.smooth, steps=1)
        return course_sweep(visits, V, H, w, B, coupling=self.coupling, smooth=self.smooth, steps=LAST_STEPS)

    def cells(self, tensor: SparseTensor) -> SparseTensor:
        """O: a row for every visit, its codes as they were fitted."""
        visits = self.visits(tensor)
        row = np.repeat(np.arange(len(visits.place)), np.diff(visits.indptr))
        shape = (len(visits.place), tensor.shape[3 - self.order])
        return SparseTensor(np.column_stack([row, visits.codes]), visits.values, shape)

    def place(self, tensor: SparseTensor, factors: Sequence[Array]) -> Array:
        """(patients, R) memberships; patients without visits have none."""
        w, _, _ = self.found(tensor, factors)
        out = np.zeros((tensor.patients, len(self.shape)))
        out[self.visits(tensor).rows] = w
        return out

    def model(self, tensor: SparseTensor, factors: Sequence[Array]) -> list[Array]:
        """(visits, R) courses times memberships, and the codes: together they explain :meth:`cells`."""
        w, B, _ = self.found(tensor, factors)
        patient = np.repeat(np.arange(len(w)), np.diff(self.visits(tensor).first))
        return [B * w[patient], np.array(factors[2 - self.order])]
