"""What a coordinator does outside of a run: found the federation, approve and revoke sites, sign studies."""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.authority import (
    Authority,
    Request,
    fingerprint,
    issue,
    new_key,
    read_request,
    site_name,
)
from polyclinic.node.enrolment.folders import CoordinatorFolder, append_event, private, read_json, write_json, write_key
from polyclinic.node.enrolment.invitation import DAYS, Invited, entries, invite, put
from polyclinic.node.enrolment.provisioning import approve_zip, describe_authority
from polyclinic.node.enrolment.startup_files import ADMIN, PROJECT, admin_kit, server_kit
from polyclinic.node.signed_study import StudyOrder, make_order
from polyclinic.protocol.wire.sealed import Identity, digest
from polyclinic.util.file_format import FORMAT

NEEDS: Final = {  # what a method may need, and how a study names it
    "features": ("a feature matrix", 'columns = ["age", "creatinine"], and label = "died" where there is a class'),
    "tensor": ("a tensor of codes", 'modes = ["procedure", "diagnosis"]'),
}


def found(
    folder: CoordinatorFolder,
    sites: list[str],
    *,
    host: str,
    port: int,
    admin_port: int,
    enrol_port: int | None = None,
    days: float = DAYS,
) -> list[Path]:
    """Make the authority, the coordinator's own keys and kits, and one invite per site; nothing of a site.

    Parameters
    ----------
    enrol_port
        Where sites ask to join; None: requests and approvals are carried as files.
    days
        How long the invites may be used.
    """
    faults = [f"{n!r} is named twice" for n in sorted({n for n in sites if sites.count(n) > 1})]
    if folder.settings.exists():
        faults.append(f"{folder.path} holds a federation already")
    if re.search(r"\s", str(folder.path.resolve())):
        faults.append(f"{folder.path.resolve()}: FLARE cannot start its processes from a path with blanks")
    ports = [p for p in (port, admin_port, enrol_port) if p is not None]
    faults += [f"port {p} is given twice" for p in sorted({p for p in ports if ports.count(p) > 1})]
    for n in sites:
        try:
            site_name(n)
        except ConfigError as e:
            faults.append(e.what)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        faults.append(f"--host {host!r}: a name or an IPv4 address, without a port")
    if host in sites:
        faults.append(f"{host!r} is the coordinator's host: a site of that name could pass for it")
    if faults:
        raise ConfigError("the federation cannot be founded", faults=faults)
    private(folder.path)
    authority, pem = Authority.make(PROJECT)
    write_key(folder.authority / "rootCA.key", pem)
    (folder.authority / "rootCA.pem").write_text(authority.pem, encoding="utf-8")
    describe_authority(folder.authority, PROJECT, authority.mark)
    identity = Identity.generate("coordinator")
    write_key(folder.path / "identity.key", identity._key.private_bytes_raw())
    for kind, common, write in (("server", host, server_kit), ("admin", ADMIN, admin_kit)):
        key, key_pem = new_key()
        short = "server" if kind == "server" else "client"
        texts = {
            "rootCA.pem": authority.pem,
            f"{short}.crt": issue(authority, common, key.public_key(), kind, host=host),  # type: ignore[arg-type]
            f"{short}.key": key_pem.decode(),
        }
        place = folder.server if kind == "server" else folder.admin
        options: dict[str, Any] = {"port": port} if kind == "server" else {}
        write(place, host=host, admin_port=admin_port, texts=texts, **options)
    ports_by_use = {"port": port, "admin_port": admin_port, "enrol_port": enrol_port}
    write_json(folder.settings, {"format": FORMAT, "project": PROJECT, "host": host, **ports_by_use})
    return [invite(folder, n, days=days) for n in sites]


def coordinator_fingerprint(invite_: dict[str, Any]) -> str:
    """What a site's owner and the coordinator compare about the coordinator."""
    return fingerprint("coordinator", str(invite_["authority"]).encode(), bytes.fromhex(invite_["coordinator"]))


def approve(folder: CoordinatorFolder, request_file: Path, expected: str | None) -> tuple[Path, str]:
    """Approve a request that was carried as a file; returns the approval to carry back, and the fingerprint."""
    value = read_json(request_file, "the file that `polyclinic site join --offline` wrote")
    request = read_request(value)
    entry = entries(folder).get(request.site)
    if entry is None:
        raise ConfigError(f"{request.site!r} was not invited", hint="polyclinic coordinator invite FOLDER NAME")
    return _sign(folder, replace(entry, request=value), request, expected)


def approve_site(folder: CoordinatorFolder, name: str, expected: str | None) -> tuple[Path, str]:
    """Approve the request that a site has sent."""
    entry = waiting(folder, name)
    return _sign(folder, entry, read_request(entry.request), expected)


def waiting(folder: CoordinatorFolder, name: str) -> Invited:
    """The request that a site has sent, or what is there instead."""
    known = entries(folder)
    if name not in known:
        raise ConfigError(
            f"{name!r} was not invited",
            faults=[f"invited: {', '.join(known) or 'none'}"],
            hint="polyclinic coordinator invite FOLDER NAME",
        )
    entry = known[name]
    if entry.request is None:
        raise ConfigError(
            f"{name!r} has not sent a request yet",
            hint="the site's owner runs: polyclinic site join INVITE --node node.toml",
        )
    if entry.state == "rejected":
        raise ConfigError(f"the request of {name!r} was rejected", hint="polyclinic coordinator invite FOLDER NAME")
    return entry


