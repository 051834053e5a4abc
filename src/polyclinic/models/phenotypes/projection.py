"""How a patient is placed among phenotypes: the only thing in which the methods differ once they are fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.models.base import Array, StoredArrays, frozen
from polyclinic.models.phenotypes.courses import Courses
from polyclinic.tensors import expectation, observed_only
from polyclinic.tensors.kernels.counts import Likelihood, place
from polyclinic.tensors.kernels.topics import e_step
from polyclinic.tensors.side_by_side import side_by_side
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted
from polyclinic.util.json_types import JsonMap

__all__ = ["Courses", "Events", "LeastSquares", "Likely", "Placing", "SideBySide", "restored", "stored"]


def _loose(arrays: Sequence[Array]) -> list[Array]:
    """Copies that may be written to: compiled kernels would be compiled once more for read-only arrays."""
    return [np.array(a) for a in arrays]


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """Memberships a = argmin ||O - [a, A_1, ..., A_N]||^2, with the factors held.

    Parameters
    ----------
    nonnegative
        Memberships of at least 0.
    zeros
        Absent entries are zeros (``"observed"``) or unknown (``"missing"``).
    saturation
        n0 of the saturating weights that the fit gave its patients; None: counts as they are.
    """

    nonnegative: bool = True
    zeros: Literal["observed", "missing"] = "observed"
    saturation: float | None = None

    def cells(self, tensor: SparseTensor) -> SparseTensor:
        """O: the patients' cells as they were fitted."""
        return weighted(tensor, self.saturation)

    def place(self, tensor: SparseTensor, factors: Sequence[Array]) -> Array:
        """(patients, R) memberships on the factors."""
        return observed_only.memberships(
            self.cells(tensor), _loose(factors), nonnegative=self.nonnegative, zeros=self.zeros
        )

    def model(self, tensor: SparseTensor, factors: Sequence[Array]) -> list[Array]:
        """Factors of all modes, patients first, that together explain these patients."""
        return [self.place(tensor, factors), *_loose(factors)]


