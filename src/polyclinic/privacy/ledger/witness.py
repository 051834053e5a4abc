"""What others know of a site's book: the newest heads that a party keeps of everybody's, on disk, over all studies.

A head is signed by the book's own key, and the site's identity signs that key: a witness can invent no head, and a site
cannot deny one, even after it has lost the book together with its key. Kept are, per site and book, the longest head, the
longest that can be unsealed by its owner (heads that travel with every release are light), and two heads of one length with
different hashes, which prove that a book was rewritten.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import MessageRefused
from polyclinic.privacy.ledger.signed_head import SignedHead, verifier

__all__ = ["Known", "Witness", "vouch_words"]

BOOKS: Final = 8  # of one site that are kept, the first ones; a site begins another one only after it lost its key


def vouch_words(key: str) -> bytes:
    """What a site's identity signs to say that a book, by its public key, is its own."""
    return b"polyclinic/book/2" + bytes.fromhex(key)


@dataclass(frozen=True)
class Known:
    """A head, and the signature of the site's identity under the book's key."""

    head: SignedHead
    proof: str

    def holds(self, site: str, identity: bytes) -> bool:
        """Whether the book's key signed the head, and the identity the book's key."""
        from cryptography.exceptions import InvalidSignature

        if self.head.site != site or not self.head.book or not self.head.valid:
            return False
        try:
            verifier(identity.hex()).verify(bytes.fromhex(self.proof), vouch_words(self.head.key))
        except (InvalidSignature, ValueError):
            return False
        return True

    def plain(self) -> dict[str, object]:
        """As plain values."""
        return {"head": asdict(self.head), "proof": self.proof}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Known:
        """Inverse of :meth:`plain`; errors of any kind mean that it is not one."""
        return cls(SignedHead.from_json(value["head"]), str(value["proof"]))


@dataclass
class _Book:
    newest: Known
    sealed: Known | None = None
    fork: tuple[Known, Known] | None = None


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
        self._books: dict[str, dict[str, _Book]] = {}

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
        books = self._books.setdefault(site, {})
        book, news = books.get(known.head.book), False
        if book is None:
            if len(books) >= BOOKS:  # a head that was kept is never given up: new books could push it out
                raise MessageRefused(
                    f"site {site!r} shows a further book, and {BOOKS} of it are known: this one is not witnessed"
                )
            book, news = _Book(known), True
            books[known.head.book] = book
        if known.head.count == book.newest.head.count and known.head.hash != book.newest.head.hash:
            book.fork, news = (book.newest, known), True
        if known.head.count > book.newest.head.count:
            book.newest, news = known, True
        if known.head.sealed and (book.sealed is None or known.head.count > book.sealed.head.count):
            book.sealed, news = known, True
        return news

    def shorter(self, site: str, head: SignedHead) -> str:
        """Whether a site now shows a book with fewer lines than it had."""
        self._read()
        book = self._books.get(site, {}).get(head.book)
        if book is None or head.count >= book.newest.head.count:
            return ""
        return (
            f"the book of {site!r} has {head.count} lines and had {book.newest.head.count}: lines were removed, or an "
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
        out: list[Known] = []
        for book in self._books.get(site, {}).values():
            for k in (book.newest, book.sealed, *(book.fork or ())):
                if k is not None and k not in out:
                    out.append(k)
        return tuple(out)

    # ---- the file

    def _forked(self, site: str) -> str:
        for book in self._books.get(site, {}).values():
            if book.fork is not None and book.newest.head.count <= book.fork[0].head.count:
                return f"the book of {site!r} was rewritten: two different lines {book.newest.head.count} were signed"
        return ""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._read()
            yield
        finally:
            os.close(handle)

    def _read(self) -> None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return
        if self._stamp == (stat.st_mtime_ns, stat.st_ino):
            return
        value = json.loads(self.path.read_text())
        read = {s: {b: _book(x) for b, x in books.items()} for s, books in value.items()}
        self._books, self._stamp = read, (stat.st_mtime_ns, stat.st_ino)

    def _write(self) -> None:
        from polyclinic.tensors.io import atomic

        value = {s: {b: _plain(x) for b, x in books.items()} for s, books in self._books.items()}
        with atomic(self.path) as temporary:
            temporary.write_text(json.dumps(value))
        stat = self.path.stat()
        self._stamp = (stat.st_mtime_ns, stat.st_ino)


def _plain(book: _Book) -> dict[str, object]:
    return {
        "newest": book.newest.plain(),
        "sealed": None if book.sealed is None else book.sealed.plain(),
        "fork": None if book.fork is None else [k.plain() for k in book.fork],
    }


def _book(value: Mapping[str, Any]) -> _Book:
    fork = value["fork"]
    return _Book(
        Known.read(value["newest"]),
        None if value["sealed"] is None else Known.read(value["sealed"]),
        None if fork is None else (Known.read(fork[0]), Known.read(fork[1])),
    )
