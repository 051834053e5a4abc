"""``polyclinic coordinator``: who takes part: found a federation, invite, approve, renew and revoke sites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.console import Json, Sure, say, sure
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.authority import read_request
from polyclinic.node.enrolment.federation import coordinator_fingerprint, found
from polyclinic.node.enrolment.folders import CoordinatorFolder, read_json
from polyclinic.node.enrolment.invitation import entries
from polyclinic.node.flare_package import need_flare

Folder = Annotated[Path, typer.Argument(help="The coordinator's folder.")]
Days = Annotated[float, typer.Option(help="Days until the invite expires.", min=0.0, max=365.0)]


def _folder(path: Path) -> CoordinatorFolder:
    import os

    need_flare()
    os.umask(0o077)
    return CoordinatorFolder(path)


def home_of(path: Path) -> CoordinatorFolder:
    """The folder of a federation that was founded, or what to do."""
    home = _folder(path)
    if not home.settings.exists():
        raise ConfigError(
            f"{path}: no federation was founded here",
            hint="give the coordinator's folder, or make one: polyclinic coordinator init FOLDER --site NAME ...",
        )
    return home


def init(
    folder: Folder,
    site: Annotated[list[str], typer.Option("--site", help="Site to invite. Repeat for each site.")],
    host: Annotated[str, typer.Option(help="Host name at which sites reach the coordinator.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port for the sites. Hospitals reach 443 best.", min=1, max=65535)] = 8202,
    admin_port: Annotated[
        int, typer.Option(help="Port for the coordinator's own commands.", min=1025, max=65535)
    ] = 8203,
    enrol_port: Annotated[
        int, typer.Option(help="Port for join requests. 0: requests are files.", min=0, max=65535)
    ] = 8204,
    days: Days = 14.0,
    json_: Json = False,
) -> None:
    """Create the certificate authority and one invite per site."""
    home = _folder(folder)
    invites = found(
        home, list(site), host=host, port=port, admin_port=admin_port, enrol_port=enrol_port or None, days=days
    )
    mark = coordinator_fingerprint(read_json(invites[0]))
    lines = [f"fingerprint of this coordinator: {mark}"]
    lines += ["send each site its own invite, as a letter that others should not read (each may be used once):"]
    lines += [f"  {p}" for p in invites]
    if enrol_port:
        lines += ["next: polyclinic coordinator start; then: polyclinic coordinator requests"]
    else:
        lines += [f"next: polyclinic coordinator approve {folder} NAME.request.json, the file that a site sends you"]
    say({"fingerprint": mark, "invites": [str(p) for p in invites]}, json_, *lines)


def invite(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the site.")],
    days: Days = 14.0,
    json_: Json = False,
) -> None:
    """Invite a site. An earlier invite for it expires."""
    from polyclinic.node.enrolment.invitation import invite as make

    path = make(home_of(folder), name, days=days)
    say({"invite": str(path)}, json_, f"{path}")


def requests(folder: Folder, json_: Json = False) -> None:
    """List invites and join requests with their fingerprints."""
    home = home_of(folder)
    found: dict[str, dict[str, Any]] = {
        n: {
            "state": "ended" if e.state == "invited" and e.over else e.state,
            "fingerprint": e.fingerprint,
            "received": e.received,
            "sender": e.sender,
            "asks_for_new_certificate": e.renewal is not None,
        }
        for n, e in entries(home).items()
    }
    lines = [f"{n}  {e['state']}" + (f"  {e['fingerprint']}" if e["fingerprint"] else "") for n, e in found.items()]
    asking = [n for n, e in found.items() if e["state"] == "waiting"]
    if asking:
        lines.append(f"compare by telephone, then: polyclinic coordinator approve {folder} {asking[0]}")
    lines += [
        f"{n} asks for a new certificate: polyclinic coordinator renew {folder} {n}"
        for n, e in found.items()
        if e["asks_for_new_certificate"]
    ]
    say({"requests": found}, json_, "\n".join(lines) or "nobody was invited yet")


def approve(
    folder: Folder,
    site: Annotated[
        str | None, typer.Argument(help="Site that asks to join, or its request file. Default: each that asks.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Fingerprint read by the owner. Refused if different.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Needs --fingerprint.")] = False,
    json_: Json = False,
) -> None:
    """Sign a site's certificate after comparing fingerprints."""
    home = home_of(folder)
    if yes and fingerprint is None:
        raise ConfigError("--yes needs --fingerprint: a person must compare it first")
    if site is not None:
        value, text = _approve(home, site, fingerprint, json_)
        say(value, json_, text)
        return
    asking = [n for n, e in entries(home).items() if e.state == "waiting"]
    if not asking or fingerprint is not None:
        what = "no site asks to join" if not asking else "--fingerprint needs the name of its site"
        raise ConfigError(what, hint=f"polyclinic coordinator requests {folder}")
    results = [_approve(home, name, None, json_) for name in asking]
    say({"approved": [value for value, _ in results]}, json_, *(text for _, text in results))