def reject(folder: CoordinatorFolder, name: str) -> str:
    """Say no to a request; its invite ends. Returns the fingerprint."""
    entry = waiting(folder, name)
    if entry.state == "approved":
        raise ConfigError(f"{name!r} is approved already", hint="polyclinic coordinator revoke")
    put(folder, replace(entry, state="rejected"))
    append_event(folder.events, event="rejected", site=name, fingerprint=entry.fingerprint)
    return str(entry.fingerprint)


def _sign(folder: CoordinatorFolder, entry: Invited, request: Request, expected: str | None) -> tuple[Path, str]:
    """Sign a site's certificate after people compared its fingerprint."""
    name = request.site
    if expected is not None and expected.strip().lower() != request.fingerprint:
        raise ConfigError(
            f"request of {name!r} has fingerprint {request.fingerprint}, not {expected}",
            hint="another party made this request: ask the site again, by telephone",
        )
    known = read_json(folder.sites) if folder.sites.exists() else {}
    before = known.get(name, {})
    if before and not before.get("revoked") and before["key"] != request.key.hex():
        raise ConfigError(f"{name!r} is approved with other keys", hint="revoke it first")
    signed = approve_zip(folder.authority, request.zip, name, folder.read_settings())
    body = {"kind": "polyclinic approval", "site": name, "package": base64.b64encode(signed).decode()}
    approval = write_json(
        private(folder.path / "approvals") / f"{name}.approval.json",
        {**body, "signature": folder.identity().sign(digest(body)).hex()},
    )
    mine = {"key": request.key.hex(), "fingerprint": request.fingerprint, "approved": time.strftime("%Y-%m-%d")}
    write_json(folder.sites, {**known, name: mine | ({"willing": request.willing} if request.willing else {})})
    put(folder, replace(entry, state="approved"))
    roster(folder)
    append_event(folder.events, event="approved", site=name, fingerprint=request.fingerprint)
    return approval, request.fingerprint


def roster(folder: CoordinatorFolder) -> Path:
    """The list of sites with keys and fingerprints, for every owner to compare and pin."""
    body = {"kind": "polyclinic roster", "sites": {n: s["key"] for n, s in folder.approved().items()}}
    # signed by the sites themselves, so not once more by the coordinator
    willing = {n: s["willing"] for n, s in folder.approved().items() if s.get("willing")}
    fingerprints = {n: s["fingerprint"] for n, s in folder.approved().items()}
    signature = folder.identity().sign(digest(body)).hex()
    return write_json(
        folder.path / "roster.json", {**body, "willing": willing, "fingerprints": fingerprints, "signature": signature}
    )


def revoke_on_file(folder: CoordinatorFolder, name: str) -> None:
    """Leave a site out of every study from now on."""
    known = read_json(folder.sites) if folder.sites.exists() else {}
    if name not in known:
        raise ConfigError(f"no site {name!r} is approved", faults=[f"known: {', '.join(sorted(known)) or 'none'}"])
    write_json(folder.sites, {**known, name: {**known[name], "revoked": time.strftime("%Y-%m-%d")}})
    roster(folder)
    append_event(folder.events, event="revoked", site=name)


def sign_study(folder: CoordinatorFolder, study: Study, chosen: Sequence[str] = ()) -> StudyOrder:
    """Sign an order for the ``chosen`` sites (default: all that are approved). It is kept in its own run folder."""
    from polyclinic.protocol.aggregators import by_name
    from polyclinic.studies import registry
    from polyclinic.studies.halvings import resolved
    from polyclinic.studies.run_folder import RunFolder

    folder.read_settings()  # refuses a folder of another format before anything is signed
    sites = folder.approved()
    roster(folder)  # a site may have left since it was last signed
    if not sites:
        raise ConfigError("no site is approved yet", hint="polyclinic coordinator approve FOLDER SITE")
    if unknown := [f"{n!r} is not approved" for n in chosen if n not in sites]:
        raise ConfigError(
            "--sites: not all of them can take part", faults=unknown, hint=f"approved: {', '.join(sites)}"
        )
    sites = {n: s for n, s in sites.items() if not chosen or n in chosen}
    study = resolved(study)
    method = registry.ordered(study)
    by_name(method.params.aggregation)
    if getattr(study, method.needs) is None:
        what, example = NEEDS[method.needs]
        raise ConfigError(
            f"method {method.name!r} learns from {what}, and the study names none",
            faults=[f"[{method.needs}] is missing"],
            hint=f"[{method.needs}] {example}",
        )
    id = f"{re.sub(r'[^A-Za-z0-9]+', '-', study.name).strip('-').lower()[:40]}-{secrets.token_hex(4)}"
    order = make_order(study, id, {n: s["key"] for n, s in sites.items()}, folder.identity())
    run = private(folder.run(id))
    write_json(run / "order.json", {"order": order.encode()})
    about = {"study": dict(order.study), "sites": list(order.sites)}
    RunFolder(run).write_json(run / "study.json", about)  # for the live page
    append_event(folder.events, event="signed", study=id, sites=list(sites))
    return order
