"""``polyclinic site``: a hospital's node: join a federation with keys made here, run, review what is asked, stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli import application
from polyclinic.cli.console import NODE, Json, NodeFile, Sure, say, sure
from polyclinic.cli.node import doctor, erasing, site_init, web
from polyclinic.node.enrolment.folders import SiteFolder, read_events, read_json
from polyclinic.node.enrolment.processes import Recorded, alive
from polyclinic.node.flare_package import need_flare

app = application(no_args_is_help=True, help="Run a hospital's node.")
app.command("init")(site_init.command)
app.command("erase")(erasing.erase)
app.command("forget")(erasing.forget)
app.command("doctor")(doctor.site)
app.command("web")(web.site)
app.command("user")(web.user)


def _folder(node: Path) -> SiteFolder:
    import os

    os.umask(0o077)
    return SiteFolder.of(node)


@app.command()
def join(
    invite: Annotated[Path, typer.Argument(help="The coordinator's invite.")],
    node: NodeFile = NODE,
    wait: Annotated[float, typer.Option(help="Seconds to wait. Run the command again to continue.", min=0.0)] = 900.0,
    offline: Annotated[bool, typer.Option("--offline", help="Send nothing, write a request file instead.")] = False,
    approval: Annotated[Path | None, typer.Option(help="The coordinator's approval as a file.")] = None,
    json_: Json = False,
) -> None:
    """Create this site's keys, request to join, wait for approval."""
    need_flare()
    from polyclinic.node.admission.membership import complete, request, send

    folder = _folder(node)
    path, marks = request(folder, invite)
    value = {"request": str(path), "fingerprint": marks["site"], **marks}
    compare = f"  this site    {marks['site']}\n  coordinator  {marks['coordinator']}"
    if approval is not None:
        complete(folder, approval)
        state = "joined"
    elif offline:
        text = f"request: {path}\nsend it to the coordinator, then compare both fingerprints by telephone:\n{compare}"
        say({"state": "requested", **value}, json_, text)
        return
    else:
        if not json_:
            typer.echo(f"compare both fingerprints by telephone with the coordinator:\n{compare}")
        state = send(folder, wait=0.0)
        if state != "joined" and wait > 0:
            if not json_:
                typer.echo("the request was sent; waiting for the coordinator's approval ...")
            state = send(folder, wait=wait)
    if state == "joined":
        text = f"{folder.node.name} has joined; next: polyclinic site start; when all have joined: polyclinic site pin"
        say({"state": "joined", **value}, json_, text)
        return
    say({"state": "requested", **value}, json_, "not approved yet; the same command again goes on")


