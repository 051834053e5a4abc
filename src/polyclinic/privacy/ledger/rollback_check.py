"""Before a site lets anything out, everybody else tells it what they know of its book.

Each process of a study makes a nonce. The coordinator carries it to the other sites, and each answers with a signed
statement: the newest heads that it ever kept of this book, or that it knows none. A site takes part in no sum before it has
the statement of EVERY other site of that sum, over the nonce of this very process: a coordinator cannot hide one, and an
old statement is worth nothing after a restart. A head that is not one of the book's lines stops the site until its owner
has restored the book, or has owned up to what is lost (``ledger recover``).

Both ends speak JSON in bytes, so that an engine has nothing to do but to carry them::

    coordinator -> site   {fresh: {site: nonce}, known: {site: [heads]}, seen: [statements about the addressee]}
    site -> coordinator   {fresh: nonce, known: [heads of my book], seen: [statements about others], told: [who told me]}
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from polyclinic.errors import LedgerError, MessageRefused
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import verifier
from polyclinic.privacy.ledger.witness import Known, Witness, vouch_words

__all__ = ["Relay", "RollbackCheck", "Seen"]

T = TypeVar("T")

LIMIT: Final = 8 * 2**20  # bytes of one bundle
MUTE: Final = 10  # signs of life without an answer about a book, after which a site is not waited for
PASS_ON: Final = 60.0  # seconds between two times that a site is given the others' heads


@dataclass(frozen=True)
class Seen:
    """What one site knows of another's book, for one process of one order."""

    about: str
    by: str
    fresh: str
    known: tuple[Known, ...] = ()
    signature: str = ""

    def words(self, order: str) -> bytes:
        """What ``by`` signs."""
        heads = sorted([k.head.book, str(k.head.count), k.head.hash] for k in self.known)
        return b"polyclinic/seen/2" + json.dumps([order, self.about, self.by, self.fresh, heads]).encode()

    def holds(self, order: str, keys: Mapping[str, bytes]) -> bool:
        """Whether it is signed by who it says, and every head in it by the book that it is about."""
        from cryptography.exceptions import InvalidSignature

        try:
            verifier(keys[self.by].hex()).verify(bytes.fromhex(self.signature), self.words(order))
        except (InvalidSignature, ValueError, KeyError):
            return False
        return all(k.holds(self.about, keys[self.about]) for k in self.known)

    def plain(self) -> dict[str, object]:
        """As plain values."""
        return {**vars(self), "known": [k.plain() for k in self.known]}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Seen:
        """Inverse of :meth:`plain`."""
        known = tuple(Known.read(k) for k in value["known"])
        about, by, fresh, mark = (str(value[k]) for k in ("about", "by", "fresh", "signature"))
        return cls(about, by, fresh, known, mark)


