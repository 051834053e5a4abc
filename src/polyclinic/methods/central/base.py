"""What central methods share: they see the union of all sites, and nothing is sent because everything was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, Divergence
from polyclinic.methods.estimators.factorization import Factorization
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.privacy.card.card import central_card
from polyclinic.protocol.outcome import Progress
from polyclinic.protocol.schema import schema_of
from polyclinic.protocol.wire.traffic import Traffic
from polyclinic.records.sites.from_data import Data, as_sites, warn_of_odd_counts
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors.matching import factor_match_score
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import log_sizes, saturation_of, weighted

__all__ = ["Central", "Data"]

Matrix = NDArray[np.float64]


WP = TypeVar("WP", bound=WeightedParams)


class Central(Factorization[WP]):
    """A factorization of the pooled union.

    Attributes
    ----------
    objective_
        What was minimised, at the end.
    starts_
        One entry per random start: seed, rounds, objective.
    stability_
        Mean factor match score between the kept start and the others. 1: all starts agree. None: one start. Do not report a
        model that changes with the seed. Agreement of starts is not evidence by itself (use :func:`polyclinic.replicate`).
    phenotypes_, result_
        Table of codes, weights and shares of every phenotype, and the model as a value (:class:`polyclinic.Phenotypes`), which
        can be saved and applied elsewhere. ``phenotypes_.where(phenotype=0)`` is one phenotype.
    factors_
        One (codes, R) array per feature mode. Columns have length 1 and are in order of weight.
    weights_
        (R,) total weight of each phenotype, largest first.
    memberships_
        Site -> (patients, R) weights of each patient on each phenotype.
    """

    name = "central"
    needs = "tensor"
    objective_: float
    starts_: list[StartMade]
    stability_: float | None

    def _pool(self, data: Data) -> tuple[SparseTensor, list[tuple[str, int]]]:
        """The union with the patients' weights, and the sites' names and numbers of patients in its order."""
        if self.params.privacy is not None:
            raise ConfigError(
                f"{type(self).__name__} sees every record: it has no private version",
                hint="use a federated method (pc.DPEM for a formal guarantee), or privacy=None",
            )
        if isinstance(data, SparseTensor):
            sites = [Site("pooled", data)]
        else:
            sites = as_sites(data)
        if self.params.nonnegative:
            warn_of_odd_counts([s.tensor for s in sites if s.tensor is not None])
        schema_of(self, sites)  # type: ignore[arg-type]  # same checks, same errors as a federated run
        union = pooled(sites).counts() if len(sites) > 1 else sites[0].counts()
        p = self.params
        self.saturation_ = saturation_of(log_sizes(union)) if p.estimates else p.public_saturation
        return weighted(union, self.saturation_), [(s.name, s.patients) for s in sorted(sites, key=lambda s: s.name)]

    def _store(
        self, tensor: SparseTensor, parts: list[tuple[str, int]], patients: Matrix, factors: list[Matrix]
    ) -> None:
        ends = np.cumsum([n for _, n in parts])
        memberships = {name: patients[end - n : end] for (name, n), end in zip(parts, ends)}
        self._set(factors, np.square(patients).sum(0), memberships, tensor.axes[1:])
        self.traffic_ = Traffic()
        self.privacy_ = central_card(self.name)
        self._conclude()

    def _best(self, runs: list[StartRun]) -> StartRun:
        """The run with the lowest objective; the others say how stable it is."""
        best = min(runs, key=lambda r: r.objective)
        self.starts_ = [{"seed": r.seed, "rounds": len(r.history), "objective": r.objective} for r in runs]
        matches = [factor_match_score(best.factors[1:], r.factors[1:]) for r in runs if r is not best]
        self.stability_ = float(np.mean(matches)) if matches else None
        self.objective_ = best.objective
        self.history_ = best.history
        return best


class StartMade(TypedDict):
    """One start of a central fit."""

    seed: int
    rounds: int
    objective: float


@dataclass(frozen=True)
class StartRun:
    """One start, run to its end: all factors (patients first)."""

    seed: int
    factors: list[Matrix]
    objective: float
    history: list[dict[str, Any]]


class Clock:
    """Rounds as they pass: history, progress events, and the check that numbers stay numbers."""

    def __init__(self, method: str, rounds: int, tol: float, progress: Callable[[Progress], None] | None) -> None:
        self.method, self.rounds, self.tol, self.progress = method, rounds, tol, progress
        self.history: list[dict[str, Any]] = []
        self._start = time.perf_counter()
        self._tell("begin", 0, {})

    def _tell(self, kind: str, number: int, figures: dict[str, float]) -> None:
        if self.progress is not None:
            self.progress(Progress(kind, self.method, number, self.rounds, figures))

    def end(self) -> list[dict[str, Any]]:
        """No more rounds: the history."""
        self._tell("end", len(self.history), {})
        return self.history

    def tick(self, figures: dict[str, float], remedy: str) -> bool:
        """Note a finished round; True when the objective changed by less than ``tol`` (relative)."""
        if not np.isfinite(figures["objective"]):
            raise Divergence(f"{self.method}, round {len(self.history) + 1}: left the finite numbers", hint=remedy)
        number = len(self.history) + 1
        self.history.append({"round": number, "seconds": time.perf_counter() - self._start, **figures})
        self._tell("round", number, figures)
        if number < 2 or self.tol == 0:
            return False
        previous = self.history[-2]["objective"]
        return bool(abs(previous - figures["objective"]) <= self.tol * max(abs(previous), 1e-300))
