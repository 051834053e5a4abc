"""Agree on codes that no public list knows, without showing them: an ECDH ring on ristretto255.

Site k has a secret scalar k_k, for this attempt and mode. A code c becomes the tag ``(k_1 k_2 ... k_n) H(c)``: equal codes have
equal tags, and no tag can be made, or checked against a dictionary, without all the secrets. ::

    owner o      P = shuffle(b H(c) for its codes, random points up to the padded length), b a one-time scalar    -> next site
    others j     P = k_j P, in the order of the ring                                           -> next site, the last one -> o
    owner o      T = k_o (b^-1 P) at the places of its codes: the own secret LAST, at home      -> coordinator, shuffled anew
    coordinator  the union of all T in a RANDOM order that the sites can check: sorted by their marks (``alignment.vrf_tags``)

    hello        site -> both neighbours     a fresh X25519 key, signed
    list:OWNER   site -> next site           sealed
    tags         site -> coordinator
    places       coordinator -> site         all marks, the same for everybody, and the places of the site's own, with their proof

| party | sees | learns |
|---|---|---|
| site on the way | b times some secrets times H(c); b is uniform and used once | the padded length of the list |
| owner | its own finished tags, their places, the union's size | nothing of the others' codes |
| coordinator | all finished tags | how many codes each site has, and which tags are shared by which sites; no code |
| coordinator with a site | that site's list may be a dictionary: its tags against all | every site's codes: inherent to equal tags for equal codes. Lists longer than ``most`` are refused, and logged |

Why so. If the owner's secret came first, the site before it on the ring would hold the owner's finished tags and compare them with
its own: with a dictionary as its list it read 60 of 60 codes. If places were ranks, one site that sends thousands of evenly spread
points as its tags would read the others' tags from the gaps. If a site had to believe its places, a coordinator could give it
places of its own and see its part of every sum. All three are tests; ``agreement``, the digest of the marks, goes into the chain.

Secrets live in memory of one attempt and are deleted when the own list is home and the last one of the others has passed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.alignment.vrf_tags import BYTES, IDENTITY, Marker, Points, proven, raised
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.interfaces import COORDINATOR, Message, Roster, Step
from polyclinic.protocol.loop import deliver
from polyclinic.protocol.wire.sealed import Channel, Party, SealedMessage, agree, digest, introduce, octets
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

LEAST, MOST = 64, 2**16  # padded lengths of a list; an owner may allow fewer: a long list is a dictionary in disguise
Handlers = Mapping[str, Callable[[str, dict[str, object]], list[Message]]]


def _hash(mode: str, code: str) -> bytes:
    """A code as a point: nobody knows its discrete logarithm."""
    import rbcl

    text = b"\0".join((b"polyclinic alignment 1", mode.encode(), code.encode()))
    return bytes(rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(text).digest()))


def padded(codes: int) -> int:
    """Length under which a list travels: the next power of two, at least 64.

    >>> padded(3), padded(64), padded(1000)
    (64, 64, 1024)
    """
    return max(LEAST, 1 << (codes - 1).bit_length()) if codes else LEAST


def _valid(point: bytes) -> bool:
    import rbcl

    return len(point) == BYTES and point != IDENTITY and bool(rbcl.crypto_core_ristretto255_is_valid_point(point))


def _points(body: Mapping[str, object], who: str, most: int = MOST) -> Points:
    points = body["points"]
    if not isinstance(points, np.ndarray) or points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != BYTES:
        raise MessageRefused(f"list of {who!r} is not a list of points")
    if len(points) > most:
        raise MessageRefused(f"list of {who!r} has {len(points):,} codes, more than {most:,}")
    raw = [p.tobytes() for p in points]
    if not all(_valid(p) for p in raw):
        raise MessageRefused(f"list of {who!r} holds something that is not a point of the group, or its identity")
    if len(set(raw)) != len(raw):
        raise MessageRefused(f"list of {who!r} holds a point twice")
    return points


def step_of(mode: str) -> Step:
    """The public description under which letters of this alignment are signed."""
    return Step(0, f"align {mode}", {}, bound=1.0, counts=False)


class RingSite(Party):
    """A hospital: sends its list round, helps the others' lists on, and learns the places of its own codes.

    Parameters
    ----------
    pad
        Length under which the list travels; None: :func:`padded`.
    most
        Longest list, as it travels, that this site sends or helps on (the owner's ``max_codes``).
    """

    def __init__(
        self, envelope: SealedMessage, mode: str, codes: Sequence[str], *, pad: int | None = None, most: int = MOST
    ) -> None:
        import rbcl

        super().__init__(envelope)
        length = max(len(codes), padded(len(codes)) if pad is None else pad)
        if len(set(codes)) != len(codes):
            raise ConfigError(f"site {self.me!r}: a {mode} code is listed twice")
        if length > most:
            raise ConfigError(
                f"site {self.me!r}: {len(codes):,} {mode} codes travel as {length:,}, at most {most:,} are aligned"
            )
        self._secret: bytes | None = bytes(rbcl.crypto_core_ristretto255_scalar_random())
        self._blind: bytes | None = bytes(rbcl.crypto_core_ristretto255_scalar_random())
        self._most = most
        slots: list[str | None] = [*codes, *[None] * (length - len(codes))]  # None: a random point
        secrets.SystemRandom().shuffle(slots)
        self._slots = slots
        points = [bytes(rbcl.crypto_core_ristretto255_random()) if c is None else _hash(mode, c) for c in slots]
        self._list = np.frombuffer(b"".join(points), np.uint8).reshape(-1, BYTES)
        ring_order = list(self.roster.sites)
        at = ring_order.index(self.me)
        self._before, self._next = ring_order[at - 1], ring_order[(at + 1) % len(ring_order)]
        self._neighbours = tuple(sorted({self._before, self._next}))
        self._key = X25519PrivateKey.generate()
        self._lines: dict[str, Channel] = {}
        self._early: dict[str, Message] = {}
        self._left = len(ring_order) - 1  # lists of others that have still to pass
        self._sent: list[str] = []
        self._tags = np.empty((0, BYTES), np.uint8)  # finished, in the order of ``_sent``
        self.places: dict[str, int] = {}
        self.size = 0
        self.agreement = b""  # digest of all marks: two sites that have the same one have equal codes at equal places

    def start(self) -> list[Message]:
        body = {"key": self._key.public_key().public_bytes_raw()}
        return [self.envelope.seal(n, "hello", body) for n in self._neighbours]

    def handlers(self) -> Handlers:
        lists = {f"list:{owner}": self._list_of(owner) for owner in self.roster.sites}
        return lists | {"hello": self._hello, "places": self._places}

    def take(self, message: Message) -> list[Message]:
        """Lists that overtook a hello wait for it."""
        body = self.envelope.open(message)
        if message.kind.startswith("list:") and len(self._lines) < len(self._neighbours):
            if message.sender != self._before or message.kind in self._early:
                raise MessageRefused(f"message {message.kind!r} from {message.sender!r} is out of turn")
            self._early[message.kind] = message
            return []
        return self.handle(message, body)

    def _hello(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if sender not in self._neighbours:
            raise MessageRefused(f"hello from {sender!r}, who is no neighbour of {self.me!r} on the ring")
        key = agree(self._key, octets(body["key"]), self.envelope.context, "line", self.me, sender)
        self._lines[sender] = Channel(key, self.me, sender)
        if len(self._lines) < len(self._neighbours):
            return []
        assert self._blind is not None
        mine, self._list = raised(self._list, self._blind), np.empty((0, BYTES), np.uint8)
        out = [self._sealed(self.me, mine)]
        early, self._early = self._early, {}
        for m in early.values():
            out += self.take(m)
        return out

    def _sealed(self, owner: str, points: Points) -> Message:
        kind = f"list:{owner}"
        return self.envelope.seal(self._next, kind, {"sealed": self._lines[self._next].seal(points.tobytes(), kind)})

    def _list_of(self, owner: str) -> Callable[[str, dict[str, object]], list[Message]]:
        def take(sender: str, body: dict[str, Any]) -> list[Message]:
            if sender != self._before:
                raise MessageRefused(f"list of {owner!r} from {sender!r}, who is not before {self.me!r} on the ring")
            raw = self._lines[sender].open(octets(body["sealed"]), f"list:{owner}")
            points = _points({"points": np.frombuffer(raw, np.uint8).reshape(-1, BYTES)}, owner, self._most)
            if self._secret is None:
                raise MessageRefused(f"list of {owner!r} came after every list had passed")
            out = self._home(points) if owner == self.me else self._helped(owner, points)
            if self._left == 0 and self._blind is None:
                self._secret = None  # everything has passed: the secret is of no more use, and gone
            return out

        return take

    def _helped(self, owner: str, points: Points) -> list[Message]:
        assert self._secret is not None
        self._left -= 1
        return [self._sealed(owner, raised(points, self._secret))]

    def _home(self, points: Points) -> list[Message]:
        """The own list is back with every other secret on it: off the blind, on the own secret; the real codes' tags go out."""
        import rbcl

        if len(points) != len(self._slots):
            raise MessageRefused(f"the list of {self.me!r} came home with {len(points)} of {len(self._slots)} points")
        assert self._secret is not None
        assert self._blind is not None
        last = rbcl.crypto_core_ristretto255_scalar_mul(
            self._secret, rbcl.crypto_core_ristretto255_scalar_invert(self._blind)
        )
        order = [i for i, c in enumerate(self._slots) if c is not None]
        secrets.SystemRandom().shuffle(order)
        self._tags = raised(points[order], bytes(last))
        self._sent, self._blind = [str(self._slots[i]) for i in order], None
        return [self.envelope.seal(self.roster.coordinator or COORDINATOR, "tags", {"points": self._tags})]

    def _places(self, sender: str, body: dict[str, Any]) -> list[Message]:
        marks, public = (
            _points({"points": body["marks"]}, sender, MOST * len(self.roster.sites)),
            octets(body["public"]),
        )
        raw, places = [m.tobytes() for m in marks], body["places"]
        if raw != sorted(raw) or not _valid(public):
            raise MessageRefused(f"marks from {sender!r} are not in their order, or without a key")
        if not isinstance(places, np.ndarray) or places.shape != (len(self._sent),) or places.dtype != np.int64:
            raise MessageRefused(f"places from {sender!r} do not match the {len(self._sent)} tags that were sent")
        if len(places) and (places.min() < 0 or places.max() >= len(raw)):
            raise MessageRefused(f"places from {sender!r} are not below {len(raw)}")
        if not proven(public, self._tags, marks[places], octets(body["proof"]), self.envelope.context):
            raise MessageRefused(f"places from {sender!r} are not those of the tags that were sent")
        self.places = dict(zip(self._sent, (int(x) for x in places)))
        self.size, self.agreement = len(raw), digest([public, marks])
        self._result = "done"
        return []

    def deadline(self) -> list[Message]:
        self._secret = self._blind = None
        self._result = "aborted" if self._result == "pending" else self._result
        return []


class RingCoordinator(Party):
    """Gives equal tags equal places, in an order that says nothing; never sees a code."""

    most = MOST

    def __init__(self, envelope: SealedMessage) -> None:
        super().__init__(envelope)
        self.tags: dict[str, Points] = {}

    def start(self) -> list[Message]:
        return []

    def handlers(self) -> Handlers:
        return {"tags": self._tags}

    def _tags(self, sender: str, body: dict[str, object]) -> list[Message]:
        self.tags[sender] = _points(body, sender, self.most)
        if len(self.tags) < len(self.roster.sites):
            return []
        self._result = "done"
        return self.answers()

    def answers(self) -> list[Message]:
        """What every site is told once all tags are here: its places."""
        marker, bodies = Marker(), dict[str, dict[str, object]]()
        own = {s: marker.marks(self.tags[s]) for s in self.roster.sites}  # equal tags, equal marks
        raw = sorted({m.tobytes() for marks in own.values() for m in marks})
        union, place = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, BYTES), {m: i for i, m in enumerate(raw)}
        for s, marks in own.items():
            places = np.array([place[m.tobytes()] for m in marks], np.int64)
            proof = marker.proof(self.tags[s], marks, self.envelope.context)
            bodies[s] = {"marks": union, "public": marker.public, "places": places, "proof": proof}
        return [self.envelope.seal(s, "places", body) for s, body in bodies.items()]

    def deadline(self) -> list[Message]:
        self._result = "aborted" if self._result == "pending" else self._result
        return []


