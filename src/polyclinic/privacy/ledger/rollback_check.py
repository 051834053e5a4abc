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
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from polyclinic.errors import LedgerError, MessageRefused
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import Known, Witness, signed_by, vouch_words

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
        if self.by not in keys or not signed_by(keys[self.by].hex(), self.signature, self.words(order)):
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
                for known in _several(Known.read, heads) if site in self.keys else ():
                    if known.holds(site, self.keys[site]):
                        self._keep(site, known)
            for seen in _several(Seen.read, value.get("seen")):
                if seen.about == self.me and seen.fresh == self.fresh and seen.holds(self.order, self.keys):
                    self._told[seen.by] = seen
            nonces = _map(value.get("fresh"))
            self._asked |= {
                s: n[:64] for s, n in nonces.items() if s in self.keys and s != self.me and isinstance(n, str)
            }
            answer = {"fresh": self.fresh, "known": self._own(light=not bundle), "seen": self._statements(nonces)}
            answer["told"] = sorted(self._told)
        return json.dumps(answer).encode()

    def _keep(self, site: str, known: Known) -> None:
        """Keep a head that holds; report, once, that another site's ledger was rewritten."""
        if site == self.me:
            self._mine += [known] if known not in self._mine else []
        elif (flag := self.witness.keep(site, known)) and flag not in self.flags:
            self.flags = sorted({*self.flags, flag})
            if self._log is not None:
                self._log(event="book", site=site, reasons=[flag])

    def _statements(self, nonces: Mapping[str, object]) -> list[dict[str, object]]:
        """About every site whose nonce was brought just now."""
        statements = []
        for site in nonces:
            if site in self._asked:
                bare = Seen(site, self.me, self._asked[site], self.witness.about(site))
                statements.append(replace(bare, signature=self._sign(bare.words(self.order)).hex()).plain())
        return statements

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
            raise MessageRefused(f"site {self.me!r} has no report of what {', '.join(waiting)} know of its ledger")
        faults: list[str] = []
        with self._lock:  # also what came after the first sum: who was away then may know more
            heads = [(f"site {seen.by!r}", k) for seen in self._told.values() for k in seen.known]
            heads += [("the coordinator", k) for k in self._mine]
        for name, known in heads:
            mark = (known.head.book, known.head.count, known.head.hash)
            head_faults = [] if mark in self._compared else self.ledger.against(known.head, name)
            if head_faults:
                self.witness.keep(self.me, known)  # for `ledger recover`
            else:
                self._compared.add(mark)
            faults += head_faults
        if faults:
            self._open = False
            raise LedgerError(
                f"ledger {self.ledger.path}: others know more lines than this ledger has; releases are blocked",
                faults=sorted(set(faults)),
                hint="restore the newest backup; `polyclinic ledger recover` shows what was lost and how to continue without",
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
        moment = time.monotonic()
        with self._lock:
            nonces = {s: n for s, n in self._fresh.items() if s != site and not self._answered(s, site)}
            self._put |= {(s, site): n for s, n in nonces.items()}
            delivered = self._has.get(site, set())
            statements = [x.plain() for (about, by), x in self._seen.items() if about == site and by not in delivered]
            heads: dict[str, object] = {}
            if moment - self._given.get(site, moment - PASS_ON) >= PASS_ON:
                self._given[site] = moment
                heads = {s: [k.plain() for k in self.witness.about(s)] for s in self.keys}
            if not (nonces or statements or any(heads.values())):
                return b"{}"
            return json.dumps({"fresh": nonces, "known": heads, "seen": statements}).encode()

    def _answered(self, about: str, by: str) -> bool:
        """Whether a site has told what it knows of another's ledger, for the process that is there now."""
        seen = self._seen.get((about, by))
        return seen is not None and seen.fresh == self._fresh.get(about)

    def heard(self, site: str, answer: bytes, *, later: bool = False) -> list[str]:
        """Take in a site's answer and return what is wrong with its ledger. ``later``: the next :meth:`settle` keeps its head."""
        value, faults = _read(answer), []
        with self._lock:
            nonce, reporters = value.get("fresh"), value.get("told")
            if isinstance(nonce, str) and nonce:
                self._fresh[site] = nonce[:64]
                self._has[site] = {x for x in reporters if isinstance(x, str)} if isinstance(reporters, list) else set()
            for seen in _several(Seen.read, value.get("seen")):
                if seen.by == site and seen.about in self.keys and seen.holds(self.order, self.keys):
                    self._seen[seen.about, site] = seen
            for known in _several(Known.read, value.get("known")):
                if known.holds(site, self.keys[site]):
                    self._heads.append((site, known))
                    faults.append(self.witness.shorter(site, known.head))
        faults = [f for f in faults if f]
        return faults if later else [*faults, *self.settle().get(site, [])]

    def waited(self, site: str) -> None:
        """A sign of life of a site has come: whatever it was asked about others' books, and did not say, is counted."""
        with self._lock:
            for about, nonce in self._fresh.items():
                key = (about, site)
                if self._answered(about, site):
                    self._mute.pop(key, None)
                elif self._put.get(key) == nonce:
                    previous, count = self._mute.get(key, (nonce, 0))
                    self._mute[key] = (nonce, count + 1 if previous == nonce else 1)

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
            return all(self._answered(a, b) for a in sites for b in sites if a != b)


# ---- what others wrote is read with care


def _read(data: bytes) -> dict[str, object]:
    if not data:
        return {}
    if len(data) > LIMIT:
        raise MessageRefused(f"{len(data)} bytes about ledgers; at most {LIMIT} are read")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise MessageRefused("a message about ledgers that cannot be read") from None
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
