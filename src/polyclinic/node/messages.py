"""What a coordinator asks of a site, and what a site answers: two unions, one decoder.

A field that is missing, unknown or of another type is refused before anything is looked up, computed or written; so is a kind
that is not one of these. A step or a public state is never taken from an ask: a site derives them, and an ask that names
another number is told where the site stands. A refusal is one of nine words; no number, text or policy value leaves in it.

    look       a sign of life; with ``full`` also what is public about the site
    take       one attempt at a sum: who is there, the totals since, the votes for the sums before. Number -1: agree on codes
    mail       letters of the sum that is open; without any: is there news?
    close      the last totals; the site keeps what stays there

    here       how the site stands; the answer to every ask while it is not ready
    letters    what the sum that is open needs next, and the site's vote for the sums before
    behind     it has folded fewer sums than it was asked about, or knows nothing of that attempt
    differs    its last bits are not the coordinator's: another processor
    done       the study has ended here
    busy       working; ask the same again
    refused    one word
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, get_args

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.errors import MessageRefused
from polyclinic.node.refusals import Why
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened
from polyclinic.protocol.wire.sealed import Identity, digest

ALIGN: Final = -1  # the number of the exchange before the first sum, in which the sites agree on codes
MANY: Final = 100_000  # names or letters in one message
MOST: Final = 2**62
Key = tuple[int, int]  # number of a sum, attempt
Stage = Literal["loading", "waiting", "ready", "refused"]
Standing = Literal["open", "known", "aborted", "ended"]
M = TypeVar("M")
V = TypeVar("V")


@dataclass(frozen=True)
class Ping:
    """A sign of life; ``books``: what is known of everybody's book (``privacy.ledger.rollback_check``)."""

    full: bool = False
    books: bytes = b""


@dataclass(frozen=True)
class SumRequest:
    """One attempt at a sum, over ``sites``."""

    number: int
    attempt: int
    sites: tuple[str, ...]
    begin: tuple[str, ...] = ()  # who takes part, by node; the same ever after
    opened: tuple[Opened, ...] = ()
    votes: Mapping[str, bytes] = field(default_factory=dict)
    agreed: Mapping[str, object] = field(default_factory=dict)
    round: int = 0  # for the coordinator's own count of bytes
    books: bytes = b""


@dataclass(frozen=True)
class Deliver:
    """Letters of the sum that is open; ``late``: who has not written to you by now is late."""

    number: int
    attempt: int
    letters: tuple[bytes, ...] = ()
    late: bool = False
    round: int = 0


@dataclass(frozen=True)
class EndStudy:
    """The end; ``cancelled``: before the last sum, and the site keeps nothing of it."""

    begin: tuple[str, ...] = ()
    opened: tuple[Opened, ...] = ()
    votes: Mapping[str, bytes] = field(default_factory=dict)
    agreed: Mapping[str, object] = field(default_factory=dict)
    cancelled: bool = False


@dataclass(frozen=True)
class Status:
    """How a site stands."""

    stage: Stage
    life: str = ""  # tells this process from the one before: asks that it took are lost with it
    number: int = 0  # sums folded
    prepared: Key | None = None  # the sum that it contributed to last, not folded yet
    chain: bytes = b""  # peers: the chain after that sum, once it is known here and on disk
    why: Why | None = None
    setting: Mapping[str, object] | None = None
    noise: str = ""
    books: bytes = b""
    vote: bytes = b""  # peers: that under the chain before the prepared sum, which a coordinator may have lost


@dataclass(frozen=True)
class Letters:
    """Letters to the coordinator, and how the exchange stands here."""

    letters: tuple[bytes, ...] = ()
    vote: bytes = b""
    standing: Standing = "open"
    chain: bytes = b""  # peers: as in :class:`Status`
    round: int = 0
    books: bytes = b""


@dataclass(frozen=True)
class OutOfDate:
    """Sums folded here: fewer than asked about, or this attempt is not known here (any more)."""

    number: int


@dataclass(frozen=True)
class StateMismatch:
    """The public state after sum ``number`` is not bit for bit the coordinator's."""

    number: int


@dataclass(frozen=True)
class Done:
    """The end: the vote for the last chain; the model where the coordinator saw no total."""

    vote: bytes
    result: Mapping[str, object] | None = None
    book: bytes = b""  # what the site signed of its book about this study
    heads: Mapping[str, object] = field(default_factory=dict)  # signed ends of the site's books, by node: receipts


@dataclass(frozen=True)
class Busy:
    """Working."""


@dataclass(frozen=True)
class Refused:
    """This ask is refused; the site itself may be asked again."""

    why: Why


Ask = Ping | SumRequest | Deliver | EndStudy
Answer = Status | Letters | OutOfDate | StateMismatch | Done | Busy | Refused
ASKS: Final[dict[str, type[Any]]] = {"look": Ping, "take": SumRequest, "mail": Deliver, "close": EndStudy}
ANSWERS: Final[dict[str, type[Any]]] = {
    "here": Status,
    "letters": Letters,
    "behind": OutOfDate,
    "differs": StateMismatch,
    "done": Done,
    "busy": Busy,
    "refused": Refused,
}
_WORDS: Final = {c: word for word, c in {**ASKS, **ANSWERS}.items()}  # words on the wire: a format, never changed


def tree_of(message: Ask | Answer) -> dict[str, object]:
    """A message as it travels."""
    values = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    if "opened" in values:
        values["opened"] = [o.pack() for o in values["opened"]]
    return {"what": _WORDS[type(message)], **values}


