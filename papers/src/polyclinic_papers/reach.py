"""How good a model is round by round, and what it costs to come near the pooled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import Divergence, PolyclinicError
from polyclinic.methods.central.als import CPALS
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.threads import one_thread

__all__ = ["Trace", "reach", "rmse_curve", "rmse_of", "trace"]

SWEEPS = 5  # on memberships that start where the last round left them

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """A run, round by round: RMSE over all cells and over nonzeros, and all bytes so far, both ways.

    ``model`` is the method itself, fitted: nothing has to be run twice. It is None where the run diverged.
    """

    full: list[float]
    observed: list[float]
    bytes: list[float]
    model: Any = None

    def values(self) -> dict[str, list[float]]:
        """What a file keeps."""
        return {"full": self.full, "observed": self.observed, "bytes": self.bytes}


def trace(
    method: Any, sites: Sequence[Site], *, nonzeros: bool = True, until: Callable[[Trace], bool] | None = None
) -> Trace:
    """Run a method in this process and measure it after every round.

    Where zeros are observed: the global feature factors, with memberships solved for them (from those of the last
    round). Where they are missing: every site's own factors as trained, which is how DPFact's section 5.5.1 defines it.

    Parameters
    ----------
    method
        A federated method; it is fitted afterwards.
    nonzeros
        Also measure over the nonzeros (costs as much again).
    until
        Stop early (the model is then not fitted).
    """
    union, names = pooled(sites).counts(), sorted(s.name for s in sites)
    tensors = {s.name: s.counts() for s in sites}
    fold, out = Simulation(method, sites), Trace([], [], [])
    members: Matrix | None = None
    try:
        with one_thread():
            while fold.advance():
                if len(fold.history) == len(out.full):
                    continue
                if method.params.zeros == "missing":
                    parts = [_own(tensors[n], fold.parties[n].private, nonzeros) for n in names]
                    full, observed = (sum(p[k] for p in parts) for k in (0, 1))
                else:
                    members, full, observed = _shared(union, fold.public.factors, members, nonzeros)
                out.full.append(float(np.sqrt(full / _cells(union))))
                out.observed.append(float(np.sqrt(observed / max(union.nnz, 1))))
                out.bytes.append(float(fold.traffic.bytes_up + fold.traffic.bytes_down))
                if until is not None and until(out):
                    return out
            method.publish(fold.outcome())
    except Divergence:
        return out
    return Trace(out.full, out.observed, out.bytes, method)


def _shared(
    union: SparseTensor, factors: Sequence[Matrix], members: Matrix | None, nonzeros: bool
) -> tuple[Matrix, float, float]:
    unit, _ = cp.normalise(list(factors))
    if members is None:
        members = cp.solve_memberships(union, unit, sweeps=15)
    everyone = [members, *unit]
    g, m = cp.gram(everyone, 0), kernels.mttkrp(union, everyone, 0)
    members = cp.hals(members, g, m, sweeps=SWEEPS)
    full = cp.squared_error(union.norm_squared(), members, g, m)
    observed = kernels.squared_error(union, [members, *unit]) if nonzeros else 0.0
    return members, full, observed


def _own(tensor: SparseTensor, private: Any, nonzeros: bool) -> tuple[float, float]:
    everyone = [private.patients, *private.factors]
    m = kernels.mttkrp(tensor, everyone, 0)
    full = cp.squared_error(tensor.norm_squared(), everyone[0], cp.gram(everyone, 0), m)
    return full, kernels.squared_error(tensor, everyone) if nonzeros else 0.0


def _cells(tensor: SparseTensor) -> float:
    return float(np.prod([float(d) for d in tensor.shape]))


def rmse_of(tensor: SparseTensor, factors: Sequence[Any]) -> float:
    """RMSE over all cells with memberships solved anew for the given feature factors."""
    unit, _ = cp.normalise(list(factors))
    a = cp.solve_memberships(tensor, unit, sweeps=15)
    everyone = [a, *unit]
    sse = cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), kernels.mttkrp(tensor, everyone, 0))
    return float(np.sqrt(sse / _cells(tensor)))


def reach(method: Any, sites: Sequence[Site], rank: int, seed: int, margin: float) -> dict[str, float] | None:
    """Round and bytes at which a method is within ``margin`` of pooled CPALS's RMSE; None: never."""
    goal = (1 + margin) * _pooled(tuple(sites), rank, seed)
    try:
        found = trace(method, sites, nonzeros=False, until=lambda t: t.full[-1] <= goal)
    except PolyclinicError:
        return None
    if not found.full or found.full[-1] > goal:
        return None
    return {"rounds": len(found.full), "bytes": found.bytes[-1]}


@cache
def _pooled(sites: tuple[Site, ...], rank: int, seed: int) -> float:
    return CPALS(weighting="none", rank=rank, seed=seed).fit(list(sites)).quality(list(sites))["rmse_full"]


def rmse_curve(model: Any, sites: Sequence[Site]) -> list[float]:
    """RMSE over all cells after every round, of a federated or central model."""
    if isinstance(model, Method):
        return trace(model, sites, nonzeros=False).full
    fitted = model.with_params().fit(sites)
    return [float(h["rmse_full"]) for h in fitted.history_ if "rmse_full" in h] or [
        rmse_of(pooled(sites).counts(), fitted.factors_)
    ]
