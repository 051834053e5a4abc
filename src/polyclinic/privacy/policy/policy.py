"""What the owner of the data allows: section ``[policy]`` of ``node.toml``; it never leaves the site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from polyclinic.config.evaluate import PeopleRule, SurvivalRule
from polyclinic.privacy.accounting.accountant import Event, Gaussian, calibrate
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.ledger.balance import Balance, cost
from polyclinic.privacy.policy.differencing import exposed

# limits of exact survival tables between hosts: any column may be named as the time, a number of the patient too
STEP: Final = 30.0  # days
STEPS: Final = 60


@dataclass(frozen=True)
class StudyRequest:
    """What a study asks of a site.

    Attributes
    ----------
    study, method, privacy
        Its names, and the privacy it asks for.
    sites, patients
        How many sites take part, and how many patients are here.
    order
        The run it would charge.
    resume
        It was admitted before and goes on: what it spent is not counted twice.
    margin
        Part of the price that is set aside for what the aggregation leaks.
    """

    study: str
    method: str
    privacy: Privacy | None
    sites: int
    patients: int
    order: str = ""
    resume: bool = False
    margin: float = 0.0


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
        None,
        gt=0,
        description="Patient-level epsilon of a cohort over all studies. Default between hosts: 20 where neither is written (not in a "
        "rehearsal).",
    )
    delta: float = Field(
        1e-6, gt=0, lt=1, description="Delta at which both are computed; a study may not ask for more."
    )
    min_patients: int = Field(
        1,
        ge=0,
        description="Exact studies only: with fewer patients the site does not take part. Default between hosts: min_cell "
        "(not in a rehearsal). A formal study never counts patients: the answer would depend on one of them.",
    )
    min_cell: int = Field(11, ge=1, description="Counts from 1 to one less are not shown in any report.")
    min_sites: int = Field(1, ge=1, description="Fewer sites than this: the site does not take part.")
    min_feeders: int = Field(
        1,
        ge=1,
        le=2,
        description="2: this site's patients take no part in exact sums, between hosts, of codes that no other site's patients have "
        "(such a sum is this site's alone).",
    )
    review: Literal["none", "names", "each"] = Field(
        "none",
        description="Which releases wait for the owner: none, the first of every step's name, or each. "
        "Not said: 'names' between hosts where a person accepts studies (not in a rehearsal, nor with [keys] studies = 'policy').",
    )
    cohorts: tuple[str, ...] = Field(
        (), description="SQL files of cohorts that may run here; a study names one by its digest."
    )
    sums: tuple[str, ...] = Field(
        ("masked",),
        description="Ways to add that exact studies between hosts may use. Default: secure aggregation alone. "
        "'plain' shows the coordinator this site's part, 'gather' allows steps that show a contribution by itself. 'counts' shows how "
        "many of this hospital's patients have each phenotype and the outcome. Counts from 1 to min_cell - 1 stay hidden.",
    )
    max_exact: int | None = Field(
        None,
        ge=0,
        description="Exact studies between hosts, and exact evaluations, a year, at most. Each may reveal one thing about a patient by "
        "whether it runs. 0: nothing leaves without a proven patient-level bound. Default: 12, and 0 where an epsilon is limited.",
    )
    cuts: tuple[float, ...] = Field(
        (0, 18, 30, 40, 50, 60, 70, 80, 90, 120),
        description="Ages at which exact tables between hosts may divide patients. Other cuts would single patients out.",
    )
    cohorts_disjoint: bool = Field(
        False, description="Have the cohorts no patient in common? Then each has a budget of its own."
    )

    @property
    def allows_unproven(self) -> bool:
        """Whether a release without a proven patient-level bound may leave."""
        return self.exact_a_year > 0

    @property
    def exact_a_year(self) -> int:
        """How many exact studies a year may be asked."""
        return (0 if self.limited else 12) if self.max_exact is None else self.max_exact

    @property
    def by_hospital(self) -> int:
        """Smallest count of this hospital alone that may leave; 0: none may."""
        return self.min_cell if "counts" in self.sums else 0

    @property
    def limited(self) -> bool:
        """Whether the owner limits what patients may pay."""
        return self.max_epsilon_per_study is not None or self.max_epsilon_total is not None

    def study_faults(
        self, tally: Balance, asked: StudyRequest, cohort: str = "all", beside: tuple[str, ...] = ()
    ) -> list[str]:
        """Why this study may not run here; empty if it may."""
        faults = []
        if self.methods is not None and asked.method.lower() not in {m.lower() for m in self.methods}:
            faults.append(f"method {asked.method!r} is not among the allowed ones: {', '.join(self.methods) or 'none'}")
        if asked.patients < self.min_patients:  # the number itself may be sensitive, and this text may leave
            faults.append(f"fewer than {self.min_patients} patients")
        if asked.sites < self.min_sites:
            faults.append(f"{asked.sites} site(s), at least {self.min_sites} are asked for")
        return faults + self._privacy_faults(tally, asked, cohort, beside)

    def _privacy_faults(self, tally: Balance, asked: StudyRequest, cohort: str, beside: tuple[str, ...]) -> list[str]:
        privacy = asked.privacy
        if privacy is None or privacy.level != "patient":
            level = "no privacy" if privacy is None else "entry-level privacy, which is heuristic and not per patient"
            fault = f"the study asks for {level}; this site releases only with a patient-level bound"
            return [] if self.allows_unproven else [fault]
        faults = []
        if privacy.delta > self.delta:
            faults.append(f"delta {privacy.delta:g} is larger than the {self.delta:g} allowed")
        if asked.resume or asked.order in tally.open:  # what it may charge was set aside before
            return faults
        mu2 = cost(price(privacy, asked.margin))
        return faults + self.budget_faults(
            tally, mu2, study=asked.study, cohort=cohort, order=asked.order, margin=asked.margin, beside=beside
        )

    def exact_faults(self, tally: Balance, order: str, since: str) -> list[str]:
        """Why one more exact study may not be asked, after those since a time; the same order again is no other one."""
        number_asked = sum(when >= since for when in tally.exact.values())
        if order in tally.exact or number_asked < self.exact_a_year:
            return []
        return [f"{number_asked} exact studies were asked here within a year, and the owner allows {self.exact_a_year}"]

    def way_faults(self, aggregation: str, people: PeopleRule | None) -> list[str]:
        """Why an exact study may not add in this way, or divide patients so finely."""
        faults = []
        if aggregation not in self.sums:
            faults.append(
                f"its sums are exact and {aggregation!r}; [policy] sums allows {', '.join(self.sums) or 'none'}"
            )
        if people is None:
            return faults
        if other_ages := [f"{a:g}" for a in people.age if a not in self.cuts]:
            faults.append(f"its exact tables cut ages at {', '.join(other_ages)}; [policy] cuts does not list that")
        return faults + _curve_faults(people.survival)

    def repeat_faults(
        self, tally: Balance, sites: Sequence[str], cohort: str, willing: Sequence[str] = ()
    ) -> list[str]:
        """Why an exact secure sum over these sites may not be taken, after those in this ledger, whatever they counted.

        Whom a study selects is the coordinator's choice, so it does not tell two sums apart. ``willing`` sites have signed that
        their own part may be computed by subtraction: it counts as known, and must not give away another one.
        """
        one_cohort = not self.cohorts_disjoint
        lists = [
            [s for s in of if s not in willing] for _, label, of, _ in tally.counted if one_cohort or label == cohort
        ]
        if not (exposed_sites := exposed(lists, [s for s in sites if s not in willing])):
            return []
        reason = f"exact sums over other sites were taken here before: with one over these {len(sites)} they give away the part of "
        return [reason + " and ".join(map(repr, exposed_sites))]

    def charge_faults(self, tally: Balance, charge: Charge, *, beside: tuple[str, ...] = ()) -> list[str]:
        """Why this release may not leave; empty if it may. A reservation that covers it was checked when it was made."""
        faults = []
        if charge.how == "gather" and "gather" not in self.sums:
            faults.append(f"step {charge.step!r} shows the contribution by itself (how = 'gather'), not in a sum")
        if not (charge.formal and charge.adjacency == "patient"):
            if not self.allows_unproven:
                faults.append(f"step {charge.step!r} has no proven patient-level bound")
            return faults
        if faults or tally.covers(charge):
            return faults
        return self.budget_faults(
            tally, cost([charge.event]), study=charge.study, cohort=charge.cohort, order=charge.run, beside=beside
        )

    def budget_faults(
        self,
        tally: Balance,
        more: float,
        *,
        study: str,
        cohort: str,
        order: str = "",
        margin: float = 0.0,
        beside: tuple[str, ...] = (),
    ) -> list[str]:
        """Which limits ``more`` (of mu^2) would exceed, beside what is spent and what other orders have set aside.

        A budget belongs to the patients: another cohort's label is no second one, unless the owner says that cohorts have
        no patient in common (``cohorts_disjoint``). ``margin``: the part of ``more`` that the way to add leaks on top, for the words;
        ``beside``: cohorts of this run whose patients are others.
        """
        scope = (
            cohort if self.cohorts_disjoint and not beside else None
        )  # parts of a node are no cohorts of its owner's
        faults = []
        for limit, name, of in (
            (self.max_epsilon_per_study, f"study {study!r}", study),
            (self.max_epsilon_total, f"cohort {cohort!r}, all studies", None),
        ):
            if limit is None:
                continue
            spent, after = (
                tally.epsilon(self.delta, study=of, cohort=scope, apart=order, part=cohort, beside=beside, more=x)
                for x in (0.0, more)
            )
            if after > limit * (1 + 1e-9):
                faults.append(
                    f"{name}: patient-level epsilon {spent:.4g} spent or reserved, with this study {after:.4g}, allowed {limit:g} "
                    f"(delta {self.delta:g})" + (f", with {margin:.0%} for what the way to add leaks" if margin else "")
                )
        return faults


def _curve_faults(curve: SurvivalRule | None) -> list[str]:
    if curve is None or (curve.width >= STEP and curve.end <= STEPS * STEP):
        return []
    allowed = f"allowed are steps of {STEP:g} days or more, for {STEPS * STEP:g} days at most"
    return [
        f"its exact curves follow {curve.end:g} days in steps of {curve.width:g}; {allowed}: finer ones single out patients"
    ]


def price(privacy: Privacy | None, margin: float = 0.0) -> tuple[Event, ...]:
    """What a study that asks for this may charge at most, with a margin (of ``mu^2``) for leaks; () without a patient-level bound."""
    if privacy is None or privacy.level != "patient":
        return ()
    return (Gaussian(calibrate(privacy.epsilon, privacy.delta)[0] / math.sqrt(1 + margin)),)
