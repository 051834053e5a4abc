"""Whether the coordinator takes this site: its certificate, a real mutual TLS handshake, and a signed answer.

A TCP connection proves nothing: the server shows its certificate first, and refuses ours only afterwards. With TLS 1.3 the
client's handshake even ends before the server has looked at the client's certificate. So the line counts as accepted only
when the server has said something on it: a FLARE server answers the opening of HTTP/2 with its own settings.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from polyclinic import __version__
from polyclinic.node.enrolment.proxy import connection
from polyclinic.node.probe import Probe
from polyclinic.protocol.wire.sealed import digest

SOON: Final = 60  # days before the end of a certificate: worth a letter
NOW: Final = 14  # days: worth a call
SKEW: Final = 300.0  # seconds: certificates hold from five minutes before they were signed
REMARK: Final = 30.0  # seconds of skew worth a remark
OPENING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface, empty SETTINGS
RENEW: Final = (
    "polyclinic site renew, and the coordinator: polyclinic coordinator renew FOLDER SITE; keys, book and pins stay"
)
RETURN: Final = (
    "ask the coordinator for a new invite (polyclinic coordinator invite), then: polyclinic site join INVITE"
)


@dataclass(frozen=True)
class Papers:
    """What a party shows and whom it trusts: files of its kit."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def of(cls, kit: Path, short: str = "client") -> Papers:
        """The papers in the folder ``startup`` of a kit."""
        return cls(kit / f"{short}.crt", kit / f"{short}.key", kit / "rootCA.pem")

    def context(self) -> ssl.SSLContext:
        """TLS as the client speaks it: our certificate, the federation's authority and nobody else."""
        tls = ssl.create_default_context(cafile=str(self.authority))
        tls.load_cert_chain(self.certificate, self.key)
        return tls


