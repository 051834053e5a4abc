"""A study from the fit to its findings as ONE method: the same file runs in a simulation and between hospitals.

The fit (on everybody and, where asked, on two halves) goes first; then the acts take its public outcome as given, over the
same roster, doors and books. Nothing of an engine is needed but to run a method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import make_dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.base import Analysis, NoMemory
from polyclinic.analysis.cohort import CohortFlow
from polyclinic.analysis.completion import Completion
from polyclinic.analysis.findings import Findings
from polyclinic.analysis.link import Link
from polyclinic.analysis.outcome import OutcomeAnalysis
from polyclinic.analysis.pipelines.evaluate import AnalysisPlan, findings_card, findings_of
from polyclinic.analysis.prevalence import Prevalence
from polyclinic.analysis.private.moments import PrivateFindings
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.replication.consensus import Matched, matched
from polyclinic.analysis.replication.private_link import Linked, too_little
from polyclinic.analysis.replication.rank_table import ranks_table
from polyclinic.analysis.replication.replicate import comparable, links, may_join, raw_placer, splits, verdict
from polyclinic.analysis.replication.replicate_fits import ReplicateFits
from polyclinic.analysis.replication.splits import Splits, accepted
from polyclinic.analysis.survival import SurvivalAnalysis
from polyclinic.analysis.table_one import TableOne
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import calibrate, gaussian_epsilon
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card, make_card
from polyclinic.privacy.facts import MethodFacts
from polyclinic.protocol.composition import Parallel, Sequential
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Method, Schema
from polyclinic.protocol.outcome import Outcome as RunOutcome
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp

KINDS: Final[dict[str, type[Analysis]]] = {
    "carriers": Prevalence,
    "people": TableOne,
    "outcome": OutcomeAnalysis,
    "survival": SurvivalAnalysis,
    "completion": Completion,
    "flow": CohortFlow,
}


class StudyPipeline(Sequential):
    """A phenotype method and what follows it.

    Parameters
    ----------
    method
        Of phenotypes, federated; with privacy its epsilon pays for the findings, too (``plan.part`` of mu^2).
    plan
        What is evaluated.
    repeats
        Halvings: 0 fits on everybody only, and nothing is said about what comes back.
    """

    findings_: Findings

    def __init__(self, method: Estimator, plan: AnalysisPlan, repeats: int = 1) -> None:
        if not isinstance(method, Method) or "rank" not in type(method).Params.model_fields:
            raise ConfigError(f"{type(method).__name__} has no phenotypes to evaluate", hint="drop [evaluate]")
        comparable(method)
        self.asked: Privacy | None = method.params.privacy  # of the fit and the findings together
        self.given: Estimator = method
        if self.asked is not None:
            method, plan = shared_out(method, plan)
        self.method: Estimator = method
        self.plan, self.repeats = plan, repeats
        self.linked = Linked(method, plan.key, plan.modes, plan.sites, repeats) if self.asked and repeats else None
        self.rungs = ReplicateFits(method, plan.key, repeats) if self.linked is None else self.linked.rungs
        rank = method.params.rank
        # every other rank is fitted and judged in the same run; none of them is published
        self.others = [ReplicateFits(method.with_params(rank=r), plan.key, repeats) for r in plan.ranks if r != rank]
        tests = 2 * repeats * (1 + len(self.others))
        kinds: list[type[Analysis]] = [k for n, k in KINDS.items() if n in plan.what] + [Link] * tests
        if self.asked is not None:  # one paid act
            kinds = [PrivateFindings]
        public = make_dataclass("ActsPublic", [(f"q{i}", k.Public) for i, k in enumerate(kinds)], frozen=True)
        private = make_dataclass("ActsPrivate", [(f"q{i}", NoMemory) for i, _ in enumerate(kinds)], frozen=True)
        self.several = [self.rungs, *self.others]
        fits = Parallel(self.several, name=method.name) if self.others else self.rungs
        # between the fits and the acts: which columns of a fit are one phenotype
        cut = sum(len(m.groups) for m in self.several) if repeats and self.asked is None else 0
        asks = make_dataclass("CutPublic", [(f"q{i}", Splits.Public) for i in range(cut)], frozen=True)
        keeps = make_dataclass("CutPrivate", [(f"q{i}", NoMemory) for i in range(cut)], frozen=True)
        self.cuts = cut > 0 and bool(may_join(method))
        first: Method = Sequential(fits, self._splits, (asks, keeps)) if self.cuts else self.linked or fits
        super().__init__(first, self._acts, (public, private))
        fitting = method.facts if self.linked is None else self.linked.facts
        follows = () if self.asked is not None and not plan.what else dict.fromkeys(kinds)
        between = (Splits,) if self.cuts else ()
        self.facts = MethodFacts.joined([fitting, *(k.facts for k in (*between, *follows))])  # type: ignore[misc]
        # starts run side by side inside; the whole asks for the whole epsilon
        self.params = method.params.model_copy(update={"n_starts": 1, "privacy": self.asked})
        self._model: Any = None

    # ---- the acts, made of the fit's public outcome

    def _fits(self, public: Any) -> list[list[Any]]:
        """The states of every rank's fits: on everybody, and on the halves."""
        return [m.chosen(getattr(public, f"q{i}") if self.others else public) for i, m in enumerate(self.several)]

    def _of_fits(self, public: Any) -> Any:
        """The fits' own state, whatever follows them before the acts."""
        return public.first if self.cuts or self.linked is not None else public

    def _splits(self, public: Any, setting: Schema) -> Parallel:
        return Parallel(self._cut(public, setting), name="splits")

    def _cut(self, public: Any, setting: Schema | None) -> list[Splits]:
        key, aggregation = self.plan.key, self.method.params.aggregation
        fit_pairs = zip(self.several, self._fits(public))
        return [act for m, fits in fit_pairs for act in splits(fits, m.method, setting, key, aggregation)]

    def _all(self, public: Any) -> list[Matched]:
        """Every rank's fits, columns that are one phenotype joined, matched; the method's own rank first."""
        private = self.asked is not None and self.repeats > 0
        if not self.cuts:
            return [matched(fits, private) for fits in self._fits(self._of_fits(public))]
        acts = self._cut(public.first, None)
        states = Parallel(acts, name="splits").publics(public.second)
        pairs = iter(zip(acts, states))
        grouped = [[(f, *next(pairs)) for f in fits] for fits in self._fits(public.first)]
        return [
            matched(accepted([f for f, _, _ in fits], [a.groups(p) for _, a, p in fits]), private) for fits in grouped
        ]

    def _acts(self, public: Any, setting: Schema) -> Parallel:
        main, *other_fits = self._all(public)
        acts, tests = self._made_of(main, other_fits, setting)
        return Parallel([*acts, *tests], name="evaluate")

    def _made_of(self, found: Matched, rest: Sequence[Matched], setting: Schema) -> tuple[list[Analysis], list[Link]]:
        if self.asked is not None:
            plan = replace(self.plan, what=()) if too_little(found.public) else self.plan
            return plan.acts(self._placer(found.public, setting)), []
        halves = [raw_placer(self.method, p, setting) for p in _halves(found)]
        key, aggregation = self.plan.key, self.method.params.aggregation
        groups = [
            [raw_placer(m.method, p, setting) for p in (_halves(r) or (r.public,))] for m, r in zip(self.others, rest)
        ]
        acts = self.plan.acts(self._placer(found.public, setting), halves, groups)
        tests = links(found.halves, self.method, setting, key, aggregation)
        for m, r in zip(self.others, rest):
            tests += links(r.halves, m.method, setting, key, aggregation)
        return acts, tests

    def _placer(self, public: Any, setting: Schema) -> Projector:
        """Places by the consensus, phenotypes in the order in which the model is published."""
        raw, order = raw_placer(self.method, public, setting), order_of(public)
        return Projector(
            [f[:, order] for f in raw.factors],
            lambda site: raw.placed(site)[:, order],
            raw.weights[order],
            squares=self.method.joins,
            saturation=vars(public).get("saturation"),
        )

    def finalize_site(self, site: Site, private: Any, public: Any) -> Arrays:
        """Memberships on the consensus; they stay at the site."""
        main = self._all(public.first)[0]
        return {"memberships": raw_placer(self.method, main.public, None).loads(site)}

    # ---- results

    def publish(self, outcome: RunOutcome) -> None:
        """The fitted model and the findings from an outcome of any engine."""
        public = outcome.public
        main, *other_fits = self._all(public.first)
        fit = replace(
            outcome,
            public=main.public,
            privates={},
            history=[h for h in outcome.history if h["round"] <= public.rounds],
        )
        self._model = self.method.with_params()
        self._model.publish(fit)
        acts, tests = self._made_of(main, other_fits, outcome.setting)
        states = Parallel([*acts, *tests], name="evaluate").publics(public.second)
        table = None
        sites, test_states, fits_per_rank = len(outcome.setting.sites), states[len(acts) :], 2 * self.repeats
        if tests:
            table = verdict(main, tests[:fits_per_rank], test_states[:fits_per_rank], self._model.order_, sites)
        elif self.linked is not None:
            table = self.linked.table(public.first, self._model.order_, sites)
        findings = findings_of(self.plan, acts, states[: len(acts)], table)
        if other_fits and findings.completion is not None:
            counts: list[int | None] = [findings.replicable]
            for i, r in enumerate(other_fits, start=1):
                part = slice(i * fits_per_rank, (i + 1) * fits_per_rank)
                replicability = (
                    verdict(r, tests[part], test_states[part], order_of(r.public), sites) if fits_per_rank else None
                )
                counts.append(None if replicability is None else sum(bool(x["replicable"]) for x in replicability))
            rank_list = [m.method.params.rank for m in self.several]
            ranks = [
                r if isinstance(r, int) else len(order_of(x.public)) for r, x in zip(rank_list, (main, *other_fits))
            ]
            findings = replace(findings, ranks=ranks_table(findings.completion, ranks, counts))
        if self.asked is not None:
            card = self._cards(outcome, public.rounds)
            findings = replace(findings, privacy_=card if self.plan.what else None)
        self.findings_ = replace(findings, traffic=_cost(outcome, public.rounds))
        self._model.findings_ = self.findings_

    def _cards(self, outcome: RunOutcome, rounds: int) -> Card:
        """The model's card is that of the fit and the findings together; returns the findings' own."""
        self._model.happened_ = replace(self._model.happened_, asked=self.asked)
        self._model.privacy_ = make_card(self.facts, self._model.happened_)
        self._model._conclude()
        findings_run = replace(
            outcome,
            releases=tuple(r for r in outcome.releases if r.step.round > rounds),
            lines=tuple(e for e in outcome.lines if e.charge is not None and e.charge.round > rounds),
        )
        card = findings_card(PrivateFindings.facts, findings_run, self.asked)
        note = f"of the findings alone; with the fit: {self._model.privacy_.headline}"
        return replace(card, claimed=None, reasons=(*card.reasons, note))

    def started(self, public: Any) -> Any:
        """How the fit on everybody started, from the final public state."""
        return self._fits(self._of_fits(public.first))[0][0].start

    @property
    def model_(self) -> Estimator:
        """The fitted model itself."""
        model: Estimator = self._model
        return model

    def with_params(self, **params: object) -> StudyPipeline:
        """The same study with some of the fit's parameters changed."""
        return StudyPipeline(self.given.with_params(**params), self.plan, self.repeats)

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if name.startswith("__") or model is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)