def ring(
    codes: Mapping[str, Sequence[str]],
    mode: str,
    *,
    pad: int | None = None,
    tap: Callable[[Message], None] | None = None,
) -> tuple[dict[str, dict[str, int]], int]:
    """Run the ring in this process: site -> (code -> place in the common order), and the union's size.

    >>> places, size = ring({"a": ["x", "y"], "b": ["y", "z"]}, "drug")
    >>> size, places["a"]["y"] == places["b"]["y"]
    (3, True)
    """
    parties = around(codes, mode, pad=pad, tap=tap)
    names = sorted(codes)
    return {n: parties[n].places for n in names}, parties[names[0]].size


def around(
    codes: Mapping[str, Sequence[str]],
    mode: str,
    kinds: tuple[type[RingSite], type[RingCoordinator]] = (RingSite, RingCoordinator),
    *,
    pad: int | None = None,
    tap: Callable[[Message], None] | None = None,
) -> dict[str, Any]:
    """All parties of a ring in this process, after their messages.

    Parameters
    ----------
    kinds
        What the parties do with the tags: agree on places, or count (:mod:`polyclinic.alignment.overlap`).
    """
    if len(codes) < 2:
        raise ConfigError("a ring needs at least two sites")
    names = tuple(sorted(codes))
    identity, keys = introduce([*names, COORDINATOR])
    roster = Roster(names, COORDINATOR, threshold=len(names), keys={n: identity[n].public for n in keys})
    step = step_of(mode)
    parties: dict[str, Any] = {
        n: kinds[0](SealedMessage(n, roster, step, identity[n]), mode, codes[n], pad=pad) for n in names
    }
    parties[COORDINATOR] = kinds[1](SealedMessage(COORDINATOR, roster, step, identity[COORDINATOR]))
    deliver(parties, tap)
    return parties