def certificate(papers: Papers, name: str, *, now: datetime.datetime | None = None, todo: str = RENEW) -> Probe:
    """Whether our own certificate is one that the federation's authority made for this name and key, and until when."""
    now = now or datetime.datetime.now(datetime.UTC)
    try:
        mine = x509.load_pem_x509_certificate(papers.certificate.read_bytes())
        authority = x509.load_pem_x509_certificate(papers.authority.read_bytes())
        key = load_pem_private_key(papers.key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as e:
        return Probe("certificate", "fault", f"certificate or key cannot be read ({e})", todo, exit=5)
    wrong = []
    if mine.subject == mine.issuer and mine.fingerprint(mine.signature_hash_algorithm) != authority.fingerprint(  # type: ignore[arg-type]
        authority.signature_hash_algorithm  # type: ignore[arg-type]
    ):
        wrong.append("it is signed by itself, not by the federation's authority")
    elif not _issued(mine, authority):
        wrong.append("its authority is unknown: it is not the one of this federation")
    common = mine.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    called = str(common[0].value) if common else ""
    if called != name:
        wrong.append(f"it is for {called!r}, this is {name!r}")
    if mine.public_key() != key.public_key():
        wrong.append("it does not belong to the key beside it")
    if mine.not_valid_before_utc > now:
        wrong.append(
            f"it begins on {mine.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and this clock shows {now:%Y-%m-%d %H:%M}"
        )
        todo = "set this machine's clock (NTP). Renew nothing: the certificate is right once the clock is"
    left = (mine.not_valid_after_utc - now) / datetime.timedelta(days=1)
    if left <= 0:
        wrong.append(f"it has expired on {mine.not_valid_after_utc:%Y-%m-%d}")
    if wrong:
        return Probe(
            "certificate", "fault", f"{papers.certificate.name} is not valid: {'; '.join(wrong)}", todo, exit=5
        )
    until = f"valid until {mine.not_valid_after_utc:%Y-%m-%d}, {int(left)} days"
    if left <= NOW:
        return Probe("certificate", "warning", f"ends very soon: {until}", f"now: {todo}")
    if left <= SOON:
        return Probe("certificate", "warning", f"ends soon: {until}", todo)
    return Probe("certificate", "ok", until)


def _issued(mine: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        mine.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def handshake(host: str, port: int, papers: Papers, *, called: str | None = None, timeout: float = 5.0) -> Probe:
    """Open the line that a study uses, show our certificate, and wait until the coordinator says something on it.

    Parameters
    ----------
    called
        Name the server must prove; default: ``host``.
    """
    place = f"{host}:{port}"
    try:
        tls = papers.context()
    except (OSError, ValueError) as e:
        return Probe("coordinator", "fault", f"our certificate and key cannot be used ({e})", RENEW, exit=5)
    tls.set_alpn_protocols(["h2"])
    refused = Probe(
        "coordinator",
        "fault",
        f"{place} is there, but refuses this certificate",
        f"polyclinic site doctor: see 'certificate'; if that is ok, ask the coordinator; or {RENEW}",
        exit=5,
    )
    begun = time.perf_counter()
    shown = False
    try:
        with (
            contextlib.closing(_line(host, port, timeout)) as raw,
            tls.wrap_socket(raw, server_hostname=called or host) as line,
        ):
            shown = True
            line.sendall(OPENING)
            if not line.recv(1):
                return refused
    except ssl.SSLCertVerificationError as e:
        return Probe(
            "coordinator",
            "fault",
            f"{place} does not prove to be the coordinator of this federation ({e.verify_message})",
            "a wrong address, a proxy that opens TLS, an ended certificate of the coordinator, or somebody in between",
            exit=5,
        )
    except ssl.SSLError as e:
        word = str(e.reason or "")
        if "ALERT" in word:
            said = word.rpartition("ALERT_")[2].replace("_", " ").lower()
            return Probe("coordinator", "fault", f"{refused.sentence} ({said})", refused.todo, exit=5)
        if shown:
            return refused
        todo = "is another service on that port, or a proxy that opens TLS?"
        return Probe(
            "coordinator", "fault", f"{place} does not speak TLS as a coordinator does ({word or e})", todo, exit=5
        )
    except TimeoutError:
        what = "takes the certificate, but says nothing" if shown else "does not answer"
        return Probe("coordinator", "fault", f"{place} {what} within {timeout:g} s", _FIREWALL, exit=5, outside=True)
    except (ConnectionResetError, BrokenPipeError) as e:
        return refused if shown else _away(place, e)
    except (OSError, HTTPException) as e:
        return _away(place, e)
    took = 1000 * (time.perf_counter() - begun)
    return Probe("coordinator", "ok", f"{place} reachable: both certificates were accepted ({took:.0f} ms)")


_FIREWALL: Final = "is the coordinator started? Otherwise a firewall or proxy on the way drops the packets"


def _away(place: str, e: Exception) -> Probe:
    if isinstance(e, socket.gaierror):
        return Probe(
            "coordinator", "fault", f"{place}: this machine does not know the name", "see 'name'", exit=5, outside=True
        )
    why = str((e.strerror if isinstance(e, OSError) else None) or e or type(e).__name__)
    return Probe("coordinator", "fault", f"{place} is not reachable ({why})", _FIREWALL, exit=5, outside=True)


def _line(host: str, port: int, timeout: float) -> socket.socket:
    """A connection, through the proxy where there is one."""
    line = connection(host, port, timeout)
    line.connect()
    return line.sock


@dataclass(frozen=True)
class Answer:
    """What the coordinator said to a site that showed its certificate."""

    status: int
    value: Any
    ahead: float | None  # seconds by which this clock is ahead of the coordinator's


def ask(host: str, port: int, papers: Papers, *, timeout: float = 5.0) -> Answer:
    """Ask for the signed roster on the port for joining; also tells the coordinator's time."""
    with contextlib.closing(connection(host, port, timeout, papers.context())) as line:
        before = time.time()
        line.request("POST", "/roster", b"{}", {"Content-Type": "application/json"})
        reply = line.getresponse()
        said, now = reply.getheader("Date"), time.time()
        value = json.loads(reply.read(1 << 18))
    # The header has whole seconds, cut off: half a second is added, half of the way there and back is taken off.
    ahead = None if said is None else (before + now) / 2 - parsedate_to_datetime(said).timestamp() - 0.5
    return Answer(reply.status, value, ahead)


def membership(answer: Callable[[], Answer], coordinator: str, name: str, key: bytes) -> tuple[Probe, Answer | None]:
    """Whether the coordinator lists this site with this key: the list is signed, so nobody between can say it."""
    try:
        said = answer()
    except (OSError, HTTPException, ValueError) as e:
        why = str((e.strerror if isinstance(e, OSError) else None) or e or type(e).__name__)
        text = f"not known whether this site is still a member: the port for joining does not answer ({why})"
        return Probe(
            "membership", "warning", text, "polyclinic coordinator start opens it; studies do not need it"
        ), None
    if said.status == 403:
        todo = f"ask the coordinator why (polyclinic coordinator status); to come back: {RETURN}"
        return Probe(
            "membership", "fault", "the coordinator has revoked this site, or does not know it", todo, exit=5
        ), said
    try:
        body = {"kind": said.value["kind"], "sites": {str(k): str(v) for k, v in said.value["sites"].items()}}
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(coordinator)).verify(
            bytes.fromhex(said.value["signature"]), digest(body)
        )
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError):
        text = f"the answer (HTTP {said.status}) is not signed by the coordinator that this site joined"
        return Probe("membership", "fault", text, "has the federation been founded anew? Then join anew", exit=5), said
    if body["sites"].get(name) != key.hex():
        text = f"the coordinator lists no {name!r} with this site's key: it has been revoked, or joined elsewhere"
        return Probe("membership", "fault", text, RETURN, exit=5), said
    return _same_version(f"{name} is one of {len(body['sites'])} sites on the signed roster", said.value), said


def _same_version(text: str, answer: dict[str, Any]) -> Probe:
    """Whether the coordinator runs this version. A coordinator of an earlier version does not say."""
    version = str(answer.get("polyclinic", __version__))
    if version.split(".")[:2] == __version__.split(".")[:2]:
        return Probe("membership", "ok", text)
    text = f"the coordinator runs Polyclinic {version}, this site {__version__}: studies will be refused"
    return Probe("membership", "fault", text, f"install the same version on both: pip install polyclinic=={version}")


def clock(ahead: float | None) -> Probe:
    """Our clock against the coordinator's."""
    if ahead is None:
        return Probe(
            "clock", "warning", "not compared: the coordinator's time is not known here", "compare: date -u, at both"
        )
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the coordinator's"
    todo = "set this machine's clock, or the coordinator's (NTP)"
    if abs(ahead) > SKEW:
        return Probe("clock", "fault", f"{text}: certificates made now are not valid yet at the other", todo, exit=5)
    return Probe("clock", "warning", text, todo) if abs(ahead) > REMARK else Probe("clock", "ok", text)
