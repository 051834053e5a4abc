"""Step sizes: a number or a schedule (LocalTF eq. 2.16 lets eta change from step to step), and what is stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]


class Schedule(BaseModel):
    """eta_t = start / (1 + decay (t - 1))^power.

    >>> Schedule(start=0.1, decay=1.0).at(4)
    0.025
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: float = Field(gt=0, description="eta of the first pass.")
    decay: float = Field(0.0, ge=0, description="How fast it falls.")
    power: float = Field(1.0, gt=0, le=4, description="1: inverse time; 0.5: inverse square root.")

    def at(self, number: int) -> float:
        """eta of pass ``number`` (from 1)."""
        return float(self.start / (1.0 + self.decay * (number - 1)) ** self.power)


Positive = Annotated[float, Field(gt=0)]
Rate = Positive | tuple[Positive, ...] | Schedule | None


def rate_at(rate: Rate, number: int, zeros: Literal["observed", "missing"]) -> float:
    """eta of one pass: a number, one per pass (the last is kept), or a schedule. None: 1 in units of 1/||Gram|| where
    zeros are observed, the papers' 0.01 where they are missing.

    >>> rate_at(None, 1, "observed"), rate_at(None, 1, "missing"), rate_at((0.3, 0.1), 9, "missing")
    (1.0, 0.01, 0.1)
    """
    if rate is None:
        return 1.0 if zeros == "observed" else 0.01
    if isinstance(rate, Schedule):
        return rate.at(number)
    return float(rate[min(number, len(rate)) - 1] if isinstance(rate, tuple) else rate)


def stable_rate(tensor: SparseTensor, factors: Sequence[Array], elastic: float = 0.0) -> float:
    """2 / beta, the largest stable step on one site's data (DPFact, section 4.2.1); ``factors`` with the patients' first.

    beta is the largest curvature of one sample's loss in a row of a feature factor, max ||a_i * c_k||^2 + gamma: what a pass
    over single samples needs (ERRATA E0.8a).
    """
    coords, beta = tensor.coords, elastic
    rows = [np.square(f).sum(1) for f in factors]
    for mode in range(1, tensor.ndim):
        curvature = np.ones(tensor.nnz)
        for n in range(tensor.ndim):
            if n != mode:
                curvature *= rows[n][coords[:, n]]  # ||a * c||^2 <= ||a||^2 ||c||^2
        beta = max(beta, float(curvature.max(initial=0.0)) + elastic)
    return 2.0 / max(beta, 1e-300)
