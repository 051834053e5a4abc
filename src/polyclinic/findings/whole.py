"""A study from the fit to its findings as ONE method: the same file runs in a simulation and between hospitals.

The fit (on everybody and, where asked, on two halves) goes first; then the acts take its public outcome as given, over the
same roster, doors and books. Nothing of an engine is needed but to run a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.federation.compose import Ladder, Then
from polyclinic.federation.fold import Outcome as RunOutcome
from polyclinic.federation.protocol import Arrays, Method, Setting
from polyclinic.findings.act import Act, Nothing
from polyclinic.findings.carriers import Carriers
from polyclinic.findings.completion import Completion
from polyclinic.findings.evaluate import Plan, findings_of
from polyclinic.findings.link import Link
from polyclinic.findings.outcome import Outcome
from polyclinic.findings.people import People
from polyclinic.findings.placed import Placer
from polyclinic.findings.replicate import Matched, Rungs, links, matched, raw_placer, verdict
from polyclinic.findings.survival import Survival
from polyclinic.findings.value import Findings
from polyclinic.privacy.facts import MethodFacts
from polyclinic.tensors import cp
from polyclinic.tensors.site import Site

__all__ = ["Whole"]

KINDS: Final[dict[str, type[Act]]] = {
    "carriers": Carriers,
    "people": People,
    "outcome": Outcome,
    "survival": Survival,
    "completion": Completion,
}


class Whole(Then):
    """A phenotype method and what follows it.

    Parameters
    ----------
    method
        Of phenotypes, federated, without a formal guarantee.
    plan
        What is evaluated.
    folds
        Halvings: 0 fits on everybody only, and nothing is said about what comes back.
    """

    findings_: Findings

    def __init__(self, method: Any, plan: Plan, folds: int = 1) -> None:
        if not isinstance(method, Method) or "rank" not in type(method).Params.model_fields:
            raise ConfigError(f"{type(method).__name__} has no phenotypes to evaluate", hint="drop [evaluate]")
        if method.params.privacy is not None:
            raise ConfigError(
                "findings beside a formal guarantee would have to be paid for, and are not built yet",
                hint="drop [evaluate]; the model itself keeps its guarantee",
            )
        self.method: Any = method
        self.plan, self.folds = plan, folds
        self.rungs = Rungs(method, plan.key, folds)
        kinds = [k for n, k in KINDS.items() if n in plan.what] + [Link] * (2 * folds)
        public = make_dataclass("ActsPublic", [(f"q{i}", k.Public) for i, k in enumerate(kinds)], frozen=True)
        private = make_dataclass("ActsPrivate", [(f"q{i}", Nothing) for i, _ in enumerate(kinds)], frozen=True)
        super().__init__(self.rungs, self._acts, (public, private))
        self.facts = MethodFacts.joined([method.facts, *(k.facts for k in dict.fromkeys(kinds))])  # type: ignore[misc]
        self.params = method.params.model_copy(update={"n_starts": 1})  # starts run side by side inside
        self._model: Any = None

    # ---- the acts, made of the fit's public outcome

    def _found(self, public: Any) -> Matched:
        return matched(self.rungs.chosen(public), private=False)

    def _acts(self, public: Any, setting: Setting) -> Ladder:
        found = self._found(public)
        made = self._made_of(found, setting)
        return Ladder([*made[0], *made[1]], name="evaluate")

    def _made_of(self, found: Matched, setting: Any) -> tuple[list[Act], list[Link]]:
        halves = [raw_placer(self.method, p, setting) for p in found.halves[:2]]
        acts = self.plan.acts(self._placer(found.public, setting), halves)
        return acts, links(found.halves, self.method, setting, self.plan.key, self.method.params.aggregation)

    def _placer(self, public: Any, setting: Any) -> Placer:
        """Places by the consensus, phenotypes in the order in which the model is published."""
        raw, order = raw_placer(self.method, public, setting), order_of(public)
        return Placer([f[:, order] for f in raw.factors], lambda site: raw.loads(site)[:, order])

    def close(self, site: Site, private: Any, public: Any) -> Arrays:
        """Memberships on the consensus; they stay at the site."""
        found = self._found(public.first)
        return {"memberships": raw_placer(self.method, found.public, None).loads(site)}

    # ---- results

    def publish(self, outcome: RunOutcome) -> None:
        """The fitted model and the findings from an outcome of any engine."""
        public = outcome.public
        found = self._found(public.first)
        fit = replace(
            outcome,
            public=found.public,
            privates={},
            history=[h for h in outcome.history if h["round"] <= public.rounds],
        )
        self._model = self.method.with_params()
        self._model.publish(fit)
        acts, tests = self._made_of(found, outcome.setting)
        states = Ladder([*acts, *tests], name="evaluate").publics(public.second)
        table = None
        if tests:
            table = verdict(found, tests, states[len(acts) :], self._model.order_, len(outcome.setting.sites))
        findings = findings_of(self.plan, acts, states[: len(acts)], table)
        self.findings_ = replace(findings, traffic=_cost(outcome, public.rounds))
        self._model.findings_ = self.findings_

    @property
    def model_(self) -> Any:
        """The fitted model itself."""
        return self._model

    def with_params(self, **params: Any) -> Whole:
        """The same study with some of the fit's parameters changed."""
        return Whole(self.method.with_params(**params), self.plan, self.folds)

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if name.startswith("__") or model is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)


def order_of(public: Any) -> NDArray[np.int64]:
    """The order of a published model's phenotypes: by weight, largest first."""
    norms = cp.normalise(list(public.factors))[1]
    weights = np.sqrt(np.maximum(np.asarray(public.energy), 0.0)) * norms
    return np.argsort(-weights, kind="stable")


def _cost(outcome: RunOutcome, rounds: int) -> dict[str, Any]:
    """Rounds of the findings, and the bytes of their rounds."""
    late: Sequence[Any] = [h for h in outcome.history if h["round"] > rounds]
    return {
        "rounds": len(late),
        "bytes_up": int(sum(h.get("bytes_up") or 0 for h in late)),
        "bytes_down": int(sum(h.get("bytes_down") or 0 for h in late)),
    }