def _read(kinds: Mapping[str, type[M]], tree: Any) -> M:
    """The message of a tree.

    >>> _read(ASKS, {"what": "mail", "number": 3, "attempt": 0, "letters": [b"x"]})
    Deliver(number=3, attempt=0, letters=(b'x',), late=False, round=0)
    >>> _read(ASKS, {"what": "mail", "number": "3", "attempt": 0, "path": "/etc"})
    Traceback (most recent call last):
    polyclinic.errors.MessageRefused: [PC610] a message that cannot be read
      - unknown: path
      - number: not a whole number
    """
    what = tree.get("what") if isinstance(tree, dict) else None
    kind = kinds.get(what) if isinstance(what, str) else None
    if kind is None:
        raise MessageRefused("a message of an unknown kind")
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    needed = {
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    given = {k: v for k, v in tree.items() if k != "what"}
    faults = [f"unknown: {k[:40]}" for k in given if k not in fields]
    faults += [f"missing: {k}" for k in sorted(needed - set(given))]
    values: dict[str, object] = {}
    for name in sorted(set(given) & set(fields)):
        try:
            values[name] = READERS[name](given[name])
        except ValueError as e:
            faults.append(f"{name}: {e}")
    if faults:
        raise MessageRefused("a message that cannot be read", faults=faults)
    return kind(**values)


# ---- bytes: an ask is signed by the coordinator for one site; a site's letters and votes carry their own signatures


def _signed(order: str, to: str, *body: bytes | memoryview) -> bytes:
    h = hashlib.sha256()
    for part in body:
        h.update(part)
    return digest(["polyclinic/ask/2", order, to, h.digest()])


def seal_ask(identity: Identity, order: str, to: str, id: str, tree: Mapping[str, object]) -> bytes:
    """Bytes of an ask: 64 of signature, then the wire format. ``order``: the digest of the order that it belongs to."""
    body = wire.parts({**tree, "id": id})
    return b"".join([identity.sign(_signed(order, to, *body)), *body])


def open_ask(data: bytes, coordinator: str, order: str, me: str) -> tuple[str, Ask]:
    """The ask and its id, if the coordinator (its key, hexadecimal) signed it for this site and order."""
    if len(data) > wire.LIMIT + 64:
        raise MessageRefused(f"an ask of {len(data):,} bytes exceeds the limit of {wire.LIMIT:,}")
    body = memoryview(data)[64:]
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(coordinator))
        key.verify(data[:64], _signed(order, me, body))
    except (InvalidSignature, ValueError):
        raise MessageRefused("an ask that the coordinator did not sign for this site and study") from None
    tree = wire.decode(body)
    id = tree.pop("id", None) if isinstance(tree, dict) else None
    if not isinstance(id, str) or len(id) > 100:
        raise MessageRefused("an ask without a name of its own")
    return id, _read(ASKS, tree)


def encode_answer(answer: Answer) -> bytes:
    """Bytes of an answer."""
    return wire.encode(tree_of(answer))


def read_answer(data: bytes) -> Answer:
    """Inverse of :func:`encode_answer`; everything else is refused."""
    answer: Answer = _read(ANSWERS, wire.decode(data))
    return answer


# ---- one reader for each field


def _whole(value: object) -> int:
    if type(value) is not int or not -MOST < value < MOST:
        raise ValueError("not a whole number")
    return value


def _count(value: object) -> int:
    if (number := _whole(value)) < 0:
        raise ValueError("below zero")
    return number


def _list(value: object, kind: type[V], most: int = MANY) -> tuple[V, ...]:
    if not isinstance(value, list | tuple) or len(value) > most or any(type(v) is not kind for v in value):
        raise ValueError(f"not a list of {kind.__name__}")
    return tuple(value)


def _one(kind: type, most: int = 100, *, none: bool = False) -> Callable[[object], object]:
    def read(value: object) -> object:
        if none and value is None:
            return None
        if type(value) is not kind or (isinstance(value, str | bytes) and len(value) > most):
            raise ValueError(f"not a {kind.__name__}, or too long")
        return value

    return read


def _word(kind: object, *, none: bool = False) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not (none and value is None) and (type(value) is not str or value not in get_args(kind)):
            raise ValueError("not one of the known words")
        return value

    return read


def _totals(value: object) -> tuple[Opened, ...]:
    return tuple(Opened.read(v) for v in _list(value, dict))


def _map(value: object, kind: type) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) > MANY or any(type(v) is not kind for v in value.values()):
        raise ValueError(f"not a map of {kind.__name__}")
    return dict(value)


def _pair(value: object) -> Key | None:
    if value is None:
        return None
    if len(pair := _list(value, int, 2)) != 2:
        raise ValueError("not a pair")
    return pair[0], pair[1]


READERS: Final[dict[str, Callable[[object], object]]] = {
    "full": _one(bool),
    "late": _one(bool),
    "cancelled": _one(bool),
    "number": _whole,
    "attempt": _count,
    "round": _whole,
    "sites": lambda v: _list(v, str),
    "begin": lambda v: _list(v, str),
    "opened": _totals,
    "votes": lambda v: _map(v, bytes),
    "agreed": lambda v: _map(v, dict),
    "letters": lambda v: _list(v, bytes),
    "stage": _word(Stage),
    "standing": _word(Standing),
    "why": _word(Why, none=True),
    "life": _one(str),
    "noise": _one(str, 1000),
    "prepared": _pair,
    "chain": _one(bytes),
    "vote": _one(bytes),
    "book": _one(bytes, wire.LIMIT),
    "books": _one(bytes, wire.LIMIT),
    "setting": _one(dict, none=True),
    "result": _one(dict, none=True),
    "heads": lambda v: _map(v, dict),
}