def _halves(found: Matched) -> list[Any]:
    """The two models of the first halving, phenotype by phenotype as they are published."""
    return [found.half(i) for i in range(min(len(found.halves), 2))]


def shared_out(method: Estimator, plan: AnalysisPlan) -> tuple[Estimator, AnalysisPlan]:
    """The method and the plan, each with its part of mu^2: mu_fit^2 + mu_findings^2 = mu^2 of the asked epsilon.

    Where nothing is evaluated the fit has all of it.
    """
    privacy: Privacy = method.params.privacy
    if privacy.level != "patient":
        raise ConfigError(
            f"findings protect patients, and this study asks for level {privacy.level!r}",
            hint='drop [evaluate], or use [method] name = "dpem" with [privacy] level = "patient"',
        )
    if not plan.what:
        return method, replace(plan, privacy=privacy)
    mu = 1.0 / calibrate(privacy.epsilon, privacy.delta)[0]
    epsilon = gaussian_epsilon(mu * math.sqrt(1.0 - plan.part), privacy.delta)
    size = plan.planning_size if plan.planning_size is not None else dict(method.params).get("planning_size")
    fit = method.with_params(privacy=privacy.model_copy(update={"epsilon": epsilon}))
    return fit, replace(plan, privacy=privacy, planning_size=size)


def order_of(public: Any) -> NDArray[np.int64]:
    """The order of a published model's phenotypes: by weight, largest first."""
    norms = cp.normalise(list(public.factors))[1]
    weights = np.sqrt(np.maximum(np.asarray(public.energy), 0.0)) * norms
    return np.argsort(-weights, kind="stable")


def _cost(outcome: RunOutcome, rounds: int) -> dict[str, object]:
    """Rounds of the findings, and the bytes of their rounds."""
    findings_rounds: Sequence[Any] = [h for h in outcome.history if h["round"] > rounds]
    return {
        "rounds": len(findings_rounds),
        "bytes_up": int(sum(h.get("bytes_up") or 0 for h in findings_rounds)),
        "bytes_down": int(sum(h.get("bytes_down") or 0 for h in findings_rounds)),
    }
