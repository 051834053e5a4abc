"""Parameters of UnPSL at one hospital, chosen by cross-validation, and between hospitals."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from polyclinic.protocol.params import Params

Centre = Literal["zscore", "scale", "none"]
Weighting = Literal["mean", "balanced", "sum"]
Compare = Literal["product", "distance"]
Reach = Literal["all", "near"]
Decorrelation = Literal["trace", "convex"]


class SharedParams(BaseModel):
    """What is learned, and where it starts: the same at one hospital and between hospitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    l1: float = Field(1e-2, ge=0, description="lambda_1: sparsity, relative to the mean loss.")
    l2: float = Field(1e-2, ge=0, description="lambda_2: redundancy, relative to the mean loss.")
    bias: float = Field(1.0, description="b: threshold of (3.2).")
    start_scale: float = Field(1.0, gt=0, description="Length of the start, relative to the best multiple.")
    standardize: Centre = Field("zscore", description="By sums over all sites.")
    weighting: Weighting = Field("mean", description="Weight of a pair (E3.3).")
    decorrelation: Decorrelation = Field("trace", description="Redundancy penalty (E3.4).")


class UnPSLParams(SharedParams, Params):
    """Parameters of UnPSL between hospitals."""

    rank: int | None = Field(None, ge=1, description="Columns of W; None: square up to 500 features, else 50.")
    rounds: int = Field(60, ge=1, le=100_000, description="Rounds at most.")
    inner: int = Field(30, ge=1, description="Quasi-Newton steps of a site in each round, at most.")
    penalty: float = Field(1.0, gt=0, description="lambda_3, relative to the slope at the start.")
    radius: float = Field(1e6, gt=0, description="Public: no |value| exceeds it.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")


class UnPSLCentralParams(SharedParams):
    """Parameters of UnPSL at one hospital."""

    rank: int | None = Field(None, ge=1, description="Columns of W; None: square up to 500 features, else at most 100.")
    iterations: int = Field(3, ge=1, description="Of Algorithm 1, at most.")
    inner: int = Field(5, ge=1, description="Quasi-Newton steps in each W-update (3.11).")
    tol: float = Field(1e-4, ge=0, description="Stop when both residuals are below this share of the size of W.")
    penalty: float = Field(3.0, gt=0, description="rho, relative to the slope at the start.")
    n_starts: int = Field(1, ge=1, description="Starts compared by their objective.")
    compare: Compare = Field("product", description="Whether pairs are judged by s or by distance.")
    reach: Reach = Field("all", description="Which pairs of labelled patients count.")
    variant: Literal["corrected", "paper"] = Field(
        "corrected", description="As corrected in docs/errata, or as printed."
    )
    seed: int = Field(0, ge=0, description="Of further starts.")


class UnPSLCVParams(BaseModel):
    """Parameters of the choice by cross-validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    l1s: tuple[float, ...] | None = Field(None, min_length=1)
    l2s: tuple[float, ...] | None = Field(None, min_length=1)
    bias: float = 1.0
    start_scales: tuple[float, ...] | None = Field(None, min_length=1)
    standardizes: tuple[Centre, ...] | None = Field(None, min_length=1)
    compares: tuple[Compare, ...] | None = Field(None, min_length=1)
    reaches: tuple[Reach, ...] | None = Field(None, min_length=1)
    rank: int | None = Field(None, ge=1)
    iterations: int | None = Field(None, ge=1, description="The longest path.")
    inner: int = Field(5, ge=1)
    penalty: float | None = Field(None, gt=0)
    weighting: Weighting = "mean"
    decorrelation: Decorrelation | None = None
    cv: int | None = Field(None, description="Folds over patients.")
    repeats: int | None = Field(None, ge=1, description="How often folds are drawn anew.")
    scoring: Literal["knn", "pairs"] = "knn"
    k: int = Field(3, ge=1, description="Neighbours.")
    prefer: Literal["accuracy", "few"] = "accuracy"
    blend: bool = Field(True, description="Average the metrics that cannot be told apart.")
    seed: int = Field(0, ge=0)

    @field_validator("l1s", "l2s", "start_scales", "standardizes", "compares", "reaches", mode="before")
    @classmethod
    def _values(cls, value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value
