"""One pass over a hospital's patients where every cell counts: patients in batches, then one step on every feature factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
WARM: Final = 10  # passes in patient batches; later passes take the whole site: docs/benchmarks/constants.md
BATCHES: Final = 4  # docs/benchmarks/constants.md
LEAST: Final = 10  # patients in a batch: the step of fewer follows single patients (six at a site are one batch)
SWEEPS: Final = 3  # HALS sweeps on a batch's memberships: docs/benchmarks/constants.md
FLOOR: Final = 1e-4  # least Gram of a gradient step, in units of the batch's squared counts


@dataclass(frozen=True)
class Elastic:
    """The force that pulls local feature factors to the global ones (DPFact eq. 5).

    Parameters
    ----------
    anchors
        Global feature factors.
    strength
        gamma; in units of tr(Gram)/R where zeros are observed (RECIPES), as printed where they are missing.
    """

    anchors: tuple[Matrix, ...]
    strength: float


@dataclass(frozen=True)
class Passed:
    """After a pass: (I, R) patients, the feature factors, and the squared error met on the way (each batch or entry
    just before its step on the feature factors)."""

    patients: Matrix
    factors: list[Matrix]
    squared_error: float


def observed_pass(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    rng: np.random.Generator,
    number: int,
    *,
    nonnegative: bool = True,
    learning_rate: float = 1.0,
    sparsity: float = 0.0,
    elastic: Elastic | None = None,
) -> Passed:
    """Take the memberships of each batch by HALS, then one step on every feature factor; ``number`` counts passes from 1."""
    stored = len(tensor.rows)
    batches = max(1, min(BATCHES if number <= WARM else 1, stored // LEAST))
    order = rng.permutation(stored) if batches > 1 else np.arange(stored)
    a = np.zeros_like(patients)  # a patient without entries has no phenotype
    a[tensor.rows] = patients[tensor.rows]
    local = [np.array(f) for f in factors]
    gradient = number <= WARM and not (elastic is not None and elastic.strength)
    # A column must have learned something before it can be found absent: the penalty rises from pass 10 to 30.
    ramp = min(max(number - WARM, 0) / (2 * WARM), 1.0)
    error = 0.0
    for rows in np.array_split(order, batches):
        batch = np.sort(rows)
        ids = tensor.rows[batch]
        memberships, scale, sse = _batch(
            tensor,
            batch if batches > 1 else None,
            a[ids],
            local,
            nonnegative,
            learning_rate,
            sparsity * ramp,
            elastic,
            gradient,
        )
        a[ids] = memberships
        a *= scale
        error += sse
    return Passed(a, local, error)


def _batch(
    tensor: SparseTensor,
    rows: NDArray[np.int64] | None,
    own: Matrix,
    local: list[Matrix],
    nonnegative: bool,
    learning_rate: float,
    sparsity: float,
    elastic: Elastic | None,
    gradient: bool,
) -> tuple[Matrix, NDArray[np.float64], float]:
    """Memberships of a batch, then one step on every feature factor (``local`` is changed); how columns were scaled."""
    positions = np.arange(len(tensor.rows)) if rows is None else rows
    g, m = cp.gram([own, *local], 0), kernels.mttkrp(tensor, [own, *local], 0, rows=positions)
    norm = tensor.norm_squared() if rows is None else float(np.square(_values(tensor, rows)).sum())
    own = cp.hals(own, g, m, sweeps=SWEEPS - bool(sparsity), nonnegative=nonnegative)
    if sparsity:
        sse = cp.squared_error(norm, own, g, m)
        cells = float(np.prod([float(d) for d in tensor.shape[1:]]))
        own = cp.hals(own, g, m, nonnegative=nonnegative, l21=sparsity * float(np.sqrt(sse / cells)))
    sse = cp.squared_error(norm, own, g, m)
    scale = np.ones(own.shape[1])
    for n in range(1, tensor.ndim):
        current = [own * scale, *local]
        g, m = cp.gram(current, n), kernels.mttkrp(tensor, current, n, rows=positions)
        b = local[n - 1]
        if gradient:
            # A batch that the model hardly explains has a tiny Gram: without a floor its step would blow up all columns.
            step = learning_rate / max(float(np.linalg.norm(g, 2)), FLOOR * norm, 1e-300)
            b = b - step * (b @ g - m)
            b = np.maximum(b, 0.0) if nonnegative else b
        elif elastic is not None and elastic.strength:
            gamma = elastic.strength * float(np.trace(g)) / len(g)
            b = cp.hals(b, g + gamma * np.eye(len(g)), m + gamma * elastic.anchors[n - 1], nonnegative=nonnegative)
        else:
            b = cp.hals(b, g, m, nonnegative=nonnegative)
        length = np.linalg.norm(b, axis=0)
        alive = length > 0
        # A column that would vanish (nobody here has the phenotype) keeps its last direction; nobody's membership moves.
        local[n - 1] = np.where(alive, b / np.where(alive, length, 1.0), local[n - 1])
        scale = scale * np.where(alive, length, 0.0)
    return own, scale, sse


def _values(tensor: SparseTensor, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    lengths = tensor.indptr[rows + 1] - tensor.indptr[rows]
    ends = np.cumsum(lengths)
    positions = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        tensor.indptr[rows] - (ends - lengths), lengths
    )
    return np.asarray(tensor.values[positions])
