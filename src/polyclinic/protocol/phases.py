"""Methods written as phases: what is asked, what a hospital answers, and what follows from the total.

A phase is one kind of sum: :meth:`Phase.step` announces it, :meth:`Phase.contribute` is one hospital's part and
:meth:`Phase.combine` makes the next public state from the total. ``public.stage`` names the phase whose sum comes next.
When it names none, the fit is over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import Field, replace
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
from typing_extensions import TypeVar

from polyclinic.protocol.interfaces import Answer, Pri, Step, Total
from polyclinic.records.sites.site import Site


class Staged(Protocol):
    """A public state that names the phase whose sum comes next."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def stage(self) -> str: ...


Pub = TypeVar("Pub", bound=Staged)


class Phase(ABC, Generic[Pub, Pri]):
    """One kind of sum of a fit."""

    def __init__(self, fit: Any) -> None:
        self.fit = fit

    def due(self, public: Pub) -> bool:
        """Tell whether the phase has anything to ask when its turn comes."""
        return True

    def enter(self, public: Pub) -> Pub:
        """Return the state to begin the phase with."""
        return public

    @abstractmethod
    def step(self, public: Pub) -> Step:
        """Announce the coming sum."""

    @abstractmethod
    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = one hospital's part of it."""

    @abstractmethod
    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """public' = f(public, sum_k x_k)."""


class PhaseDispatch(Generic[Pub, Pri]):
    """The verbs of a method that is a sequence of phases; put it before the estimator among the bases."""

    @property
    def phases(self) -> Mapping[str, Phase[Pub, Pri]]:
        """The phases by the stage that they are, in their order."""
        raise NotImplementedError

    def next_step(self, public: Pub) -> Step | None:
        """The coming sum is that of the phase named by ``public.stage``."""
        phase = self.phases.get(public.stage)
        return None if phase is None else phase.step(public)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub, rng: np.random.Generator) -> Answer[Pri]:
        """x_k = the phase's part of the sum, from the site's records and the public state."""
        return self.phases[public.stage].contribute(step, site, private, public)

    def update_public(self, step: Step, public: Pub, total: Total) -> Pub:
        """public' = the phase's f(public, sum_k x_k)."""
        return self.phases[public.stage].combine(step, public, total)

    def onward(self, public: Pub) -> Pub:
        """Enter the next phase that is due; after the last one the fit is over."""
        row = list(self.phases.items())
        position = [name for name, _ in row].index(public.stage)
        return _entered(public, row[position + 1 :])

    def outset(self, public: Pub) -> Pub:
        """Enter the first phase that is due."""
        return _entered(public, self.phases.items())


def _entered(public: Pub, row: Iterable[tuple[str, Phase[Pub, Pri]]]) -> Pub:
    for name, phase in row:
        if phase.due(public):
            return phase.enter(replace(public, stage=name))
    return replace(public, stage="end")
