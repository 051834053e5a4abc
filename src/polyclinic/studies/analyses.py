"""What follows the fit of a study, for every engine: the plan of its acts, the fit with its acts as one method, and acts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from polyclinic.analysis.findings import Findings
from polyclinic.analysis.pipelines.evaluate import (
    ACTS,
    LINES,
    AnalysisPlan,
    empty_placer,
    findings_card,
    findings_of,
    forecast_of,
    traffic_of,
)
from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.analysis.private.moments import PrivateFindings
from polyclinic.analysis.projection import Projector, variables_of
from polyclinic.config import Study
from polyclinic.config.evaluate import EvaluateRule
from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.guarantee import noisy
from polyclinic.privacy.policy.policy import Policy
from polyclinic.protocol.composition import Parallel
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.loop import run
from polyclinic.records.sites.site import Site
from polyclinic.studies.halvings import evaluated, halvings
from polyclinic.util.table import Table

PERSONS: Final = (
    "eicu",
    "fhir",
    "meds",
    "mimic3",
    "mimic4",
    "omop",
    "synpuf",
)  # kinds of sources with age, sex and death


def plan_of(study: Study, *, outcome: str | None = None, minimum: int = 11, aggregation: str = "plain") -> AnalysisPlan:
    """The acts that a study asks for; all faults at once, before anything is read.

    Everything in it is public and follows from the study alone, so that every site makes the same acts.
    """
    rule = study.evaluate or EvaluateRule()
    variables = variables_of((), study.people) if study.people is not None else ()
    what = _asked(study, rule, variables)
    names = [v.name for v in variables]
    adjust = (*names, "site") if rule.adjust is None else tuple(rule.adjust)
    faults = [f"evaluate.adjust: {a!r} is not in [people]" for a in adjust if a not in (*names, "site", "size")]
    faults = [*_impossible(study, rule, variables), *faults, *_rank_faults(study, rule, what)]
    if faults:
        raise ConfigError(f"study {study.name!r} cannot be evaluated as it says", faults=faults)
    follow = None if study.people is None else study.people.survival
    described = study.labels or study.data
    halved = halvings(study)
    absent = [a for a in ACTS if a not in what and (a != "replicate" or (halved.can and not halved.number))]
    possible = _possible(study, variables)
    missing = {a: f'[evaluate] what = [..., "{a}"]' if possible.get(a) else lines_of(study).get(a, "") for a in absent}
    return AnalysisPlan(
        what,
        variables,
        adjust,
        outcome or ("outcome" if described is None else described.words()),
        30.0 if follow is None else follow.width,
        730.0 if follow is None else follow.end,
        study.study.key or study.name,
        study.seed,
        aggregation,
        rule.baselines,
        rule.support,
        minimum,
        missing,
        ranks=tuple(sorted(set(rule.ranks))),
        modes=2 if study.tensor is None else len(study.tensor.axes),
        sites=max(len(study.nodes()), 3),
        **({} if study.evaluate is None or not noisy(study.privacy) else _priced(rule)),
    )


def lines_of(study: Study) -> dict[str, str]:
    """The lines of a study file that add the sections it lacks, only with keys and columns that its own sources have."""
    lines = {a: line for a, line in LINES.items() if "COLUMN" not in line}
    if study.data is not None and study.data.dataset == "icu_network":
        people = "[data] people = true, [people]"
        survival = f'{people} survival = {{time = "days", event = "died"}}'
        return lines | {"people": f"{people} age = [0, 50, 70, 120], sex = true", "survival": survival}
    sources = [n.source for n in (*study.nodes(), study.inline()) if n is not None]
    keys = {"age": "age = [0, 50, 70, 120]", "sex": "sex = true"}
    known = [k for k in keys if sources and all(s.kind in PERSONS or k in s.columns for s in sources)]
    if known:
        lines["people"] = f"[people] {', '.join(keys[k] for k in known)}"
    if sources and {s.kind for s in sources} <= {*PERSONS} - {"fhir", "meds"}:
        lines["outcome"] = '[labels] outcome = "mortality"'
    return lines


def _possible(study: Study, variables: Sequence[object]) -> dict[str, bool]:
    """Which analyses the data of a study allow."""
    return {
        "carriers": True,
        "people": bool(variables),
        "outcome": study.labels is not None or study.data is not None,  # generated patients have an outcome
        "survival": study.people is not None and study.people.survival is not None,
        "completion": True,
    }


def _asked(study: Study, rule: EvaluateRule, variables: Sequence[object]) -> tuple[str, ...]:
    possible = _possible(study, variables)
    acts = tuple(a for a in ACTS if possible.get(a) and (rule.what is None or a in rule.what))
    return (*acts, "flow") if acts and not noisy(study.privacy) else acts


def _impossible(study: Study, rule: EvaluateRule, variables: Sequence[object]) -> list[str]:
    possible = _possible(study, variables)
    return [f"evaluate.what: {a} needs {LINES[a]}" for a in rule.what or () if not possible.get(a, True)]


def _rank_faults(study: Study, rule: EvaluateRule, what: Sequence[str]) -> list[str]:
    if not rule.ranks:
        return []
    faults = [f"evaluate.ranks: {r} is no rank" for r in rule.ranks if r < 1]
    faults += ["evaluate.ranks: with [privacy] each rank would have to be paid for"] if study.privacy else []
    return faults + ([] if "completion" in what else ["evaluate.ranks needs completion in evaluate.what"])


def _priced(rule: EvaluateRule) -> dict[str, Any]:
    """What a study says of findings that are paid for; the epsilon is the method's."""
    return {"part": rule.share, "max_carried": rule.max_carried, "planning_size": rule.planning_size, "rate": rule.rate}


