"""The lines of a site's book: one JSON object each, tied to the line before it and signed by the book's own key.

A line is ``{v, number, time, site, kind, body, previous, hash, signature}``: ``hash`` is SHA-256 of the canonical JSON of
everything else but the signature, ``signature`` Ed25519 of the book's key over ``"polyclinic/line/2" | hash``. The first
line of version 2 (``began``) carries the book's public key.

Rules of change, for whoever changes this file:

* kinds and fields are never removed and never change their meaning; new fields have a default;
* an unknown kind without cost is kept and shown as it is (:class:`Unknown`);
* an unknown kind or event WITH cost (it has ``event`` or ``events``) makes every epsilon infinite: nobody can add it up.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Final, Literal

from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.privacy.accounting.charge import Charge, charge_from, event_from, plain

START: Final = "0" * 64
VERSION: Final = 2


@dataclass(frozen=True)
class Line:
    """What a line says. A charge is one, too: it stands with what it costs."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Began(Line):
    """The book begins: its public key."""

    kind = "began"
    key: str


@dataclass(frozen=True)
class Key(Line):
    """An identity of the site that this book belongs to: it signed the book's public key."""

    kind = "key"
    identity: str
    proof: str


@dataclass(frozen=True)
class Rules(Line):
    """The owner's ``[policy]``, whole, at the moment it was first used."""

    kind = "policy"
    digest: str
    text: str
    by: str = ""


@dataclass(frozen=True)
class Accept(Line):
    """The owner agreed to exactly this order, having been shown a text with this digest."""

    kind = "accept"
    order: str
    by: str
    shown: str = ""
    policy: str = ""


@dataclass(frozen=True)
class Refuse(Line):
    """The owner, or a rule, refused an order."""

    kind = "refuse"
    order: str
    by: str
    reasons: tuple[str, ...] = ()
    shown: str = ""


@dataclass(frozen=True)
class Withdraw(Line):
    """The owner took back an agreement."""

    kind = "withdraw"
    order: str
    by: str
    why: str = ""


@dataclass(frozen=True)
class Reserve(Line):
    """What an order may charge at most; no events: exact, nothing is bounded. It ends with ``close``, or at ``until``."""

    kind = "reserve"
    order: str
    study: str
    cohort: str = "all"
    events: tuple[Event, ...] = ()
    until: float = 0.0
    policy: str = ""


@dataclass(frozen=True)
class Evaluate(Line):
    """An exact order was asked here, before records are read: whether it runs may tell one thing about a patient."""

    kind = "evaluate"
    order: str
    cohort: str
    people: str = ""  # earlier versions: keyed digest of the set of patients


@dataclass(frozen=True)
class Counted(Line):
    """Exact secure sums of an order were taken over these sites: two lists that differ by one site are that site's part."""

    kind = "counted"
    order: str
    cohort: str
    sites: tuple[str, ...]
    people: str = ""  # earlier versions: keyed sketch of the patients here


@dataclass(frozen=True)
class Approve(Line):
    """The owner let releases of one step out: its facts (policy ``names``), or these very bytes (``each``)."""

    kind = "approve"
    order: str
    step: str
    facts: str
    by: str
    note: str = ""


@dataclass(frozen=True)
class Reject(Line):
    """The owner kept a release back."""

    kind = "reject"
    order: str
    step: str
    facts: str
    by: str
    note: str = ""


@dataclass(frozen=True)
class CloseLine(Line):
    """An order is over: what it did not charge is free again, and nothing more leaves under it."""

    kind = "close"
    order: str
    reason: str
    sums: int = 0
    chain: str = ""


@dataclass(frozen=True)
class Erase(Line):
    """Files were removed: of one study, or the data, the results, all."""

    kind = "erase"
    what: Literal["study", "data", "results", "all"]
    files: int
    by: str
    order: str = ""


@dataclass(frozen=True)
class Gap(Line):
    """Lines are missing; what a sealed head says was spent in them, charged here.

    ``book`` and ``heads`` name what was lost: the book (where it is another than this one), and the hashes of the heads that
    others kept of it.
    """

    kind = "gap"
    count: int  # how many lines the lost book had
    hash: str
    by: str
    why: str
    cohort: str = "all"
    events: tuple[Event, ...] = ()
    book: str = ""
    heads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note(Line):
    """Something was repaired."""

    kind = "note"
    text: str


