"""A hospital's half of the fold: its private state, its part of every sum, and the door through which it leaves."""

from __future__ import annotations

from typing import Any

from polyclinic.errors import DataError, Divergence
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Aggregator, Arrays, Contribution, Method, Roster, Step, seeds
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site
from polyclinic.tensors.simd.scan import largest


class SiteParty:
    """One hospital's half of the fold."""

    def __init__(self, method: Method, site: Site, adder: Aggregator, door: ReleaseGate) -> None:
        self.method, self.site, self.adder, self.door = method, site, adder, door
        door.facts = method.facts
        self.private: Any = None
        self._next: object = None

    def open(self, public: object) -> None:
        """Make the private start."""
        rng = seeds(self.method.params.seed, self.site.name, "open")
        self.private = wire.canonical(self.method.init_site(self.site, public, rng))

    def contribute(self, step: Step, public: object, roster: Roster, number: int = -1) -> Contribution:
        """Compute the site's part of a sum and pass it through the door; kept once :meth:`commit` is called."""
        contribution = self._own(step, public)
        return self.door.release(
            step,
            contribution,
            share=self.adder.noise_share(roster),
            attempt=roster.attempt,
            number=number,
            by=self.adder.facts,
            also=self.adder.leakage(roster, step),
        )

    def _own(self, step: Step, public: object) -> Contribution:
        """Compute the site's part, without noise. Refuse values that the step did not announce."""
        if self.private is None:
            self.open(public)
        rng = seeds(self.method.params.seed, self.site.name, step.round, step.name)
        next_private, contribution = self.method.contribute(step, self.site, self.private, public, rng)
        self._next = wire.canonical(next_private)
        for name, a in contribution.arrays.items():
            most = largest(a)
            if step.round == 0 and most > step.bound:
                raise DataError(
                    f"site {self.site.name!r}: its values are too large for this method ({name!r} is {most:.3g}, at most "
                    f"{step.bound:.3g} is allowed)",
                    hint="cap or scale the counts ([tensor] cap, or divide the values)",
                )
            if not most <= step.bound:  # NaN too
                raise Divergence(
                    f"site {self.site.name!r}, round {step.round}: the fit diverged ({name!r} reached {most:.3g}, "
                    f"announced was at most {step.bound:.3g})",
                    hint=self.method.divergence_hint(self.site, public),
                )
        return contribution

    def commit(self) -> None:
        """The sum was taken: the new private state is the state."""
        self.private, self._next = self._next, None

    def close(self, public: object) -> Arrays:
        """What stays at the site."""
        if self.private is None:
            self.open(public)
        return self.method.finalize_site(self.site, self.private, public)
