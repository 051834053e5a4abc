"""CPALS: phenotypes from the pooled data by alternating least squares, the model that federated ones are compared to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Never, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.errors import ConfigError
from polyclinic.methods.central.base import Central, Clock, Data, StartRun
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.starts.random import start
from polyclinic.protocol.outcome import Progress
from polyclinic.tensors import cp, device
from polyclinic.tensors import observed_only as completion
from polyclinic.tensors.als_sweep import Processor, Swept, Workplace, sweep
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.threads import one_thread

Matrix = NDArray[np.float64]
LARGEST_CARD_RANK = 128  # limit: columns whose Gram fits the shared memory of a card


class CPALSParams(WeightedParams):
    """Parameters of CPALS."""

    rounds: int = Field(200, ge=1, le=100_000, description="Sweeps over all modes at most.")
    tol: float = Field(1e-6, ge=0, description="Stop when the objective changes by less, relative; 0 = run all rounds.")
    distinct: float = Field(
        0.0, ge=0, description="lambda of TRIP's eq. 1: phenotypes share no codes; in units of tr(Gram)/R."
    )
    ridge: float = Field(
        1e-10, ge=0, description="Added to the Gram's diagonal, in units of tr(Gram)/R (dead columns)."
    )
    warmup: int = Field(
        20,
        ge=0,
        le=1000,
        description="First sweeps by projected gradient (non-negative, own start only): they separate the phenotypes "
        "where alternating solves from a random start merge two and split a third.",
    )
    sweeps: int = Field(3, ge=1, le=100, description="HALS sweeps a mode and round (non-negative only).")
    threads: int = Field(1, ge=1, le=256, description="Threads; the model does not depend on it.")
    device: Literal["cpu", "cuda", "auto"] | None = Field(
        None, description="Where to compute (non-negative, zeros observed, distinct = 0); None: as this process does."
    )
    precision: Literal["float64", "float32"] = Field("float64", description="Of products on a card.")


class CPALS(Central[CPALSParams]):
    """Fit phenotypes on pooled records by alternating least squares (ALS).

    Minimises 1/2 ||O - X||^2 over all cells (``zeros="observed"``) or over the nonzeros only (``"missing"``), plus
    ``distinct``/2 ||I - A'A||^2 per feature mode: TRIP's objective with its B = A put in (ERRATA E2.3), columns of
    length 1 and the scale with the patients (E2.7). Non-negative factors by HALS, else exact least squares.

    ``tol`` is the relative change of the objective between ALS iterations (sweeps).

    See Also
    --------
    SumALS : the same without pooling the records.

    References
    ----------
    Cichocki, Phan. Fast Local Algorithms for Large Scale Nonnegative Matrix and Tensor Factorizations. IEICE Transactions
    E92-A(3), 2009.

    Examples
    --------
    >>> import numpy as np, polyclinic as pc
    >>> t = pc.SparseTensor([[0, 0, 0], [1, 0, 0], [2, 1, 1]], [2.0, 4.0, 3.0], (3, 2, 2))
    >>> m = pc.CPALS(rank=2, seed=0).fit(t)
    >>> round(m.quality(t)["fit"], 3), m.weights_.round(2).tolist(), m.saturation_  # patients weigh between 1 and 1 + 8.3
    (1.0, [3.02, 2.2], 8.3)
    """

    name = "cpals"
    Params = CPALSParams
    params: CPALSParams

    def fit(
        self,
        data: Data,
        y: object = None,
        *,
        start: Sequence[Matrix] | None = None,
        progress: Callable[[Progress], None] | None = None,
        **unknown: Never,
    ) -> Self:
        """Learn phenotypes from the union of the sites (or one site, or one tensor).

        Parameters
        ----------
        start
            Feature factors to start from instead of the seed's; then there is one start only.
        progress
            Called with a :class:`~polyclinic.protocol.loop.Progress` event after every sweep.
        """
        self._refuse_unknown(unknown, ("start", "progress"))
        tensor, parts = self._pool(data)
        seeds = [self.params.seed + k for k in range(1 if start is not None else self.params.n_starts)]
        with one_thread(), device.using(self.params.device):
            best = self._best([self._run(tensor, s, start, progress) for s in seeds])
            patients, *features = best.factors
            if self.params.zeros == "observed":
                patients = cp.solve_memberships(
                    tensor, features, nonnegative=self.params.nonnegative, threads=self.params.threads
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
        features = start(tensor.shape[1:], p.rank, seed) if given is None else _checked(given, tensor, p.rank)
        factors: list[Matrix] = [np.zeros((tensor.patients, p.rank)), *features]
        work = self._workplace(tensor)
        factors = [work.put(f) for f in factors]
        clock = Clock(self.name, p.rounds, p.tol, progress)
        unit: list[float] = []
        norm = tensor.norm_squared()
        gradient = False
        swept: Swept[Matrix] | None = None
        for _ in range(p.rounds):
            if p.zeros == "missing":
                objective = self._missing(tensor, factors, first=not clock.history)
                figures = {"rmse_observed": float(np.sqrt(2 * objective / max(tensor.nnz, 1)))}
            else:
                gradient = p.nonnegative and given is None and len(clock.history) < p.warmup
                objective, swept = self._observed(work, factors, unit, gradient, norm, swept)
                figures = _full_figures(tensor, swept.sse, norm)
            if clock.tick({"objective": objective, **figures}, "lower distinct, or raise ridge") and not gradient:
                break
        return StartRun(seed, [work.get(f) for f in factors], clock.history[-1]["objective"], clock.end())

    def _workplace(self, tensor: SparseTensor) -> Workplace[Matrix]:
        """The card where this process uses one and the card can do it, else the processor."""
        p = self.params
        able = p.nonnegative and p.zeros == "observed" and not p.distinct and p.rank <= LARGEST_CARD_RANK
        if p.device == "cuda" and not able:
            raise ConfigError(
                "a card computes non-negative factors of all cells without `distinct`, up to rank 128",
                hint='device="auto" takes the processor where it must',
            )
        if not able or not device.on_card(tensor, p.rank):
            return Processor(tensor, p.rank, p.threads)
        from polyclinic.tensors.kernels.cuda import GraphicsCard

        return GraphicsCard(device.card_of(tensor), p.rank, p.precision)

    def _observed(
        self,
        work: Workplace[Matrix],
        factors: list[Matrix],
        unit: list[float],
        gradient: bool,
        norm: float,
        before: Swept[Matrix] | None,
    ) -> tuple[float, Swept[Matrix]]:
        """One sweep over all modes, all cells counted; changes ``factors``; returns the objective and what the sweep leaves."""
        p = self.params

        def update(n: int, factor: Matrix, g: Matrix, m: Matrix, scale: Matrix) -> Matrix:
            trace = float(np.trace(g)) / p.rank
            if n and p.distinct and len(unit) < n:  # the unit of lambda is fixed at the start, as TRIP's is
                unit.append(trace)
            if n and gradient:
                return work.descend(factor, g, m, scale, max(float(np.linalg.norm(g, 2)), 1e-300))
            if n and p.distinct:
                return distinct_sweep(factor, g, m * scale, p.distinct * unit[n - 1], p.nonnegative, p.sweeps)
            return solve(n, factor, g, m, scale)

        def solve(n: int, factor: Matrix, g: Matrix, m: Matrix, scale: Matrix) -> Matrix:
            ridge = p.ridge * float(np.trace(g)) / p.rank
            if p.nonnegative:
                return work.hals(factor, g, m, scale, sweeps=10 if before is None and n == 0 else p.sweeps, ridge=ridge)
            return cp.least_squares(g, m * scale if n else m, ridge, out=None if n else factor)

        # exact least squares starts from nothing, and `fit` solves the memberships anew
        swept = sweep(work, factors, norm, update, carry=p.nonnegative, before=before)
        objective = 0.5 * swept.sse
        for overlap, u in zip(swept.grams, unit):
            objective += 0.5 * p.distinct * u * float(np.square(np.eye(p.rank) - overlap).sum())
        return objective, swept

    def _missing(self, tensor: SparseTensor, factors: list[Matrix], first: bool) -> float:
        """One sweep over all modes, nonzeros only."""
        p = self.params
        if p.distinct:
            raise ConfigError("distinct needs zeros='observed'", hint="set distinct=0, or zeros='observed'")
        for n in range(tensor.ndim):
            m = kernels.mttkrp(tensor, factors, n, threads=p.threads)
            ridge = p.ridge * tensor.nnz / tensor.shape[n]
            factors[n] = completion.solve_mode(
                tensor, factors, n, m, nonnegative=p.nonnegative, sweeps=10 if first else p.sweeps, ridge=ridge
            )
            _to_patients(factors, n)
        return 0.5 * kernels.squared_error(tensor, factors, threads=p.threads)


def _full_figures(tensor: SparseTensor, sse: float, norm: float) -> dict[str, float]:
    cells = float(np.prod([float(d) for d in tensor.shape]))
    return {
        "rmse_full": float(np.sqrt(sse / max(cells, 1.0))),
        "fit": 1.0 - float(np.sqrt(sse / norm)) if norm else 1.0,
    }


def _checked(given: Sequence[Matrix], tensor: SparseTensor, rank: int) -> list[Matrix]:
    expected = [(d, rank) for d in tensor.shape[1:]]
    if [np.shape(f) for f in given] != expected:
        raise ConfigError(f"start has shapes {[np.shape(f) for f in given]}, expected {expected}")
    return [np.array(f, np.float64) for f in given]


def _to_patients(factors: list[Matrix], n: int) -> None:
    """Give a feature factor columns of length 1, its scale to the patients (E2.7); a zero column keeps nothing."""
    if n == 0:
        return
    length = np.linalg.norm(factors[n], axis=0)
    factors[n] = factors[n] / np.where(length > 0, length, 1.0)
    factors[0] = factors[0] * length


def distinct_sweep(a: Matrix, gram: Matrix, m: Matrix, lam: float, nonnegative: bool, sweeps: int) -> Matrix:
    """Sweep the columns of min 1/2 <A'A, G> - <A, M> + lam/2 ||I - A'A||^2 with unit columns.

    With the others held, column r sees the quadratic form G_rr I + 2 lam A_-r A_-r'. Without sign constraints it is
    solved exactly in R x R (Woodbury, as E2.2); with them by projected gradient steps of length one over its largest
    eigenvalue, which never increase the objective.
    """
    out = np.array(a)
    rank = out.shape[1]
    for _ in range(sweeps):
        for r in range(rank):
            if gram[r, r] <= 0:
                continue
            remaining = np.delete(out, r, axis=1)
            rhs = m[:, r] - remaining @ np.delete(gram[:, r], r)
            overlap = remaining.T @ remaining
            if nonnegative:
                step = 1.0 / (gram[r, r] + 2 * lam * (float(np.linalg.norm(overlap, 2)) if rank > 1 else 0.0))
                slope = gram[r, r] * out[:, r] + 2 * lam * (remaining @ (remaining.T @ out[:, r])) - rhs
                out[:, r] = np.maximum(out[:, r] - step * slope, 0.0)
            else:
                inner = gram[r, r] * np.eye(rank - 1) + 2 * lam * overlap
                out[:, r] = (rhs - 2 * lam * (remaining @ np.linalg.solve(inner, remaining.T @ rhs))) / gram[r, r]
    return out
