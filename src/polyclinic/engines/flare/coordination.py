"""What a coordinator does outside of a run: found the federation, approve and revoke sites, sign studies."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from typing import Any

from polyclinic.engines.flare.enrolment import Authority, fingerprint, issue, new_key, read_request, site_name
from polyclinic.engines.flare.folders import CoordinatorFolder, append_event, private, read_json, write_json, write_key
from polyclinic.engines.flare.kit import ADMIN, PROJECT, admin_kit, server_kit
from polyclinic.engines.flare.order import Order, make_order
from polyclinic.errors import ConfigError
from polyclinic.federation.envelope import Identity, digest
from polyclinic.study import Study

__all__ = ["approve", "found", "revoke_on_file", "roster", "sign_study"]


def found(folder: CoordinatorFolder, sites: list[str], *, host: str, port: int, admin_port: int) -> list[Path]:
    """Make the authority, the coordinator's own keys and kits, and one invite per site; nothing of a site."""
    faults = [f"{n!r} is named twice" for n in sorted({n for n in sites if sites.count(n) > 1})]
    if folder.settings.exists():
        faults.append(f"{folder.path} holds a federation already")
    if re.search(r"\s", str(folder.path.resolve())):
        faults.append(f"{folder.path.resolve()}: FLARE cannot start its processes from a path with blanks")
    if port == admin_port:
        faults.append(f"port {port} is given twice")
    if faults:
        raise ConfigError("the federation cannot be founded", faults=faults)
    names = [site_name(n) for n in sites]
    private(folder.path)
    authority, pem = Authority.make(PROJECT)
    write_key(folder.authority / "rootCA.key", pem)
    (folder.authority / "rootCA.pem").write_text(authority.pem, encoding="utf-8")
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
    write_json(folder.settings, {"project": PROJECT, "host": host, "port": port, "admin_port": admin_port})
    return [invite(folder, n) for n in names]


def invite(folder: CoordinatorFolder, name: str) -> Path:
    """An invite: address and public keys; it holds no secret."""
    settings = folder.read_settings()
    value = {
        "kind": "polyclinic invite",
        "site": site_name(name),
        "project": settings["project"],
        "host": settings["host"],
        "port": settings["port"],
        "authority": (folder.authority / "rootCA.pem").read_text(encoding="utf-8"),
        "coordinator": folder.identity().public.hex(),
    }
    return write_json(private(folder.path / "invites") / f"{name}.invite.json", value)


def coordinator_fingerprint(invite_: dict[str, Any]) -> str:
    """What a site's owner and the coordinator compare about the coordinator."""
    return fingerprint("coordinator", str(invite_["authority"]).encode(), bytes.fromhex(invite_["coordinator"]))


def approve(folder: CoordinatorFolder, request_file: Path, expected: str | None) -> tuple[Path, str]:
    """Sign a site's certificate after people compared its fingerprint; returns the approval and the fingerprint."""
    value = read_json(request_file)
    request = read_request(value)
    if expected is not None and expected != request.fingerprint:
        raise ConfigError(
            f"request of {request.site!r} has fingerprint {request.fingerprint}, not {expected}",
            hint="somebody else made this request: ask the site again, by telephone",
        )
    if not (folder.path / "invites" / f"{request.site}.invite.json").exists():
        raise ConfigError(f"{request.site!r} was not invited", hint="polyclinic coordinator invite FOLDER NAME")
    known = read_json(folder.sites) if folder.sites.exists() else {}
    if request.site in known and known[request.site]["key"] != request.key.hex():
        raise ConfigError(f"{request.site!r} is approved with other keys", hint="revoke it first")
    certificate = issue(Authority.read(folder.authority), request.site, request.public, "client")
    body = {"kind": "polyclinic approval", "site": request.site, "certificate": certificate}
    approval = write_json(
        private(folder.path / "approvals") / f"{request.site}.approval.json",
        {**body, "signature": folder.identity().sign(digest(body)).hex()},
    )
    entry = {"key": request.key.hex(), "fingerprint": request.fingerprint, "approved": time.strftime("%Y-%m-%d")}
    write_json(folder.sites, {**known, request.site: entry})
    append_event(folder.events, event="approved", site=request.site, fingerprint=request.fingerprint)
    return approval, request.fingerprint


def roster(folder: CoordinatorFolder) -> Path:
    """The list of sites with keys and fingerprints, for every owner to compare and pin."""
    body = {"kind": "polyclinic roster", "sites": {n: s["key"] for n, s in folder.approved().items()}}
    fingerprints = {n: s["fingerprint"] for n, s in folder.approved().items()}
    signature = folder.identity().sign(digest(body)).hex()
    return write_json(folder.path / "roster.json", {**body, "fingerprints": fingerprints, "signature": signature})


def revoke_on_file(folder: CoordinatorFolder, name: str) -> None:
    """Leave a site out of every study from now on."""
    known = read_json(folder.sites) if folder.sites.exists() else {}
    if name not in known:
        raise ConfigError(f"no site {name!r} is approved", faults=[f"known: {', '.join(sorted(known)) or 'none'}"])
    write_json(folder.sites, {**known, name: {**known[name], "revoked": time.strftime("%Y-%m-%d")}})
    append_event(folder.events, event="revoked", site=name)


def sign_study(folder: CoordinatorFolder, study: Study) -> Order:
    """An order for all approved sites; it is kept in its own run folder."""
    from polyclinic.engines import registry
    from polyclinic.federation.sums import by_name

    sites = folder.approved()
    if not sites:
        raise ConfigError("no site is approved yet", hint="polyclinic coordinator approve FOLDER REQUEST")
    method = registry.federated(study)
    by_name(method.params.aggregation)
    if getattr(method.params, "n_starts", 1) > 1 and method.name != "mixture":
        raise ConfigError(
            f"n_starts = {method.params.n_starts}: between hosts one start is one study", hint="n_starts = 1"
        )
    id = f"{re.sub(r'[^A-Za-z0-9]+', '-', study.name).strip('-').lower()[:40]}-{secrets.token_hex(4)}"
    order = make_order(study, id, {n: s["key"] for n, s in sites.items()}, folder.identity())
    run = private(folder.run(id))
    write_json(run / "order.json", {"order": order.encode()})
    append_event(folder.events, event="signed", study=id, sites=list(sites))
    return order
