"""Letters between sites: signed with keys that everybody pinned before, sealed so that only the addressee can read.

Only primitives of ``cryptography`` are used: Ed25519 signatures, X25519 key agreement, HKDF-SHA256, ChaCha20-Poly1305.
Every signature and every seal covers the *context*, a digest of the roster (who, threshold, attempt, pinned keys), of the
step (round, name, shapes, bounds) and of the chain of sums before it (``protocol.wire.chain``: the order, and every total
and public state since). A letter of another round, step, attempt or roster, or of a party that holds another public state,
therefore never opens.

What the envelope does not do: it does not hide who talks to whom, nor how much; the transport's TLS does that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, MessageRefused, PolyclinicError
from polyclinic.privacy.release import Step, Total
from polyclinic.protocol.wire.message import Message, Roster

_LOG = logging.getLogger("polyclinic.protocol")
_Put = Callable[[bytes | memoryview], None]
_LARGE = 2**16  # bytes of an array that are hashed where they lie
_DEPTH = 8  # no honest body nests deeper; stops a hostile one from exhausting the stack


@dataclass(frozen=True)
class Identity:
    """A party's long-term signing key. Made at the party, never leaves it, never printed, cannot be pickled.

    Examples
    --------
    >>> north = Identity.generate("north")
    >>> north
    Identity(name='north')
    >>> len(north.public), len(north.sign(b"text"))
    (32, 64)
    """

    name: str
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls, name: str) -> Identity:
        """A new key from the operating system's secure source."""
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, name: str, raw: bytes) -> Identity:
        """The key of 32 bytes that the party keeps in its key file."""
        return cls(name, Ed25519PrivateKey.from_private_bytes(raw))

    @property
    def public(self) -> bytes:
        """The verification key (32 bytes) that everybody pins in the roster."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self._key.sign(data)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key is never serialised")


def introduce(names: Iterable[str]) -> tuple[dict[str, Identity], dict[str, bytes]]:
    """Make everybody's key, for runs inside one process: private identities, and the public keys for the roster.

    Between hospitals each party makes its own key instead, and only the public halves meet in the roster.
    """
    identities = {n: Identity.generate(n) for n in names}
    return identities, {n: i.public for n, i in identities.items()}


def octets(value: object) -> bytes:
    """Bytes that were sent as bytes: of a number ``bytes`` would make that many, and a letter of 60 bytes could ask for all.

    >>> octets(b"ab")
    b'ab'
    >>> octets(10**12)
    Traceback (most recent call last):
    TypeError: int where bytes are expected
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} where bytes are expected")
    return bytes(value)


def digest(value: object) -> bytes:
    """SHA-256 of a body in one canonical form (maps by key, lists and tuples alike, arrays by type, shape and bytes).

    >>> digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    True
    """
    parts: list[bytes | memoryview] = []
    _feed(parts.append, value, 0)
    if max(map(len, parts)) < _LARGE:
        return hashlib.sha256(b"".join(parts)).digest()
    h = hashlib.sha256()
    for part in parts:
        h.update(part)
    return h.digest()


def _feed(put: _Put, v: object, depth: int) -> None:
    if depth > _DEPTH:
        raise ValueError("nested too deep")
    write = _WRITE.get(type(v))
    if write is None:  # rarer types, and what inherits from a common one
        v = v.item() if isinstance(v, np.generic) else bytes(v) if isinstance(v, bytearray | memoryview) else v
        write = next((w for kind, w in _WRITE.items() if isinstance(v, kind)), None)
        if write is None:
            raise TypeError(f"a body cannot hold {type(v).__name__}")
    write(put, v, depth)


def _raw(put: _Put, kind: bytes, raw: bytes) -> None:
    put(kind + _LENGTH(len(raw)))
    put(raw)


def _list(put: _Put, v: Sequence[object], depth: int) -> None:
    put(b"l" + _LENGTH(len(v)))
    for item in v:
        _feed(put, item, depth + 1)


def _map(put: _Put, v: Mapping[str, object], depth: int) -> None:
    if not all(isinstance(k, str) for k in v):
        raise TypeError("a map's keys are texts")
    put(b"m" + _LENGTH(len(v)))
    for k in sorted(v):
        _feed(put, k, depth + 1)
        _feed(put, v[k], depth + 1)


def _array(put: _Put, v: NDArray[np.generic], depth: int) -> None:
    if v.dtype.kind not in "biuf":
        raise TypeError(f"array of type {v.dtype}")
    a = np.ascontiguousarray(v, v.dtype.newbyteorder("<"))
    _feed(put, [a.dtype.str, list(v.shape)], depth + 1)
    put(b"a")
    put(a.reshape(-1).view("u1").data)


