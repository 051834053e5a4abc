"""Parameters of Topics, and what everybody and each hospital knows during a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import psi

from polyclinic.methods.rounds.factorization import FactorParams
from polyclinic.methods.starts.pairs import PairsPublic
from polyclinic.methods.starts.saved import Saved
from polyclinic.methods.topics.guides import Guides

Array = NDArray[np.float64]


class TopicsParams(FactorParams):
    """Parameters of Topics."""

    rank: int | Literal["auto"] = Field(  # type: ignore[assignment]
        "auto", description='Number of columns (R); "auto": what two halves of the patients confirm, plus one.'
    )
    rounds: int = Field(20, ge=1, le=100_000, description="Rounds at most.")
    tol: float = Field(1e-3, ge=0, description="Stop when the bound changes by less than this share; 0: all rounds.")
    n_starts: int = Field(
        1, ge=1, le=20, description="Starts that are compared on held-out codes: the spectral one and random ones."
    )
    balance: float = Field(
        0.5, ge=0, le=1, description="How far modes with many events are weighted down: 0 not at all, 1 to the median."
    )
    start: Saved | None = Field(
        None, description="A fitted or saved model to start from; None: the matrix of codes that occur together."
    )
    guides: Guides | None = Field(
        None, description="Codes that guide a column: {name: [code, ...]}. Guided columns come first."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        faults = [] if self.nonnegative else ["shares are never negative: nonnegative=True"]
        faults += ["a code that a patient lacks is a zero: zeros='observed'"] if self.zeros == "missing" else []
        faults += ["no noise is added: privacy=None (pc.DPEM is formal)"] if self.privacy is not None else []
        faults += ["one model is given to start from: n_starts=1"] if self.start and self.n_starts > 1 else []
        if self.rank != "auto" and not max(1, len(self.guides or {})) <= self.rank <= 10_000:
            faults.append("rank is at least 1, at least the number of guides, and at most 10,000")
        if faults:
            raise ValueError("; ".join(faults))
        return self


@dataclass(frozen=True, kw_only=True)
class TopicsPublic:
    """What everybody sees: expected counts (codes, R) and their prior, and alpha."""

    stage: str = "codes"
    round: int = 0
    shape: tuple[int, ...]
    pairs: PairsPublic
    blocks: tuple[int, ...]  # codes of the modes that stand side by side
    sites: int = 1
    guided: tuple[NDArray[np.int64], ...] = ()  # per guide the stacked codes
    given: Array | None = None  # columns of the model to start from
    people: float = 0.0
    volumes: Array  # (modes,) damped events
    counts: Array
    prior: Array
    alpha: Array
    candidates: tuple[Array, ...] = ()
    objective: float | None = None
    energy: Array | None = None

    @property
    def rank(self) -> int:
        return int(self.counts.shape[1])

    @property
    def events(self) -> float:
        """Damped events of all patients: the unit of scores on the wire."""
        return max(float(self.volumes.sum()), 1.0)

    def by_mode(self, stacked: Array) -> list[Array]:
        return np.split(stacked, np.cumsum(self.blocks)[:-1])

    @property
    def factors(self) -> tuple[Array, ...]:
        """Per axis (codes, R); the columns of every mode are on the simplex."""
        simplex = np.concatenate([c / np.maximum(c.sum(0), 1e-300) for c in self.by_mode(self.counts)])
        return tuple(np.split(simplex, np.cumsum(self.shape)[:-1]))

    def with_factors(self, factors: Sequence[Array], energy: Array | None, columns: NDArray[np.int64]) -> Self:
        """The same state with other factors, each with the counts and the prior of the column that it stands for (-1: mean)."""
        mass = [m.sum(0) for m in self.by_mode(self.counts)]
        sizes = np.repeat([np.where(columns >= 0, m[columns], m.mean()) for m in mass], self.blocks, axis=0)
        alpha = np.where(columns >= 0, self.alpha[columns], self.alpha.mean())
        prior = np.where(columns >= 0, self.prior[:, columns], self.prior.mean())
        return replace(self, counts=np.concatenate(factors) * sizes, prior=prior, alpha=alpha, energy=energy)

    @property
    def columns(self) -> Array:
        """(codes, R) exp E log phi under Dirichlet(prior + counts), mode by mode."""
        return np.concatenate([np.exp(psi(x) - psi(x.sum(0))) for x in self.by_mode(self.prior + self.counts)])

    def weights(self, balance: float) -> Array:
        """(codes,) at most 1: modes with more events than the median one are weighted down."""
        volumes = np.maximum(self.volumes, 1e-300)
        out: Array = np.repeat(np.minimum(1.0, (np.median(volumes) / volumes) ** balance), self.blocks)
        return out

    def balanced(self, balance: float) -> float:
        """Events of all patients, weighted."""
        return float(self.volumes @ self.weights(balance)[np.cumsum(self.blocks) - 1])


@dataclass(frozen=True)
class TopicsPrivate:
    """gamma (patients, R) stays."""

    gamma: Array