def _approve(home: CoordinatorFolder, site: str, fingerprint: str | None, json_: bool) -> tuple[dict[str, object], str]:
    """Approve one site: what was done, for machines and in words."""
    from polyclinic.node.enrolment import federation as coordination
    from polyclinic.node.flare.coordinator_service import readmit

    file = Path(site) if site.endswith(".json") or "/" in site else None
    request = read_request(read_json(file) if file is not None else coordination.waiting(home, site).request)
    if fingerprint is None:
        question = f"site {request.site!r}, fingerprint {request.fingerprint}: is this what its owner reads?"
        typer.confirm(question, abort=True, err=json_)
    known = read_json(home.sites).get(request.site, {}) if home.sites.exists() else {}
    if file is not None:
        path, mark = coordination.approve(home, file, fingerprint)
        text = f"send this to {request.site}: {path}"
    else:
        path, mark = coordination.approve_site(home, site, fingerprint)
        text = f"{site} is approved ({mark}); its `site join` receives the certificate by itself"
    if known.get("revoked"):
        readmit(home, request.site)
    return {"site": request.site, "fingerprint": mark, "approval": str(path)}, text


def reject(
    folder: Folder, site: Annotated[str, typer.Argument(help="Site that asks to join.")], json_: Json = False
) -> None:
    """Reject a join request. Its invite expires."""
    from polyclinic.node.enrolment.federation import reject as say_no

    mark = say_no(home_of(folder), site)
    say({"site": site, "rejected": mark}, json_, f"the request {mark} of {site} is rejected")


def renew(
    folder: Folder,
    site: Annotated[str | None, typer.Argument(help="Site. Default: the coordinator itself.")] = None,
    json_: Json = False,
) -> None:
    """Sign a new certificate. The site fetches it with `site renew`."""
    from polyclinic.node.admission.renewal import renew_server, renew_site

    home = home_of(folder)
    if site is None:
        until = renew_server(home)
        text = f"the coordinator's certificates hold until {until:%Y-%m-%d}, from the next start on: coordinator stop, start"
        say({"renewed": "coordinator", "until": f"{until:%Y-%m-%d}"}, json_, text)
        return
    path, until = renew_site(home, site)
    text = f"{site}: a new certificate until {until:%Y-%m-%d}; `polyclinic site renew` fetches it, or takes {path}"
    say({"renewed": site, "until": f"{until:%Y-%m-%d}", "approval": str(path)}, json_, text)


def revoke(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the site.")],
    yes: Sure = False,
    json_: Json = False,
) -> None:
    """Revoke a site. It gets no more messages or studies."""
    from polyclinic.node.flare.coordinator_service import revoke as out

    home = home_of(folder)
    sure(f"revoke {name}? It takes part in no study any more", yes or not sys.stdin.isatty(), json_)
    out(home, name)
    say(
        {"revoked": name},
        json_,
        f"{name} is revoked; its certificate stays valid for TLS until the authority is renewed",
    )


COMMANDS = (init, invite, requests, approve, reject, renew, revoke)
