"""evaluate: the acts that a model, a study's ``[people]`` and ``[evaluate]`` allow, run as one method; the same list on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from polyclinic.errors import ConfigError
from polyclinic.federation.compose import Ladder
from polyclinic.federation.fold import Outcome as RunOutcome
from polyclinic.federation.fold import run
from polyclinic.findings.act import Act
from polyclinic.findings.carriers import Carriers
from polyclinic.findings.completion import Completion
from polyclinic.findings.outcome import Outcome
from polyclinic.findings.people import People
from polyclinic.findings.placed import Placer, Variable, chosen, outcome_of, variables_of
from polyclinic.findings.survival import Survival
from polyclinic.findings.value import Findings, hidden_counts, outcome_found, survival_found
from polyclinic.tensors.site import Site

__all__ = ["ACTS", "Plan", "evaluate", "findings_of"]

ACTS: Final = ("carriers", "people", "outcome", "survival", "completion", "replicate")
LINES: Final = {
    "carriers": '[evaluate] what = ["carriers"]',
    "people": '[people] age = [0, 50, 70, 120], sex = true and [evaluate] what = ["people"]',
    "outcome": '[people] outcome = "mortality" and [evaluate] what = ["outcome"]',
    "survival": '[people] survival = {time = "days", event = "died"} and [evaluate] what = ["survival"]',
    "completion": '[evaluate] what = ["completion"]',
    "replicate": "[study] replicate = 1",
}


@dataclass(frozen=True)
class Plan:
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

    def acts(self, placer: Placer, halves: Sequence[Placer] = ()) -> list[Act]:
        """The acts, in their order."""
        common: dict[str, Any] = {"model": placer, "key": self.key, "seed": self.seed, "aggregation": self.aggregation}
        covariates = chosen(self.adjust, self.variables)
        out: list[Act] = []
        if "carriers" in self.what:
            out.append(Carriers(**common, support=self.support))
        if "people" in self.what:
            out.append(People(**common, variables=self.variables))
        if "outcome" in self.what:
            out.append(Outcome(**common, covariates=covariates, halves=tuple(halves), baselines=self.baselines))
        if "survival" in self.what:
            out.append(Survival(**common, covariates=covariates, width=self.width, until=self.until))
        if "completion" in self.what:
            group = tuple(halves) if len(halves) == 2 else (placer,)
            out.append(Completion(**common, candidates=(group,)))
        return out


def plan_for(
    sites: Sequence[Site], what: str | Sequence[str] = "all", adjust: Sequence[str] | None = None, **more: Any
) -> Plan:
    """A plan in one process: everything that these sites allow, or what is asked; all faults at once."""
    variables = variables_of(sites)
    can = {
        "carriers": True,
        "people": bool(variables),
        "outcome": any(bool((outcome_of(s) >= 0).any()) for s in sites),
        "survival": any(s.people is not None and s.people.time is not None for s in sites),
        "completion": True,
    }
    if isinstance(what, str) and what != "all":
        what = (what,)
    asked = tuple(a for a in can if can[a]) if what == "all" else tuple(what)
    faults = [f"{a!r} is unknown; known: {', '.join(ACTS)}" for a in asked if a not in ACTS]
    needs = {
        "people": "people=pc.People(...)",
        "outcome": "labels of 0 and 1",
        "survival": "people with time and event",
    }
    faults += [f"{a}: no site has {needs[a]}" for a in asked if not can.get(a, True)]
    if faults:
        raise ConfigError("this cannot be evaluated", faults=faults)
    names = [v.name for v in variables]
    standard = [*(n for n in ("age", "sex") if n in names), "site"]
    missing = {a: LINES[a] for a in ACTS if a not in asked}
    return Plan(asked, variables, tuple(standard if adjust is None else adjust), missing=missing, **more)


def findings_of(plan: Plan, acts: Sequence[Act], publics: Sequence[Any], replicability: Any = None) -> Findings:
    """The value of what the acts summed up."""
    found: dict[str, Any] = {}
    patients = 0
    for act, public in zip(acts, publics, strict=True):
        match act:
            case Carriers():
                patients = int(public.n.sum())
                found["prevalence"] = hidden_counts(act.prevalence(public), patients, plan.minimum)
                found["shown"] = act.shown(public, plan.minimum) if act.params.support else ()
            case People():
                found["people"] = act.table(public, plan.minimum)
            case Outcome():
                found["outcome"] = outcome_found(act, public, plan.outcome, plan.minimum)
                patients = patients or int(public.tally.sum())
            case Survival():
                found["survival"] = survival_found(act, public, plan.minimum)
            case Completion():
                found["completion"] = act.table(public)
    missing = {k: v for k, v in plan.missing.items() if not (k == "replicate" and replicability is not None)}
    return Findings(patients, **found, replicability=replicability, missing=missing)


def evaluate(
    model: Any,
    sites: Sequence[Site],
    *,
    what: str | Sequence[str] = "all",
    adjust: Sequence[str] | None = None,
    privacy: Any = None,
    key: str = "polyclinic",
    halves: Sequence[Any] = (),
    aggregation: str = "plain",
    minimum: int = 11,
    seed: int = 0,
    **options: Any,
) -> Findings:
    """What follows the fit: who has the phenotypes, how they go with the outcome and with time, what they predict.

    Parameters
    ----------
    model
        A fitted phenotype model, or a :class:`~polyclinic.findings.replicate.Replication`: then placing is cross-fitted, too.
    sites
        Hospitals on the model's codes; ``labels`` hold the outcome (0, 1, unknown NaN), ``people`` covariates and times.
    what
        ``"all"`` that the sites allow, or some of carriers, people, outcome, survival, completion.
    adjust
        Covariates of the regressions: names in ``people``, ``"size"`` of the record, ``"site"`` (an intercept that stays at
        the hospital). Default: age, sex and site where they are there.
    key
        Of the halves; public, fixed before the data are read.
    halves
        Models of the two halves, to judge patients by models that did not see them.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=900, seed=0)
    >>> f = pc.evaluate(pc.SumALS(rank=6, rounds=10).fit(sites), sites)
    >>> f.outcome.auc.low < f.outcome.auc.value < f.outcome.auc.high, f.predicts_unseen_codes
    (True, True)
    """
    from polyclinic.findings.replicate import Replication

    table = None
    if isinstance(model, Replication):
        table, halves, model = model.table, model.halves, model.model
    if privacy is not None:
        raise ConfigError(
            "findings with a formal guarantee are not released by evaluate yet",
            hint="leave privacy out: the card of the findings then says 'none'",
        )
    plan = plan_for(sites, what, adjust, key=key, seed=seed, aggregation=aggregation, minimum=minimum)
    acts = plan.acts(Placer.of(model), [Placer.of(h) for h in halves])
    ladder = Ladder(acts, name="evaluate")
    outcome: RunOutcome = run(ladder, sites, **options)
    from dataclasses import replace

    found = findings_of(plan, acts, ladder.publics(outcome.public), table)
    return replace(found, traffic=traffic_of(outcome))


def traffic_of(outcome: RunOutcome) -> dict[str, Any]:
    """Rounds and bytes of the findings."""
    t = outcome.traffic
    return {"rounds": len(outcome.releases), "bytes_up": t.bytes_up, "bytes_down": t.bytes_down}
