"""A method on everybody and on halves of the patients, side by side as one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.composition import Parallel, half_method
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Method

if TYPE_CHECKING:
    from polyclinic.protocol.estimator import Estimator

KEY: Final = "polyclinic"


class ReplicateFits(Parallel):
    """A method on everybody and, for each halving, on two halves, in lock-step; several starts each where it has them.

    Every half has its own seed, so its own hash of the codes and its own random numbers: a shared one fakes agreement. A half starts
    from its own Gram where it has the patients for one (16 a cell), else at random; its sums then travel packed, too. Where
    the structure is weak a half of SumALS keeps the 1.8 times as many columns of its search: of two tight fits each makes its own
    compromises, and columns that are there with room to spare agree (docs/dev/decisions/0012).
    Under privacy there is no fit on everybody: the halves alone cost the epsilon of one fit.
    """

    def __init__(self, method: Estimator, key: str = KEY, repeats: int = 1) -> None:
        if not isinstance(method, Estimator) or "rank" not in type(method).Params.model_fields:
            raise ConfigError(f"a {type(method).__name__} has no phenotypes to replicate", hint="e.g. pc.TRIP(rank=10)")
        self.method, self.key, self.repeats = method, key, repeats
        private = noisy(method.params.privacy)
        if private and repeats > 1:
            raise ConfigError(f"{repeats} split-half repeats with privacy: each costs budget", hint="repeats=1")
        starts = method.params.starts
        single = method.with_params(n_starts=1) if starts > 1 else method
        groups: list[list[Method]] = [] if private and repeats else [[_moved(single, k) for k in range(starts)]]
        part = _compared(single)
        for f in range(repeats):
            groups += [[half_method(_moved(part, k), key, half=h, halving=f) for k in range(starts)] for h in (0, 1)]
        self.groups = groups
        super().__init__([m for g in groups for m in g], disjoint=private, name=method.name)

    def chosen(self, public: Any) -> list[Any]:
        """Of every group the public state of the start with the lowest objective."""
        states, out, start = self.publics(public), [], 0
        for g in self.groups:
            candidates = states[start : start + len(g)]
            goals = [np.inf if p.objective is None else p.objective for p in candidates]
            out.append(candidates[int(np.argmin(goals))])
            start += len(g)
        return out

    def starts(self, public: Any) -> list[tuple[Any, ...]]:
        """Factors of the fits on everybody from the starts that were not kept."""
        best = self.chosen(public)[0]
        return [p.factors for p in self.publics(public)[: len(self.groups[0])] if p is not best]


def _moved(method: Estimator, start: int) -> Estimator:
    return method if start == 0 else method.with_params(seed=method.params.seed + start)


def _compared(method: Estimator) -> Estimator:
    """A method whose fit is to be compared with that of other patients, where it has a way of its own for that."""
    return method.with_params(half=True) if "half" in type(method.params).model_fields else method
