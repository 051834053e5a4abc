"""A hospital's side of a masked sum (``aggregation.secure.masked`` has the protocol)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.aggregation.fixed_point import FixedPoint, Words, stream
from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.secure.authenticated import AuthenticatedMessage
from polyclinic.aggregation.secure.key_agreement import Session
from polyclinic.aggregation.secure.key_broadcast import from_bits, read_introduction
from polyclinic.aggregation.secure.mask_graph import circle
from polyclinic.aggregation.secure.prime_field import accumulate
from polyclinic.aggregation.secure.survivor_votes import VOTE
from polyclinic.aggregation.secure.total_check import TotalCheck, TotalTag
from polyclinic.aggregation.vector import unflatten
from polyclinic.errors import MessageRefused
from polyclinic.protocol.interfaces import Message, Step, Total
from polyclinic.protocol.wire.integer_width import narrow, width
from polyclinic.protocol.wire.sealed import Party, agree, octets, parties_digest

if TYPE_CHECKING:
    from polyclinic.aggregation.secure.masked import Masked


def read(step: Step, share: float, opened: Words, promise: Promise, *, checked: bool = True) -> Total:
    """The total of opened words that are the sum over the list of a promise; refused if the tag says that they are not.

    ``checked`` false: by a site that was away and has no tag; others' votes must then say that the words are the sum.
    """
    if not isinstance(opened, np.ndarray) or opened.dtype != np.uint64 or opened.shape != (step.size + 2,):
        raise MessageRefused(f"a total of other words than the {step.size + 2} that are expected")
    data = TotalCheck.read(promise.key, len(promise.members)).opened(opened) if checked else opened[:-1]
    return unflatten(step, FixedPoint.of(step, promise.sites).decode(data), len(promise.members), share)


@lru_cache(maxsize=4)
def _text(listed: tuple[str, ...]) -> bytes:
    """What a vote is for."""
    return hashlib.sha256(msgpack.packb(listed)).digest()


class MaskedSite(Party):
    """Hands out shares, sends one masked vector, helps to unmask one list of survivors, checks the total."""

    envelope: AuthenticatedMessage

    def __init__(
        self,
        envelope: AuthenticatedMessage,
        words: Words,
        adder: Masked,
        session: Session | None = None,
        promises: Promises | None = None,
    ) -> None:
        super().__init__(envelope)
        self._words, self._adder, self._session = words, adder, session
        self._place = (self.me, parties_digest(self.roster))
        self._least = max(adder.least, self.roster.threshold)
        self._promises = Promises() if promises is None else promises
        self._key: X25519PrivateKey | None = None
        self._slot = -1  # of the vector that I sent
        self._tag: TotalTag | None = None  # with which I check the total
        self._made: Promise | None = None  # the one list of survivors that I voted for
        self._quiet = 0

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, object]], list[Message]]]:
        return {
            "keys": self._on_keys,
            "inbox": self._on_inbox,
            "survivors": self._on_survivors,
            "signatures": self._on_signatures,
            "again": self._on_again,
            "abort": self._on_abort,
        }

    def take(self, message: Message) -> list[Message]:
        """Only the coordinator writes to a site; sites' words inside carry their own signatures."""
        if message.sender != self.roster.coordinator:
            raise MessageRefused(
                f"message {message.kind!r} from {message.sender!r}: only the coordinator writes to a site"
            )
        body = self.envelope.open(message)
        if message.kind == "abort" and self._result == "done":
            return []  # my part was over; the coordinator could not open the sum
        answer = self.handle(message, body)
        self._quiet = 0
        return answer

    def _send(self, kind: str, body: Mapping[str, object]) -> list[Message]:
        return [self.envelope.seal(self.roster.coordinator or "", kind, body)]

    # ---- keys and shares

    def start(self) -> list[Message]:
        """With keys and shared secrets from the sums before: the masked vector at once."""
        if self._session is None:
            return self._advertise()
        return self._masked() if self._session.left else self._send("shares", self._session.deal())

    def _advertise(self) -> list[Message]:
        self._key = X25519PrivateKey.generate()
        # the one list of this sum that I may still vote for, if I did before
        body = {"line": self._key.public_key().public_bytes_raw(), "bound": list(self._promises.bound)}
        return self._send("advertise", {**body, "own": self.envelope.sign("keys", body)})

    def _on_again(self, sender: str, body: dict[str, object]) -> list[Message]:
        """Somebody has no keys any more. The vector that I sent, if I did, stays closed: its slot is used up."""
        if self._session is None or self._made:
            raise MessageRefused(f"{self.me!r} agrees again only if it had keys, and before it voted for a list")
        self._drop()
        return self._advertise()

    def _drop(self) -> None:
        self._session, self._slot, self._tag = None, -1, None
        self._adder.sessions.pop(self._place, None)
        self.envelope.lines.clear()

    def _members(self, names: Iterable[str], within: Iterable[str]) -> list[str]:
        """A list of sites from the coordinator: sorted, distinct, on the roster, enough, and with me in it."""
        members, allowed = list(names), within if isinstance(within, tuple) else tuple(within)
        if members != list(allowed) and (members != sorted(set(members)) or not set(members) <= set(allowed)):
            raise MessageRefused(f"{self.me!r} was sent a list with strangers or doubles")
        if len(members) < self._least or self.me not in members:
            raise MessageRefused(
                f"{self.me!r} was sent a list of {len(members)} sites (itself included: {self.me in members}); "
                f"the threshold is {self._least}"
            )
        return members

    def _on_keys(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if self._key is None:
            raise MessageRefused(f"{self.me!r} expects no keys now")
        introduction = read_introduction(body, self.envelope, self._adder.introduced)
        members, publics, id = (
            self._members(sorted(introduction.keys), self.roster.sites),
            introduction.keys,
            introduction.id,
        )
        public_key = self._key.public_key().public_bytes_raw()
        if publics[self.me] != public_key:
            raise MessageRefused(f"{self.me!r} was sent another key as its own")
        pairs = {s: self._pair(public_key, publics[s], id, s) for s in members if s != self.me}
        line = agree(self._key, octets(body["line"]), id, "line", self.me, sender)
        around = circle(tuple(members), self.roster.threshold, self.roster.colluders, id)
        session = Session(self.me, around, id, pairs, line, self._adder.slots)
        letter = session.deal()
        self._session, self._key = session, None
        self.envelope.lines[sender] = line
        return self._send("shares", letter)

    def _pair(self, mine: bytes, other: bytes, id: bytes, peer: str) -> bytes:
        """Key of two sites. Where both run in this process the second takes what the first has computed."""
        assert self._key is not None
        pair = (min(mine, other), max(mine, other))
        if peer not in self._adder.identities:
            return agree(self._key, other, id, "pair", self.me, peer)
        shared_key = self._adder.agreed.pop(pair, None)
        if shared_key is None:
            shared_key = self._adder.agreed[pair] = agree(self._key, other, id, "pair", self.me, peer)
        return shared_key

    def _on_inbox(self, sender: str, body: dict[str, Any]) -> list[Message]:
        session = self._session
        if session is None or session.left or self._slot >= 0:
            raise MessageRefused(f"{self.me!r} expects no shares now")
        members = self._members([str(s) for s in body["sites"]], session.circle.order)
        session.collect({str(k): octets(v) for k, v in body["sealed"].items()}, members)
        return self._masked()

    # ---- the sum

    def _masked(self) -> list[Message]:
        session, context = self._session, self.envelope.context
        assert session is not None
        tag, slot = session.tag(context, self.roster.sites), session.use()
        vector = np.append(self._words, np.uint64(tag.word(self._words, self.me)))
        for key, sign in session.masks(slot, context):
            accumulate(vector, stream(key, vector.size + 1), sign)
        self._tag, self._slot = tag, slot
        size = width(self.step, len(self.roster.sites))
        payload = vector if size == 8 else np.concatenate([narrow(vector[:-2], size), narrow(vector[-2:])])
        return self._send("masked", {"vector": payload, "session": session.id[:8], "slot": [session.batch, slot]})

    def _on_survivors(self, sender: str, body: dict[str, Any]) -> list[Message]:
        session, context = self._session, self.envelope.context
        if session is None or self._tag is None or self._made:
            raise MessageRefused(f"{self.me!r} signs one list of survivors, after its vector was sent")
        survivors = self._members(from_bits(octets(body["sites"]), session.members), session.members)
        if not session.circle.safe(survivors, self.roster.colluders):
            raise MessageRefused(f"{self.me!r} was sent a list of {len(survivors)} sites that do not hang together")
        promise = Promise(self.roster.attempt, tuple(survivors), self._tag.over(survivors).raw, len(self.roster.sites))
        self._promises.sign(promise)  # on disk before the vote leaves
        self._made = promise
        return self._send("signed", {"votes": session.votes(context, _text(promise.members), survivors)})

    def _on_signatures(self, sender: str, body: dict[str, Any]) -> list[Message]:
        session, context = self._session, self.envelope.context
        if session is None or self._made is None:
            raise MessageRefused(f"{self.me!r} has signed no list of survivors yet")
        survivors = self._made.members
        voters, votes = from_bits(octets(body["voters"]), survivors), octets(body["votes"])
        if len(votes) != VOTE * len(voters):
            raise MessageRefused(f"{self.me!r} was sent more or fewer signatures than voters")
        right = session.count(context, _text(survivors), voters, votes, self.roster.threshold)
        if right < self.roster.threshold:
            raise MessageRefused(
                f"{right} right signatures under the list of survivors; the threshold is {self.roster.threshold}"
            )
        shares = session.shares(self._slot, survivors)
        self._forget("done")
        return self._send("unmask", shares)

    def check(self, opened: Words, members: tuple[str, ...]) -> Total:
        """The total from the words that were opened, if they are the sum over the list that I signed; refused otherwise."""
        if self._made is None or tuple(members) != self._made.members:
            raise MessageRefused(f"{self.me!r} has not signed the list of {len(members)} sites of this total")
        return read(self.step, self._adder.noise_share(self.roster), opened, self._made)

    def _on_abort(self, sender: str, body: dict[str, object]) -> list[Message]:
        self._forget("aborted")
        return []

    def _forget(self, outcome: Literal["done", "aborted"]) -> None:
        """The sum is over. Keys stay for the next one if everybody who has them was in this one; otherwise they go."""
        session, self._session, self._result = self._session, None, outcome
        complete = session is not None and self._made is not None and self._made.members == session.members
        if session is not None and outcome == "done" and complete and self._adder.once:
            self._adder.sessions[self._place] = session
        else:
            self._adder.sessions.pop(self._place, None)
        self._words, self._key = np.zeros(0, np.uint64), None

    def deadline(self) -> list[Message]:
        """The coordinator decides about late sites; a site gives up after two deadlines without a word from it."""
        self._quiet += 1
        if self._result == "pending" and self._quiet >= 2:
            self._forget("aborted")
        return []
