"""``polyclinic coordinator``: run studies between hosts; who takes part is in ``members``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli import application
from polyclinic.cli.console import Json, Sure, console, say, sure
from polyclinic.cli.console import follow as bar
from polyclinic.cli.node import doctor
from polyclinic.cli.node.members import COMMANDS, Folder, home_of
from polyclinic.config import Study
from polyclinic.config.service import MonitorRule
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.federation import sign_study
from polyclinic.node.enrolment.folders import CoordinatorFolder, read_events
from polyclinic.node.enrolment.processes import Recorded, alive, launch
from polyclinic.node.flare import coordinator_service as service
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.outcome import Progress

app = application(no_args_is_help=True, help="Run a federation between hosts.")
app.command("doctor")(doctor.coordinator)
for _command in COMMANDS:
    app.command()(_command)

Wait = Annotated[
    float | None, typer.Option("--wait", help="Seconds to watch. 0: do not. Default: until it ends.", min=0.0)
]

Named = Annotated[str, typer.Argument(help="Id of the study, or its first characters.")]


@app.command()
def start(
    folder: Folder,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in the foreground (systemd).")] = False,
    monitor: Annotated[
        str | None, typer.Option("--monitor", help="HOST:PORT of /health and /metrics. Default: none.")
    ] = None,
    notify: Annotated[
        str | None, typer.Option("--notify", help="Command to run on events, e.g. a join request.")
    ] = None,
    json_: Json = False,
) -> None:
    """Start the coordinator's server."""
    from pydantic import ValidationError

    from polyclinic.node.monitor.process import begin, need_port

    home = home_of(folder)
    try:
        rule = MonitorRule(listen=monitor, notify=notify)
    except ValidationError as e:
        raise ConfigError(f"--monitor {monitor!r}: {e.errors()[0]['msg']}", hint="--monitor 127.0.0.1:9464") from None
    need_port(home.path, rule)
    if foreground:  # this process becomes the server: the monitor has to be there before
        begin("coordinator", home.path, home.path, rule)
    value = service.start(home, foreground=foreground)
    begin("coordinator", home.path, home.path, rule)
    more = f"; sites ask to join on port {value['enrol_port']}" if value["enrol_port"] else ""
    more += " (that port was closed, and is open again)" if value["state"] == "reopened" else ""
    say(value, json_, f"coordinator runs on {value['host']}:{value['port']} (process {value['pid']}){more}")


@app.command()
def stop(folder: Folder, json_: Json = False) -> None:
    """Stop all studies and the server."""
    from polyclinic.node.monitor.process import finish

    home = home_of(folder)
    finish(home.path)
    value = service.stop(home)
    more = f"; to be resumed: {', '.join(value['studies'])}" if value["studies"] else ""
    say(value, json_, f"coordinator stopped{more}" if value["ended"] else "the coordinator was not running")


@app.command()
def status(folder: Folder, json_: Json = False) -> None:
    """Show connected sites and the state of every study."""
    value = service.status(home_of(folder))
    lines = [f"coordinator {value['state']} ({value['host']}:{value['port']})"]
    if value["state"] == "running" and value["joining"] == "closed":
        lines.append(f"the port for joining is closed: polyclinic coordinator start {folder} opens it again")
    if value["asking_to_join"]:
        lines.append(f"asking to join: {', '.join(value['asking_to_join'])} (polyclinic coordinator requests)")
    if value["invited"]:
        lines.append(f"invited, not heard of yet: {', '.join(value['invited'])}")
    if value["left"]:
        lines.append(f"have left the federation: {', '.join(value['left'])}")
    if value["waiting_for"]:
        lines.append(
            "waiting for: " + ", ".join(_seen(n, value["sites"][n]["last_seen_seconds"]) for n in value["waiting_for"])
        )
    here = [n for n, s in value["sites"].items() if s["connected"]]
    if here:
        lines.append(f"connected: {', '.join(here)}")
    lines += [line for s in value["studies"] for line in _study_lines(folder, s)]
    say(value, json_, *lines)


