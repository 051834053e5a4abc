"""An invite: where the coordinator is, what proves it, and a secret that may ask once; and what has become of it.

The coordinator keeps of each invite the hash of its secret, when it ends, and the ONE request that came with it: as many
entries as invites, so nobody can fill a queue. The secret only lets a request in; a certificate is signed by a person, after
fingerprints were compared.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import re
import secrets
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.errors import ConfigError, MessageRefused, PolyclinicError
from polyclinic.node.enrolment.authority import mark_of, read_request, site_name
from polyclinic.node.enrolment.folders import CoordinatorFolder, append_event, private, read_json, write_json
from polyclinic.protocol.wire.sealed import digest

DAYS: Final = 14.0
State = Literal["invited", "waiting", "approved", "rejected"]


@dataclass(frozen=True)
class Invited:
    """What the coordinator keeps about an invite."""

    site: str
    secret: str  # SHA-256; the secret itself is in the invite only
    ends: float  # seconds since 1970
    state: State = "invited"
    request: Mapping[str, object] | None = None
    received: float | None = None
    sender: str = ""
    renewal: float | None = None  # since when the site asks for a new certificate

    @property
    def over(self) -> bool:
        """Whether the invite has ended."""
        return time.time() > self.ends

    @property
    def fingerprint(self) -> str | None:
        """Of the request that came with it."""
        return None if self.request is None else read_request(self.request).fingerprint


def _place(folder: CoordinatorFolder, site: str) -> Path:
    return folder.path / "enrolment" / f"{site}.json"


def put(folder: CoordinatorFolder, entry: Invited) -> None:
    """Keep an entry."""
    private(folder.path / "enrolment")
    write_json(_place(folder, entry.site), asdict(entry))


def entries(folder: CoordinatorFolder) -> dict[str, Invited]:
    """All invites by site."""
    found = sorted((folder.path / "enrolment").glob("*.json"))
    return {e.site: e for e in (Invited(**read_json(p)) for p in found)}


def invite(folder: CoordinatorFolder, name: str, *, days: float = DAYS) -> Path:
    """Write an invite; an earlier one for the same site ends."""
    settings = folder.read_settings()
    if site_name(name) == settings["host"]:
        raise ConfigError(
            f"a site cannot be called {name!r}: that is the coordinator's host",
            hint="its certificate would pass for the coordinator's; choose another name",
        )
    if name in folder.approved():
        raise ConfigError(f"{name!r} has joined already", hint="to let it join again: polyclinic coordinator revoke")
    secret, ends = secrets.token_hex(16), time.time() + days * 86_400
    authority = (folder.authority / "rootCA.pem").read_text(encoding="utf-8")
    value = {
        "kind": "polyclinic invite",
        "site": name,
        "project": settings["project"],
        "host": settings["host"],
        "port": settings["port"],
        "enrol_port": settings.get("enrol_port"),
        "authority": authority,
        "authority_sha256": mark_of(authority),
        "coordinator": folder.identity().public.hex(),
        "secret": secret,
        "ends": int(ends),
    }
    put(folder, Invited(name, hashlib.sha256(secret.encode()).hexdigest(), int(ends)))
    append_event(folder.events, event="invited", site=name)
    return write_json(private(folder.path / "invites") / f"{name}.invite.json", value)


RENEWAL: Final = "polyclinic renewal"
KEYS: Final = {
    "site": str,
    "project": str,
    "host": str,
    "port": int,
    "authority": str,
    "authority_sha256": str,
    "coordinator": str,
    "secret": str,
    "ends": int,
}


def read_invite(path: Path) -> dict[str, Any]:
    """An invite that is whole, belongs to one authority and has not ended; all faults at once otherwise."""
    value = read_json(path, "the coordinator sends it: polyclinic coordinator init, or coordinator invite")
    if value.get("kind") != "polyclinic invite":
        raise ConfigError(f"{path}: not an invite", hint="the file that the coordinator sent, NAME.invite.json")
    faults = [f"{k} is missing or damaged" for k, t in KEYS.items() if not isinstance(value.get(k), t)]
    if not faults:
        try:
            whole = mark_of(value["authority"]) == value["authority_sha256"]
        except ValueError:
            whole = False
        if not whole:
            faults.append("the authority's certificate is not the one that the fingerprint names")
        if not re.fullmatch(r"[0-9a-f]{64}", value["coordinator"]):
            faults.append("the coordinator's key is damaged")
        if value["ends"] < time.time():
            day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(value["ends"]))
            faults.append(f"it ended on {day}")
    if faults:
        raise ConfigError(
            f"{path}: this invite cannot be used",
            faults=faults,
            hint="ask the coordinator for a new one (polyclinic coordinator invite)",
        )
    return value


def ask(folder: CoordinatorFolder, value: Any, sender: str = "") -> tuple[int, dict[str, Any]]:
    """A site asks to join, or asks how its request stands: an HTTP status and an answer.

    The first request that comes with an invite's secret is kept; the same one may ask again, another one is refused.
    """

    def no(status: int, why: str) -> tuple[int, dict[str, object]]:
        return status, {"state": "refused", "reason": why}

    if not isinstance(value, dict) or not all(isinstance(value.get(k), str) for k in ("site", "secret")):
        return no(400, "not a request to join")
    name = value["site"]
    entry = entries(folder).get(name) if re.fullmatch(r"[A-Za-z0-9_-]{1,63}", name) else None
    given = hashlib.sha256(value["secret"].encode()).hexdigest()
    if not hmac.compare_digest(given, entry.secret if entry else "0" * 64) or entry is None:
        return no(403, "no such invite, or a newer one was sent")
    if entry.state == "rejected":
        return no(403, "the coordinator rejected this request")
    if entry.state == "invited":
        if entry.over:
            return no(403, "this invite has ended")
        try:
            request = read_request(value.get("request"))
        except PolyclinicError as e:
            return no(400, e.what)
        if request.site != name:
            return no(400, f"the invite is for {name!r}, the request for {request.site!r}")
        entry = replace(entry, state="waiting", request=value["request"], received=time.time(), sender=sender)
        put(folder, entry)
        append_event(folder.events, event="requested", site=name, fingerprint=request.fingerprint, sender=sender)
    if value.get("request") != entry.request:
        return no(409, "this invite was used before, with other keys")
    if entry.state == "approved":
        return 200, {"state": "approved", "approval": read_json(folder.path / "approvals" / f"{name}.approval.json")}
    return 202, {"state": "waiting"}


def hand_out(folder: CoordinatorFolder, value: Any) -> tuple[int, dict[str, Any]]:
    """A site asks for its new certificate: an HTTP status and an answer. Only the site's own key may ask; nothing is signed here."""
    try:
        name, ends = str(value["site"]), int(value["ends"])
        body = {"kind": RENEWAL, "site": name, "ends": ends}
        key = bytes.fromhex(str(folder.approved()[name]["key"]))
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(value["signature"]), digest(body))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        return 403, {"state": "refused", "reason": "only a site that has joined may ask for its certificate"}
    path = folder.path / "approvals" / f"{name}.approval.json"
    if path.exists() and end_of(read_json(path), name).timestamp() > ends:
        return 200, {"state": "approved", "approval": read_json(path)}
    entry = entries(folder).get(name)
    if entry is not None and entry.renewal is None:
        put(folder, replace(entry, renewal=time.time()))
        append_event(folder.events, event="asks for a new certificate", site=name)
    return 202, {"state": "waiting"}


def end_of(approval: Mapping[str, object], name: str) -> datetime:
    """When the certificate in an approval ends."""
    try:
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(str(approval["package"]), validate=True))) as z:
            return x509.load_pem_x509_certificate(z.read(f"{name}.crt")).not_valid_after_utc
    except (KeyError, ValueError, binascii.Error, zipfile.BadZipFile, RuntimeError):
        raise MessageRefused(f"not an approval with a certificate of {name!r}") from None
