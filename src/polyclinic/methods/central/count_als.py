"""CPALS with a loss for counts or yes/no: the same ascent as SumALS's, on pooled data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.methods.central.base import Central, Clock, StartRun
from polyclinic.methods.rounds.count_rounds import REST
from polyclinic.methods.rounds.losses import Climb, begun, climbed, likelihood_step, only_counts
from polyclinic.methods.starts.random import start as random_start
from polyclinic.models.phenotypes.projection import Likely, Placing
from polyclinic.protocol.outcome import Progress
from polyclinic.tensors.kernels.counts import Likelihood
from polyclinic.tensors.likelihood import ceiling, constant_fit, explained, placed
from polyclinic.tensors.sparse import SparseTensor

if TYPE_CHECKING:
    from polyclinic.methods.central.als import CPALSParams

    Base = Central[CPALSParams]
else:
    Base = Central  # CPALS names the type: its file reads this one

Matrix = NDArray[np.float64]


class PooledLikelihood(Base):
    """What CPALS does where ``loss`` is no least squares."""

    def _weigh(self, union: SparseTensor) -> SparseTensor:
        return super()._weigh(union) if self.params.loss == "squares" else union

    def _fit_likelihood(
        self,
        tensor: SparseTensor,
        parts: list[tuple[str, int]],
        seeds: Sequence[int],
        given: Sequence[Matrix] | None,
        progress: Callable[[Progress], None] | None,
    ) -> Self:
        p = self.params
        loss: Likelihood = "poisson" if p.loss == "poisson" else "bernoulli"
        if p.distinct:
            raise ConfigError(f"distinct belongs to loss='squares', not to {loss!r}", hint="set distinct=0")
        only_counts([tensor], loss)
        shapes = [(d, p.rank) for d in tensor.shape[1:]]
        if given is not None and [np.shape(f) for f in given] != shapes:
            raise ConfigError(f"start has shapes {[np.shape(f) for f in given]}, expected {shapes}")
        best = self._best([self._climb(tensor, loss, s, given, progress) for s in seeds])
        patients, *features = best.factors
        self._store(tensor, parts, patients, features)
        return self

    def _climb(
        self,
        tensor: SparseTensor,
        loss: Likelihood,
        seed: int,
        given: Sequence[Matrix] | None,
        progress: Callable[[Progress], None] | None,
    ) -> StartRun:
        p = self.params
        factors = begun(random_start(tensor.shape[1:], p.rank, seed) if given is None else given)
        climb, patients = Climb(factors, -np.inf), None
        clock = Clock(self.name, p.rounds, 0.0, progress)
        events, top = float(tensor.values.sum()), ceiling(tensor, loss)
        cells = float(np.prod([float(d) for d in tensor.shape]))
        null = constant_fit(events, cells, loss)
        best = np.inf
        for _ in range(p.rounds):
            patients, sums, value = likelihood_step(tensor, factors, loss, patients)
            climb, factors = climbed(climb, factors, sums, value, p.tol * abs(value - null))
            best = min(best, -value)
            figures = {"objective": best, "deviance_explained": explained(-best, events, top, cells, loss)}
            clock.tick(figures, "give counts that are finite")
            if p.tol > 0 and climb.still >= REST:
                break
        patients = placed(tensor, climb.good, loss)
        return StartRun(seed, [patients, *climb.good], best, clock.end())

    def _placing(self) -> Placing:
        p = self.params
        return super()._placing() if p.loss == "squares" else Likely("poisson" if p.loss == "poisson" else "bernoulli")