_LENGTH = struct.Struct("<Q").pack
_DOUBLE = struct.Struct("<d").pack
_WRITE: dict[type, Callable[[_Put, Any, int], None]] = {
    bool: lambda put, v, depth: put(b"t" if v else b"f"),  # before int, which it inherits from
    type(None): lambda put, v, depth: put(b"n"),
    int: lambda put, v, depth: _raw(put, b"i", str(int(v)).encode()),
    str: lambda put, v, depth: _raw(put, b"s", v.encode("utf-8", "surrogatepass")),
    bytes: lambda put, v, depth: _raw(put, b"b", v),
    float: lambda put, v, depth: put(b"d" + _DOUBLE(v)),
    list: _list,
    tuple: _list,
    dict: _map,
    np.ndarray: _array,
    Mapping: _map,
}


@lru_cache(maxsize=4096)
def _public(raw: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(raw)


def agree(private: X25519PrivateKey, public: bytes, context: bytes, purpose: str, a: str, b: str) -> bytes:
    """The 32-byte key that two parties share for one purpose in one attempt: HKDF of their X25519 secret."""
    secret = private.exchange(_public(public))
    info = digest([purpose, *sorted((a, b))])
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=context, info=info).derive(secret)


class Channel:
    """An encrypted line between two parties, for one attempt. Nonces are random; labels are authenticated."""

    def __init__(self, key: bytes, me: str, peer: str) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._me, self._peer = me, peer

    def seal(self, data: bytes, label: str) -> bytes:
        """Encrypt for the peer; the label (kind, serial number) must be the same at both ends."""
        nonce = os.urandom(12)
        return nonce + self._aead.encrypt(nonce, data, _aad(self._me, self._peer, label))

    def open(self, sealed: bytes, label: str) -> bytes:
        """Decrypt what the peer sealed; :class:`MessageRefused` if a single bit differs."""
        try:
            return self._aead.decrypt(sealed[:12], sealed[12:], _aad(self._peer, self._me, label))
        except (InvalidTag, ValueError, TypeError) as e:
            raise MessageRefused(
                f"sealed message from {self._peer!r} to {self._me!r} ({label}) does not open: tampered or truncated"
            ) from e


def _aad(sender: str, to: str, label: str) -> bytes:
    return "\0".join((sender, to, label)).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=4096)
def _verify(key: bytes, signature: bytes, data: bytes) -> None:
    """Check a signature; the same three texts need no second look (in one process many parties are shown the same letter)."""
    Ed25519PublicKey.from_public_bytes(key).verify(signature, data)


T = TypeVar("T")


def _remembered(compute: Callable[[Roster], T]) -> Callable[[Roster], T]:
    """A function of a roster that knows its last few answers: with many sites in one process all ask for the same."""
    last: list[tuple[Roster, T]] = []

    def ask(roster: Roster) -> T:
        for known, value in last:
            if known is roster:
                return value
        value = compute(roster)
        last[:] = [(roster, value), *last[:3]]
        return value

    return ask


@_remembered
def parties_digest(roster: Roster) -> bytes:
    """Digest of who takes part under which rules and keys, whatever the attempt and the chain."""
    rules = [roster.threshold, roster.colluders]
    edges = sorted([list(e) for e in roster.edges])
    return digest([list(roster.sites), roster.coordinator, edges, rules, dict(roster.keys)])


@_remembered
def _parties(roster: Roster) -> tuple[frozenset[str], tuple[str, ...]]:
    """Who takes part, and whose key is missing."""
    parties = [*roster.sites, *([roster.coordinator] if roster.coordinator else [])]
    missing = [f"no pinned verification key of {p!r}" for p in parties if len(roster.keys.get(p, b"")) != 32]
    return frozenset(parties), tuple(missing)


