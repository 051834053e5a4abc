"""evaluate: the acts that a model, a study's ``[people]`` and ``[evaluate]`` allow, run as one method; the same list on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Unpack

import numpy as np

from polyclinic.analysis.base import Analysis
from polyclinic.analysis.cohort import CohortFlow
from polyclinic.analysis.completion import Completion
from polyclinic.analysis.findings import Findings, hidden_counts, without_background
from polyclinic.analysis.outcome import OutcomeAnalysis
from polyclinic.analysis.outcome_tables import outcome_found
from polyclinic.analysis.prevalence import Prevalence
from polyclinic.analysis.private.findings import paid_findings
from polyclinic.analysis.private.forecast import COLUMNS, spend
from polyclinic.analysis.private.moments import PrivateFindings
from polyclinic.analysis.projection import (
    STANDARD,
    Covariates,
    Projector,
    Variable,
    chosen,
    outcome_of,
    public_variables,
    variables_of,
)
from polyclinic.analysis.survival import SurvivalAnalysis, survival_found
from polyclinic.analysis.table_one import TableOne
from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card, make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.facts import MethodFacts
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.composition import Parallel
from polyclinic.protocol.estimator import Configured
from polyclinic.protocol.loop import RunOptions, run
from polyclinic.protocol.outcome import Outcome as RunOutcome
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.site import Site
from polyclinic.util.table import Table

ACTS: Final = ("carriers", "people", "outcome", "survival", "completion", "replicate")
# what to write for a section that is missing; COLUMN and LEVEL stand for the source's own, which a study does not know
LINES: Final = {
    "carriers": '[evaluate] what = ["carriers"]',
    "people": '[people] columns = {COLUMN = ["LEVEL", "LEVEL"]}',
    "outcome": '[labels] outcome = "COLUMN"',
    "survival": '[people] survival = {time = "COLUMN", event = "COLUMN"}',
    "completion": '[evaluate] what = ["completion"]',
    "replicate": "[study] replicate = 1",
}


NEEDS: Final = {
    "people": "people=pc.People(...)",
    "outcome": "labels of 0 and 1",
    "survival": "people with time and event",
}


@dataclass(frozen=True)
class AnalysisPlan:
    """What is evaluated: public values only, so that every site makes the same acts of it."""

    what: tuple[str, ...]
    variables: tuple[Variable, ...] = ()
    adjust: tuple[str, ...] = ("site",)
    outcome: str = "outcome"
    width: float = 30.0
    until: float = 730.0
    key: str = "polyclinic"
    seed: int = 0
    aggregation: str = "plain"
    baselines: bool = True
    support: bool = True
    minimum: int = 11
    missing: Mapping[str, str] = field(default_factory=dict)
    privacy: Privacy | None = None  # asked for the whole study; then everything is one paid act
    part: float = 1.0  # of its mu^2 that pays for the findings
    max_carried: int = 8
    planning_size: int | None = None
    rate: float = 0.1
    ranks: tuple[int, ...] = ()  # beside the method's own
    modes: int = 2  # kinds of codes, and ...
    sites: int = 3  # ... hospitals: public numbers that decide what can be read under privacy

    def acts(
        self, placer: Projector, halves: Sequence[Projector] = (), others: Sequence[Sequence[Projector]] = ()
    ) -> list[Analysis]:
        """The acts, in their order; ``others``: models of other ranks, of everybody or of two halves."""
        common: dict[str, Any] = {"model": placer, "key": self.key, "seed": self.seed, "aggregation": self.aggregation}
        covariates = chosen(self.adjust, self.variables)
        if noisy(self.privacy):
            return [PrivateFindings(**common, **self._paid(covariates))]
        out: list[Analysis] = []
        if "carriers" in self.what:
            out.append(Prevalence(**common, support=self.support))
        if "people" in self.what:
            out.append(TableOne(**common, variables=self.variables))
        if "outcome" in self.what:
            options = {"covariates": covariates, "halves": tuple(halves), "baselines": self.baselines}
            out.append(OutcomeAnalysis(**common, **options, groups=self.variables))
        if "survival" in self.what:
            out.append(SurvivalAnalysis(**common, covariates=covariates, width=self.width, until=self.until))
        if "completion" in self.what:
            group = tuple(halves) if len(halves) == 2 else (placer,)
            out.append(Completion(**common, candidates=(group, *(tuple(g) for g in others))))
        if "flow" in self.what:
            out.append(CohortFlow(**common))
        return out

    def _paid(self, covariates: Covariates) -> dict[str, object]:
        """Parameters of the paid act; a hospital's own level and the size of records have no bounded row."""
        same = ("privacy", "variables", "max_carried", "planning_size", "rate", "part", "width", "until")
        return {k: getattr(self, k) for k in same} | {
            "what": tuple(a for a in self.what if a not in ("replicate", "flow")),
            "covariates": Covariates(covariates.variables, size=False, site=False),
        }


