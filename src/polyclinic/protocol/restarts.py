"""Several starts of one method as ONE method: one order, one consent, one chain, one card that has all of them in it.

The starts run one after another, with the seeds of one process (``seed``, ``seed + 1``, ...), and each is the same bits as if it
ran alone: whatever the way to add. The best is the one with the lowest objective, the first of equals; it is chosen from the
public states, so every party chooses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.interfaces import Arrays, Contribution, Method, Schema, Step, Total, seeds
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.records.sites.site import Site
from polyclinic.tensors.matching import factor_match_score

if TYPE_CHECKING:
    from polyclinic.protocol.estimator import Estimator


def started(method: Estimator) -> Method:
    """The method with its starts inside; a mixture has them in its protocol already.

    >>> import polyclinic as pc
    >>> started(pc.TRIP(rank=2)).name, type(started(pc.SumALS(rank=2, n_starts=3))).__name__
    ('trip', 'Restarts')
    """
    n = method.params.starts
    return method if n == 1 or method.name == "mixture" else Restarts(method, n)


class _Begun(Protocol):
    """Public state of :class:`Restarts`; the starts' own are ``q0``, ``q1``, ..."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    shape: tuple[int, ...]
    sites: tuple[str, ...]
    began: tuple[int, ...]
    round: int


class _Own(Protocol):
    """Private state of :class:`Restarts`: ``q0``, ``q1``, ..."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


class Restarts(Method[Params, _Begun, _Own]):
    """A method ``n`` times, from other seeds.

    Its public state has the states of the starts so far (``q0``, ``q1``, ...; None: not begun), the setting that they begin
    from, and the round at which each began: rounds go on counting, so that every sum has a name of its own.
    """

    def __init__(self, method: Estimator, n: int) -> None:
        self.method = method
        later = [method.with_params(seed=method.params.seed + k, n_starts=1) for k in range(1, n)]
        self.parts = (method, *later)
        self.params = method.params.model_copy(update={"n_starts": 1})
        self.name, self.version, self.needs, self.slack = method.name, method.version, method.needs, method.slack  # type: ignore[misc]
        self.facts, self.exact, self.additive = method.facts, method.exact, method.additive  # type: ignore[misc]
        states = [(f"q{i}", method.Public | None, field(default=None)) for i in range(n)]
        private_fields = [(f"q{i}", method.Private | None, field(default=None)) for i in range(n)]
        common = [("shape", tuple[int, ...]), ("sites", tuple[str, ...]), ("began", tuple[int, ...]), ("round", int)]
        self.Public = make_dataclass("StartsPublic", [*common, *states], frozen=True)  # type: ignore[misc]
        self.Private = make_dataclass("StartsPrivate", private_fields, frozen=True)  # type: ignore[misc]
        self.models_: list[Estimator] = []

    def _now(self, public: _Begun) -> tuple[int, Method, object, int]:
        """The start whose sum is next, its method, its state, and the round at which it began."""
        k = len(public.began) - 1
        method, state = self.parts[k], getattr(public, f"q{k}")
        if k + 1 == len(self.parts) or method.next_step(state) is not None or method.settled(state):
            return k, method, state, public.began[k]
        method, setting = self.parts[k + 1], Schema(tuple(public.shape), (), tuple(public.sites))
        return k + 1, method, method.init_public(setting, seeds(method.params.seed, "begin")), public.round + 1

    def _states(self, public: _Begun) -> list[Any]:
        return [getattr(public, f"q{i}") for i in range(len(public.began))]

    def chosen(self, public: _Begun) -> int:
        """The start with the lowest objective."""
        goals = [s.objective for s in self._states(public)]
        return int(np.argmin([np.inf if g is None else g for g in goals]))

    # ---- at every party that folds

    def init_public(self, setting: Schema, rng: np.random.Generator) -> _Begun:
        """public_0 = begin of the first start, from its own seed."""
        first = self.method.init_public(setting, seeds(self.method.params.seed, "begin"))
        state: _Begun = self.Public(tuple(setting.shape), tuple(setting.sites), (0,), 0, q0=first)
        return state

    def next_step(self, public: _Begun) -> Step | None:
        """The next sum of the start whose turn it is; start s begins when start s - 1 has ended."""
        _, method, state, began = self._now(public)
        step = method.next_step(state)
        return None if step is None else replace(step, round=step.round + began)

    def update_public(self, step: Step, public: _Begun, total: Total) -> _Begun:
        """q_s' = combine(step, q_s, total) of that start alone; best = argmin_s objective(q_s) is taken at the end."""
        k, method, state, began = self._now(public)
        state = method.update_public(replace(step, round=step.round - began), state, total)
        return replace(public, **{"began": (*public.began[:k], began), "round": step.round, f"q{k}": state})

    def round_metrics(self, public: _Begun) -> Mapping[str, float | None]:
        k = len(public.began) - 1
        return self.parts[k].round_metrics(getattr(public, f"q{k}"))

    # ---- at a site

    def init_site(self, site: Site, public: _Begun, rng: np.random.Generator) -> _Own:
        state: _Own = self.Private()
        return state

    def contribute(
        self, step: Step, site: Site, private: _Own, public: _Begun, rng: np.random.Generator
    ) -> tuple[_Own, Contribution]:
        """x_k = the start's own part of its round t - t_s, t_s the round at which it began."""
        k, method, state, began = self._now(public)
        inner = replace(step, round=step.round - began)
        inner_state = getattr(private, f"q{k}")
        if inner_state is None:
            inner_state = method.init_site(site, state, seeds(method.params.seed, site.name, "open"))
        next_state, out = method.contribute(
            inner, site, inner_state, state, seeds(method.params.seed, site.name, inner.round, inner.name)
        )
        return replace(private, **{f"q{k}": next_state}), out

    def divergence_hint(self, site: Site, public: _Begun) -> str:
        _, method, state, _ = self._now(public)
        return method.divergence_hint(site, state)

    def finalize_site(self, site: Site, private: _Own, public: _Begun) -> Arrays:
        """What stays at the site is of the start that was chosen."""
        k = self.chosen(public)
        return self.parts[k].finalize_site(site, getattr(private, f"q{k}"), getattr(public, f"q{k}"))

    # ---- results

    def publish(self, outcome: Outcome) -> None:
        """The models of all starts from an outcome of any engine; the chosen one knows how alike the others are."""
        public, self.models_ = outcome.public, []
        ends = (*public.began[1:], np.inf)
        for k, state in enumerate(self._states(public)):
            model = self.parts[k].with_params()
            model.facts = self.facts  # type: ignore[misc]
            begin, end = public.began[k], ends[k]
            history = [{**h, "round": h["round"] - begin} for h in outcome.history if begin < h["round"] < end]
            privates = {n: getattr(p, f"q{k}") for n, p in outcome.privates.items()}
            closed = outcome.closed if k == self.chosen(public) else {}
            model.publish(replace(outcome, public=state, privates=privates, closed=closed, history=history))
            self.models_.append(model)
        best = self.model_
        rivals = [m for m in self.models_ if m is not best]
        if rivals and isinstance(best.result_, Phenotypes):
            best.stability_ = float(
                np.mean([factor_match_score(m.result_.factors, best.result_.factors) for m in rivals])
            )

    @property
    def model_(self) -> Estimator:
        """The model that was chosen."""
        goals = [vars(m).get("objective_") for m in self.models_]
        return self.models_[int(np.argmin([np.inf if g is None else g for g in goals]))]
