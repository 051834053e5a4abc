"""A study from its files to its run folder, in this process: sites, policies, ledgers, engine, figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyclinic import datasets
from polyclinic.alignment import align, align_by_ring
from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.analysis.simulated.attrition import attrition
from polyclinic.analysis.simulated.presence import MINIMUM
from polyclinic.config import Study
from polyclinic.config.study import GENERATORS
from polyclinic.errors import ConfigError, LedgerError, PolicyRefusal
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.plugins import next_door, plugged
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.owner_rules import payers_of, policy_of
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import kind_of
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.databases.attrition import shared
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.records.sites.small_sites import Gathered, gather
from polyclinic.studies.analyses import as_begun, folds_of, refused, replication_words, run_acts
from polyclinic.studies.code_pairs import record
from polyclinic.studies.owners import door_in_process, owners_of
from polyclinic.studies.publish import publish
from polyclinic.studies.run_folder import RunFolder
from polyclinic.tensors.matching import factor_match_score
from polyclinic.util.threads import one_thread

LIMIT = 2**40  # a checkpoint is not a message: it stays on this disk


class Checkpoints(Protocol):
    """Where checkpoints go; a run folder is one."""

    def checkpoints(self) -> list[Path]: ...
    def write_checkpoint(self, number: int, data: bytes) -> Path: ...


def simulate(
    method: Method,
    sites: Sequence[Site],
    *,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    threads: int = 2,
    doors: Mapping[str, ReleaseGate] | None = None,
    quorum: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run a method over sites in this process.

    The result depends neither on ``threads`` nor on the order of ``sites``. With ``checkpoints``, the state is written
    at the end of every round, so an interruption at any instant leaves a folder that ``resume`` finishes to the same model.
    """
    with one_thread(), ThreadPoolExecutor(max(1, threads)) as pool:
        fold = Simulation(
            method, sites, doors=doors, quorum=quorum, progress=progress, each=pool.map if threads > 1 else map
        )
        if resume:
            found = checkpoints.checkpoints() if checkpoints is not None else []
            if not found:
                raise ConfigError(
                    "nothing to resume: no checkpoint is in the folder", hint="start the run without --resume"
                )
            fold.restore(wire.decode(found[-1].read_bytes(), limit=LIMIT))
        rounds = len(fold.history)
        while fold.advance():
            if checkpoints is not None and len(fold.history) > rounds:
                rounds = len(fold.history)
                checkpoints.write_checkpoint(fold.history[-1]["round"], wire.encode(fold.state(), limit=LIMIT))
        return fold.outcome()


SMALL = MINIMUM  # patients of a site, where no policy says otherwise: of fewer nothing could be shown


def sites_of(study: Study) -> Sites:
    """The hospitals of a simulation: generated, or read from their node files; on common codes, small ones gathered."""
    return gathered(study).sites


def gathered(study: Study) -> Gathered:
    """The hospitals of a simulation, and what became of those too small to take part alone (``[sites] small``)."""
    if study.data is not None:
        return Gathered(_generated(study), 1)
    from polyclinic.records.ingest import read_sites

    found = read_sites(study)
    secret = study.tensor is not None and study.tensor.alignment == "ring"
    aligned = align_by_ring(found) if secret else align(found)
    asked = study.sites
    if asked is None or (asked.small is None and not asked.split):
        alone = Sites(aligned, attrition=found.attrition)
        alone.periods = found.periods
        return Gathered(alone, 1, steps=found.steps)  # each site's own policy decides
    nodes = study.nodes()
    said = [p.min_patients for p in map(policy_of, nodes) if "min_patients" in p.model_fields_set]
    least = asked.min_patients or max(said, default=SMALL)  # what no owner wrote is no policy
    made = gather(aligned, least, asked.small or "merge", same_people=bool(asked.split) and len(nodes) <= 1)
    made.sites.attrition, made.sites.periods = found.attrition, found.periods
    return replace(made, steps=found.steps)


def _generated(study: Study) -> Sites:
    assert study.data is not None
    name = study.data.dataset
    if name not in GENERATORS and name not in plugged("polyclinic.datasets"):  # next door, and not installed
        raise ConfigError(f"data.dataset {name!r} is not here", hint=next_door(name))
    load = getattr(datasets, name)
    seed = {"seed": study.seed} if "seed" in signature(load).parameters else {}  # open data have none
    try:
        made = load(**seed, **study.data.parameters)
    except TypeError as e:
        raise ConfigError(f"data: wrong parameters of {study.data.dataset}", faults=[str(e)]) from None
    _check_people(study, made)
    return align(made)