def plan_for(
    sites: Sequence[Site], what: str | Sequence[str] = "all", adjust: str | Sequence[str] | None = None, **more: Any
) -> AnalysisPlan:
    """A plan in one process: everything that these sites allow, or what is asked; all faults at once."""
    variables = variables_of(sites) if more.get("privacy") is None else public_variables(sites)
    possible = _possible(sites, variables)
    if what == "all":
        what = [a for a, allowed in possible.items() if allowed]
    acts = (what,) if isinstance(what, str) else tuple(what)
    adjust = (adjust,) if isinstance(adjust, str) else adjust
    faults = _act_faults(acts, possible)
    if more.get("privacy") is not None:
        public = (*(v.name for v in STANDARD), "site", "size")
        faults += [
            f"{a!r}: with privacy levels must be public; take them from [people] columns of a study"
            for a in adjust or ()
            if a not in public
        ]
    if faults:
        raise ConfigError("this cannot be evaluated", faults=faults)
    if adjust is None:
        names = [v.name for v in variables]
        adjust = [*(n for n in ("age", "sex") if n in names), "site"]
    missing = {a: NEEDS.get(a, f'what = [..., "{a}"]') for a in ACTS if a not in acts}
    return AnalysisPlan(acts, variables, tuple(adjust), missing=missing, **more)


def _possible(sites: Sequence[Site], variables: Sequence[Variable]) -> dict[str, bool]:
    """Return every act, and whether the data of these sites allow it."""
    return {
        "carriers": True,
        "people": bool(variables),
        "outcome": any(bool((outcome_of(s) >= 0).any()) for s in sites),
        "survival": any(s.people is not None and s.people.time is not None for s in sites),
        "completion": True,
    }


def _act_faults(acts: Sequence[str], possible: Mapping[str, bool]) -> list[str]:
    """Return which acts are unknown, and which the sites lack something for."""
    hints = {a: did_you_mean(str(a), ACTS) for a in acts if a not in ACTS}
    faults = [f"{a!r} is unknown; {n + ' ' if n else ''}known: {', '.join(ACTS)}" for a, n in hints.items()]
    return faults + [f"{a}: no site has {NEEDS[a]}" for a in acts if not possible.get(a, True)]


def findings_of(
    plan: AnalysisPlan, acts: Sequence[Analysis], publics: Sequence[Any], replicability: Any = None
) -> Findings:
    """The value of what the acts summed up."""
    values: dict[str, Any] = {}
    patients, carriers = 0, None
    for act, public in zip(acts, publics, strict=True):
        match act:
            case PrivateFindings():
                private = paid_findings(act, public, plan.outcome, dict(plan.missing))
                return without_background(replace(private, replicability=replicability), act.placer, private.prevalence)
            case Prevalence():
                patients = int(public.n.sum())
                carriers = act.prevalence(public)
                values["prevalence"] = hidden_counts(carriers, patients, plan.minimum)
                values["by_hospital"] = act.by_hospital(public, plan.minimum)
                values["carried"] = tuple(bool(c >= plan.minimum) for c in public.carriers)
                if act.params.support:
                    values |= {"shown": act.shown(public, plan.minimum), "held": act.held(public, plan.minimum)}
            case TableOne():
                values["people"] = act.table(public, plan.minimum)
            case OutcomeAnalysis():
                values["outcome"] = outcome_found(act, public, plan.outcome, plan.minimum)
                patients = patients or int(public.tally.sum())
            case SurvivalAnalysis():
                values["survival"] = survival_found(act, public, plan.minimum)
            case Completion():
                values["completion"] = act.table(public)
            case CohortFlow():
                values |= {"flow": tuple(int(n) for n in public.patients), "fit": act.fit(public)}
    missing = {k: v for k, v in plan.missing.items() if not (k == "replicate" and replicability is not None)}
    findings = Findings(patients, **values, replicability=replicability, missing=missing)
    return without_background(findings, acts[0].placer, carriers) if acts else findings


