"""``polyclinic courier``: studies through folders that people or tools copy. No socket is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from polyclinic.cli import application
from polyclinic.cli.console import NODE, Json, NodeFile, say
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.federation import sign_study
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, alone
from polyclinic.node.signed_study import StudyOrder

app = application(no_args_is_help=True, help="Run studies through exchanged folders, without a network.")

Folder = Annotated[Path, typer.Argument(help="The coordinator's folder.")]
Inbox = Annotated[Path, typer.Option("--inbox", help="Folder where the sites' files appear.")]
Outbox = Annotated[Path, typer.Option("--outbox", help="Folder from which files for the sites are taken.")]
Pace = Annotated[
    float,
    typer.Option("--pace", help="Seconds of delivery per second of the protocol.", min=0.1),
]
Every = Annotated[float, typer.Option("--every", help="Seconds between two checks of the inbox.", min=0.01)]
Resend = Annotated[
    float | None,
    typer.Option("--resend", help="Seconds until an unanswered file is written again. Default: 2 x pace."),
]
STAGES: Final = {
    "absent": " (not heard of yet)",
    "lost": " (silent: its files do not come)",
    "loading": " (reads its data)",
    "waiting": " (its owner decides)",
    "refused": " (takes no part)",
}


class Rhythm(NamedTuple):
    """How slow the carrier is, in real seconds."""

    pace: float
    every: float
    resend: float | None


@app.command()
def site(node: NodeFile = NODE) -> None:
    """Serve studies through the folders of [courier] in node.toml."""
    import os

    from polyclinic.node.courier.site import CourierSite, branch_box

    os.umask(0o077)
    folder = SiteFolder.of(node)
    with alone(folder.path / "courier" / "lock", f"the courier of {folder.node.name!r}"):
        branch = CourierSite(folder, branch_box(folder))
        typer.echo(f"{folder.node.name}: inbox {branch.box.inbox}, outbox {branch.box.outbox} (Ctrl-C ends it)")
        branch.run()


@app.command()
def submit(
    folder: Folder,
    study: Annotated[Path, typer.Argument(help="The study file.")],
    inbox: Inbox,
    outbox: Outbox,
    pace: Pace = 60.0,
    every: Every = 1.0,
    resend: Resend = None,
    json_: Json = False,
) -> None:
    """Sign a study for all approved sites and run it through two folders."""
    home = _home(folder)
    _run(home, sign_study(home, Study.read(study)), inbox, outbox, Rhythm(pace, every, resend), json_)


@app.command()
def resume(
    folder: Folder,
    study: Annotated[str, typer.Argument(help="Id of the study, or its first characters.")],
    inbox: Inbox,
    outbox: Outbox,
    pace: Pace = 60.0,
    every: Every = 1.0,
    resend: Resend = None,
    json_: Json = False,
) -> None:
    """Continue an interrupted study, to the same model."""
    from polyclinic.node.flare.coordinator_service import order_of

    home = _home(folder)
    _run(home, order_of(home, study), inbox, outbox, Rhythm(pace, every, resend), json_)


@app.command()
def status(
    folder: Annotated[Path | None, typer.Argument(help="The coordinator's folder. At a site use --node.")] = None,
    node: Annotated[Path | None, typer.Option("--node", help="The hospital's node file.")] = None,
    json_: Json = False,
) -> None:
    """Show which sites are awaited, since when, and the files in the folders. Exit code 5 while waiting."""
    from polyclinic.node.courier.coordinator import states

    if (folder is None) == (node is None):
        raise ConfigError("give the coordinator's folder, or --node of a site")
    if node is not None:
        from polyclinic.node.courier.site import site_state

        value = site_state(SiteFolder.of(node))
        lines = [f"{value['site']}: the courier is {'at work' if value['state'] == 'running' else 'not running'}"]
        lines += [f"  {value['to_be_carried']} files to be carried, {value['in_the_inbox']} in the inbox"]
        lines += [f"  refused, because it was changed: {f}" for f in value["refused"]]
        lines += [f"  {n} letters that {to} has not taken yet" for to, n in value["without_receipt"].items()]
        if "coordinator" not in value["cards"]:
            lines.append("  the coordinator's card has not come: carry coordinator.card into the inbox")
        say(value, json_, *lines)
        return
    assert folder is not None
    found = states(CoordinatorFolder(folder))
    lines = []
    for s in found:
        lines.append(f"study {s['study']}: {s['state']}")
        lines += [
            f"  waiting for {n}{STAGES.get(s.get('sites', {}).get(n, ''), '')}, {t:.0f} s"
            for n, t in s.get("awaited", {}).items()
        ]
        if s.get("to_be_carried"):
            lines.append(f"  {s['to_be_carried']} files to be carried, the oldest {s['oldest_seconds']:.0f} s old")
    say({"studies": found}, json_, "\n".join(lines) or "no study runs by courier")
    if any(s.get("awaited") for s in found):
        raise typer.Exit(5)


@app.command()
def show(
    file: Annotated[str, typer.Argument(help="File in the outbox, or its first characters.")],
    node: NodeFile = NODE,
    json_: Json = False,
) -> None:
    """Show the content of a file in this site's outbox."""
    from polyclinic.node.courier.mailbox import shown

    value = shown(SiteFolder.of(node).path / "courier", Path(file).name)
    lines = [f"{value['file']}: {value['kind']}, study {value['study'][:16]}, {value['bytes']:,} bytes"]
    lines += [f"  {k}: {v}" for k, v in value["content"].items()]
    say(value, json_, *lines)


def _home(path: Path) -> CoordinatorFolder:
    import os

    os.umask(0o077)
    home = CoordinatorFolder(path)
    if not home.settings.exists():
        raise ConfigError(
            f"{path}: no federation was founded here",
            hint="polyclinic coordinator init FOLDER --enrol-port 0 --site NAME ...",
        )
    return home


def _run(home: CoordinatorFolder, order: StudyOrder, inbox: Path, outbox: Path, rhythm: Rhythm, json_: bool) -> None:
    from polyclinic.cli.node.coordinator import finish_run
    from polyclinic.node.courier.coordinator import run_by_courier

    if not json_:
        typer.echo(
            f"study {order.id}: carry {outbox} to the sites and their files to {inbox}; courier status says who is awaited"
        )
    value = run_by_courier(home, order, inbox, outbox, **rhythm._asdict())
    finish_run(home, order, value, json_, "courier")
