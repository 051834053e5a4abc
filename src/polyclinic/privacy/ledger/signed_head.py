"""Sign the end of a ledger: how many lines, the hash of the last, and what was spent, sealed for the ledger's owner.

A party that keeps a head elsewhere (a peer, the coordinator, an anchor file) can later show that lines were removed,
rewritten or put back. A witness cannot invent a head, because only the ledger's key signs one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from polyclinic.errors import LedgerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIZE: Final = 1024  # of the sealed summary, whatever is in it


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
        """From plain values, those of version 1 too."""
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
                raise LedgerError(f"{path} is no key of a book", hint="restore it from a backup")
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

    def own(self, purpose: bytes) -> bytes:
        """A secret of the ledger for one purpose."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), 32, None, purpose).derive(self._raw)

    @cached_property
    def _secret(self) -> bytes:
        return self.own(b"polyclinic/head/2 summary")

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
