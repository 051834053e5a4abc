"""What the owner of the data allows: section ``[policy]`` of ``node.toml``; it never leaves the site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from polyclinic.errors import DataError
from polyclinic.privacy.accountant import Event, Gaussian, calibrate
from polyclinic.privacy.budget import Privacy
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.release import Step

__all__ = ["Policy", "effective_contributors", "suppress"]


class Policy(BaseModel):
    """The owner's rules. Everything is checked before a value is computed, and again before each release.

    Examples
    --------
    >>> Policy(methods=("dpem",), max_epsilon_total=4).allows_unproven
    False
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...] | None = Field(None, description="Methods that may run here; none named = all.")
    max_epsilon_per_study: float | None = Field(
        None, gt=0, description="Patient-level epsilon of one study, re-runs included."
    )
    max_epsilon_total: float | None = Field(
        None, gt=0, description="Patient-level epsilon of a cohort over all studies."
    )
    delta: float = Field(
        1e-6, gt=0, lt=1, description="Delta at which both are computed; a study may not ask for more."
    )
    min_patients: int = Field(1, ge=0, description="Fewer patients than this: the site does not take part.")
    min_cell: int = Field(11, ge=1, description="Counts from 1 to one less are not shown in any report.")
    min_sites: int = Field(1, ge=1, description="Fewer sites than this: the site does not take part.")
    review: Literal["none", "first", "each"] = Field(
        "none", description="Which releases wait for the owner's approval."
    )
    allow_gather: bool = Field(False, description="May a contribution be shown by itself, not only in a sum?")
    allow_unproven: bool | None = Field(
        None,
        description="May releases without a proven patient-level bound leave? Default: only if no epsilon limit is set.",
    )

    @property
    def allows_unproven(self) -> bool:
        """Whether a release without a proven patient-level bound may leave."""
        if self.allow_unproven is not None:
            return self.allow_unproven
        return self.max_epsilon_per_study is None and self.max_epsilon_total is None

    def study_faults(
        self,
        ledger: Ledger,
        *,
        study: str,
        method: str,
        privacy: Privacy | None,
        sites: int,
        patients: int,
        cohort: str = "all",
        resume: bool = False,
    ) -> list[str]:
        """Why this study may not run here; empty if it may."""
        faults = []
        if self.methods is not None and method.lower() not in {m.lower() for m in self.methods}:
            faults.append(f"method {method!r} is not among the allowed ones: {', '.join(self.methods) or 'none'}")
        if patients < self.min_patients:  # the number itself may be sensitive, and this text may leave
            faults.append(f"fewer than {self.min_patients} patients")
        if sites < self.min_sites:
            faults.append(f"{sites} site(s), at least {self.min_sites} are asked for")
        if privacy is None or privacy.level != "patient":
            if not self.allows_unproven:
                what = (
                    "no privacy" if privacy is None else "entry-level privacy, which is heuristic and not per patient"
                )
                faults.append(f"the study asks for {what}; this site releases only with a patient-level bound")
            return faults
        if privacy.delta > self.delta:
            faults.append(f"delta {privacy.delta:g} is larger than the {self.delta:g} allowed")
        planned = [] if resume else [Gaussian(calibrate(privacy.epsilon, privacy.delta)[0])]
        return faults + self.budget_faults(ledger, planned, study=study, cohort=cohort)

    def step_faults(
        self, ledger: Ledger, step: Step, events: Sequence[Event], *, study: str, cohort: str, proven: bool
    ) -> list[str]:
        """Why this release may not leave; empty if it may."""
        faults = []
        if step.how == "gather" and not self.allow_gather:
            faults.append(f"step {step.name!r} shows the contribution by itself (how = 'gather'), not in a sum")
        if not proven:
            if not self.allows_unproven:
                faults.append(f"step {step.name!r} has no proven patient-level bound")
            return faults
        return faults + self.budget_faults(ledger, events, study=study, cohort=cohort)

    def budget_faults(self, ledger: Ledger, more: Sequence[Event], *, study: str, cohort: str) -> list[str]:
        """Which limits would be exceeded by ``more``; patient-level, at the policy's delta."""
        faults = []
        for limit, name, of in (
            (self.max_epsilon_per_study, f"study {study!r}", study),
            (self.max_epsilon_total, f"cohort {cohort!r}, all studies", None),
        ):
            if limit is None:
                continue
            spent = ledger.epsilon(self.delta, study=of, cohort=cohort, bounded=True)
            after = ledger.epsilon(self.delta, study=of, cohort=cohort, bounded=True, more=more)
            if after > limit * (1 + 1e-9):
                faults.append(
                    f"{name}: patient-level epsilon {spent:.4g} spent, would be {after:.4g}, allowed {limit:g} "
                    f"(delta {self.delta:g})"
                )
        return faults


def suppress(counts: ArrayLike, *, minimum: int = 11) -> NDArray[np.bool_]:
    """Which cells of a table of counts must not be shown, complementary ones included.

    A count from 1 to ``minimum`` - 1 is hidden. Where totals of rows and columns are shown, one hidden cell in a line
    could be computed from the rest, and so could several that together stay below ``minimum``; then the smallest
    other cell of that line is hidden too, until no line gives one away (PRIVACY 3.8).

    Parameters
    ----------
    counts
        One line of counts, or a table (rows, columns), without its totals.

    Returns
    -------
    array of bool
        Shape of the table plus one in each direction: the last row and column are the totals. True = hide.

    Examples
    --------
    >>> suppress([50, 4, 30]).tolist()  # 4 is small; 30 would give it away
    [False, True, True, False]
    """
    table = np.atleast_2d(np.asarray(counts))
    line = np.ndim(counts) == 1
    if np.ndim(counts) not in (1, 2) or (table.size and (not np.isfinite(table).all() or (table < 0).any())):
        raise DataError("counts must be a line or a table of numbers that are not negative")
    full = np.zeros((table.shape[0] + 1, table.shape[1] + 1))
    full[:-1, :-1] = table
    full[:-1, -1] = table.sum(1)
    full[-1] = full[:-1].sum(0)
    hide = (full > 0) & (full < minimum)
    while True:
        for values, hidden in [*zip(full, hide), *(() if line else zip(full.T, hide.T))]:
            open_ = np.flatnonzero(~hidden)
            if not hidden.any() or not open_.size or (hidden.sum() > 1 and values[hidden].sum() >= minimum):
                continue
            # zeros say nothing by being hidden; the smallest count above zero does least harm
            order = sorted(open_.tolist(), key=lambda i: (values[i] == 0, values[i], i))
            hidden[order[0]] = True
            break
        else:
            return hide[0] if line else hide


def effective_contributors(weights: ArrayLike) -> NDArray[np.float64]:
    """How many patients really carry each phenotype: (sum w)^2 / sum w^2 over patients (PRIVACY 3.8).

    Below the minimum cell count a phenotype that is not differentially private describes single patients.

    Parameters
    ----------
    weights
        (patients, R) memberships.

    Returns
    -------
    array
        (R,) effective numbers; 0 where nobody carries it.

    Examples
    --------
    >>> effective_contributors([[1.0, 9.0], [1.0, 0.0], [1.0, 0.0]]).tolist()
    [3.0, 1.0]
    """
    w = np.abs(np.asarray(weights, np.float64))
    square = (w**2).sum(0)
    return np.asarray(np.where(square > 0, w.sum(0) ** 2 / np.where(square > 0, square, 1.0), 0.0))
