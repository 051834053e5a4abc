"""What UnPSL between hospitals is told, and its public and private states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.methods.moments.moments import SummedMoments
from polyclinic.protocol.params import Params

Array = NDArray[np.float64]

__all__ = ["UnPSLParams", "UnPSLPrivate", "UnPSLPublic"]


class UnPSLParams(Params):
    """Parameters of UnPSL between hospitals."""

    l1: float = Field(1e-2, ge=0, description="lambda_1: sparsity, relative to the mean loss.")
    l2: float = Field(1e-2, ge=0, description="lambda_2: redundancy, relative to the mean loss.")
    bias: float = Field(1.0, description="b: threshold of (3.2).")
    rank: int | None = Field(None, ge=1, description="Columns of W; None: square up to 500 features, else 50.")
    rounds: int = Field(60, ge=1, le=100_000, description="Rounds at most.")
    inner: int = Field(30, ge=1, description="Quasi-Newton steps of a site in each round, at most.")
    penalty: float = Field(1.0, gt=0, description="lambda_3, relative to the slope at the start.")
    start_scale: float = Field(1.0, gt=0, description="Length of the start, relative to the best multiple.")
    standardize: Literal["zscore", "scale", "none"] = Field("zscore", description="By sums over all sites.")
    weighting: Literal["mean", "balanced", "sum"] = Field("mean", description="Weight of a pair (E3.3).")
    decorrelation: Literal["trace", "convex"] = Field("trace", description="Redundancy penalty (E3.4).")
    radius: float = Field(1e6, gt=0, description="Public: no |value| exceeds it.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")


@dataclass(frozen=True)
class UnPSLPublic:
    """What everybody knows: moments, numbers of pairs, the start, W and the figures of the last round."""

    sites: int
    moments: SummedMoments
    stage: str  # moments -> pairs -> scale -> slope -> rounds
    round: int
    similar: float
    different: float
    W: Array  # the answer so far, with exact zero rows
    drift: Array  # mean of U_p, which follows from earlier sums
    rho: float
    floor: float
    objective: float
    primal: float
    dual: float


@dataclass(frozen=True)
class UnPSLPrivate:
    """A site's own W_p and multipliers U_p (preconditioned), and the rho they belong to (0 before round 1)."""

    W: Array
    U: Array
    rho: float
