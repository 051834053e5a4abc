"""A site's part of a formal study: what leaves has the shape that the study order and the public state give, whatever the records are.

Differential privacy covers releases. A refusal, a missing answer or another size is not a release, so none of them may depend on
records after the owner has agreed. Three rules ensure this, and no method knows about them:

1. One record costs one patient. A contribution is a sum over patients. A patient whose record the method cannot take adds zero, and
the other patients count. If one record made the whole site send zeros, that patient would move the sum by all the others' part.

2. Clip, never refuse. The sum is clipped to the announced bound, entry by entry, on its grid. This is a projection onto a box, so it
moves two sums no further apart, and one patient moves the clipped sum by at most the announced sensitivity.

3. An empty site answers. A site without a patient of the cohort, or whose records cannot be read, sends zeros with its noise.

The owner reads what was left out in the site's log. In one process (``fit``, ``simulate``) the records belong to the caller, and
:class:`~polyclinic.protocol.site_party.SiteParty` raises the fault instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import PolicyRefusal
from polyclinic.node.signed_study import StudyOrder
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.guarantee import exact
from polyclinic.protocol.interfaces import Aggregator, Arrays, Contribution, Method, Step, seeds
from polyclinic.protocol.site_party import SiteParty
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

Report = Callable[[str], None]
Patients = NDArray[np.int64]
REPORTED: Final = 20  # different faults of one study in the owner's log: a limit of the log, not of what is left out


def empty_site(order: StudyOrder, name: str, needs: str) -> Site:
    """Return a site without patients, made from the order alone. Its public setting is that of a site with patients."""
    if needs == "features":
        columns = order.columns or ()
        return Site(name, None, np.zeros((0, len(columns))), np.zeros(0), columns)
    axes = [order.axis(m) for m in order.study["tensor"]["modes"]]
    axes = [Axis.side_by_side(axes)] if order.study["tensor"].get("side_by_side") else axes
    sizes = [len(a.labels or ()) for a in axes]
    cells = np.zeros((0, len(sizes) + 1), np.int64)
    return Site(name, SparseTensor(cells, np.zeros(0), (0, *sizes), (Axis("patient", ()), *axes)))


def clipped(step: Step, mine: Contribution) -> Contribution:
    """Return every entry clipped to the step's bound, which is rounded down to a multiple of its grid."""
    most = step.bound if step.grid is None else math.floor(step.bound / step.grid) * step.grid
    return Contribution({name: np.clip(a, -most, most) for name, a in mine.arrays.items()})


def _taken(site: Site, patients: Patients) -> Site:
    return site if len(patients) == site.patients else site.take(patients)


class FormalParty(SiteParty):
    """One hospital's part of a formal study. It never raises because of a record.

    Parameters
    ----------
    report
        Writes into the owner's log what was left out.
    """

    def __init__(
        self, method: Method, site: Site, adder: Aggregator, door: ReleaseGate, report: Report = lambda what: None
    ) -> None:
        super().__init__(method, site, adder, door)
        door.patients = None  # a rule about how many patients there are would be an answer about them
        door.once = True  # another charge would say that the records have changed
        self._report, self._reported, self._screened = report, set[str](), False

    def open(self, public: object) -> None:
        """Make the private start of the patients whom the method can take."""
        self._screen(public)
        self.private = self._start(self.site, public) if self.site.patients else None

    def _start(self, site: Site, public: object) -> object:
        rng = seeds(self.method.params.seed, self.site.name, "open")
        return wire.canonical(self.method.init_site(site, public, rng))

    def _screen(self, public: object) -> None:
        """Leave out patients whom the method cannot start with; once in a process, also where it continues a study."""
        if self._screened:
            return
        site, everybody = self.site, np.arange(self.site.patients)
        accepted = self._accepted(everybody, lambda some: self._start(_taken(site, some), public))
        self.site, self._screened = _taken(site, accepted), True

    def _accepted(self, patients: Patients, work: Callable[[Patients], object]) -> Patients:
        """Return the patients for whom the work can be done: all at once, or each half by itself, down to one patient."""
        if not len(patients):
            return patients
        try:
            work(patients)
            return patients
        except Exception as e:  # whatever a record does to a method: nobody else may notice
            if len(patients) == 1:
                self._fault(f"{type(e).__name__}: {e}")
                return patients[:0]
        half = len(patients) // 2
        return np.concatenate([self._accepted(patients[:half], work), self._accepted(patients[half:], work)])

    def _fault(self, what: str) -> None:
        if len(self._reported) < REPORTED and what not in self._reported:
            self._reported.add(what)
            self._report(what)

    def _own(self, step: Step, public: object) -> Contribution:
        """Return the sum over those who can be counted, clipped to the bound."""
        if exact(step) or not step.formal:  # no rule of exact studies was asked: the study order claimed a theorem
            raise PolicyRefusal(f"step {step.name!r} of a formal study has no noise, or no theorem")
        self._screen(public)
        if self.private is None:
            self.open(public)
        total = {name: np.zeros(shape) for name, shape in step.shapes.items()}
        self._next = self.private
        if self.site.patients:
            self._add(step, public, total)
        inside = clipped(step, Contribution(total))
        if any(not np.array_equal(a, total[name]) for name, a in inside.arrays.items()):
            self._fault(f"step {step.name!r}: the sum was clipped to the announced bound {step.bound:g}")
        return inside

    def _add(self, step: Step, public: object, total: dict[str, NDArray[np.float64]]) -> None:
        """Add the site's own part to ``total``. Where a record does not let it, the others' parts, by halves."""
        site = self.site

        def add(patients: Patients) -> None:
            whole = len(patients) == site.patients
            if not whole and not self.method.additive:
                raise TypeError(f"method {self.method.name!r} is not a sum over patients")
            part = _taken(site, patients)
            after, mine = self._part(part, self.private if whole else self._start(part, public), step, public)
            if whole:
                self._next = wire.canonical(after)
            for name, a in mine.arrays.items():
                total[name] += a

        self._accepted(np.arange(site.patients), add)

    def _part(self, site: Site, private: object, step: Step, public: object) -> tuple[object, Contribution]:
        rng = seeds(self.method.params.seed, self.site.name, step.round, step.name)
        after, mine = self.method.contribute(step, site, private, public, rng)
        wrong = [n for n, shape in step.shapes.items() if n not in mine.arrays or mine.arrays[n].shape != tuple(shape)]
        wrong += [n for n, a in mine.arrays.items() if not np.isfinite(a).all()]
        if wrong:
            raise FloatingPointError(f"step {step.name!r}: {', '.join(wrong)} is not what was announced")
        return after, replace(mine, weight=1.0)

    def close(self, public: object) -> Arrays:
        """Return what stays at the site, and nothing where it cannot be computed."""
        try:
            if self.private is None:
                self.open(public)
            return super().close(public) if self.site.patients else {}
        except Exception as e:
            self._fault(f"{type(e).__name__}: {e}")
            return {}
