"""Describe what one release costs and what it is: the line of the ledger that is written before it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Final, Literal

from polyclinic.errors import LedgerError
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.privacy.facts import PLAIN, AggregatorFacts
from polyclinic.privacy.release import Adjacency, Step


@dataclass(frozen=True)
class Charge:
    """What one release costs, and what it is; written before it leaves.

    Attributes
    ----------
    site, run, number
        Who releases, in which run of the study, as which sum (-1: not counted).
    event, adjacency, formal
        The cost; whom it protects; whether a theorem says so.
    cohort
        The patients who pay.
    how, counts, shapes, sensitivity, sites_per_patient
        Those of the step.
    by, recipient
        The way to add, and who sees the values.
    noise, sd, share, grid
        Where the noise came from, its size in the total, this site's part of its variance, the grid it was drawn on.
    release, bytes
        Name of the stored release, and the digest of the values that left.
    """

    kind: ClassVar[str] = "charge"
    study: str
    method: str
    round: int
    step: str
    attempt: int
    event: Event
    adjacency: Adjacency = "patient"
    formal: bool = True
    cohort: str = "all"
    site: str = ""
    run: str = ""
    number: int = -1
    how: Literal["sum", "gather"] = "sum"
    counts: bool = True
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sensitivity: float | None = None
    sites_per_patient: int = 1
    by: AggregatorFacts = PLAIN
    recipient: Literal["coordinator", "total", "peers"] = "coordinator"
    noise: str = ""
    sd: float = 0.0
    share: float = 1.0
    grid: float | None = None
    release: str = ""
    bytes: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_step(cls, step: Step, event: Event, **more: Any) -> Charge:
        """The charge of a release of this step: everything public about it is written."""
        shapes = {k: tuple(v) for k, v in step.shapes.items()}
        copied = {
            name: getattr(step, name) for name in ("how", "counts", "sensitivity", "sites_per_patient", "adjacency")
        }
        return cls(round=step.round, step=step.name, event=event, shapes=shapes, **copied, **more)

    @property
    def paid(self) -> bool:
        """Whether the release carried privacy noise."""
        return not isinstance(self.event, accountant.Unbounded)

    @property
    def scalars(self) -> int:
        """How many numbers left."""
        return sum(math.prod(s) for s in self.shapes.values())


_FIELDS: Final = frozenset(f.name for f in fields(Charge))


def events_for(charges: Iterable[Charge], adjacency: Adjacency) -> list[Event]:
    """What charges cost somebody whom ``adjacency`` speaks of.

    A patient: charges that protect a patient; those for single entries have an account of their own, and say nothing for
    patients. An entry: its own charges, and those for patients twice over (a record that changes is one removed and one
    added); exact values that the method does not count (sizes, scores) are named on the card and are in no entry's bound.
    """
    out: list[Event] = []
    for c in charges:
        if adjacency == c.adjacency and (c.paid or c.counts or adjacency == "patient"):
            out.append(c.event)
        elif adjacency == "entry" and (c.paid or c.counts):
            mu = accountant.gaussian_mu([c.event])
            out.append(accountant.Gaussian(1 / (2 * mu)) if mu else accountant.Unbounded())
    return out


def event_from(value: Mapping[str, Any]) -> Event:
    """The event of a line; one of a newer version cannot be added up here, so it has no bound."""
    try:
        return accountant.from_json(value)
    except LedgerError:
        return accountant.Unbounded()


def plain(charge: Charge) -> dict[str, object]:
    """A charge as plain values; what is not known is left out."""
    value = {f.name: getattr(charge, f.name) for f in fields(charge)}
    value |= {
        "event": accountant.to_json(charge.event),
        "by": {f.name: getattr(charge.by, f.name) for f in fields(charge.by)} | {"saw": dict(charge.by.saw)},
        "shapes": {k: list(v) for k, v in charge.shapes.items()},
        "versions": dict(charge.versions),
    }
    default = Charge("", "", 0, "", 0, charge.event)
    always = ("study", "method", "round", "step", "attempt", "event", "adjacency", "formal", "cohort")
    return {k: v for k, v in value.items() if k in always or getattr(charge, k) != getattr(default, k)}


def charge_from(value: Mapping[str, Any]) -> Charge:
    """Inverse of :func:`plain`."""
    values = {k: v for k, v in value.items() if k in _FIELDS}
    values["event"] = event_from(values["event"])
    if "by" in values:
        values["by"] = AggregatorFacts(**values["by"])
    if "shapes" in values:
        values["shapes"] = {k: tuple(v) for k, v in values["shapes"].items()}
    return Charge(**values)


@cache
def versions() -> dict[str, str]:
    """The software that a line was written by."""
    from importlib.metadata import PackageNotFoundError, version

    software = {}
    for name in ("polyclinic", "numpy", "dp-accounting", "opendp"):
        try:
            software[name] = version(name)
        except PackageNotFoundError:
            continue
    return software
