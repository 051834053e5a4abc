"""What DPEM can be told, and what it refuses before anything is sent."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_serializer, field_validator, model_validator

from polyclinic.methods.dpem.prior import Prior
from polyclinic.methods.rounds.factorization import FactorParams


class DPEMParams(FactorParams):
    """Parameters of DPEM."""

    rank: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=10_000, description="Phenotypes looked for (R); more than there are, the rest is pruned."
    )
    rounds: int | None = Field(None, ge=1, le=1000, description="Rounds; None: by the public rule.")  # type: ignore[assignment]
    planning_size: int | None = Field(
        None,
        ge=1,
        description="Public guess of the number of patients, for the rule; None: 0.5 % of the budget counts.",
    )
    background: bool = Field(True, description="A component for what everybody has, fixed to the marginals.")
    smoothing: float = Field(
        0.05, gt=0, le=100, description="Prior counts per phenotype of a patient; 1 where patients have few events."
    )
    regroup: bool | None = Field(
        None,
        description="After rounds 4, 6 and 8 join pieces and split heavy phenotypes (no cost); None: with privacy.",
    )
    anneal: bool | None = Field(
        None, description="Without privacy, from 20 rounds: begin with blurred phenotypes; None: as prune says."
    )
    prune: bool = Field(
        True, description="Show no phenotypes that the noise explains, show those found in pieces as one."
    )
    fdr: float = Field(0.01, gt=0, lt=1, description="False-discovery rate of the codes that are shown.")
    prior: Prior | None = Field(
        None,
        description="A fitted model that the fit uses as far as the data agree: public, or charged to its own budget.",
    )
    prior_is_public: bool = Field(
        False, description="The prior's patients need no protection: it was learned from public data."
    )

    @field_validator("prior", mode="before")
    @classmethod
    def _prior(cls, value: object) -> object:
        return value if value is None or isinstance(value, Prior) else Prior.of(value)

    @field_serializer("prior")
    def _told(self, value: Prior | None) -> str | None:
        return None if value is None else repr(value)

    @model_validator(mode="after")
    def _payable(self) -> Self:
        if self.privacy is not None and self.n_starts > 1:
            raise ValueError(
                f"n_starts = {self.n_starts} with privacy: every start and their comparison cost budget. "
                "use n_starts = 1 and a rank above what you expect"
            )
        if self.privacy is not None and self.privacy.level != "patient":
            raise ValueError(f"DPEM protects patients; level {self.privacy.level!r} belongs to DPFact and LocalTF")
        if self.prior is not None and self.regroup:
            raise ValueError("regroup = True with a prior: columns that are joined and split are no longer the prior's")
        if self.prior is None and self.prior_is_public:
            raise ValueError("prior_is_public = True without a prior")
        hindered = "" if self.prior is None or self.privacy is None else self.prior.hindrance(self.prior_is_public)
        if hindered:
            raise ValueError(hindered)
        return self