def _study_lines(folder: Path, s: Mapping[str, Any]) -> list[str]:
    lines = [f"study {s['study']}: {s['state']}, round {s['round']}"]
    lines += [f"  {n} waits for its owner since {since}" for n, since in s["waiting_for_owner"].items()]
    lines += [f"  {n} waits for its database since {since}" for n, since in s["data_away"].items()]
    if s["state"] not in ("finished", "running"):
        lines += [f"  {s['what']}"] if s.get("what") else []
        lines += [f"  - {f}" for f in s.get("faults", [])]
        verb = "remove" if s["state"] == "cancelled" else "resume"
        lines.append(f"  next: polyclinic coordinator {verb} {folder} {s['study']}")
    return lines


def _seen(name: str, seconds: float | None) -> str:
    if seconds is None:
        return f"{name} (never seen)"
    size, unit = (1, "s") if seconds < 90 else (60, "min") if seconds < 5400 else (3600, "h")
    return f"{name} (last seen {seconds / size:.0f} {unit} ago)"


@app.command()
def submit(
    folder: Folder,
    study: Annotated[Path, typer.Argument(help="The study file.")],
    sites: Annotated[str, typer.Option(help="Sites that take part, with commas. Default: all approved.")] = "",
    wait: Wait = None,
    json_: Json = False,
) -> None:
    """Sign a study for its sites and run it. Exit code 4 if a site declined."""
    home = home_of(folder)
    service.need_running(home)
    _run(home, sign_study(home, Study.read(study), [n.strip() for n in sites.split(",") if n.strip()]), json_, wait)


@app.command()
def resume(
    folder: Folder,
    study: Named,
    wait: Wait = None,
    json_: Json = False,
) -> None:
    """Continue an interrupted study, to the same model."""
    home = home_of(folder)
    order = service.order_of(home, study)
    service.need_running(home)
    _run(home, order, json_, wait)


@app.command()
def cancel(folder: Folder, study: Named, yes: Sure = False, json_: Json = False) -> None:
    """Cancel a study for good. Exit code 5 if a site was not reached."""
    from polyclinic.node.flare import jobs

    home = home_of(folder)
    order = service.order_of(home, study)
    sure(f"cancel {order.id}? It cannot be resumed", yes, json_)
    value = jobs.cancel(home, order)
    untold = value["not_told"]
    lines = [f"study {order.id} is cancelled; told: {', '.join(value['told']) or 'no site'}"]
    if untold:
        lines.append(f"not told: {', '.join(untold)}. Run the command again when they are connected")
    say({**value, "exit": 5 * bool(untold)}, json_, *lines)
    if untold:
        raise typer.Exit(5)


@app.command()
def remove(folder: Folder, study: Named, yes: Sure = False, json_: Json = False) -> None:
    """Delete the run folder of a finished or cancelled study."""
    from polyclinic.node.flare import jobs

    home = home_of(folder)
    order = service.order_of(home, study)
    sure(f"delete {home.run(order.id)} with its model and report?", yes, json_)
    files = jobs.remove(home, order)
    say({"study": order.id, "files": files, "removed": True}, json_, f"study {order.id}: {files} files deleted")


def _run(home: CoordinatorFolder, order: StudyOrder, json_: bool, wait: float | None = None) -> None:
    """Follow a study to its end; with ``wait`` a process of its own does, and this command looks on for so many seconds."""
    from polyclinic.node.flare import jobs

    value = service.state_of(home, order)
    if value["state"] != "finished":
        with bar(order.id, int(order.study["method"].get("rounds", 100)), quiet=json_) as show:

            def tell(event: dict[str, Any]) -> None:
                if event.get("kind") == "round":
                    show(Progress("round", event["method"], event["round"], event["rounds"], event.get("figures", {})))
                elif not json_ and event.get("kind") in ("waiting", "site"):
                    _news(event)

            if wait is None:
                value = jobs.follow(home, order, tell)
            else:
                value = _watch(home, order, wait, tell)
                if value["state"] not in jobs.ENDED:
                    text = f"study {order.id}: {value['state']}; polyclinic coordinator status {home.path} says how far it is"
                    say({**value, "study": order.id, "run": str(home.run(order.id))}, json_, text)
                    return
    finish_run(home, order, value, json_)