@dataclass(frozen=True, eq=False)
class Events:
    """Expected number of a patient's events that each phenotype explains, by EM with a prior (DPEM).

    Parameters
    ----------
    stacked
        (codes of all modes, K) probabilities under one another, a background last where there is one; K >= R.
    prior
        (K,) prior counts of a patient.
    scale, order
        (R,) lengths of the columns, and their places in the model's order: from stacked columns to factors.
    steps
        EM steps of a placing.
    parts
        (K,) the phenotype that every stacked column is a piece of, -1 for none (background, and what was dropped); None:
        column r is phenotype r, the rest is background.
    """

    stacked: Array
    prior: Array
    scale: Array
    order: NDArray[np.int64]
    steps: int
    parts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("stacked", "prior", "scale"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        object.__setattr__(self, "order", frozen(self.order, np.int64))
        k, r = self.prior.shape[0], self.scale.shape[0]
        if self.parts is not None:
            object.__setattr__(self, "parts", frozen(self.parts, np.int64))
            if self.parts.shape != (k,) or not ((self.parts >= -1) & (self.parts < r)).all():
                raise DataError("patients cannot be placed like this", faults=[f"{k} columns are pieces of {r}"])
        if self.stacked.shape[1:] != (k,) or r > k or sorted(self.order.tolist()) != list(range(r)) or self.steps < 1:
            raise DataError("patients cannot be placed like this", faults=[f"{k} prior counts, {r} phenotypes"])

    def cells(self, tensor: SparseTensor) -> SparseTensor:
        """O: the patients' events, as they are."""
        return tensor

    def expected(self, tensor: SparseTensor) -> Array:
        """(patients, K) expected events, background included, in the order of ``stacked``."""
        share = expectation.memberships(tensor, *_loose([self.stacked, self.prior]), steps=self.steps)
        events = np.zeros(tensor.patients)
        events[tensor.rows] = np.add.reduceat(tensor.values, tensor.indptr[:-1]) if tensor.nnz else 0.0
        out: Array = share * events[:, None]
        return out

    @property
    def apart(self) -> NDArray[np.bool_]:
        """(K,) columns that belong to no phenotype."""
        return np.arange(len(self.prior)) >= len(self.scale) if self.parts is None else self.parts < 0

    def joined(self, fine: Array) -> Array:
        """(patients, R) of (patients, K): the pieces of every phenotype together, in the order of ``scale``."""
        if self.parts is None:
            return fine[:, : len(self.scale)]
        out: Array = fine @ (self.parts[:, None] == np.arange(len(self.scale))).astype(np.float64)
        return out

    def place(self, tensor: SparseTensor, factors: Sequence[Array]) -> Array:
        """(patients, R) memberships on the factors."""
        memberships = self.joined(self.expected(tensor))
        return np.ascontiguousarray((memberships * self.scale)[:, self.order])

    def model(self, tensor: SparseTensor, factors: Sequence[Array]) -> list[Array]:
        """Factors of all modes, patients first, background last, that together explain these patients."""
        ends = np.cumsum([len(f) for f in factors])[:-1]
        return [self.expected(tensor), *np.split(self.stacked.copy(), ends)]


@dataclass(frozen=True, eq=False)
class Likely:
    """Memberships of highest likelihood, with the factors held: of counts (Poisson) or of yes/no (Bernoulli).

    Parameters
    ----------
    loss
        ``"poisson"`` or ``"bernoulli"``.
    """

    loss: Likelihood

    def cells(self, tensor: SparseTensor) -> SparseTensor:
        """O: the patients' events, as they are."""
        return tensor

    def place(self, tensor: SparseTensor, factors: Sequence[Array]) -> Array:
        """(patients, R) memberships on the factors."""
        loose = _loose(factors)
        sizes = [f.sum(0) for f in loose]
        flat = [np.where(s > 0, f / np.where(s > 0, s, 1.0), 1.0 / len(f)) for f, s in zip(loose, sizes)]
        scale = np.prod(sizes, axis=0)
        return place(tensor, np.concatenate(flat), self.loss) / np.where(scale > 0, scale, 1.0)

    def model(self, tensor: SparseTensor, factors: Sequence[Array]) -> list[Array]:
        """Factors of all modes, patients first: rates (for yes/no: of the counts behind them)."""
        return [self.place(tensor, factors), *_loose(factors)]


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Posterior counts of a patient among the phenotypes: prior counts and damped events, the modes side by side (Topics).

    Parameters
    ----------
    columns
        (codes of all modes, R) exp E log phi, the modes one under another.
    prior
        (R,) prior counts of a patient.
    scale, order
        (R,) lengths of the columns, and their places in the model's order: from columns to factors.
    weights
        (codes,) what the damped counts of every code are multiplied by.
    steps
        Steps of a placing.
    """

    columns: Array
    prior: Array
    scale: Array
    order: NDArray[np.int64]
    weights: Array
    steps: int

    def __post_init__(self) -> None:
        for name in ("columns", "prior", "scale", "weights"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        object.__setattr__(self, "order", frozen(self.order, np.int64))
        rank = len(self.prior)
        fits = self.columns.shape[1:] == (rank,) == self.scale.shape and self.steps >= 1
        if not fits or sorted(self.order.tolist()) != list(range(rank)):
            raise DataError("patients cannot be placed like this", faults=[f"{rank} prior counts"])

    def cells(self, tensor: SparseTensor) -> SparseTensor:
        """O: the patients' events, as they are."""
        return tensor

    def place(self, tensor: SparseTensor, factors: Sequence[Array]) -> Array:
        """(patients, R) memberships on the factors."""
        rows = side_by_side(tensor).weighted(self.weights)
        columns, prior, scale = _loose([self.columns, self.prior, self.scale])
        gamma = prior + rows.totals[:, None] / len(prior)
        e_step(rows.indptr, rows.codes, rows.values, columns, prior, gamma, self.steps, np.zeros_like(columns))
        out = np.where(rows.totals[:, None] > 0, gamma, 0.0)
        return np.ascontiguousarray((out * scale)[:, self.order])

    def model(self, tensor: SparseTensor, factors: Sequence[Array]) -> list[Array]:
        """Factors of all modes, patients first: a patient's shares times the number of the patient's events."""
        simplex = [f / np.maximum(f.sum(0), 1e-300) for f in _loose(factors)]
        share = self.place(tensor, factors) / np.maximum(self.scale[self.order], 1e-300)
        events = np.zeros(tensor.patients)
        events[tensor.rows] = np.add.reduceat(tensor.values, tensor.indptr[:-1]) if tensor.nnz else 0.0
        return [share / np.maximum(share.sum(1, keepdims=True), 1e-300) * events[:, None], *simplex]


Placing: TypeAlias = LeastSquares | Events | Likely | Courses | SideBySide

# ---- the file: arrays by their name with "place_" in front, all other fields in the header

KINDS: Final[Mapping[str, type[Placing]]] = {
    "least-squares": LeastSquares,
    "events": Events,
    "likelihood": Likely,
    "side-by-side": SideBySide,
    "courses": Courses,
}
CASTS: Final = {"int": int, "bool": bool}


def _in_array(f: Field[object]) -> bool:
    return "Array" in str(f.type)


def stored(placing: Placing) -> tuple[dict[str, object], dict[str, NDArray[np.generic]]]:
    """The header's values and the arrays of a way to place patients."""
    values = {f: getattr(placing, f.name) for f in fields(placing)}
    kind = next(name for name, kind in KINDS.items() if isinstance(placing, kind))
    header = {"kind": kind} | {f.name: v for f, v in values.items() if not _in_array(f)}
    return header, {f"place_{f.name}": v for f, v in values.items() if _in_array(f) and v is not None}


def restored(header: JsonMap, arrays: StoredArrays) -> Placing:
    """Inverse of :func:`stored`."""
    kind = KINDS.get(header["kind"])
    if kind is None:
        raise DataError(f"unknown way to place patients {header['kind']!r}", hint="read it with a newer polyclinic")
    values: dict[str, Any] = {}
    for f in fields(kind):
        if _in_array(f):
            name = f"place_{f.name}"
            values[f.name] = arrays.get(name) if f.default is None else arrays[name]
        else:
            values[f.name] = CASTS.get(str(f.type), lambda v: v)(header[f.name])
    return kind(**values)
