"""What a coordinator may ask of a site: eight types, one decoder.

A field that is missing, unknown or of another type is refused before anything is looked up, computed or written; so is a verb
that is not one of these. A number, a step or a public state is never taken from an ask: a site derives them, and an ask that
names another number is told where the site stands.

    hello      a sign of life; with ``full`` also what is public about the site
    begin      peers: who takes part
    step       one attempt at a sum: who is there, the totals since, the votes for the sums before
    mail       letters of the sum that is open
    settle     peers: is the sum known?
    deadline   peers: who has not written is late
    close      the last totals; the site keeps what stays there
    align      before the first sum: agree on codes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polyclinic.errors import MessageRefused
from polyclinic.federation.certificate import Opened

__all__ = ["Align", "Ask", "Begin", "Close", "Deadline", "Hello", "Mail", "Settle", "Take", "read_ask"]

NAMES: Final = 100_000  # nodes of a study at most: 100 sites with 1,000 each
LETTERS: Final = 100_000
MOST: Final = 2**62


@dataclass(frozen=True)
class Hello:
    """A sign of life; ``books``: what is known of everybody's book (``privacy.watch``)."""

    full: bool = False
    books: bytes = b""


@dataclass(frozen=True)
class Begin:
    """Who takes part, by node; said once."""

    begin: tuple[str, ...]


@dataclass(frozen=True)
class Take:
    """One attempt at a sum, over ``sites``."""

    number: int
    attempt: int
    sites: tuple[str, ...]
    begin: tuple[str, ...] = ()
    opened: tuple[Opened, ...] = ()
    votes: Mapping[str, bytes] = field(default_factory=dict)
    agreed: Mapping[str, Any] = field(default_factory=dict)
    commit: tuple[int, int] | None = None
    round: int = 0  # for the coordinator's own count of bytes
    books: bytes = b""


@dataclass(frozen=True)
class Mail:
    """Letters of the sum that is open."""

    number: int
    attempt: int
    letters: tuple[bytes, ...]
    round: int = 0


@dataclass(frozen=True)
class Settle:
    """Peers: whether the sum is known."""

    number: int
    attempt: int
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deadline:
    """Peers: who has not written is late."""

    number: int
    attempt: int
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Close:
    """The end."""

    begin: tuple[str, ...] = ()
    opened: tuple[Opened, ...] = ()
    votes: Mapping[str, bytes] = field(default_factory=dict)
    agreed: Mapping[str, Any] = field(default_factory=dict)
    commit: tuple[int, int] | None = None


@dataclass(frozen=True)
class Align:
    """One phase of agreeing on codes."""

    phase: str
    attempt: int
    sites: tuple[str, ...] = ()
    letters: tuple[bytes, ...] = ()
    axes: tuple[Mapping[str, Any], ...] = ()


Ask = Hello | Begin | Take | Mail | Settle | Deadline | Close | Align
VERBS: Final[dict[str, type[Any]]] = {
    "hello": Hello,
    "begin": Begin,
    "step": Take,
    "mail": Mail,
    "settle": Settle,
    "deadline": Deadline,
    "close": Close,
    "align": Align,
}


def read_ask(tree: Mapping[str, Any]) -> tuple[str, Ask]:
    """Its id and the ask itself.

    >>> read_ask({"what": "mail", "id": "7", "number": 3, "attempt": 0, "letters": [b"x"]})
    ('7', Mail(number=3, attempt=0, letters=(b'x',), round=0))
    >>> read_ask({"what": "mail", "id": "7", "number": "3", "attempt": 0, "letters": [], "path": "/etc"})
    Traceback (most recent call last):
    polyclinic.errors.MessageRefused: [PC610] an ask that cannot be read
      - unknown: path
      - number: not a whole number
    """
    what = tree.get("what")
    kind = VERBS.get(what) if isinstance(what, str) else None
    id = tree.get("id", "")
    if kind is None or not isinstance(id, str) or len(id) > 100:
        raise MessageRefused("an ask of an unknown kind, or without a name of its own")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    needed = {
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    given = {k: v for k, v in tree.items() if k not in ("what", "id")}
    faults = [f"unknown: {k[:40]}" for k in given if k not in fields]
    faults += [f"missing: {k}" for k in sorted(needed - set(given))]
    values: dict[str, Any] = {}
    for name in sorted(set(given) & set(fields)):
        try:
            values[name] = READERS[name](given[name])
        except ValueError as e:
            faults.append(f"{name}: {e}")
    if faults:
        raise MessageRefused("an ask that cannot be read", faults=faults)
    return id, kind(**values)


# ---- one reader for each field


def _whole(value: Any) -> int:
    if type(value) is not int or not -MOST < value < MOST:
        raise ValueError("not a whole number")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError("below zero")
    return int(value)


def _list(value: Any, kind: type[Any], most: int) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) > most or any(type(v) is not kind for v in value):
        raise ValueError(f"not a list of {kind.__name__}")
    return tuple(value)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 100:
        raise ValueError("not a short text")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("not bytes")
    return value


def _totals(value: Any) -> tuple[Opened, ...]:
    return tuple(Opened.read(v) for v in _list(value, dict, NAMES))


def _map(value: Any, kind: type[Any]) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > NAMES or any(type(v) is not kind for v in value.values()):
        raise ValueError(f"not a map of {kind.__name__}")
    return dict(value)


def _pair(value: Any) -> tuple[int, int] | None:
    if value is None or value == []:
        return None
    number, attempt = _list(value, int, 2)
    return number, attempt


READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "full": _truth,
    "books": _bytes,
    "number": _whole,
    "attempt": _count,
    "round": _whole,
    "sites": lambda v: _list(v, str, NAMES),
    "begin": lambda v: _list(v, str, NAMES),
    "opened": _totals,
    "votes": lambda v: _map(v, bytes),
    "agreed": lambda v: _map(v, dict),
    "commit": _pair,
    "letters": lambda v: _list(v, bytes, LETTERS),
    "axes": lambda v: _list(v, dict, 16),
    "phase": _text,
}