@dataclass(frozen=True)
class Unknown(Line):
    """A line of a newer version."""

    kind = "unknown"
    called: str
    value: Mapping[str, Any] = field(default_factory=dict)

    @property
    def costs(self) -> bool:
        """Whether it spent something that this version cannot add up."""
        return bool({"event", "events"} & set(self.value))


Body = Charge | Line
_KINDS: Final[Mapping[str, type[Any]]] = {c.kind: c for c in Line.__subclasses__() if c is not Unknown}


@dataclass(frozen=True)
class Entry:
    """One line as it stands in the file."""

    number: int
    time: str
    site: str
    body: Body
    previous: str
    hash: str
    signature: str = ""
    v: int = VERSION

    @property
    def kind(self) -> str:
        """``"charge"``, ``"reserve"``, ``"accept"`` ..."""
        return self.body.called if isinstance(self.body, Unknown) else self.body.kind

    @property
    def charge(self) -> Charge | None:
        """The charge, if it is one."""
        return self.body if isinstance(self.body, Charge) else None

    @property
    def text(self) -> str:
        """The text of a note."""
        return self.body.text if isinstance(self.body, Note) else ""

    def plain(self) -> dict[str, object]:
        """Plain values for an export."""
        value = {"number": self.number, "time": self.time, "kind": self.kind, **body_plain(self.body)}
        return {**value, "previous": self.previous, "hash": self.hash, "signature": self.signature, "v": self.v}


def body_plain(body: Body) -> dict[str, object]:
    """A body as plain values."""
    if isinstance(body, Charge):
        return plain(body)
    if isinstance(body, Unknown):
        return dict(body.value)
    value = asdict(body)
    if isinstance(body, Reserve | Gap):
        value["events"] = [accountant.to_json(e) for e in body.events]
    return value


def _body(kind: str, value: Mapping[str, Any]) -> Body:
    if kind == "charge":
        return charge_from(value)
    if kind not in _KINDS:
        return Unknown(kind, dict(value))
    names = {f.name for f in fields(_KINDS[kind])}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in names}
    if "events" in values:
        values["events"] = tuple(event_from(e) for e in values["events"])
    body: Body = _KINDS[kind](**values)
    return body


def canonical(value: Mapping[str, object]) -> bytes:
    """The one spelling of a line."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def to_sign(digest: str) -> bytes:
    """What the book's key signs."""
    return b"polyclinic/line/2" + bytes.fromhex(digest)


def sealed(
    number: int, body: Body, previous: str, site: str, sign: Callable[[bytes], bytes] | None = None
) -> tuple[Entry, bytes]:
    """The next line: its entry and its bytes."""
    # gmtime() alone asks a coarser clock than the heads' time(): at a full second it may still tell the one before
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time()))
    kind = body.called if isinstance(body, Unknown) else body.kind
    value: dict[str, Any] = {"v": VERSION, "number": number, "time": stamp, "site": site, "kind": kind}
    value |= {"body": body_plain(body), "previous": previous}
    digest = hashlib.sha256(canonical(value)).hexdigest()
    signature = "" if sign is None else sign(to_sign(digest)).hex()
    line = canonical({**value, "hash": digest, "signature": signature}) + b"\n"
    return Entry(number, stamp, site, body, previous, digest, signature), line


def _without(line: bytes, digest: str, signature: str) -> bytes:
    """A canonical line as it was before its hash and signature were put in.

    Both stand after the body, and no text can hold an unescaped quote, so the last place is the one.
    """
    for name, value in (("signature", signature), ("hash", digest)):
        part = f'"{name}":"{value}",'.encode()
        position = line.rfind(part)
        line = line if position < 0 else line[:position] + line[position + len(part) :]
    return line


def opened(line: bytes) -> tuple[Entry, bool]:
    """Read a line, and whether its hash and spelling fit; errors of any kind mean that it is not one of ours."""
    value = json.loads(line)
    signature, digest = value.get("signature", ""), value["hash"]
    # Any other spelling of the same values is an edit too.
    fits = canonical(value) == line and hashlib.sha256(_without(line, digest, signature)).hexdigest() == digest
    fits = fits and re.fullmatch(r"([0-9a-f]{128})?", signature) is not None  # the hash does not cover it
    body = _body(value["kind"], value["body"])
    number, stamp, site, previous = (value[k] for k in ("number", "time", "site", "previous"))
    return Entry(number, stamp, site, body, previous, digest, signature, int(value["v"])), fits