def _check_people(study: Study, sites: Sequence[Site]) -> None:
    """Refuse a ``[people]`` column that no site has. Only the column's existence is checked, never its values."""
    if study.people is None:
        return
    known = {c for s in sites if s.people is not None for c in s.people.columns}
    timed = any(s.people is not None and s.people.time is not None for s in sites)
    follow = study.people.survival
    times = {follow.time, follow.event} if follow is not None and timed else set()
    faults = [f"people: no site has a column {c!r}" for c in study.people.names if c not in known | times]
    if faults:
        has = ", ".join(sorted(known)) or "none"
        raise ConfigError("[people] names columns that the data do not have", faults=faults, hint=f"columns: {has}")


def run_study(
    study: Study,
    method: Any,
    folder: RunFolder,
    *,
    sites: Sequence[Site] | None = None,
    resume: bool = False,
    threads: int = 2,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, object]:
    """Run a study and write its folder; returns what ``metrics.json`` holds.

    Every simulated site has its own ledger in the folder, and its node's policy where it has one; a refusal comes before
    anything is computed.
    """
    if resume:
        began = folder.read_json(folder.study)
        if began["study"] != json.loads(json.dumps(study.to_json())):
            raise ConfigError(
                f"{folder.path} holds a run of another study than {study.name!r} as it is now",
                hint="resume with the same study file, or choose another --out",
            )
        method = as_begun(study, method, began)
    who = gathered(study) if sites is None else Gathered(Sites(sites, truth_of(sites)), 1)
    if isinstance(method, Method):
        _few_left(who, str(method.params.aggregation))
    head = _head(study, method, who)
    folder.write_json(folder.study, head)

    def follow(event: Progress) -> None:
        folder.append_progress({"kind": event.kind, "round": event.round, "rounds": event.rounds, **event.figures})
        if progress is not None:
            progress(event)

    if isinstance(method, StudyPipeline):
        method.plan = replace(method.plan, minimum=least_shown(study))
        policies = {n.name: policy_of(n) for n in study.nodes()}
        refused(policies, method.plan.what)
        for k, s in enumerate(who.sites):
            if s.name in policies:
                who.sites[k] = replace(s, counted=policies[s.name].by_hospital)
    model = _fitted(study, method, who, folder, resume, threads, follow)
    if who.steps:
        folder.write_json(folder.path / "attrition.json", attrition(who.steps, minimum=least_shown(study)))
    return publish(folder, model, head, minimum=least_shown(study), local=who.sites)


def _head(study: Study, method: object, who: Gathered) -> dict[str, object]:
    """What is known of a study before anything is computed."""
    head = {
        "study": study.to_json(),
        "sites": sorted(s.name for s in who.sites),
        "replication": replication_words(study),
        "halvings": folds_of(method),
        "evaluated": isinstance(method, StudyPipeline) and bool(method.plan.what),
        "versions": RunFolder.manifest(),
    }
    if study.tensor is not None and (pairs := record(study, sites_of)):
        head["code_pairs"] = pairs
    if who.joined or who.skipped:
        head["small"] = who.to_json()
    if who.sites.attrition and not noisy(study.privacy):
        head |= _shown_flow(who, study)
    return head


def _fitted(
    study: Study,
    method: Any,
    who: Gathered,
    folder: RunFolder,
    resume: bool,
    threads: int,
    follow: Callable[[Progress], None],
) -> Any:
    if isinstance(method, Method):
        return _federated(study, method, who.sites, folder, resume, threads, follow, who.joined)
    model: Any = method.fit(who.sites, progress=follow)
    asked = study.evaluate is not None or not noisy(study.privacy)
    if asked and isinstance(vars(model).get("result_"), Phenotypes):
        model.findings_ = run_acts(study, model, who.sites, minimum=least_shown(study))
    return model


def _few_left(who: Gathered, aggregation: str) -> None:
    """A masked sum needs three sites: where joining left fewer, say what became of the others."""
    n = len(who.sites)
    if aggregation != "masked" or n >= 3 or not (who.joined or who.skipped):
        return
    faults = [f"{name!r} was made of {', '.join(map(repr, of))}" for name, of in who.joined.items()]
    faults += [f"{name!r} was left out" for name in who.skipped]
    raise ConfigError(
        f"{n} site{'s are' if n != 1 else ' is'} left of units with fewer than {who.minimum} patients; a masked sum needs 3",
        faults=faults,
        hint="divide by another column ([sites] split), lower [sites] min_patients, or [method] aggregation = 'plain'",
    )


