"""What every phenotype method shares: its parameters, and what its public state has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.protocol.interfaces import Method, Pri
from polyclinic.protocol.params import Parameterized, Params

Array = NDArray[np.float64]


class FactorParams(Params):
    """Parameters of every phenotype model."""

    rank: int = Field(10, ge=1, le=10_000, description="Number of phenotypes (R).")
    nonnegative: bool = Field(True, description="Weights of codes and memberships are never negative.")
    zeros: Literal["observed", "missing"] = Field(
        "observed", description="Absent entries are zeros of the model (observed), or unknown (missing; ERRATA E0.4)."
    )
    n_starts: int = Field(1, ge=1, le=1000, description="Random starts; the best one is kept.")


class WeightedParams(FactorParams):
    """Parameters of the least-squares methods, where a patient counts by the square of the record."""

    removed: ClassVar[Mapping[str, str]] = {
        "loss": "least squares is the only loss. For counts or presence use pc.Topics, or pc.DPEM without privacy for a few "
        "hundred patients"
    }
    weighting: Literal["saturating", "none"] = Field(
        "saturating",
        description="How much a patient weighs: it grows with the record and saturates, so that no few patients make the "
        "phenotypes; or not at all (none; always with variant='paper', zeros='missing' and privacy of level 'entry').",
    )
    saturation: float | None = Field(
        None, gt=0, description="n0, the squared size at which half of the weight is reached; None: from two sums."
    )

    @model_validator(mode="after")
    def _as_printed(self) -> Self:
        # The papers weigh every count as it is, and their noise is scaled to counts.
        # Where absent cells are unknown, a model speaks of the values themselves, cell by cell.
        entry = self.privacy is not None and self.privacy.level == "entry"
        if self.variant == "paper" or entry or self.zeros == "missing":
            object.__setattr__(self, "weighting", "none")
        return self

    @property
    def estimates(self) -> bool:
        """Whether n0 has to be asked from the sites."""
        return self.weighting == "saturating" and self.saturation is None

    @property
    def public_saturation(self) -> float | None:
        """n0 as far as it is known before anybody is asked; None also where patients are not weighted."""
        return self.saturation if self.weighting == "saturating" else None


FP = TypeVar("FP", bound=FactorParams)


def power_of_two(size: float) -> float:
    """The next power of two: a unit by which floats are divided and multiplied without rounding.

    >>> power_of_two(1000.0), power_of_two(0.0)
    (1024.0, 1.0)
    """
    return float(2.0 ** np.ceil(np.log2(size))) if size > 0 else 1.0


class FactorPublic(Protocol):
    """What the public state of every factorization has: a method that lacks a field is a type error, not a crash in ``fit``."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]

    @property
    def factors(self) -> tuple[Array, ...]: ...
    @property
    def energy(self) -> Array | None: ...
    @property
    def objective(self) -> float | None: ...


FPub = TypeVar("FPub", bound=FactorPublic)


class FederatedFactorization(Parameterized[FP], Method[FP, FPub, Pri]):
    """A method that learns phenotypes by sums.

    Its public state has ``factors`` (tuple of feature factors), ``energy`` (R,) or None, and ``objective``; its
    ``finalize_site`` gives ``{"memberships": ...}``. Whoever fits it in one process wants its estimator
    (:mod:`polyclinic.methods.phenotypes`).
    """

    Public: ClassVar[type[FactorPublic]]
    whole_only: ClassVar[str] = ""  # why a study does not fit it on halves of the patients, too; empty: it does
