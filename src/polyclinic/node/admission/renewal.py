"""A new certificate before or after the old one ends, for the same keys: nothing is compared again, nothing is lost.

    site renew           asks, signed by the site's own key: works with a certificate that has expired, too
    coordinator renew    a person signs a certificate for the key whose fingerprint was compared when the site joined
    site renew           receives it, checks it as at joining, and puts it into the kit

The private key never moves; book, pins and studies are not touched. A revoked site gets nothing. The authority itself lasts ten years
and is not renewed: what it signed would be worth nothing under another one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from polyclinic.errors import ConfigError
from polyclinic.node.admission.membership import install, joined
from polyclinic.node.enrolment.authority import Authority, issue, read_request
from polyclinic.node.enrolment.federation import approve_site
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, append_event, read_json
from polyclinic.node.enrolment.invitation import RENEWAL, end_of, entries, put
from polyclinic.node.enrolment.joining import awaited
from polyclinic.node.enrolment.startup_files import ADMIN
from polyclinic.protocol.wire.sealed import digest
from polyclinic.util.atomic_files import write_whole

# ---- the coordinator


def renew_site(folder: CoordinatorFolder, name: str) -> tuple[Path, datetime]:
    """Sign a new certificate for the keys with which a site joined; returns the approval, and until when it holds."""
    known = folder.approved()
    if name not in known:
        raise ConfigError(
            f"{name!r} is not a site of this federation, or was revoked",
            faults=[f"sites: {', '.join(known) or 'none'}"],
            hint="a site that was revoked joins again: polyclinic coordinator invite FOLDER NAME",
        )
    entry = entries(folder).get(name)
    if entry is None or entry.request is None or read_request(entry.request).key.hex() != known[name]["key"]:
        raise ConfigError(
            f"the request with which {name!r} joined is not here any more",
            hint="let it join again: polyclinic coordinator revoke, then coordinator invite",
        )
    path, _ = approve_site(folder, name, str(known[name]["fingerprint"]))
    put(folder, replace(entries(folder)[name], renewal=None))
    until = end_of(read_json(path), name)
    append_event(folder.events, event="renewed", site=name, until=f"{until:%Y-%m-%d}")
    return path, until


def renew_server(folder: CoordinatorFolder) -> datetime:
    """New certificates for the coordinator's own keys, server's and commands'; they are used from the next start on."""
    authority, host = Authority.read(folder.authority), str(folder.read_settings()["host"])
    text = ""
    for kit, short in ((folder.server / "startup", "server"), (folder.admin / "startup", "client")):
        key = load_pem_private_key((kit / f"{short}.key").read_bytes(), None)
        common, kind = (host, "server") if short == "server" else (ADMIN, "admin")
        text = issue(authority, common, key.public_key(), kind, host=host)  # type: ignore[arg-type]
        write_whole(kit / f"{short}.crt", text)
    until = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    append_event(folder.events, event="renewed", site="coordinator", until=f"{until:%Y-%m-%d}")
    return until


# ---- the site


def renew(
    folder: SiteFolder, approval: Path | None = None, *, wait: float = 0.0, every: float = 2.0
) -> datetime | None:
    """Ask for a new certificate, or take it from a file, and put it into the kit; None while the coordinator has not signed one."""
    if not joined(folder):
        raise ConfigError(f"{folder.node.name!r} has not joined yet", hint="polyclinic site join INVITE")
    before = _current(folder)
    if approval is not None:
        value = read_json(approval)
        until = end_of(value, folder.node.name)
        if until.timestamp() <= before:
            raise ConfigError(
                f"{approval}: its certificate ends on {until:%Y-%m-%d}, not later than the one that is here",
                hint="polyclinic coordinator renew FOLDER SITE writes a new one",
            )
        return _put(folder, value, until)
    invite = folder.read_invite()
    if invite.get("enrol_port") is None:
        raise ConfigError(
            "this coordinator hands out no certificates over the network",
            hint="it sends you the file that `coordinator renew` writes: polyclinic site renew --approval FILE",
        )
    body = {"kind": RENEWAL, "site": folder.node.name, "ends": int(before)}
    value = {**body, "signature": folder.identity().sign(digest(body)).hex()}
    answer = awaited(invite, "/renew", value, wait, every)
    return None if answer is None else _put(folder, answer["approval"], end_of(answer["approval"], folder.node.name))


def _put(folder: SiteFolder, value: Any, until: datetime) -> datetime:
    install(folder, value)
    append_event(folder.events, event="renewed", until=f"{until:%Y-%m-%d}")
    return until


def _current(folder: SiteFolder) -> float:
    """When the certificate ends that is here; one that cannot be read, or is not the authority's, has ended."""
    kit = folder.workspace / "startup"
    try:
        mine = x509.load_pem_x509_certificate((kit / "client.crt").read_bytes())
        mine.verify_directly_issued_by(x509.load_pem_x509_certificate((kit / "rootCA.pem").read_bytes()))
    except (OSError, ValueError, TypeError, InvalidSignature):
        return 0.0
    return mine.not_valid_after_utc.timestamp()
