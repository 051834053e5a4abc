"""Sign the end of a ledger (how many lines, the hash of the last, what was spent, sealed for its owner), and keep others' ends.

A party that keeps a head elsewhere (a peer, the coordinator, an anchor file) can later show that lines were removed,
rewritten or put back. The ledger's own key signs a head, and the site's identity signs that key: a witness can invent no head,
and a site cannot deny one, even after it has lost the ledger together with its key. A witness keeps, per site and ledger, on disk
and over all studies: the longest head, the longest that its owner can unseal (heads that travel with every release are light),
and two heads of one length with different hashes, which prove that a ledger was rewritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from polyclinic.errors import LedgerError, MessageRefused
from polyclinic.util.atomic_files import locked, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIZE: Final = 1024  # of the sealed summary, whatever is in it
BOOKS: Final = 8  # of one site that are kept, the first ones; a site begins another one only after it lost its key


@dataclass(frozen=True)
class SignedHead:
    """Number of lines and the hash of the last: keep it elsewhere to find a ledger that was put back.

    Attributes
    ----------
    site, book
        Whose; the ledger by the hash of the line that carries its key ("" for unsigned ledgers).
    key
        The ledger's public key.
    sealed
        What was spent, for the owner's eyes: see :meth:`LedgerKey.unseal`.
    """

    count: int
    hash: str
    site: str = ""
    book: str = ""
    key: str = ""
    sealed: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)

    def signed_words(self) -> bytes:
        """What the ledger's key signs."""
        words = [self.count, self.hash, self.site, self.book, self.key, self.sealed]
        return b"polyclinic/head/2" + json.dumps(words).encode()

    @property
    def valid(self) -> bool:
        """Whether it is signed by the key that it names."""
        return signed_by(self.key, self.signature, self.signed_words())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SignedHead:
        """From plain values."""
        texts = {k: str(value.get(k, "")) for k in ("site", "book", "key", "sealed", "signature")}
        return cls(int(value["count"]), str(value["hash"]), **texts)


def heads_of(message: object) -> dict[str, SignedHead]:
    """Read heads by the name of their site; leave out what is not a signed head of that site."""
    heads: dict[str, SignedHead] = {}
    for site, value in message.items() if isinstance(message, Mapping) else ():
        try:
            head = SignedHead.from_json(value)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        if head.valid and head.site == site:
            heads[str(site)] = head
    return heads


def read_head(path: Path, faults: list[str]) -> SignedHead | None:
    """Read the head in a file; what is wrong with it goes to ``faults``."""
    if not path.exists():
        return None
    try:
        return SignedHead.from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError):
        faults.append(f"{path.name} is not readable")
        return None


@lru_cache(maxsize=64)
def verifier(key: str) -> Ed25519PublicKey:
    """The public key that verifies lines and heads."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))


def signed_by(key: str, signature: str, words: bytes) -> bool:
    """Whether the owner of a public key signed these words; anything that is no key or no signature did not."""
    from cryptography.exceptions import InvalidSignature

    try:
        verifier(key).verify(bytes.fromhex(signature), words)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def vouch_words(key: str) -> bytes:
    """What a site's identity signs to say that a ledger, by its public key, is its own."""
    return b"polyclinic/book/2" + bytes.fromhex(key)


class LedgerKey:
    """The ledger's own signing key: beside the ledger, readable by its owner only, kept over all federations."""

    def __init__(self, raw: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._raw = raw
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def of(cls, path: Path, *, make: bool) -> LedgerKey | None:
        """The key in a file; a new one is made where there is none and ``make`` says so."""
        if path.exists():
            raw = path.read_bytes()
            if len(raw) != 32:
                raise LedgerError(f"{path} is no key of a ledger", hint="restore it from a backup")
            return cls(raw)
        if not make:
            return None
        raw = os.urandom(32)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, raw)
            os.fsync(handle)
        finally:
            os.close(handle)
        return cls(raw)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not pickled")

    def sign(self, words: bytes) -> bytes:
        """Ed25519."""
        return self._key.sign(words)

    @cached_property
    def _secret(self) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), 32, None, b"polyclinic/head/2 summary").derive(self._raw)

    def seal(self, summary: Mapping[str, object]) -> str:
        """A summary only this key's owner can read; always the same length."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        text = json.dumps(summary, separators=(",", ":")).encode()
        if len(text) > SIZE:
            short = {k: summary[k] for k in ("time", "all") if k in summary}
            text = json.dumps(short, separators=(",", ":")).encode()
        nonce = os.urandom(12)
        return (nonce + ChaCha20Poly1305(self._secret).encrypt(nonce, text.ljust(SIZE), None)).hex()

    def unseal(self, sealed: str) -> dict[str, Any] | None:
        """The summary of a head that this key sealed; None if it did not."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        try:
            raw = bytes.fromhex(sealed)
            summary: dict[str, Any] = json.loads(ChaCha20Poly1305(self._secret).decrypt(raw[:12], raw[12:], None))
        except (InvalidTag, ValueError):
            return None
        return summary


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
                    f"site {site!r} shows a further ledger, and {BOOKS} of it are known: this one is not witnessed"
                )
            ledgers[head.book] = _Ledger(known, known if head.sealed else None)
            return True
        previous = replace(ledger)
        newest = ledger.newest.head
        if head.count == newest.count and head.hash != newest.hash:
            ledger.fork = (ledger.newest, known)
        if head.count > newest.count:
            ledger.newest = known
        if head.sealed and (ledger.sealed is None or head.count > ledger.sealed.head.count):
            ledger.sealed = known
        return ledger != previous

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
