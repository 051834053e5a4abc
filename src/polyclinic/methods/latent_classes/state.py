"""What latent classes are told, and the public and private states of their fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from polyclinic.methods.moments.moments import SummedMoments
from polyclinic.models.mixtures.columns import Array, Layout
from polyclinic.protocol.params import Params

__all__ = ["ClassPrivate", "ClassPublic", "LatentClassParams"]


class LatentClassParams(Params):
    """Parameters of the latent class model."""

    n_components: int = Field(2, ge=1, le=1000, description="Number of classes k.")
    kinds: dict[str, object] = Field(
        default_factory=dict,
        description='Column -> "categorical", "count", "continuous", or the list of its levels; others by their values.',
    )
    bounds: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="With privacy: column -> public (low, high) of counts and measurements; values are clipped to it.",
    )
    tol: float = Field(1e-7, ge=0, description="Stop when the mean log-likelihood gains less; 0 = run all rounds.")
    rounds: int = Field(500, ge=1, le=100_000, description="EM rounds at most.")
    shares: Literal["together", "site"] = Field(
        "together", description="Shares of the classes: one for all sites, or every site its own (they stay there)."
    )
    smoothing: float = Field(0.0, ge=0, description="Patients of the average kind that are added to every class.")
    reg_covar: float = Field(1e-6, ge=0, description="Added to variances.")
    weights_init: tuple[float, ...] | None = Field(None, description="Explicit start: shares (k,).")
    profiles_init: tuple[tuple[float, ...], ...] | None = Field(
        None, description="Explicit start: (k, parameters) profiles, column by column, as in result_.profiles."
    )
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")
    min_patients: int = Field(20, ge=1, description="Fewer patients behind the sums of several sites: refused.")
    paid_rounds: int = Field(8, ge=1, le=1000, description="With privacy: rounds (also at most `rounds`).")

    @model_validator(mode="after")
    def _together(self) -> Self:
        faults = [
            f"kinds: {n} = {k!r} is none of categorical, count, continuous, or a list of at least two levels"
            for n, k in self.kinds.items()
            if k not in ("categorical", "count", "continuous")
            and not (isinstance(k, list | tuple) and len(set(k)) >= 2)
        ]
        faults += [f"bounds: {n} = {b} is no (low, high)" for n, b in self.bounds.items() if not b[0] < b[1]]
        if (self.weights_init is None) != (self.profiles_init is None):
            faults.append("weights_init and profiles_init are given together")
        if self.profiles_init is not None and len(self.profiles_init) != self.n_components:
            faults.append(f"profiles_init has {len(self.profiles_init)} rows, n_components is {self.n_components}")
        if self.privacy is not None:
            faults += ["privacy protects patients: level='patient'"] if self.privacy.level != "patient" else []
            faults += ["shares='site' moves other patients' statistics"] if self.shares == "site" else []
            for n, k in self.kinds.items():
                if k == "categorical":
                    faults.append(f"kinds: {n}: with privacy its levels are public, name them in a list")
                elif k in ("count", "continuous") and n not in self.bounds:
                    faults.append(f"bounds: {n}: with privacy its limits are public, give (low, high)")
        if faults:
            raise ValueError("; ".join(faults))
        return self


@dataclass(frozen=True)
class ClassPublic:
    """What everybody knows."""

    stage: Literal["moments", "levels", "pairs", "em", "score", "end"]
    round: int
    names: tuple[str, ...]
    moments: SummedMoments
    layout: Layout
    weights: Array
    profiles: Array
    binned: bool = False  # profiles are over the bins of the pairwise tables: the first E-step
    bound: float | None = None
    told: tuple[float | None, float | None] = (None, None)
    converged: bool = False
    loglik: float | None = None
    released: Array | None = None  # with privacy: discounted mean of the noisy sums, in natural units
    precision: float = 0.0


@dataclass(frozen=True)
class ClassPrivate:
    """With ``shares="site"``: this site's own shares."""

    weights: Array
