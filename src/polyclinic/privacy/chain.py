"""The lines of a ledger: what a charge is, and how each line is tied to the one before it."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from polyclinic.privacy import accountant
from polyclinic.privacy.accountant import Event
from polyclinic.privacy.facts import PLAIN, SumFacts
from polyclinic.privacy.release import Adjacency

__all__ = ["START", "Charge", "Entry", "Head", "line_hash", "opened", "plain", "sealed"]

START: Final = "0" * 64


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
    details
        Of lines that version 1 wrote.
    """

    study: str
    method: str
    round: int
    step: str
    attempt: int
    event: Event
    adjacency: Adjacency = "patient"
    formal: bool = True
    cohort: str = "all"
    details: Mapping[str, Any] = field(default_factory=dict)
    site: str = ""
    run: str = ""
    number: int = -1
    how: Literal["sum", "gather"] = "sum"
    counts: bool = True
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sensitivity: float | None = None
    sites_per_patient: int = 1
    by: SumFacts = PLAIN
    recipient: Literal["coordinator", "total", "peers"] = "coordinator"
    noise: str = ""
    sd: float = 0.0
    share: float = 1.0
    grid: float | None = None
    release: str = ""
    bytes: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def paid(self) -> bool:
        """Whether the release carried privacy noise."""
        return not isinstance(self.event, accountant.Unbounded)

    @property
    def scalars(self) -> int:
        """How many numbers left."""
        return sum(math.prod(s) for s in self.shapes.values()) if self.shapes else int(self.details.get("scalars", 0))


@dataclass(frozen=True)
class Head:
    """Number of entries and the hash of the last: keep it elsewhere to find a ledger that was put back."""

    count: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One line as it stands in the file: a charge, or a note (kind ``"note"``) that something was repaired."""

    number: int
    time: str
    kind: str
    charge: Charge | None
    text: str
    previous: str
    hash: str


def plain(charge: Charge) -> dict[str, Any]:
    """A charge as plain values; what is not known is left out."""
    value = {f.name: getattr(charge, f.name) for f in fields(charge)}
    value |= {
        "event": accountant.to_json(charge.event),
        "details": dict(charge.details),
        "by": {f.name: getattr(charge.by, f.name) for f in fields(charge.by)} | {"saw": dict(charge.by.saw)},
        "shapes": {k: list(v) for k, v in charge.shapes.items()},
        "versions": dict(charge.versions),
    }
    known = Charge("", "", 0, "", 0, charge.event)
    old = ("study", "method", "round", "step", "attempt", "event", "adjacency", "formal", "cohort")
    return {k: v for k, v in value.items() if k in old or getattr(charge, k) != getattr(known, k)}


def charge_from(value: Mapping[str, Any]) -> Charge:
    """Inverse of :func:`plain`, for lines of every version."""
    given = dict(value)
    given["event"] = accountant.from_json(given["event"])
    if "by" in given:
        given["by"] = SumFacts(**given["by"])
    if "shapes" in given:
        given["shapes"] = {k: tuple(v) for k, v in given["shapes"].items()}
    known = {f.name for f in fields(Charge)}
    return Charge(**{k: v for k, v in given.items() if k in known})


def sealed(number: int, kind: str, charge: Charge | None, text: str, previous: str, site: str) -> tuple[Entry, bytes]:
    """The next entry and its line: canonical JSON with the hash of everything else in it, the line before included."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body: dict[str, Any] = {"number": number, "time": stamp, "site": site, "kind": kind, "previous": previous}
    if charge is not None:
        body["charge"] = plain(charge)
    if text:
        body["text"] = text
    digest = hashlib.sha256(canonical(body)).hexdigest()
    line = canonical({**body, "hash": digest}) + b"\n"
    return Entry(number, stamp, kind, charge, text, previous, digest), line


def canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def line_hash(line: bytes) -> str:
    """What the hash in a line must be."""
    value = json.loads(line)
    value.pop("hash", None)
    # Any other spelling of the same values is an edit too.
    if canonical({**value, "hash": json.loads(line).get("hash")}) != line:
        return ""
    return hashlib.sha256(canonical(value)).hexdigest()


def opened(line: bytes) -> Entry:
    """Read a line; errors of any kind mean that it is not one of ours."""
    value = json.loads(line)
    charge = charge_from(value["charge"]) if "charge" in value else None
    return Entry(
        value["number"], value["time"], value["kind"], charge, value.get("text", ""), value["previous"], value["hash"]
    )
