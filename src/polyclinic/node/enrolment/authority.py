"""Who takes part: an authority, keys born at the site, requests that prove them, fingerprints that two people compare.

    coordinator init     authority and one invite per site (``invitation``)
    site join            makes the site's TLS key and signing key AT THE SITE and sends a request (``joining``)
    coordinator approve  after comparing fingerprints: signs the site's certificate (``provisioning``)
    site join            receives the approval, checks it and writes FLARE's kit

No private key of a site exists at the coordinator at any time.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.wire.sealed import Identity, digest

BITS: Final = 2048  # as FLARE itself
YEARS: Final = 2  # of a certificate
AUTHORITY_YEARS: Final = 10  # certificates cannot outlive their authority
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"  # FLARE joins names with dots


def site_name(name: str) -> str:
    """A name that may be used between hosts."""
    if not re.fullmatch(NAME, name) or name in ("coordinator", "server", "localhost"):
        raise ConfigError(f"site name {name!r} cannot be used between hosts", hint="letters, digits, - and _ only")
    return name


def new_key() -> tuple[rsa.RSAPrivateKey, bytes]:
    """A TLS key and its PEM text."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=BITS)
    return key, key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def words(data: bytes) -> str:
    """Bytes as words that can be spoken on the telephone: 16 bits a word, consonants and vowels in turn (proquints).

    The scheme is Wilkerson's (arXiv:0901.4016); eight words hold 128 bits.

    >>> words(bytes([127, 0, 0, 1]))
    'lusab-babad'
    """
    consonants, vowels = "bdfghjklmnprstvz", "aiou"

    def word(n: int) -> str:
        c, v = consonants, vowels
        return c[n >> 12] + v[n >> 10 & 3] + c[n >> 6 & 15] + v[n >> 4 & 3] + c[n & 15]

    return "-".join(word(int.from_bytes(data[i : i + 2], "big")) for i in range(0, len(data), 2))


def fingerprint(name: str, tls: bytes, signing: bytes) -> str:
    """What two people read to each other: eight words, a hash of the name and both public keys.

    >>> fingerprint("north", b"x", b"y")[:11]
    'varuf-dolal'
    """
    return words(hashlib.sha256(digest(["polyclinic site", name, tls, signing])).digest()[:16])


def _spki(key: Any) -> bytes:
    return bytes(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def _name(common: str, organisation: str | None = None, role: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    if role is not None:
        parts.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    return x509.Name(parts)


@dataclass(frozen=True)
class Authority:
    """The certificate authority of one federation; its key stays in the coordinator's folder."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @classmethod
    def make(cls, project: str) -> tuple[Authority, bytes]:
        """A new authority, and the PEM text of its key."""
        key, pem = new_key()
        name = _name(project)  # FLARE names the issuer of a site's certificate by its common name alone
        now = datetime.datetime.now(datetime.UTC)
        public = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=365 * AUTHORITY_YEARS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key), pem

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """The authority kept in a folder."""
        key = serialization.load_pem_private_key((folder / "rootCA.key").read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return cls(x509.load_pem_x509_certificate((folder / "rootCA.pem").read_bytes()), key)

    @property
    def pem(self) -> str:
        """The certificate as text."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def mark(self) -> str:
        """SHA-256 of the certificate, as FLARE and openssl write it."""
        return mark_of(self.pem)


def mark_of(pem: str) -> str:
    """SHA-256 of a certificate in the form ``SHA256:AA:BB...``."""
    raw = x509.load_pem_x509_certificate(pem.encode()).fingerprint(hashes.SHA256())
    return "SHA256:" + ":".join(f"{b:02X}" for b in raw)


def common_name(der: bytes) -> str:
    """The name of a certificate's owner."""
    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _usage(*, sign_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not sign_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def issue(
    authority: Authority,
    common: str,
    public: Any,
    kind: Literal["server", "client", "admin"],
    *,
    host: str | None = None,
) -> str:
    """Sign a certificate; the subject is what WE call the party, never what a request says."""
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(common if kind != "admin" else "coordinator")]
    # The server is called by its own commands as localhost, whatever its name outside is (NAT, a proxy, a closed firewall).
    for h in dict.fromkeys((*((host,) if host else ()), *(("localhost",) if kind == "server" else ()))):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(h)))
        except ValueError:
            names.append(x509.DNSName(h))
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if kind == "server" else [])]
    project = str(authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(common, project, "project_admin" if kind == "admin" else None))
        .issuer_name(authority.certificate.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def request_of(name: str, project: str, request: bytes, identity: Identity) -> dict[str, object]:
    """A site's request: FLARE's own (it proves the TLS key), and the signing key, which proves itself and signs both."""
    body = {
        "kind": "polyclinic request",
        "site": name,
        "project": project,
        "request": base64.b64encode(request).decode(),
        "key": identity.public.hex(),
    }
    return {**body, "signature": identity.sign(digest(body)).hex()}


def willing_words(site: str, project: str) -> bytes:
    """Return what an owner signs who lets the site's own part of exact sums be computed by subtraction."""
    return digest(["polyclinic willing 1", site, project])


@dataclass(frozen=True)
class Request:
    """A request that holds together."""

    site: str
    key: bytes
    zip: bytes
    fingerprint: str
    willing: str = ""  # the owner's signature under :func:`willing_words`, hexadecimal


def read_request(value: Any) -> Request:
    """Check a request: both signatures, the name; refuses anything else."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from polyclinic.node.enrolment.provisioning import csr_in

    try:
        body = {k: str(value[k]) for k in ("kind", "site", "project", "request", "key")}
        raw = bytes.fromhex(body["key"])
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(value["signature"]), digest(body))
        data = base64.b64decode(body["request"], validate=True)
        csr = x509.load_pem_x509_csr(csr_in(data, site_name(body["site"])))
        common = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    except (KeyError, TypeError, ValueError, IndexError, binascii.Error, InvalidSignature) as e:
        raise MessageRefused(f"not a request of a site ({type(e).__name__})") from None
    if not csr.is_signature_valid or common != body["site"] or body["kind"] != "polyclinic request":
        raise MessageRefused(f"request of {body['site']!r}: the TLS key is not proven, or the names differ")
    mark = fingerprint(body["site"], _spki(csr.public_key()), raw)
    return Request(body["site"], raw, data, mark, str(value.get("willing", "")))
