"""How good a federated model is round by round: what it costs to come near the pooled one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from polyclinic.errors import PolyclinicError
from polyclinic.federation.fold import Fold
from polyclinic.federation.protocol import Method
from polyclinic.phenotypes.als import CPALS
from polyclinic.tensors import cp, kernels
from polyclinic.tensors.site import Site, pooled
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["reach", "rmse_curve", "rmse_of"]


def rmse_of(tensor: SparseTensor, factors: Sequence[Any]) -> float:
    """RMSE over all cells with memberships solved anew for the given feature factors."""
    unit, _ = cp.normalise(list(factors))
    a = cp.solve_memberships(tensor, unit, sweeps=15)
    everyone = [a, *unit]
    sse = cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), kernels.mttkrp(tensor, everyone, 0))
    return float(np.sqrt(sse / np.prod([float(d) for d in tensor.shape])))


def reach(method: Any, sites: Sequence[Site], rank: int, seed: int, margin: float) -> dict[str, float] | None:
    """Round and bytes at which a method is within ``margin`` of pooled CPALS's RMSE; None: never."""
    union = pooled(sites).counts()
    goal = (1 + margin) * _pooled(tuple(sites), rank, seed)
    fold = Fold(method, sites)
    known = 0
    try:
        while fold.advance():
            if len(fold.history) > known:
                known = len(fold.history)
                if rmse_of(union, fold.public.factors) <= goal:
                    return {"rounds": known, "bytes": float(fold.traffic.bytes_up + fold.traffic.bytes_down)}
    except PolyclinicError:
        return None
    return None


@cache
def _pooled(sites: tuple[Site, ...], rank: int, seed: int) -> float:
    return CPALS(rank=rank, seed=seed).fit(list(sites)).score(list(sites))["rmse_full"]


def rmse_curve(model: Any, sites: Sequence[Site]) -> list[float]:
    """RMSE over all cells after every round, of a federated or central model."""
    union = pooled(sites).counts()
    if not isinstance(model, Method):
        fitted = model.with_params().fit(sites)
        return [float(h["rmse_full"]) for h in fitted.history_ if "rmse_full" in h] or [rmse_of(union, fitted.factors_)]
    fold = Fold(model, sites)
    curve: list[float] = []
    while fold.advance():
        if len(fold.history) > len(curve):
            curve.append(rmse_of(union, fold.public.factors))
    return curve
