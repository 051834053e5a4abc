"""Parameters of latent classes, the public and private states of their fit, and what is known about attacks on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from polyclinic.methods.moments.moments import SummedMoments
from polyclinic.models.mixtures.columns import Array, Layout
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.params import Params


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
        None, description="Explicit start: (k, parameters) profiles, in the order of ``profiles_``."
    )
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")
    min_patients: int = Field(20, ge=1, description="Fewer patients behind the sums of several sites: refused.")
    paid_rounds: int = Field(8, ge=1, le=1000, description="With privacy: rounds (also at most `rounds`).")

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = [*self._column_faults(), *self._start_faults()]
        if self.privacy is not None:
            faults += ["privacy protects patients: level='patient'"] if self.privacy.level != "patient" else []
            faults += ["shares='site' moves other patients' statistics"] if self.shares == "site" else []
            faults += self._secret_faults()
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _column_faults(self) -> list[str]:
        faults = [
            f"kinds: {n} = {k!r} is none of categorical, count, continuous, or a list of at least two levels"
            for n, k in self.kinds.items()
            if k not in ("categorical", "count", "continuous")
            and not (isinstance(k, list | tuple) and len(set(k)) >= 2)
        ]
        return faults + [f"bounds: {n} = {b} is no (low, high)" for n, b in self.bounds.items() if not b[0] < b[1]]

    def _start_faults(self) -> list[str]:
        faults = []
        if (self.weights_init is None) != (self.profiles_init is None):
            faults.append("weights_init and profiles_init are given together")
        if self.profiles_init is not None and len(self.profiles_init) != self.n_components:
            faults.append(f"profiles_init has {len(self.profiles_init)} rows, n_components is {self.n_components}")
        return faults

    def _secret_faults(self) -> list[str]:
        """List levels and limits that would have to be read from the records."""
        faults = []
        for n, k in self.kinds.items():
            if k == "categorical":
                faults.append(f"kinds: {n}: with privacy its levels are public, name them in a list")
            elif k in ("count", "continuous") and n not in self.bounds:
                faults.append(f"bounds: {n}: with privacy its limits are public, give (low, high)")
        return faults


@dataclass(frozen=True)
class ClassPublic:
    """What everybody knows."""

    stage: str
    round: int
    names: tuple[str, ...]
    moments: SummedMoments
    layout: Layout
    weights: Array
    profiles: Array
    binned: bool = False  # profiles are over the bins of the pairwise tables: the first E-step
    bound: float | None = None
    last_round: tuple[float | None, float | None] = (None, None)  # bound and gain of the round just finished
    converged: bool = False
    loglik: float | None = None
    released: Array | None = None  # with privacy: discounted mean of the noisy sums, in natural units
    precision: float = 0.0


@dataclass(frozen=True)
class ClassPrivate:
    """With ``shares="site"``: this site's own shares."""

    weights: Array


FACTS: Final = MethodFacts(
    paper="latent class analysis by sums (this program)",
    formal=True,
    attacks=(
        KnownAttack(
            "sum",
            "exact pairwise tables show a patient who alone has two answers together; sums over several rounds give "
            "equations enough to solve for the records of small sites",
        ),
    ),
    steps={
        "count": StepMeaning("how many patients"),
        "zoom-*": StepMeaning("sums of values and of their distances from the mean, per column"),
        "second-moments": StepMeaning("how values vary, column by column"),
        "levels": StepMeaning(
            "how many of your patients have each level of each column", "a level that one patient has"
        ),
        "pairs": StepMeaning(
            "how many of your patients have two answers together, for every two answers",
            "a patient who alone has two answers together",
        ),
        "statistics": StepMeaning(
            "for each class, how many of your patients belong to it, and the sums of their answers and values",
            "the record of a patient who is nearly a class alone",
        ),
        "score": StepMeaning("how likely your patients are under the model"),
    },
)