def _shown_flow(who: Gathered, study: Study) -> dict[str, object]:
    """Who is left after each step of the protocol, to those who take part."""
    *steps, last = who.sites.attrition
    least = study.rule().minimum_patients
    told = f"these are codes of {least} patients or more" if least > 1 else "have codes together"
    flow = (
        *steps,
        replace(last, step=f"{told}, at a site that takes part", patients=sum(s.patients for s in who.sites)),
    )
    return {"attrition": shared(flow, least_shown(study))}


def _federated(
    study: Study,
    method: Any,
    sites: Sequence[Site],
    folder: RunFolder,
    resume: bool,
    threads: int,
    follow: Callable[[Progress], None],
    joined: Mapping[str, Sequence[str]],
) -> Any:
    owners = owners_of(study, sites, joined)
    starts = method.params.starts
    best: Any = None
    found: list[Estimator] = []
    doors: dict[str, ReleaseGate] = {}
    for k in range(starts):
        run = method if starts == 1 else method.with_params(seed=method.params.seed + k, n_starts=1)
        place = folder if starts == 1 else RunFolder.create(folder.path / "starts" / str(k), resume=True)
        doors = {}
        for s in sites:
            doors[s.name] = door_in_process(
                s.name,
                study.name,
                folder.ledgers,
                [_in_process(p) for p in payers_of(owners, s.name, _run_id(folder))],
                store=folder.path / "sites" / s.name / "releases" / str(k),
                run=f"{_run_id(folder)}-{k}-{s.name}",
            )
        _admitted(study, method, doors, sites, resume)
        run.publish(
            simulate(
                run,
                sites,
                checkpoints=place,
                resume=resume and bool(place.checkpoints()),
                threads=threads,
                doors=doors,
                quorum=study.study.quorum,
                progress=follow,
            )
        )
        for d in doors.values():
            d.close()
        if best is None or (vars(run).get("objective_") or np.inf) < (vars(best).get("objective_") or np.inf):
            best = run
        found.append(run)
    if starts > 1:
        best.chosen_from([m for m in found if m is not best])
    if starts > 1 and isinstance(
        best.result_, Phenotypes
    ):  # how alike the starts are: the mean factor match to the chosen one
        best.stability_ = float(
            np.mean([factor_match_score(m.result_.factors, best.result_.factors) for m in found if m is not best])
        )
    model = best.model_ if isinstance(best, StudyPipeline) else best
    value = vars(model).get("result_")
    if value is not None:  # the heads of the books that paid, real owners' too: theirs are not in the run folder
        ends = ((n, d.ledger.head) for n, d in sorted(doors.items()))  # parts of one node have one book
        model.result_ = value.with_origin(receipts={h.site or n: asdict(h) for n, h in ends})
    return model


def _admitted(
    study: Study, method: Method, doors: Mapping[str, ReleaseGate], sites: Sequence[Site], resume: bool
) -> None:
    """Ask every owner's policy; all refusals at once, before anything is computed."""
    refusals: list[PolicyRefusal] = []
    for s in sites:
        try:
            doors[s.name].admit(
                study.name,
                method.name,
                method.params.privacy,
                [x.name for x in sites],
                s.patients,
                aggregation=method.params.aggregation,
                resume=resume,
                margin=kind_of(method.params.aggregation).margin,
            )
        except LedgerError:
            raise
        except PolicyRefusal as e:
            refusals.append(e)
    for d in doors.values() if refusals and not resume else ():
        d.give_back("another site does not take part")
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        raise PolicyRefusal(
            f"{len(refusals)} of {len(sites)} sites do not take part in study {study.name!r}; nothing was computed",
            faults=[f"{e.what}: {f}" for e in refusals for f in (e.faults or ("",))],
            hint=refusals[0].hint,
        )


def _run_id(folder: RunFolder) -> str:
    """A name of this run folder that no other has: two runs of a study are two runs in the owner's book."""
    from secrets import token_hex

    file = folder.path / "run.id"
    if not file.exists():
        file.write_text(token_hex(16))
    return file.read_text().strip()


def _in_process(payer: BudgetHolder) -> BudgetHolder:
    """The owner's rules in one process: nothing leaves it, so nobody waits for a review or for more sites."""
    policy = payer.policy
    return (
        payer if policy is None else replace(payer, policy=policy.model_copy(update={"review": "none", "min_sites": 1}))
    )


def least_shown(study: Study) -> int:
    """The strictest owner's limit of a count that is shown."""
    return max([MINIMUM, *(policy_of(n).min_cell for n in study.nodes())])
