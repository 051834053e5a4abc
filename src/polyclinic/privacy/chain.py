"""The lines of a ledger: what a charge is, and how each line is tied to the one before it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polyclinic.privacy import accountant
from polyclinic.privacy.accountant import Event
from polyclinic.privacy.release import Adjacency

__all__ = ["START", "Charge", "Entry", "Head", "line_hash", "opened", "plain", "sealed"]

START: Final = "0" * 64


@dataclass(frozen=True)
class Charge:
    """What one release costs, written before it leaves."""

    study: str
    method: str
    round: int
    step: str
    attempt: int
    event: Event
    adjacency: Adjacency = "patient"
    formal: bool = True
    cohort: str = "all"
    details: Mapping[str, Any] = field(default_factory=dict)  # mechanism, sensitivity, sd, share, versions


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
    """A charge as plain values."""
    return {
        **{k: getattr(charge, k) for k in ("study", "method", "round", "step", "attempt", "adjacency", "formal")},
        "cohort": charge.cohort,
        "event": accountant.to_json(charge.event),
        "details": dict(charge.details),
    }


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
    charge = None
    if "charge" in value:
        fields = dict(value["charge"])
        charge = Charge(**{**fields, "event": accountant.from_json(fields["event"])})
    return Entry(
        value["number"], value["time"], value["kind"], charge, value.get("text", ""), value["previous"], value["hash"]
    )