@app.command()
def pin(
    roster: Annotated[Path | None, typer.Argument(help="Roster file. Default: fetched from the coordinator.")] = None,
    node: NodeFile = NODE,
    yes: Annotated[bool, typer.Option("--yes", help="Fingerprints were compared, do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Pin the other sites' keys after comparing fingerprints."""
    from polyclinic.node.admission.membership import fetch_roster
    from polyclinic.node.admission.membership import pin as remember

    folder = _folder(node)
    value = read_json(roster) if roster is not None else fetch_roster(folder)
    if not yes:
        for name, mark in value.get("fingerprints", {}).items():
            typer.echo(f"{name}  {mark}", err=json_)
        typer.confirm("did you compare these with the other sites?", abort=True, err=json_)
    pinned = remember(folder, roster if roster is not None else value)
    say({"pinned": sorted(pinned)}, json_, f"pinned: {', '.join(sorted(pinned))}")


@app.command()
def renew(
    node: NodeFile = NODE,
    approval: Annotated[Path | None, typer.Option(help="Certificate file written by `coordinator renew`.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the coordinator's signature.", min=0.0)] = 900.0,
    json_: Json = False,
) -> None:
    """Get a new certificate for this site's keys. Keys, ledger and studies stay."""
    need_flare()
    from polyclinic.node.admission.renewal import renew as ask

    folder = _folder(node)
    until = ask(folder, approval)
    if until is None and wait > 0:
        if not json_:
            typer.echo(f"asked; waiting for: polyclinic coordinator renew FOLDER {folder.node.name} ...")
        until = ask(folder, wait=wait)
    if until is None:
        text = (
            f"not signed yet (polyclinic coordinator renew FOLDER {folder.node.name}); the same command again goes on"
        )
        say({"state": "waiting", "site": folder.node.name}, json_, text)
        raise typer.Exit(5)
    up = alive(Recorded.read(folder.pids / "client.json"))
    text = f"{folder.node.name}: a new certificate, valid until {until:%Y-%m-%d}"
    text += "; it is used from the next start on: polyclinic site stop, site start" if up else ""
    say({"state": "renewed", "site": folder.node.name, "until": f"{until:%Y-%m-%d}", "restart": up}, json_, text)


@app.command()
def leave(
    node: NodeFile = NODE,
    yes: Sure = False,
    json_: Json = False,
) -> None:
    """Leave the federation and destroy this site's keys. Data and ledger stay."""
    from polyclinic.node.admission.membership import leave as go

    folder = _folder(node)
    sure(f"destroy the keys of {folder.node.name} and leave the federation?", yes, json_)
    place, untold = go(folder)
    notice = f"tell the coordinator by telephone: {untold}" if untold else "the coordinator was told"
    value = {"left": folder.node.name, "aside": str(place), "coordinator_told": not untold}
    say(value, json_, f"{folder.node.name} has left; its studies: {place}", notice)


@app.command()
def start(
    node: NodeFile = NODE,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in the foreground (systemd).")] = False,
    json_: Json = False,
) -> None:
    """Start this site's node."""
    need_flare()
    from polyclinic.node.flare.site_service import start as run
    from polyclinic.node.monitor.process import begin, need_port

    folder = _folder(node)
    rule = folder.node.monitor
    need_port(folder.path, rule)
    if foreground:  # this process becomes the node: the monitor has to be there before
        begin("site", node, folder.path, rule)
    value = run(folder, foreground=foreground)
    beside = begin("site", node, folder.path, rule)
    more = "" if beside is None or rule is None or rule.listen is None else f"; health on http://{rule.listen}/health"
    say(value, json_, f"{value['site']} runs (process {value['pid']}){more}")


@app.command()
def stop(node: NodeFile = NODE, json_: Json = False) -> None:
    """Stop this site's node and its workers."""
    need_flare()
    from polyclinic.node.flare.site_service import stop as end
    from polyclinic.node.monitor.process import finish

    folder = _folder(node)
    finish(folder.path)
    value = end(folder)
    say(value, json_, f"{value['site']} stopped" if value["ended"] else f"{value['site']} was not running")


@app.command()
def status(node: NodeFile = NODE, json_: Json = False) -> None:
    """Show the site's status. Exit code 0 healthy, 3 data, 4 study refused, 5 offline."""
    need_flare()
    from polyclinic.node.flare.site_service import status as look

    value = look(_folder(node))
    where = value.get("coordinator")
    lines = [f"{value['site']} {value['state']}"]
    if where is not None:
        reach = "reachable" if where["reachable"] else "not reachable"
        lines[0] += f"; coordinator {where['host']}:{where['port']} {reach}"
    lines += [
        f"study {s['study']}: {s['state']}" + "".join(f"\n  - {r}" for r in s["reasons"] if r) for s in value["studies"]
    ]
    if value["waiting_for_owner"]:
        lines.append(f"waiting for you: {', '.join(value['waiting_for_owner'])} (polyclinic site review)")
    if value.get("not_pinned"):
        lines.append(f"not compared yet: {', '.join(value['not_pinned'])} (polyclinic site pin)")
    if value["refused"]:
        lines.append(f"refused here: {', '.join(value['refused'])} (polyclinic site review tells why)")
    lines += [f"{p['name']}: {p['sentence']}\n  what to do: {p['what_to_do']}" for p in value.get("problems", [])]
    say(value, json_, *lines)
    if value["exit"]:
        raise typer.Exit(int(value["exit"]))


@app.command()
def review(
    node: NodeFile = NODE,
    accept: Annotated[str | None, typer.Option(help="Accept this study or release.")] = None,
    reject: Annotated[str | None, typer.Option(help="Reject this study or release.")] = None,
    json_: Json = False,
) -> None:
    """Show what is asked of this site, and decide. Exit code 4 if a study is refused.

    Accepting a study covers every kind of release that the text names. With [policy] review = "each" every release waits.
    The ledger keeps the operating-system user as the one who decided.
    """
    need_flare()
    from polyclinic.node.admission.membership import pending, show, studies
    from polyclinic.node.dossier.review import operating_system_user, study_text, take_decision
    from polyclinic.node.flare.site_service import in_fault

    folder, who = _folder(node), operating_system_user()
    for name, yes in ((accept, True), (reject, False)):
        if name is not None:
            take_decision(folder, name, accept=yes, by=who)
    found, waiting = studies(folder), [p for _, p in pending(folder)]
    show(folder, found)
    lines = []
    for s in found:
        lines.append(f"study {s['study']}: {s['state']}")
        lines += [f"  - {r}" for r in s["reasons"] if r]
        if "method" in s and s["state"] != "finished":
            lines += [f"  {x}" for label, text in study_text(folder, s) for x in (label, *(f"  {t}" for t in text))]
    for w in waiting:
        lines += [f"release {w}", *(f"  {x}" for x in w.facts.get("words", ()))]
    asked = [s["study"] for s in found if s["state"] == "waiting"] + [w.id for w in waiting]
    if asked:
        lines.append(f"decide: polyclinic site review --accept {asked[0]} (or --reject)")
    shown = {"studies": found, "releases": [str(w) for w in waiting]}
    say(shown, json_, "\n".join(lines) or "nothing was asked of this site yet")
    if asked and not json_ and sys.stdin.isatty() and accept is None and reject is None:
        answer = typer.prompt(f"{asked[0]}: accept, reject, or decide later?", default="later")
        if answer in ("accept", "reject"):
            take_decision(folder, asked[0], accept=answer == "accept", by=who)
    if "refused" in in_fault(read_events(folder.events)).values():  # now: an old refusal does not stick
        raise typer.Exit(4)
