"""``polyclinic web DIR``: a live page of a run, of past runs, and of releases that wait for the owner."""

from __future__ import annotations

import secrets
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder, a folder of runs, or a site's folder.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on. Other machines need the token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Port. 0: a free port.", min=0, max=65535)] = 8765,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="POLYCLINIC_WEB_TOKEN", help="Access token. Default: a new one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """A live page of a run; ends with Ctrl-C."""
    from polyclinic.errors import ConfigError

    try:
        import uvicorn

        from polyclinic.web.server import create_app
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise ConfigError(
            f"the live page needs the package {e.name.partition('.')[0]} (extra web)",
            hint="pip install 'polyclinic[web]'",
        ) from None

    faults = []
    if not folder.is_dir():
        faults.append(f"{folder}: no such folder")
    if token is not None and len(token) < 16:
        faults.append("--token is shorter than 16 characters")
    if faults:
        raise ConfigError("the page cannot be served", faults=faults)
    token = token or secrets.token_urlsafe(24)  # on this machine, too: other accounts may not read or approve
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as e:
        raise ConfigError(f"cannot listen on {host}, port {port}: {e.strerror}", hint="choose another --port") from None
    address = f"http://{host}:{listening.getsockname()[1]}/?token={token}"
    say({"address": address}, as_json, f"live page: {address}   (Ctrl-C ends it)")
    sys.stdout.flush()
    app = create_app(folder, token=token)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run(sockets=[listening])
