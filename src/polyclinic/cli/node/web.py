"""``polyclinic web DIR`` and ``polyclinic site web``: pages on this machine, and the accounts of the second."""

from __future__ import annotations

import secrets
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.console import NODE, Json, NodeFile, say
from polyclinic.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

Port = Annotated[int, typer.Option("--port", help="Port. 0: a free port.", min=0, max=65535)]


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder, a folder of runs, or a site's folder.")],
    port: Port = 8765,
    as_json: Json = False,
) -> None:
    """A live page of a run; ends with Ctrl-C."""
    _need_extra()
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    from polyclinic.web.server import create_app, find_runs

    if not find_runs(folder):
        hint = f"run a study first: polyclinic simulate STUDY --out {folder / 'run'}"
        raise ConfigError(f"{folder}: no run in this folder", hint=hint)

    token = secrets.token_urlsafe(24)  # on this machine, too: other accounts may not read
    _serve(create_app(folder, token=token), port, f"/?token={token}", "live page", as_json)


def site(node: NodeFile = NODE, port: Port = 8766, json_: Json = False) -> None:
    """The owner's page: decide, studies, ledger, health. Ends with Ctrl-C."""
    _need_extra()
    from polyclinic.web.accounts import Accounts, accounts_of
    from polyclinic.web.owner import create_owner_app

    if not Accounts(accounts_of(node)).all():
        raise ConfigError("the page has no account yet", hint=f"polyclinic site user NAME --role officer --node {node}")
    secret = secrets.token_urlsafe(16)
    _serve(create_owner_app(node.resolve(), secret=secret), port, f"/{secret}/", "owner's page", json_)


def user(
    name: Annotated[str, typer.Argument(help="Name that the decisions carry.")],
    role: Annotated[str, typer.Option(help="viewer reads, officer decides, admin also manages accounts.")] = "viewer",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the account.")] = False,
    node: NodeFile = NODE,
    json_: Json = False,
) -> None:
    """Add, change or remove an account of the owner's page. Asks for the password, or reads one line."""
    from polyclinic.web.accounts import Accounts, accounts_of

    accounts = Accounts(accounts_of(node))
    if remove:
        accounts.remove(name)
    else:
        asked = typer.prompt("password", hide_input=True, confirmation_prompt=True) if sys.stdin.isatty() else None
        accounts.put(name, role, sys.stdin.readline().rstrip("\n") if asked is None else asked)
    known = {n: a.role for n, a in accounts.all().items()}
    say({"accounts": known}, json_, *(f"{n}: {r}" for n, r in known.items()))


def _need_extra() -> None:
    for name in ("fastapi", "uvicorn"):
        if find_spec(name) is None:
            raise MissingExtra(name, "web", "this page")


def _serve(app: FastAPI, port: int, path: str, what: str, json_: bool) -> None:
    """Serve on this machine until Ctrl-C."""
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as e:
        raise ConfigError(f"cannot listen on port {port}: {e.strerror}", hint="choose another --port") from None
    import uvicorn

    address = f"http://127.0.0.1:{listening.getsockname()[1]}{path}"
    say({"address": address}, json_, f"{what}: {address}   (Ctrl-C ends it)")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, proxy_headers=False)
    uvicorn.Server(config).run(sockets=[listening])