class SealedMessage:
    """Seals and opens one party's letters of one attempt.

    Parameters
    ----------
    me, roster, step
        Who, with whom, and for which sum.
    identity
        The party's own signing key.
    """

    def __init__(self, me: str, roster: Roster, step: Step, identity: Identity | None) -> None:
        parties, missing = _parties(roster)
        faults = list(missing)
        if me not in parties:
            faults.append(f"{me!r} is not on the roster")
        if identity is None:
            faults.append(f"no signing key of {me!r} was given")
        elif not faults and identity.public != roster.keys[me]:
            faults.append(f"the signing key of {me!r} does not match the key pinned in the roster")
        if faults or identity is None:
            raise ConfigError(
                f"{me!r}, step {step.name!r}: messages cannot be signed and verified",
                faults=faults,
                hint="pin every party's public key in the roster (in process: envelope.introduce)",
            )
        self.me, self.roster, self.step, self.identity = me, roster, step, identity
        self.context = digest(
            [
                "polyclinic sum 3",
                roster.chain,
                parties_digest(roster),
                roster.attempt,
                [step.round, step.name, {k: list(v) for k, v in step.shapes.items()}],
                [float(step.bound), float(step.weight_bound), step.grid, float(step.noise_sd)],
            ]
        )
        self._parties = parties
        self._seen: set[tuple[str, str]] = set()

    def sign(self, purpose: str, value: object) -> bytes:
        """Signature over a value in this attempt's context."""
        return self.identity.sign(digest([self.context, purpose, self.me, value]))

    def verify(self, who: str, purpose: str, value: object, signature: bytes) -> None:
        """Refuse unless ``who`` signed exactly this value for exactly this purpose and attempt."""
        try:
            if who not in self._parties:
                raise KeyError(who)
            _verify(self.roster.keys[who], bytes(signature), digest([self.context, purpose, who, value]))
        except (InvalidSignature, KeyError, TypeError, ValueError) as e:
            raise MessageRefused(f"{purpose} of {who!r}: the signature is wrong") from e

    def seal(self, to: str, kind: str, body: Mapping[str, object]) -> Message:
        """A signed message."""
        s = self.step
        signature = self.sign(f"{kind} to {to}", body)
        return Message(self.me, to, kind, s.round, s.name, self.roster.attempt, {**body, "signature": signature})

    def open(self, message: Message) -> dict[str, object]:
        """The content of a message after every check, or :class:`MessageRefused` with the reason."""
        m, s = message, self.step
        name = f"message {m.kind!r} from {m.sender!r} to {m.to!r}"
        if m.to != self.me:
            raise MessageRefused(f"{name} is not for {self.me!r}")
        if m.sender not in self._parties or m.sender == self.me:
            raise MessageRefused(f"{name}: the sender is not on the roster")
        if (m.round, m.step, m.attempt) != (s.round, s.name, self.roster.attempt):
            raise MessageRefused(
                f"{name} belongs to another sum (replayed or late)",
                faults=[
                    f"round {m.round!r}, step {m.step!r}, attempt {m.attempt!r}",
                    f"open now: round {s.round}, step {s.name!r}, attempt {self.roster.attempt}",
                ],
            )
        if not isinstance(m.body, Mapping):
            raise MessageRefused(f"{name} has no readable body")
        body = dict(m.body)
        self.verify(m.sender, f"{m.kind} to {m.to}", body, body.pop("signature", b""))
        if (m.sender, m.kind) in self._seen:
            raise MessageRefused(f"{name} was received before (replayed)")
        return body

    def forget(self, *kinds: str) -> None:
        """Letters of these kinds may come again: the exchange has begun anew."""
        self._seen = {x for x in self._seen if x[1] not in kinds}

    def accept(self, message: Message) -> None:
        """Remember an opened message, so that a replay is refused."""
        self._seen.add((message.sender, message.kind))


class Party:
    """One side of a signed exchange: opens the envelope, then hands the content to the handler of that kind.

    A handler reads the whole body before it changes anything, so a refused message leaves no trace. The driver catches a
    :class:`MessageRefused` (logged under ``polyclinic.protocol``) and goes on.
    """

    def __init__(self, envelope: SealedMessage) -> None:
        self.envelope = envelope
        self.me, self.roster, self.step = envelope.me, envelope.roster, envelope.step
        self._where = (self.step.round, self.step.name, self.roster.attempt)
        self._result: Total | Literal["pending", "done", "aborted"] = "pending"

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, object]], list[Message]]]:
        """What to do with each kind of message; called with the sender and the body."""
        raise NotImplementedError

    def receive(self, message: Message) -> list[Message]:
        """Take one message and answer; a refusal is logged (its text may leave the site) and raised."""
        try:
            return self.take(message)
        except MessageRefused as e:
            _LOG.warning("%r, round %d, step %r, attempt %d: %s", self.me, *self._where, e)
            raise

    def take(self, message: Message) -> list[Message]:
        """Open, then hand on."""
        return self.handle(message, self.envelope.open(message))

    def handle(self, message: Message, body: dict[str, object]) -> list[Message]:
        """Hand an authentic body on; whatever is wrong inside is a refusal, never a crash."""
        name = f"message {message.kind!r} from {message.sender!r} to {self.me!r}"
        if self._result != "pending":
            raise MessageRefused(f"{name} came after this exchange had ended")
        act = self.handlers().get(message.kind)
        if act is None:
            raise MessageRefused(f"{name}: unknown kind")
        try:
            answer = act(message.sender, body)
        except PolyclinicError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as e:
            raise MessageRefused(f"{name} is malformed", faults=[f"{type(e).__name__}: {e}"]) from e
        self.envelope.accept(message)
        return answer

    def result(self) -> Total | Literal["pending", "done", "aborted"]:
        """``Total``, or where this side stands."""
        return self._result