def evaluate(
    model: object,
    sites: Sequence[Site],
    *,
    what: str | Sequence[str] = "all",
    adjust: str | Sequence[str] | None = None,
    privacy: Privacy | None = None,
    key: str = "polyclinic",
    aggregation: str = "plain",
    minimum: int = 11,
    seed: int = 0,
    max_carried: int = 8,
    planning_size: int | None = None,
    rate: float = 0.1,
    **options: Unpack[RunOptions],
) -> Findings:
    """Evaluate a fitted model: prevalence, association with the outcome and with time, added value.

    Parameters
    ----------
    model
        A fitted phenotype model, or a :class:`~polyclinic.analysis.replication.replicate.Replication`: then the models of its
        halves judge the patients that they did not see, and memberships are cross-fitted, too.
    sites
        Hospitals on the model's codes; ``labels`` hold the outcome (0, 1, unknown NaN), ``people`` covariates and times.
    what
        ``"all"`` that the sites allow, or some of carriers, people, outcome, survival, completion.
    adjust
        Covariates of the regressions: names in ``people``, ``"size"`` of the record, ``"site"`` (an intercept that stays at
        the hospital). Default: age, sex and site where they are there.
    key
        Of the halves; public, fixed before the data are read.
    privacy
        A formal guarantee for all findings together: few sums of bounded rows, with noise; intervals contain it. Covariates
        are then age and sex in their public bands; hospitals have no level of their own.
    max_carried, planning_size, rate
        With privacy: a patient counts for so many phenotypes, the strongest ones. Public guesses of the number of patients (None:
        0.5 % of the budget counts them) and of the share with the outcome. Findings that would be too noisy are skipped and
        cost nothing. :func:`forecast` shows the errors before anything is spent.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=900, seed=0)
    >>> f = pc.evaluate(pc.SumALS(rank=6, rounds=10).fit(sites), sites)
    >>> f.outcome.auc.low < f.outcome.auc.value < f.outcome.auc.high, f.predicts_unseen_codes
    (True, True)
    """
    from polyclinic.analysis.replication.replicate import Replication

    if isinstance(model, Sequence | Site):
        what, hint = type(model).__name__, "give the model first, then the sites: pc.evaluate(model, sites)"
        raise ConfigError(f"evaluate: the first argument is of type {what}, expected a fitted model", hint=hint)
    sites = given_sites(sites)
    table, halves = None, tuple[Projector, ...]()
    if isinstance(model, Replication):
        table, halves, model = model.table, model.halves, model.model
    settings = {"key": key, "seed": seed, "aggregation": aggregation, "minimum": minimum}
    if noisy(privacy):
        settings |= {"privacy": privacy, "max_carried": max_carried, "planning_size": planning_size, "rate": rate}
    plan = plan_for(sites, what, adjust, **settings)
    acts = plan.acts(Projector.of(model), [Projector.of(h) for h in halves])
    ladder = Parallel(acts, name="evaluate")
    outcome: RunOutcome = run(ladder, sites, **options)
    findings = findings_of(plan, acts, ladder.publics(outcome.public), table)
    card = findings_card(ladder.facts, outcome, privacy, model)
    return replace(findings, traffic=traffic_of(outcome), privacy_=card)


def forecast(
    model: object,
    privacy: Privacy,
    *,
    what: Sequence[str] = ("carriers", "people", "outcome", "survival", "completion"),
    people: PeopleRule | None = None,
    planning_size: int | None = None,
    rate: float = 0.1,
    max_carried: int = 8,
    sites: int = 3,
    aggregation: str = "masked",
) -> Table:
    """Forecast the errors of findings with a formal guarantee. Nothing is read or spent.

    Parameters
    ----------
    model
        A fitted phenotype model, or how many phenotypes it will have.
    people
        A study's ``[people]``; default: age in three bands, and sex.
    planning_size
        Public guess of the number of patients; None: a table for several.

    Examples
    --------
    >>> import polyclinic as pc
    >>> t = pc.forecast(10, pc.Privacy(1.0), planning_size=33_653)
    >>> dict(zip(t["figure"], t["bought"]))["outcome"], round(t["error_95"][0], 2)
    ('yes', 0.15)
    """
    placer = empty_placer(model) if isinstance(model, int) else model
    variables = STANDARD if people is None else variables_of((), people)
    plan = AnalysisPlan(
        tuple(what),
        variables,
        tuple(v.name for v in variables),
        aggregation=aggregation,
        privacy=privacy,
        max_carried=max_carried,
        planning_size=planning_size,
        rate=rate,
    )
    act = plan.acts(Projector.of(placer))[0]
    assert isinstance(act, PrivateFindings)
    return forecast_of(act, sites)


def empty_placer(rank: int) -> Projector:
    """Of so many phenotypes and no patient: what a forecast needs of a model."""
    return Projector([np.ones((1, rank))], lambda site: np.zeros((site.patients, rank)))


def forecast_of(act: PrivateFindings, sites: int) -> Table:
    """The error of every figure before anything is spent: at the planning size, else at several."""
    request = act.asked(sites)
    sizes = (1_000, 3_000, 10_000, 30_000, 100_000) if request.size is None else (int(request.size),)
    rows = [[n, *row] for n in sizes for row in spend(request, n).table().rows]
    return Table(["patients", *COLUMNS], rows)


def findings_card(facts: MethodFacts, outcome: RunOutcome, asked: Privacy | None, model: object = None) -> Card:
    """The card of the findings, with what the model itself cost: both are released, so both count."""
    happened = ReleaseHistory.of(
        "evaluate",
        outcome.releases,
        entries=outcome.lines,
        axes=outcome.setting.axes,
        asked=asked,
        noise=outcome.noise,
        books=outcome.books,
        certified=outcome.certified,
        sites=outcome.setting.sites,
        overlap=outcome.setting.overlap,
    )
    card = make_card(facts, happened)
    fit = vars(model).get("privacy_") if isinstance(model, Configured) else None
    if asked is None or fit is None:
        return card
    note = f"of the findings alone; the model that they speak of: {fit.headline}"
    return replace(card, reasons=(*card.reasons, note))


def traffic_of(outcome: RunOutcome) -> dict[str, object]:
    """Rounds and bytes of the findings."""
    t = outcome.traffic
    return {"rounds": len(outcome.releases), "bytes_up": t.bytes_up, "bytes_down": t.bytes_down}