class RollbackCheck:
    """A site's side: it is a witness of all others, and is told what they know of its own book.

    Parameters
    ----------
    me
        Name of the site.
    order
        Digest of the order.
    keys
        Public identity of everybody on the roster.
    witness
        What this site keeps of others.
    ledger
        Its own book.
    sign
        By its identity.
    log
        Where a rewritten book of another site is reported, once.
    """

    def __init__(
        self,
        me: str,
        order: str,
        keys: Mapping[str, bytes],
        witness: Witness,
        ledger: Ledger,
        sign: Callable[[bytes], bytes],
        log: Callable[..., object] | None = None,
    ) -> None:
        self._log = log
        self.me, self.order, self.keys = me, order, dict(keys)
        self.witness, self.ledger, self._sign = witness, ledger, sign
        self.fresh = secrets.token_hex(16)
        self._told: dict[str, Seen] = {}  # by whom, over my nonce
        self._mine: list[Known] = []  # what the coordinator knows of my book
        self._compared: set[tuple[str, int, str]] = set()  # heads that are of my book: each is looked up once
        self._asked: dict[str, str] = {}  # others' nonces
        self._sent = -1
        self._proof = ("", "")
        self._open = False  # my own head is shown once nothing speaks against it
        self._lock = threading.Lock()
        self.flags: list[str] = []  # books of others that were rewritten

    def hear(self, bundle: bytes = b"") -> bytes:
        """Take in what the coordinator brings, and answer; what does not hold in it counts for nothing."""
        value = _read(bundle)
        with self._lock:
            for site, heads in _map(value.get("known")).items():
                for k in _several(Known.read, heads) if site in self.keys else ():
                    if not k.holds(site, self.keys[site]):
                        continue
                    if site == self.me:
                        self._mine += [k] if k not in self._mine else []
                    elif (flag := self.witness.keep(site, k)) and flag not in self.flags:
                        self.flags = sorted({*self.flags, flag})
                        if self._log is not None:
                            self._log(event="book", site=site, reasons=[flag])
            for seen in _several(Seen.read, value.get("seen")):
                if seen.about == self.me and seen.fresh == self.fresh and seen.holds(self.order, self.keys):
                    self._told[seen.by] = seen
            for site, nonce in _map(value.get("fresh")).items():
                if site in self.keys and site != self.me and isinstance(nonce, str):
                    self._asked[site] = nonce[:64]
            answer = {"fresh": self.fresh, "known": self._own(light=not bundle), "seen": self._statements(value)}
            answer["told"] = sorted(self._told)
        return json.dumps(answer).encode()

    def _statements(self, value: Mapping[str, Any]) -> list[dict[str, object]]:
        """About everybody whose nonce was brought just now."""
        out = []
        for site in _map(value.get("fresh")):
            if site in self._asked:
                bare = Seen(site, self.me, self._asked[site], self.witness.about(site))
                signature = self._sign(bare.words(self.order)).hex()
                out.append(Seen(site, self.me, bare.fresh, bare.known, signature).plain())
        return out

    def _own(self, *, light: bool) -> list[dict[str, object]]:
        """The end of my book, if it is news; nothing before it was checked."""
        if not self._open:
            return []
        try:
            count = self.ledger.count
            if not count or (count == self._sent and not light):
                return []
            head = self.ledger.light_head if light else self.ledger.head
        except LedgerError:  # told where a release is asked for
            return []
        if not head.key:
            return []
        if self._proof[0] != head.key:
            self._proof = (head.key, self._sign(vouch_words(head.key)).hex())
        if not light:
            self._sent = head.count
        return [Known(head, self._proof[1]).plain()]

    def lacking(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Sites of a sum that have not told yet."""
        with self._lock:
            return tuple(s for s in sites if s != self.me and s not in self._told)

    def check(self, sites: Sequence[str]) -> None:
        """Refuse to let anything out if somebody knows another book of mine than the one that is here."""
        if waiting := self.lacking(sites):
            raise MessageRefused(f"site {self.me!r} was not told what {', '.join(waiting)} know of its book")
        faults: list[str] = []
        with self._lock:  # also what came after the first sum: who was away then may know more
            told = [(f"site {seen.by!r}", k) for seen in self._told.values() for k in seen.known]
            told += [("the coordinator", k) for k in self._mine]
        for name, k in told:
            mark = (k.head.book, k.head.count, k.head.hash)
            wrong = [] if mark in self._compared else self.ledger.against(k.head, name)
            if wrong:
                self.witness.keep(self.me, k)  # for `ledger recover`
            else:
                self._compared.add(mark)
            faults += wrong
        if faults:
            self._open = False
            raise LedgerError(
                f"ledger {self.ledger.path}: others know more of this book than it has; no release may leave",
                faults=sorted(set(faults)),
                hint="restore the newest backup; `polyclinic ledger recover` shows what was lost and how to go on without",
            )
        self._open = True


class Relay:
    """The coordinator's side: a witness itself, and the way of nonces, heads and statements between the sites.

    Parameters
    ----------
    order, keys
        As at a site.
    witness
        What this coordinator keeps.
    """

    def __init__(self, order: str, keys: Mapping[str, bytes], witness: Witness) -> None:
        self.order, self.keys, self.witness = order, dict(keys), witness
        self._fresh: dict[str, str] = {}
        self._seen: dict[tuple[str, str], Seen] = {}  # about, by
        self._given: dict[str, float] = {}  # when a site was given the others' heads
        self._has: dict[str, set[str]] = {}  # whose statements a site has got
        self._heads: list[tuple[str, Known]] = []  # heard, and not kept yet
        self._put: dict[tuple[str, str], str] = {}  # about, by: the nonce that was brought last
        self._mute: dict[tuple[str, str], tuple[str, int]] = {}  # about, by: how often it was, and nothing came back
        self._lock = threading.Lock()

    def pass_on(self) -> None:
        """Everybody is given all heads next time."""
        with self._lock:
            self._given.clear()

    def bundle(self, site: str) -> bytes:
        """What to bring to a site: nonces that it has not answered, statements about it, and now and then all heads."""
        at = time.monotonic()
        with self._lock:
            fresh = {
                s: n
                for s, n in self._fresh.items()
                if s != site and ((s, site) not in self._seen or self._seen[s, site].fresh != n)
            }
            self._put |= {(s, site): n for s, n in fresh.items()}
            has = self._has.get(site, set())
            seen = [x for (about, by), x in self._seen.items() if about == site and by not in has]
            known: dict[str, object] = {}
            if at - self._given.get(site, at - PASS_ON) >= PASS_ON:
                self._given[site] = at
                known = {s: [k.plain() for k in self.witness.about(s)] for s in self.keys}
            if not (fresh or seen or any(known.values())):
                return b"{}"
            return json.dumps({"fresh": fresh, "known": known, "seen": [x.plain() for x in seen]}).encode()

    def heard(self, site: str, answer: bytes, *, later: bool = False) -> list[str]:
        """Take in a site's answer; what is wrong with its book. ``later``: its head is kept by the next :meth:`settle`."""
        value, faults = _read(answer), []
        with self._lock:
            nonce = value.get("fresh")
            if isinstance(nonce, str) and nonce:
                self._fresh[site] = nonce[:64]
                told = value.get("told")
                self._has[site] = {x for x in told if isinstance(x, str)} if isinstance(told, list) else set()
            for seen in _several(Seen.read, value.get("seen")):
                if seen.by == site and seen.about in self.keys and seen.holds(self.order, self.keys):
                    self._seen[seen.about, site] = seen
            for k in _several(Known.read, value.get("known")):
                if k.holds(site, self.keys[site]):
                    self._heads.append((site, k))
                    faults += [x for x in [self.witness.shorter(site, k.head)] if x]
        return faults if later else [*faults, *self.settle().get(site, [])]

    def waited(self, site: str) -> None:
        """A sign of life of a site has come: whatever it was asked about others' books, and did not say, is counted."""
        with self._lock:
            for about, nonce in self._fresh.items():
                key = (about, site)
                if key in self._seen and self._seen[key].fresh == nonce:
                    self._mute.pop(key, None)
                elif self._put.get(key) == nonce:
                    before, count = self._mute.get(key, (nonce, 0))
                    self._mute[key] = (nonce, count + 1 if before == nonce else 1)

    def mute(self, sites: Sequence[str]) -> frozenset[str]:
        """Sites that were asked again and again, and say nothing of another's book: that one takes part in no sum with them."""
        with self._lock:
            return frozenset(
                by
                for (about, by), (nonce, count) in self._mute.items()
                if count > MUTE and about in sites and nonce == self._fresh[about]
            )

    def settle(self) -> dict[str, list[str]]:
        """Keep the heads that were heard since, all of them at once; what is wrong, by site."""
        with self._lock:
            heads, self._heads = self._heads, []
            return {s: [x] for s, x in self.witness.keep_all(heads).items()} if heads else {}

    def complete(self, sites: Sequence[str]) -> bool:
        """Whether every one of these sites has told about every other, for the process that is there now."""
        with self._lock:
            return all(
                a in self._fresh and (a, b) in self._seen and self._seen[a, b].fresh == self._fresh[a]
                for a in sites
                for b in sites
                if a != b
            )


# ---- what others wrote is read with care


def _read(data: bytes) -> dict[str, object]:
    if not data:
        return {}
    if len(data) > LIMIT:
        raise MessageRefused(f"{len(data)} bytes about books; at most {LIMIT} are read")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise MessageRefused("something about books that cannot be read") from None
    return value if isinstance(value, dict) else {}


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _several(read: Callable[[Any], T], values: object) -> list[T]:
    """As many values as can be read; the others are as if they had not come."""
    out = []
    for v in values if isinstance(values, list) else ():
        try:
            out.append(read(v))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return out
