"""CPSGD: phenotypes from the pooled data by stochastic passes, the central twin of LocalTF and DPFact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Never, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.methods.central.base import Central, Clock, Data, StartRun
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.rounds.local_pass import close_patients, local_pass, open_factors, open_patients
from polyclinic.methods.rounds.step_size import Rate, rate_at
from polyclinic.methods.starts.random import start
from polyclinic.protocol.outcome import Progress
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.threads import one_thread

Matrix = NDArray[np.float64]


class CPSGDParams(WeightedParams):
    """Parameters of CPSGD."""

    rounds: int = Field(60, ge=1, le=100_000, description="Passes over the data at most.")
    learning_rate: Rate = Field(None, description="eta: a number, one per pass, or a schedule; None: by `zeros`.")
    sparsity: float = Field(
        0.0,
        ge=0,
        description="l2,1 on patients: kappa (4 works; in noise units) where zeros are observed, mu where missing.",
    )
    clip: float | None = Field(None, gt=0, description="Bound on the data part of a row's gradient (zeros missing).")


class CPSGD(Central[CPSGDParams]):
    """Fit phenotypes on pooled records by stochastic gradient passes (P-SGD, the baseline of DPFact).

    ``zeros="observed"`` (default) counts every cell: batches of patients, memberships by HALS, a projected gradient
    step on the feature factors, HALS after ten passes. ``zeros="missing"`` is the papers' literal algorithm over
    nonzeros, which tends to "one everywhere" (ERRATA E0.4).

    ``tol`` is the relative change of the squared error met during a pass.

    Examples
    --------
    >>> import polyclinic as pc
    >>> t = pc.SparseTensor([[0, 0, 0], [1, 0, 0], [2, 1, 1]], [2.0, 4.0, 3.0], (3, 2, 2))
    >>> m = pc.CPSGD(rank=2, rounds=20, seed=0).fit(t)
    >>> round(m.quality(t)["fit"], 3)
    1.0
    """

    name = "cpsgd"
    Params = CPSGDParams
    params: CPSGDParams

    def fit(
        self,
        data: Data,
        y: object = None,
        *,
        start: Sequence[Matrix] | None = None,
        progress: Callable[[Progress], None] | None = None,
        **unknown: Never,
    ) -> Self:
        """Learn phenotypes from the union of the sites (or one site, or one tensor); see :meth:`CPALS.fit`."""
        self._refuse_unknown(unknown, ("start", "progress"))
        tensor, parts = self._pool(data)
        p = self.params
        seeds = [p.seed + k for k in range(1 if start is not None else p.n_starts)]
        with one_thread():
            best = self._best([self._run(tensor, s, start, progress) for s in seeds])
            patients, *features = best.factors
            patients = close_patients(
                tensor, patients, features, zeros=p.zeros, nonnegative=p.nonnegative, sparsity=p.sparsity
            )
        self._store(tensor, parts, patients, features)
        return self

    def _run(
        self,
        tensor: SparseTensor,
        seed: int,
        given: Sequence[Matrix] | None,
        progress: Callable[[Progress], None] | None,
    ) -> StartRun:
        p = self.params
        features = open_factors(start(tensor.shape[1:], p.rank, seed) if given is None else list(given), zeros=p.zeros)
        patients = open_patients(tensor.patients, p.rank, zeros=p.zeros, modes=tensor.ndim, seed=seed)
        clock = Clock(self.name, p.rounds, p.tol, progress)
        for number in range(1, p.rounds + 1):
            rate = rate_at(p.learning_rate, number, p.zeros)
            result = local_pass(
                tensor,
                patients,
                features,
                number=number,
                seed=seed,
                zeros=p.zeros,
                nonnegative=p.nonnegative,
                learning_rate=rate,
                sparsity=p.sparsity,
                clip=p.clip,
                variant=p.variant,
            )
            patients, features = result.patients, result.factors
            figures = {"objective": 0.5 * result.squared_error}
            if p.zeros == "missing":
                figures["rmse_observed"] = float(np.sqrt(result.squared_error / max(tensor.nnz, 1)))
            else:
                cells = float(np.prod([float(d) for d in tensor.shape]))
                figures["rmse_full"] = float(np.sqrt(result.squared_error / max(cells, 1.0)))
            if clock.tick(figures, f"learning_rate is {rate:g}: try {rate / 10:g}"):
                break
        return StartRun(seed, [patients, *features], clock.history[-1]["objective"], clock.end())
