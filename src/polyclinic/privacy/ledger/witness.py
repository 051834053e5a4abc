"""What others know of a site's book: the newest heads that a party keeps of everybody's, on disk, over all studies.

A head is signed by the book's own key, and the site's identity signs that key: a witness can invent no head, and a site
cannot deny one, even after it has lost the book together with its key. Kept are, per site and book, the longest head, the
longest that can be unsealed by its owner (heads that travel with every release are light), and two heads of one length with
different hashes, which prove that a book was rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import MessageRefused
from polyclinic.privacy.ledger.signed_head import SignedHead, signed_by, vouch_words
from polyclinic.util.atomic_files import locked, write_whole

BOOKS: Final = 8  # of one site that are kept, the first ones; a site begins another one only after it lost its key


@dataclass(frozen=True)
class Known:
    """A head, and the signature of the site's identity under the book's key."""

    head: SignedHead
    proof: str

    def holds(self, site: str, identity: bytes) -> bool:
        """Whether the book's key signed the head, and the identity the book's key."""
        if self.head.site != site or not self.head.book or not self.head.valid:
            return False
        return signed_by(identity.hex(), self.proof, vouch_words(self.head.key))

    def plain(self) -> dict[str, object]:
        """As plain values."""
        return {"head": asdict(self.head), "proof": self.proof}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Known:
        """Inverse of :meth:`plain`; errors of any kind mean that it is not one."""
        return cls(SignedHead.from_json(value["head"]), str(value["proof"]))


@dataclass
class _Ledger:
    """What is kept of one ledger."""

    newest: Known
    sealed: Known | None = None
    fork: tuple[Known, Known] | None = None

    def heads(self) -> list[Known]:
        """Every head that is kept, each once."""
        return list(dict.fromkeys(k for k in (self.newest, self.sealed, *(self.fork or ())) if k is not None))

    def plain(self) -> dict[str, object]:
        """As plain values."""
        return {
            "newest": self.newest.plain(),
            "sealed": None if self.sealed is None else self.sealed.plain(),
            "fork": None if self.fork is None else [k.plain() for k in self.fork],
        }

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> _Ledger:
        """Inverse of :meth:`plain`."""
        sealed = None if value["sealed"] is None else Known.read(value["sealed"])
        fork = None if value["fork"] is None else (Known.read(value["fork"][0]), Known.read(value["fork"][1]))
        return cls(Known.read(value["newest"]), sealed, fork)


class Witness:
    """The heads that one party keeps.

    Parameters
    ----------
    path
        ``witness.json``; several processes may write it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._ledgers: dict[str, dict[str, _Ledger]] = {}

    def keep(self, site: str, known: Known) -> str:
        """Keep a head that holds, if it is news; what is wrong with it, or nothing.

        A shorter head than the one that is known is no fault by itself: somebody may have relayed an old one. Whoever hears
        it from the site directly asks :meth:`shorter`.
        """
        return self.keep_all([(site, known)]).get(site, "")

    def keep_all(self, heads: Sequence[tuple[str, Known]]) -> dict[str, str]:
        """Keep several, written once; what is wrong, by site."""
        faults: dict[str, str] = {}
        with self._locked():
            news = False
            for site, known in heads:
                try:
                    news |= self._enter(site, known)
                except MessageRefused as e:
                    faults[site] = e.what
            if news:
                self._write()
            return {s: x for s in {s for s, _ in heads} if (x := faults.get(s) or self._forked(s))}

    def _enter(self, site: str, known: Known) -> bool:
        """Whether a head is news."""
        ledgers, head = self._ledgers.setdefault(site, {}), known.head
        ledger = ledgers.get(head.book)
        if ledger is None:
            if len(ledgers) >= BOOKS:  # a head that was kept is never given up: new ledgers could push it out
                raise MessageRefused(
                    f"site {site!r} shows a further book, and {BOOKS} of it are known: this one is not witnessed"
                )
            ledgers[head.book] = _Ledger(known, known if head.sealed else None)
            return True
        before = replace(ledger)
        newest = ledger.newest.head
        if head.count == newest.count and head.hash != newest.hash:
            ledger.fork = (ledger.newest, known)
        if head.count > newest.count:
            ledger.newest = known
        if head.sealed and (ledger.sealed is None or head.count > ledger.sealed.head.count):
            ledger.sealed = known
        return ledger != before

    def shorter(self, site: str, head: SignedHead) -> str:
        """Whether a site now shows a book with fewer lines than it had."""
        self._read()
        ledger = self._ledgers.get(site, {}).get(head.book)
        if ledger is None or head.count >= ledger.newest.head.count:
            return ""
        return (
            f"the book of {site!r} has {head.count} lines and had {ledger.newest.head.count}: lines were removed, or an "
            "older book was put back"
        )

    def forked(self, site: str) -> str:
        """Whether two heads of one length were seen, and none that is longer: the book was rewritten.

        An honest site is shown both before it goes on, and goes on only after a line that owns up to it (``gap``).
        """
        self._read()
        return self._forked(site)

    def about(self, site: str) -> tuple[Known, ...]:
        """Everything that is known of a site's books: at most four heads each."""
        self._read()
        return tuple(k for ledger in self._ledgers.get(site, {}).values() for k in ledger.heads())

    # ---- the file

    def _forked(self, site: str) -> str:
        for ledger in self._ledgers.get(site, {}).values():
            count = ledger.newest.head.count
            if ledger.fork is not None and count <= ledger.fork[0].head.count:
                return f"the book of {site!r} was rewritten: two different lines {count} were signed"
        return ""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self.path.with_name(self.path.name + ".lock")):
            self._read()
            yield

    def _read(self) -> None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return
        if self._stamp == (stat.st_mtime_ns, stat.st_ino):
            return
        value = json.loads(self.path.read_text())
        self._ledgers = {s: {b: _Ledger.read(x) for b, x in ledgers.items()} for s, ledgers in value.items()}
        self._stamp = (stat.st_mtime_ns, stat.st_ino)

    def _write(self) -> None:
        value = {s: {b: x.plain() for b, x in ledgers.items()} for s, ledgers in self._ledgers.items()}
        write_whole(self.path, json.dumps(value))
        stat = self.path.stat()
        self._stamp = (stat.st_mtime_ns, stat.st_ino)
