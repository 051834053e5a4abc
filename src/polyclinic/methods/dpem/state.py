"""What everybody sees of a DPEM fit: functions of released sums and of public values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.dpem.budget_plan import ReleasePlan

Array: TypeAlias = NDArray[np.float64]
Factors: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True)
class DPEMPublic:
    """What everybody sees: functions of released sums and of public values."""

    stage: Literal["size", "marginals", "vote", "statistics", "verdict", "end"]
    round: int
    plan: ReleasePlan
    factors: Factors  # (I_n, R) per mode; before the marginals are known: the random start, relative to them
    marginals: Factors  # (I_n,) per mode: the background
    mixture: Array  # (R,) or (R + 1,): how much of all events each phenotype explains, background last
    released: Array | None = None  # (codes, R or R + 1) running mean of the noisy sums
    noise: Array | None = None  # (R or R + 1,) standard deviation of the noise in every column of ``released``
    precision: Array | None = None  # (R or R + 1,) how much ``released`` counts beside the next release
    shown: tuple[NDArray[np.bool_], ...] = ()
    energy: Array | None = None
    objective: float | None = None
    sites: int = 1  # that begin
    bought: bool = False  # the number of patients was the first release
    told: Factors = ()  # (I_n, R) per mode: what the prior says of every column; the marginals where it says nothing
    expected: Factors = ()  # (I_n,) per mode: the prior's marginals
    rival: Factors = ()  # (I_n,) per mode: the marginals as released, without any prior
    random: Factors = ()  # (I_n, R) per mode: the random start, should the prior be refused
    shares: Array | None = None  # (R,) or (R + 1,): the prior's mixture
    spoken: int = 0  # columns that the prior speaks of: the first ones
    pieces: NDArray[np.int64] | None = (
        None  # the prior's phenotype that each of these is a piece of; -1: none that it shows
    )
    taken: bool = False  # the vote was for the prior
    alone: Factors = ()  # (I_n, P) per mode: the prior as it places patients by itself, its background last where it has one
    alone_shares: Array | None = None  # (P,) its mixture
    alone_parts: NDArray[np.int64] | None = None  # (P,) the phenotype that each is a piece of; -1: none
    alone_shown: tuple[NDArray[np.bool_], ...] = ()  # (I_n, phenotypes) per mode: the codes that it shows
    size: int | None = None  # patients, as planned with or as bought
    fine: Factors = ()  # at the end: (I_n, K) the columns that place a patient, before pieces were joined
    fine_mixture: Array | None = None  # (K,) or (K + 1,)
    parts: NDArray[np.int64] | None = None  # (K,) or (K + 1,): the phenotype that each is a piece of; -1: none

    @property
    def noise_sd(self) -> float:
        """Root mean square of the noise over the columns of ``released``."""
        return 0.0 if self.noise is None else float(np.sqrt(np.square(self.noise).mean()))


@dataclass(frozen=True)
class DPEMPrivate:
    """Nothing is carried over: a patient is placed anew in every round."""


def by_mode(sums: Array, like: Sequence[Array]) -> list[Array]:
    """The rows of every mode."""
    return np.split(sums, np.cumsum([len(m) for m in like])[:-1])


def stacked(factors: Factors, marginals: Factors, columns: int) -> Array:
    """(codes of all modes, R or R + 1) factors under one another; the background last where ``columns`` counts it."""
    if factors[0].shape[1] == columns:
        return np.concatenate(factors)
    return np.concatenate([np.column_stack([f, m]) for f, m in zip(factors, marginals)])


def patient_prior(mixture: Array, smoothing: float) -> Array:
    """Prior counts of a patient's memberships: ``smoothing`` per phenotype, shared out by how common each is."""
    out: Array = np.maximum(smoothing * len(mixture) * mixture, 1e-9)
    return out