def align_by_ring(sites: Sequence[Site], *, pad: int | None = None) -> Sites:
    """Put sites on common codes by the ring, mode by mode; each site keeps the names of its own codes only.

    A mode whose codes are public, and the same everywhere, stays as it is.
    """
    tensors = {s.name: s.counts() for s in sites}
    for n in range(1, len(sites[0].counts().axes)):
        axes = {s: t.axes[n] for s, t in tensors.items()}
        if {a.vocabulary for a in axes.values()} == {"public"} and len({a.digest() for a in axes.values()}) == 1:
            continue
        places, size = ring(_labels(axes), sites[0].counts().axes[n].name, pad=pad)
        for s, t in tensors.items():
            tensors[s] = place(t, n, places[s], size)
    return Sites([replace(s, tensor=tensors[s.name]) for s in sites], truth_of(sites))


def _labels(axes: Mapping[str, Axis]) -> dict[str, tuple[str, ...]]:
    """The codes of one mode, by site."""
    unlabelled = [s for s, a in axes.items() if a.labels is None]
    if unlabelled:
        mode = next(iter(axes.values())).name
        raise ConfigError(
            f"mode {mode!r}: sites without labels cannot be aligned", faults=[repr(s) for s in unlabelled]
        )
    return {s: a.labels or () for s, a in axes.items()}


def place(tensor: SparseTensor, mode: int, places: Mapping[str, int], size: int) -> SparseTensor:
    """A site's tensor with the codes of one mode at the places of the union; only its own codes have a name in it."""
    own = tensor.axes[mode]
    texts = [""] * size
    for i, label in enumerate(own.labels or ()):
        texts[places[label]] = own.describe(i) if own.names is None else f"{label} {own.describe(i)}"
    axis = Axis(own.name, tuple(f"{own.name} {i}" for i in range(size)), tuple(texts), "data")
    return tensor.recode(mode, [places[label] for label in own.labels or ()], axis, size)
