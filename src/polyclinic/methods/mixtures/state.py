"""Parameters of a Gaussian mixture, its public state, and what is known about attacks on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from polyclinic.methods.moments.moments import SummedMoments
from polyclinic.models.mixtures.gaussian import Array, CovarianceType, Mixture
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.params import Params

Nested = Annotated[Any, BeforeValidator(lambda v: _nested(v))]


def _nested(value: object) -> object:
    """Arrays as tuples of tuples: plain, comparable, and the same in TOML."""
    if value is None or isinstance(value, float | int | tuple):
        return value
    if isinstance(value, np.ndarray | list):
        return tuple(_nested(v) for v in (value.tolist() if isinstance(value, np.ndarray) else value))
    return value


class MixtureParams(Params):
    """Parameters of the mixture."""

    n_components: int = Field(1, ge=1, le=10_000, description="Number of groups c.")
    covariance_type: CovarianceType = Field("full", description="Shape of a group: full, tied, diag or spherical.")
    tol: float = Field(1e-5, ge=0, description="Stop when the mean log-likelihood gains less; 0 = run all rounds.")
    reg_covar: float = Field(1e-6, ge=0, description="Added to variances, keeps covariances positive definite.")
    n_starts: int = Field(1, ge=1, le=1000, description="Starts; the one with the best likelihood is kept.")
    start: Literal["votes", "box"] = Field(
        "votes", description="k-means++ on summed votes for public points, or public points alone."
    )
    weights_init: Nested = Field(None, description="Explicit start: shares (k,).")
    means_init: Nested = Field(None, description="Explicit start: centres (k, d).")
    precisions_init: Nested = Field(None, description="Explicit start: inverse covariances, shaped by covariance_type.")
    radius: float | None = Field(
        None, gt=0, description="Public: no |value| exceeds it (1e6). With privacy: ball that records are clipped to."
    )
    center: Nested = Field(None, description="With privacy: public centre of that ball; default 0.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")
    min_patients: int = Field(20, ge=1, description="Fewer patients behind the sums of several sites: refused.")
    paid_rounds: int = Field(8, ge=1, le=1000, description="With privacy: rounds (also at most `rounds`).")
    start_share: float = Field(0.2, gt=0, lt=1, description="With privacy: part of the budget for the noisy start.")

    @model_validator(mode="after")
    def _check_start(self) -> MixtureParams:
        k, weights = self.n_components, self.weights_init
        if self.means_init is None and (weights is not None or self.precisions_init is not None):
            raise ValueError("weights_init and precisions_init need means_init")
        if self.means_init is not None and np.shape(self.means_init)[:1] != (k,):
            raise ValueError(f"means_init has {np.shape(self.means_init)[:1]} rows, n_components is {k}")
        if weights is not None and (np.shape(weights) != (k,) or abs(sum(weights) - 1) > 1e-6 or min(weights) < 0):
            raise ValueError("weights_init must be n_components shares that sum to 1")
        return self

    @model_validator(mode="after")
    def _check_privacy(self) -> MixtureParams:
        if self.privacy is not None and self.privacy.level != "patient":
            raise ValueError("a mixture is private at the level of patients only: level='patient'")
        if self.privacy is not None and self.radius is None:
            raise ValueError("privacy needs radius: a public bound on the length of a record around center")
        return self

    @property
    def asks_start(self) -> bool:
        """Whether patients are asked where to start: by votes or, with privacy, by a noisy histogram."""
        return self.start == "votes" and self.means_init is None


@dataclass(frozen=True)
class MixturePublic:
    """What everybody knows; with privacy, records and mixture are in units of the public ball."""

    stage: str
    round: int  # EM rounds over all starts
    start: int
    iteration: int  # of this start
    moments: SummedMoments
    votes: Array
    mixture: Mixture
    bound: float | None = None  # mean log-likelihood of the mixture that entered the last round
    # bound, gain and start of the round just finished
    last_round: tuple[float | None, float | None, int] = None, None, 0
    converged: bool = False
    reseeded: int = 0
    best: Mixture | None = None
    best_bound: float | None = None
    best_iterations: int = 0
    best_converged: bool = False
    loglik: float | None = None  # of the final mixture, summed
    basis: Array | None = None  # with privacy: (d, m) directions of the histogram
    frame: Array | None = None  # (2, m) its centre and half-width


SUMS: Final = "for each group, how many of your patients belong to it, and the sums of their values and squares"
FACTS: Final = MethodFacts(
    paper="privacy-preserving EM by distributed optimisation",
    formal=True,
    attacks=(
        KnownAttack(
            "sum",
            "exact sums over several rounds give equations enough to solve for the records of small sites",
        ),
    ),
    steps={
        "count": StepMeaning("how many patients, and how many have each value"),
        "zoom-*": StepMeaning("sums of values and of their distances from the mean, per feature"),
        "second-moments": StepMeaning("how features vary together"),
        "votes": StepMeaning("to which of some public points your patients are nearest, as counts"),
        "lloyd-*": StepMeaning("sums of values by the nearest centre", "a patient who alone is near a centre"),
        "statistics": StepMeaning(SUMS, "the record of a patient who is nearly a group alone"),
        "score": StepMeaning("how likely your patients are under the model"),
        "moments": StepMeaning("mean and spread of the records, each patient at most 1"),
        "coarse": StepMeaning("how many of your patients lie in each box of a public grid"),
        "fine": StepMeaning("how many of your patients lie in each box of a finer grid"),
    },
)