def finish_run(
    home: CoordinatorFolder, order: StudyOrder, value: dict[str, Any], json_: bool, engine: str = "flare"
) -> None:
    """Publish what a study has found, say how it ended, and end with its exit code: 4 where sites declined, whose names are said."""
    from polyclinic.node.flare.result import read_model
    from polyclinic.node.flare.run_study import publish
    from polyclinic.protocol.minimum_patients import models_of

    run = home.run(order.id)
    away = _without(run, value)
    declined = sorted(n for n, words in away.items() if any(w.startswith("declined") for w in words))
    if value["state"] == "finished":
        model = read_model(run, order)
        publish(run, order, model, sorted(value.get("refused") or ()), engine)
        if len(starts := models_of(model)) > 1:
            value |= {
                "starts": [{"start": k, "objective": vars(m).get("objective_")} for k, m in enumerate(starts, start=1)]
            }
    code = 4 if declined else 0 if value["state"] == "finished" else int(value.get("exit", 5))
    out = {**value, "study": order.id, "run": str(run), "refused": away, "declined": declined, "exit": code}
    lines = [f"study {order.id}: {value['state']}; {run}"]
    lines += [f"  start {s['start']}: objective {s['objective']}" for s in value.get("starts", [])]
    lines += [f"  declined: {', '.join(declined)} (why is in their own logs)"] if declined else []
    lines += [f"  without {n}: {'; '.join(r)}" for n, r in away.items() if n not in declined]
    if value["state"] != "finished":
        faults = [f"- {f}" for f in value.get("faults", [])]
        lines += [f"  {x}" for x in (value.get("what", ""), *faults, value.get("hint", ""))]
    say(out, json_, *lines)
    if code:
        raise typer.Exit(code)


def _without(run: Path, value: dict[str, Any]) -> dict[str, list[str]]:
    """Sites that refused, with their word; also of a study that did not come to an end."""
    if value.get("refused"):
        return {str(n): list(r) for n, r in value["refused"].items()}
    events = read_events(run / "events.jsonl")
    begun = max((i for i, e in enumerate(events) if e["event"] == "leg"), default=0)
    last = {str(e["site"]): e for e in events[begun:] if "site" in e and e["event"] != "message refused"}
    return {n: [str(r) for r in e.get("reasons") or ()] for n, e in sorted(last.items()) if e["event"] == "refused"}


def _news(event: dict[str, Any]) -> None:
    """Who is waited for and why, while a study runs."""
    if event["kind"] == "waiting":
        away = ", ".join(_seen(n, s) for n, s in event["sites"].items())
        text = f"waiting for: {away}" if away else ""
    else:
        reasons = "; ".join(map(str, event.get("reasons") or []))
        told = reasons or event["event"] in ("waiting", "lost", "refused", "bad")
        text = f"{event['site']}: {event['event']}" + (f" ({reasons})" if reasons else "") if told else ""
    if text:
        console.print(text, soft_wrap=True)


def _watch(
    folder: CoordinatorFolder, order: StudyOrder, seconds: float, tell: Callable[[dict[str, object]], None]
) -> dict[str, object]:
    """Let a process of its own follow the study, watch it for so many seconds, and return how the study stands then."""
    from polyclinic.node.flare import jobs

    run = folder.run(order.id)
    note = folder.pids / f"follow-{order.id}.json"  # `coordinator stop` ends what is noted there
    if not alive(Recorded.read(note)):
        argv = ["-m", "polyclinic.cli", "coordinator", "resume", str(folder.path.resolve()), order.id, "--json"]
        launch(argv, env=dict(os.environ), log=run / "follow.log", note=note)
    shown, end = len(service.progress(run)), time.monotonic() + seconds
    while True:
        fresh = service.progress(run)
        for event in fresh[shown:]:
            tell(event)
        shown = max(shown, len(fresh))
        value = service.state_of(folder, order)
        # the follower also publishes what was found
        over = value["state"] in jobs.ENDED and not alive(Recorded.read(note))
        if over or time.monotonic() >= end:
            return value if over or value["state"] not in jobs.ENDED else {**value, "state": "ending"}
        time.sleep(0.2)
