"""Keys that the parties of a masked sum agree on once a run, and secrets that they share ahead, ten to twenty sums at a time.

Once a run every site makes ONE X25519 key. Every pair has a key from it, which never leaves the two and is never rebuilt; every site has
a line with the coordinator, whose letters then carry a keyed digest instead of a signature. For each of the next sums ("slots") a
site draws two secrets and shares both with its keepers (``aggregation.secure.mask_graph``, ``aggregation.secure.shamir``):

    seed   of its self-mask: rebuilt if its vector is in the sum
    lock   of a table with the 16 bytes from which its pairwise masks of this ONE slot follow: rebuilt if it was lost

Both are random, so t keepers' shares may be random numbers that these keepers know already: the site's own, and t - 1 neighbours'
from the key of the two. Only the others are sent theirs (of 6 sites with t = 4: two of five).

So opening one sum tells nothing about another. A mask is ``stream(keyed(secret of the slot, context of the sum))``: whoever differs in
order, state, step, roster or attempt makes masks that do not cancel. A slot is used once, whatever happens to the sum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from polyclinic.aggregation.fixed_point import stream
from polyclinic.aggregation.secure import shamir
from polyclinic.aggregation.secure.mask_graph import MaskGraph
from polyclinic.aggregation.secure.shamir import ELEMENTS, Elements
from polyclinic.aggregation.secure.survivor_votes import SurvivorVotes
from polyclinic.aggregation.secure.total_check import TotalTag, group_key
from polyclinic.errors import MessageRefused
from polyclinic.protocol.wire.sealed import Channel

COMMIT = 16  # bytes of a commitment: it must not be met by another seed, collisions do not matter
BASE = 2  # words from which a pairwise mask follows
FIRST = 10  # slots of a run's first batch: many a fit is over by then


def slots_of(batch: int, slots: int) -> int:
    """Sums for which a batch shares secrets."""
    return min(slots, FIRST) if batch == 0 else slots


def keyed(key: bytes, *words: bytes) -> bytes:
    """Keyed BLAKE2b (RFC 7693) of some words, each with its length: seven times as fast as HMAC-SHA256 here."""
    return hashlib.blake2b(
        b"".join([len(w).to_bytes(4, "little") + w for w in words]), key=key, digest_size=32
    ).digest()


def commitment(id: bytes, batch: int, slot: int, site: str, seed: bytes) -> bytes:
    """What a site says about a seed before it shares it, so that false shares are noticed."""
    text = b"self-mask seed" + id + bytes([batch % 256, slot]) + site.encode() + b"\0" + seed
    return hashlib.sha256(text).digest()[:COMMIT]


class Session:
    """What one site remembers between the sums of a run; lives in memory and cannot be pickled.

    Parameters
    ----------
    me, circle
        The site, and who its neighbours are.
    id
        Digest of everybody's keys.
    pairs
        Key with every other site.
    line
        Key with the coordinator.
    slots
        Sums for which secrets are shared at a time.
    """

    def __init__(self, me: str, circle: MaskGraph, id: bytes, pairs: dict[str, bytes], line: bytes, slots: int) -> None:
        self.me, self.circle, self.id, self.line, self.most = me, circle, id, line, slots
        self.members: tuple[str, ...] = ()  # whose secrets I keep shares of, or would if they were neighbours
        self._here: frozenset[str] = frozenset()  # the same as a set
        self.batch, self.slot, self.slots = -1, 0, 0
        self._pairs, self._group = pairs, b""
        self._near = circle.near(me)
        self._part = os.urandom(32)
        self._secrets = shamir.draw(0)
        self._bases: dict[str, Elements] = {}  # neighbour -> 16 bytes a slot
        self._kept: dict[str, Elements] = {}  # site -> its shares that I keep, shape (2, slots, numbers)
        self._ballot = SurvivorVotes(me, pairs)

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys of a masked sum are never serialised")

    @property
    def left(self) -> int:
        """Sums for which secrets are shared already."""
        return self.slots - self.slot

    @property
    def dealers(self) -> tuple[str, ...]:
        """Sites whose 32 bytes make the group's key: all, or as many as cannot all be colluders where all would be too many."""
        return self.circle.order if not self.circle.half else self.circle.order[: self.circle.keep]

    def _channel(self, peer: str) -> Channel:
        return Channel(keyed(self._pairs[peer], b"line", self.id, str(self.batch).encode()), self.me, peer)

    def deal(self) -> dict[str, object]:
        """Draw and share the secrets of the next slots: the body of the letter ``shares``."""
        self.batch += 1
        self.slots = self.slot = n = slots_of(self.batch, self.most)
        number = str(self.batch).encode()
        ahead, receivers, points = self.circle.ahead(self.me), self.circle.told(self.me), self.circle.at
        random = shamir.draw(2 * n * ELEMENTS)
        given_shares = np.stack([random, *(self._ahead(self.me, s) for s in ahead)])
        secret, shares = shamir.complete(
            given_shares, [points[s] + 1 for s in (self.me, *ahead)], [points[s] + 1 for s in receivers]
        )
        self._secrets, self._kept = secret.reshape(2, n, ELEMENTS), {self.me: random.reshape(2, n, ELEMENTS)}
        part = self._part if self.batch == 0 and self.me in self.dealers else b""
        sealed = {s: self._channel(s).seal(shares[i].tobytes() + part, "shares") for i, s in enumerate(receivers)}
        if part:
            sealed |= {s: self._channel(s).seal(part, "shares") for s in self._pairs if s not in sealed}
        self._bases = {
            s: stream(keyed(self._pairs[s], b"mask", self.id, number), BASE * n).reshape(n, BASE) for s in self._near
        }
        seeds = [self._secrets[0, k].tobytes() for k in range(n)]
        table = np.stack([self._bases[s] for s in self._near], axis=1).reshape(n, -1)  # (slots, 2 words a neighbour)
        locked = [table[k] ^ stream(self._lock(k), table.shape[1]) for k in range(n)]
        commits = b"".join(commitment(self.id, self.batch, k, self.me, seeds[k]) for k in range(n))
        return {"sealed": sealed, "commits": commits, "table": np.concatenate(locked)}

    def _ahead(self, owner: str, keeper: str) -> Elements:
        """The shares of ``owner``'s secrets of this batch that ``keeper`` knows without a letter; I am one of the two."""
        pair = self._pairs[keeper if owner == self.me else owner]
        key = keyed(pair, b"share", self.id, str(self.batch).encode(), owner.encode())
        return shamir.reduce(stream(key, 2 * self.slots * ELEMENTS))

    def _lock(self, slot: int) -> bytes:
        return keyed(self._secrets[1, slot].tobytes(), b"lock", self.id)

    def collect(self, sealed: Mapping[str, bytes], members: Sequence[str]) -> None:
        """Keep what the others shared; from now on there are slots to use."""
        neighbours = (set(members) & set(self._near)) - {self.me}
        senders = {s for s in neighbours if self.me in self.circle.told(s)}
        dealers = set(self.dealers) if self.batch == 0 else set()
        if set(sealed) != (senders | (set(members) & dealers)) - {self.me}:
            raise MessageRefused(f"{self.me!r} was sent shares of other sites than its neighbours")
        parts = {self.me: self._part} if self.me in self.dealers else {}
        shares = self._kept | {
            s: self._ahead(s, self.me).reshape(2, self.slots, ELEMENTS) for s in neighbours - senders
        }
        for site, text in sealed.items():
            raw = self._channel(site).open(bytes(text), "shares")
            size = 2 * self.slots * shamir.BYTES if site in senders else 0
            if len(raw) != size + (32 if site in dealers else 0):
                raise MessageRefused(f"shares from {site!r} have the wrong length")
            if site in senders:
                shares[site] = np.frombuffer(raw[:size], np.uint64).reshape(2, self.slots, ELEMENTS)
            if site in dealers:
                parts[site] = raw[size:]
        if self.batch == 0:
            if not parts:
                raise MessageRefused(f"{self.me!r} was sent no part of the group's key")
            self._group = group_key(parts, self.id)
        self._kept, self.members, self.slot = shares, tuple(members), 0
        self._here = frozenset(members)

    # ---- one slot

    def use(self) -> int:
        """The next slot; it is used up."""
        self.slot += 1
        return self.slot - 1

    def tag(self, context: bytes, sites: tuple[str, ...]) -> TotalTag:
        """With which the total of one sum is checked; the context covers the sites of the roster."""
        return TotalTag(keyed(self._group, b"tag", context), sites)

    def masks(self, slot: int, context: bytes) -> list[tuple[bytes, int]]:
        """Keys of the masks of my vector in this slot, and whether each is added or subtracted."""
        present = self._here
        own = [(keyed(self._secrets[0, slot].tobytes(), b"self", context), 1)]
        return own + [
            (keyed(self._bases[s][slot].tobytes(), b"pair", context), 1 if self.me < s else -1)
            for s in self._near
            if s in present
        ]

    def shares(self, slot: int, alive: Sequence[str]) -> dict[str, bytes]:
        """Seed shares of survivors, lock shares of the lost, each in the order of names; never both of one site. The slot's
        shares are forgotten."""
        present = self._here if tuple(alive) == self.members else set(alive)
        kept = sorted(self._kept.items())
        out = {
            "seeds": b"".join(a[0, slot].tobytes() for s, a in kept if s in present),
            "masks": b"".join(a[1, slot].tobytes() for s, a in kept if s not in present),
        }
        self._kept = {s: a.copy() for s, a in self._kept.items()} if slot == 0 else self._kept
        for a in self._kept.values():
            a[:, slot] = 0
        return out

    def votes(self, context: bytes, text: bytes, listed: Sequence[str]) -> bytes:
        """My votes, one for each on the list to check: a digest keyed with the key of the two. ``text`` has 32 bytes."""
        return self._ballot.votes(context + text, listed)

    def count(self, context: bytes, text: bytes, voters: Sequence[str], votes: bytes, enough: int) -> int:
        """How many of these votes for me are right, mine included; counting stops at ``enough``."""
        return self._ballot.count(context + text, voters, votes, enough)


