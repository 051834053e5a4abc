"""What a site does outside of a run: join with keys born here, pin the other sites, look at studies, decide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from polyclinic.engines.flare.admission import describe
from polyclinic.engines.flare.coordination import coordinator_fingerprint
from polyclinic.engines.flare.enrolment import new_key, read_request, request_of, site_name
from polyclinic.engines.flare.folders import (
    SiteFolder,
    append_event,
    private,
    read_events,
    read_json,
    write_json,
    write_key,
)
from polyclinic.engines.flare.kit import site_kit
from polyclinic.engines.flare.order import read_order
from polyclinic.errors import ConfigError, MessageRefused, PolyclinicError
from polyclinic.federation.envelope import Identity, digest
from polyclinic.privacy.outbox import Outbox
from polyclinic.privacy.owner import outbox_of, policy_of

__all__ = ["complete", "decide", "pending", "pin", "refusals", "request", "studies"]


def request(folder: SiteFolder, invite_file: Path) -> tuple[Path, dict[str, str]]:
    """Make the site's keys HERE, and a request with their public halves; again: the same request."""
    invite = read_json(invite_file)
    faults = []
    if invite.get("kind") != "polyclinic invite":
        faults.append(f"{invite_file} is not an invite")
    elif invite["site"] != folder.node.name:
        faults.append(f"the invite is for {invite['site']!r}, the node file says {folder.node.name!r}")
    if re.search(r"\s", str(folder.path.resolve())):
        faults.append(f"{folder.path.resolve()}: FLARE cannot start its processes from a path with blanks")
    if faults:
        raise ConfigError("this site cannot join", faults=faults)
    site_name(folder.node.name)
    policy_of(folder.node)
    private(folder.path)
    if folder.invite.exists() and read_json(folder.invite) != invite:
        raise ConfigError(f"{folder.node.name!r} has joined another federation", hint=f"remove {folder.path} first")
    write_json(folder.invite, invite)
    if not (folder.path / "identity.key").exists():
        write_key(folder.path / "identity.key", Identity.generate(folder.node.name)._key.private_bytes_raw())
    if not (folder.path / "tls.key").exists():
        write_key(folder.path / "tls.key", new_key()[1])
    tls = serialization.load_pem_private_key((folder.path / "tls.key").read_bytes(), None)
    assert isinstance(tls, RSAPrivateKey)
    value = request_of(folder.node.name, str(invite["project"]), tls, folder.identity())
    path = write_json(folder.path / f"{folder.node.name}.request.json", value)
    return path, {"site": read_request(value).fingerprint, "coordinator": coordinator_fingerprint(invite)}


def complete(folder: SiteFolder, approval_file: Path) -> None:
    """Check the coordinator's approval and write FLARE's kit; the private key never left this folder."""
    from cryptography import x509

    invite, value = folder.read_invite(), read_json(approval_file)
    try:
        body = {k: str(value[k]) for k in ("kind", "site", "certificate")}
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(invite["coordinator"]))
        key.verify(bytes.fromhex(value["signature"]), digest(body))
        certificate = x509.load_pem_x509_certificate(body["certificate"].encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(invite["authority"].encode()))
    except (InvalidSignature, ValueError, KeyError, TypeError) as e:
        raise MessageRefused(
            f"{approval_file}: not an approval by the coordinator of the invite ({type(e).__name__})"
        ) from None
    tls = serialization.load_pem_private_key((folder.path / "tls.key").read_bytes(), None)
    if body["site"] != folder.node.name or certificate.public_key() != tls.public_key():
        raise MessageRefused(f"{approval_file}: the certificate is not for this site's key")
    texts = {
        "rootCA.pem": str(invite["authority"]),
        "client.crt": body["certificate"],
        "client.key": (folder.path / "tls.key").read_text(encoding="utf-8"),
    }
    site_kit(folder.workspace, folder.node.name, host=invite["host"], port=int(invite["port"]), texts=texts)
    append_event(folder.events, event="joined", host=invite["host"], port=invite["port"])


def pin(folder: SiteFolder, roster_file: Path) -> dict[str, str]:
    """Remember the other sites' keys, after the owner has compared their fingerprints."""
    value, invite = read_json(roster_file), folder.read_invite()
    try:
        body = {"kind": value["kind"], "sites": {str(k): str(v) for k, v in value["sites"].items()}}
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(invite["coordinator"]))
        key.verify(bytes.fromhex(value["signature"]), digest(body))
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError):
        raise MessageRefused(f"{roster_file}: not a roster of the coordinator that this site joined") from None
    known = read_json(folder.pins) if folder.pins.exists() else {}
    changed = [f"{n!r}: another key than the one pinned" for n, k in body["sites"].items() if known.get(n, k) != k]
    if changed:
        raise ConfigError(
            f"{roster_file}: keys have changed", faults=changed, hint=f"compare again, then remove {folder.pins}"
        )
    write_json(folder.pins, {**known, **body["sites"]})
    append_event(folder.events, event="pinned", sites=sorted(body["sites"]))
    return dict(body["sites"])


def studies(folder: SiteFolder) -> list[dict[str, Any]]:
    """Every study that was asked of this site, as the owner reads it, with its state here."""
    found = []
    last = {e["study"]: e for e in read_events(folder.events) if "study" in e and e["event"] != "message refused"}
    for place in sorted(folder.studies.glob("*/order.json")) if folder.studies.exists() else ():
        try:
            order = read_order(read_json(place)["order"], bytes.fromhex(folder.read_invite()["coordinator"]))
        except PolyclinicError as e:
            found.append({"study": place.parent.name, "state": "refused", "reasons": [e.what]})
            continue
        event = last.get(order.id, {})
        found.append({**describe(order), "state": event.get("event", "new"), "reasons": event.get("reasons", [])})
    known = {f["study"] for f in found}
    return found + [
        {"study": s, "state": e["event"], "reasons": [e.get("what", ""), *e.get("reasons", [])]}
        for s, e in last.items()
        if s not in known
    ]


def refusals(folder: SiteFolder) -> list[dict[str, Any]]:
    """Studies that this site refused."""
    return [s for s in studies(folder) if s["state"] == "refused"]


def pending(folder: SiteFolder) -> list[tuple[Outbox, Any]]:
    """Releases that wait for the owner."""
    box = Outbox(outbox_of(folder.node))
    return [(box, p) for p in box.all() if p.state == "pending"]


def decide(folder: SiteFolder, study: str, *, accept: bool) -> None:
    """The owner's word about a study."""
    place = folder.study(study)
    if not (place / "order.json").exists():
        raise ConfigError(f"no study {study!r} was asked of this site")
    write_json(place / "accepted.json", {"accepted": accept})
    append_event(folder.events, event="accepted" if accept else "rejected", study=study)
