"""One pass over one hospital's patients: the work that CPSGD, LocalTF, DPFact and distributed SGD share.

Because it is ONE function, a federated method with one site is the central one, bit for bit. The order of patients
or entries in a pass follows the study's seed and the number of the pass, not the site's name, for the same reason.

``zeros="observed"``: patients in batches; their memberships by a few HALS sweeps, then one step on every feature
factor, all cells counted through R x R Grams (PERFORMANCE, RECIPES). ``zeros="missing"``: the papers' element-wise
stochastic gradient over nonzeros (DPFact eq. 13, 17), then the l2,1 prox (eq. 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.rounds.observed_pass import Elastic, Passed, observed_pass
from polyclinic.protocol.interfaces import seeds
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.kernels import sgd
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]


def open_patients(patients: int, rank: int, *, zeros: Literal["observed", "missing"], modes: int, seed: int) -> Matrix:
    """The private start of the memberships: nothing yet (observed), or small random numbers (missing)."""
    if zeros == "observed":
        return np.zeros((patients, rank))
    small: Matrix = seeds(seed, "patients").random((patients, rank)) * (2.0 * rank ** (-1.0 / modes))
    return small


def open_factors(factors: Sequence[Matrix], *, zeros: Literal["observed", "missing"]) -> list[Matrix]:
    """The public start of the feature factors: unit columns as they are (observed), or entries of the size
    R^(-1/modes), so that the model starts near 1 at every entry (missing)."""
    if zeros == "observed":
        return [np.array(f) for f in factors]
    size = factors[0].shape[1] ** (-1.0 / (len(factors) + 1))
    return [f * (size * np.sqrt(len(f))) for f in factors]


def local_pass(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    *,
    number: int,
    seed: int,
    zeros: Literal["observed", "missing"] = "observed",
    nonnegative: bool = True,
    learning_rate: float = 1.0,
    sparsity: float = 0.0,
    elastic: Elastic | None = None,
    clip: float | None = None,
    variant: Literal["corrected", "paper"] = "corrected",
) -> Passed:
    """One pass over a site's data.

    Parameters
    ----------
    tensor
        The site's patients.
    patients
        (I, R) memberships so far.
    factors
        Feature factors so far (columns of length 1 where zeros are observed).
    number
        Number of this pass over this site, from 1; with ``seed`` it decides the random order.
    learning_rate
        Observed: step of the projected gradient in units of 1 / ||Gram||_2, used in the first ten passes without an
        elastic force. Missing: eta of eq. 13 and 17.
    sparsity
        l2,1 on the patients. Observed: kappa, mu = kappa sqrt(SSE / product of feature sizes), shrunk inside the
        solve. Missing: mu, prox after the pass with threshold eta mu (ERRATA E0.3), or mu for ``variant="paper"``.
    elastic
        Pull to global factors. Observed: one HALS sweep on (Gram + gamma I, MTTKRP + gamma B^).
    clip
        Missing only: bound on the data part of each row's gradient (E0.8b).

    Returns
    -------
    Passed
    """
    rng = seeds(seed, "pass", number)
    if zeros == "missing":
        return _missing(tensor, patients, factors, rng, nonnegative, learning_rate, sparsity, elastic, clip, variant)
    return observed_pass(
        tensor,
        patients,
        factors,
        rng,
        number,
        nonnegative=nonnegative,
        learning_rate=learning_rate,
        sparsity=sparsity,
        elastic=elastic,
    )


def _missing(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    rng: np.random.Generator,
    nonnegative: bool,
    learning_rate: float,
    sparsity: float,
    elastic: Elastic | None,
    clip: float | None,
    variant: Literal["corrected", "paper"],
) -> Passed:
    (a, *local), error = sgd.sgd_epoch(
        tensor,
        [patients, *factors],
        learning_rate=learning_rate,
        rng=rng,
        nonnegative=nonnegative,
        clip=clip,
        anchors=None if elastic is None else elastic.anchors,
        elastic=0.0 if elastic is None else elastic.strength,
        variant=variant,
    )
    if sparsity:
        a = cp.shrink_columns(a, sparsity if variant == "paper" else learning_rate * sparsity)  # ERRATA E0.3
    return Passed(a, local, error)


def close_patients(
    tensor: SparseTensor,
    patients: Matrix,
    factors: Sequence[Matrix],
    *,
    zeros: Literal["observed", "missing"],
    nonnegative: bool = True,
    sparsity: float = 0.0,
) -> Matrix:
    """The final memberships: solved anew for the final factors, shrunk once more (observed); as trained (missing)."""
    if zeros == "missing":
        return patients
    a = cp.solve_memberships(tensor, factors, nonnegative=nonnegative)
    if not sparsity:
        return a
    g, m = cp.gram([a, *factors], 0), kernels.mttkrp(tensor, [a, *factors], 0)
    sse = cp.squared_error(tensor.norm_squared(), a, g, m)
    cells = float(np.prod([float(d) for d in tensor.shape[1:]]))
    return cp.hals(a, g, m, sweeps=10, nonnegative=nonnegative, l21=sparsity * float(np.sqrt(sse / cells)))