class Board:
    """What the coordinator remembers between the sums of a run: public keys are gone, lines and locked tables stay."""

    def __init__(self, circle: MaskGraph, id: bytes, lines: dict[str, bytes], slots: int) -> None:
        self.circle, self.id, self.lines, self.most = circle, id, lines, slots
        self.members: tuple[str, ...] = ()
        self.batch, self.slot, self.slots = -1, 0, 0
        self.commits: dict[str, bytes] = {}
        self.tables: dict[str, Elements] = {}

    @property
    def left(self) -> int:
        """Sums for which secrets are shared already."""
        return self.slots - self.slot

    def collect(self, letters: Mapping[str, Mapping[str, Any]]) -> None:
        """A new batch of slots."""
        self.batch, self.slot, self.members = self.batch + 1, 0, tuple(sorted(letters))
        self.slots = slots_of(self.batch, self.most)
        self.commits = {s: bytes(x["commits"]) for s, x in letters.items()}
        self.tables = {s: x["table"].reshape(self.slots, -1, BASE) for s, x in letters.items()}

    def rebuild(self, site: str, got: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """A secret of a site from the shares that its keepers sent; ``ValueError`` if too few did."""
        helpers = [k for k in self.circle.keepers(site) if k in got and site in got[k]][: self.circle.keep]
        if len(helpers) < self.circle.keep:
            raise ValueError(f"{len(helpers)} shares of {site!r}")
        rows = np.array([np.frombuffer(got[k][site], np.uint64) for k in helpers])
        points = tuple(self.circle.at[k] + 1 for k in helpers)
        return shamir.rebuild(rows, shamir.weights(points)).tobytes()

    def seed(self, site: str, slot: int, got: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """The seed of a survivor's self-mask, as it committed to it."""
        seed = self.rebuild(site, got)
        if (
            commitment(self.id, self.batch, slot, site, seed)
            != self.commits[site][COMMIT * slot : COMMIT * slot + COMMIT]
        ):
            raise ValueError(f"the seed of {site!r} is not what it committed to")
        return seed

    def bases(self, site: str, slot: int, got: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
        """From which the pairwise masks of a lost site follow, in this slot only: neighbour -> 16 bytes."""
        key = keyed(self.rebuild(site, got), b"lock", self.id)
        table = self.tables[site][slot]
        clear = table ^ stream(key, table.size).reshape(table.shape)
        return {s: clear[i].tobytes() for i, s in enumerate(self.circle.near(site))}