def acts_of(study: Study) -> tuple[str, ...]:
    """Return what follows the fit of a study, by name."""
    return plan_of(study).what if evaluated(study) else ()


def refused(policies: Mapping[str, Policy], what: Sequence[str]) -> None:
    """Refuse acts that an owner did not name: outcome and survival must be, where methods are named at all."""
    faults = []
    for site, policy in policies.items():
        named = None if policy.methods is None else {m.lower() for m in policy.methods}
        bad = [a for a in ("outcome", "survival") if a in what and named is not None and a not in named]
        faults += [f"site {site!r}: {a} is not among the allowed methods" for a in bad]
    if faults:
        raise PolicyRefusal(
            "not every owner allows what would follow the fit; nothing was computed",
            faults=faults,
            hint="leave it out of [evaluate] what, or ask the owner to name it in [policy] methods",
        )


def whole(study: Study, method: Estimator) -> StudyPipeline:
    """A study's method with everything that follows it, as one method."""
    plan = plan_of(study, aggregation=method.params.aggregation)
    if not evaluated(study):  # what replicates, and nothing else: no patient is counted
        plan = replace(plan, what=(), missing={a: lines_of(study).get(a, "") for a in ACTS if a != "replicate"})
    return StudyPipeline(method, plan, halvings(study).number)


def replication_words(study: Study) -> str:
    """On how many halves a study is fitted, at what cost, and with a formal guarantee whether it asks what holds together."""
    halved = halvings(study)
    if not noisy(study.privacy) or not halved.number:
        return halved.words
    from polyclinic.studies.registry import make

    made = make(study)
    asks = made.linked.words if isinstance(made, StudyPipeline) and made.linked is not None else ""
    return f"{halved.words}; {asks}" if asks else halved.words


def folds_of(method: object) -> int:
    """On how many halvings a method is fitted."""
    return method.repeats if isinstance(method, StudyPipeline) else 0


def as_begun(study: Study, method: Any, began: Mapping[str, Any]) -> Any:
    """Return the method with the halvings and analyses of an interrupted run, whatever this version would choose."""
    number, counts = int(began["halvings"]), bool(began.get("evaluated", study.evaluate is not None))
    same = study.study.replicate is not None or number == folds_of(method)
    if (same and counts == evaluated(study)) or not isinstance(method, Method):
        return method
    from polyclinic.studies.registry import make

    rule = study.evaluate if counts else EvaluateRule(what=())
    begun = {"study": study.study.model_copy(update={"replicate": number}), "evaluate": rule}
    return make(study.model_copy(update=begun))


def forecast_for(study: Study, model: object = None) -> Table:
    """How far off a study's findings will be under its epsilon, before anything is read: of its own fit, or of a stored model."""
    if not noisy(study.privacy):
        raise ConfigError(f"study {study.name!r} has no [privacy]: its findings are exact", hint="drop --plan")
    plan = plan_of(
        study, aggregation=str(study.chosen().parameters.get("aggregation", "plain")) if study.method else "plain"
    )
    rank = study.chosen().parameters.get("rank") if model is None else None
    privacy = Privacy(**study.privacy.model_dump(exclude_none=True))
    said = plan.planning_size or (study.chosen().parameters.get("planning_size") if study.method else None)
    plan = replace(plan, privacy=privacy, planning_size=said, part=plan.part if model is None else 1.0)
    placer = empty_placer(int(rank or 30)) if model is None else Projector.of(model)
    act = plan.acts(placer)[0]
    assert isinstance(act, PrivateFindings)
    return forecast_of(act, max(len(study.nodes()), 3))


def run_acts(
    study: Study,
    model: object,
    sites: Sequence[Site],
    *,
    halves: Sequence[object] = (),
    doors: Mapping[str, ReleaseGate] | None = None,
    aggregation: str = "plain",
    minimum: int = 11,
) -> Findings:
    """Acts alone, of a model that is there: of a central method, or stored. With ``[privacy]`` all of it pays for them."""
    plan = plan_of(study, minimum=minimum, aggregation=aggregation)
    if noisy(study.privacy):
        plan = replace(plan, privacy=Privacy(**study.privacy.model_dump(exclude_none=True)), part=1.0)
    acts = plan.acts(Projector.of(model), [Projector.of(h) for h in halves])
    ladder = Parallel(acts, name="evaluate")
    outcome = run(ladder, sites, doors=doors)
    found = findings_of(plan, acts, ladder.publics(outcome.public))
    card = findings_card(ladder.facts, outcome, plan.privacy, model)
    return replace(found, traffic=traffic_of(outcome), privacy_=card)
