"""``polyclinic web DIR``: a live page of a run and of past runs."""

from __future__ import annotations

import secrets
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder, a folder of runs, or a site's folder.")],
    port: Annotated[int, typer.Option("--port", help="Port. 0: a free port.", min=0, max=65535)] = 8765,
    as_json: Json = False,
) -> None:
    """A live page of a run; ends with Ctrl-C."""
    from polyclinic.errors import ConfigError

    for name in ("fastapi", "uvicorn"):
        if find_spec(name) is None:
            what = f"the live page needs the package {name} (extra web)"
            raise ConfigError(what, hint="pip install 'polyclinic[web]'")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as e:
        raise ConfigError(f"cannot listen on port {port}: {e.strerror}", hint="choose another --port") from None
    import uvicorn

    from polyclinic.web.server import create_app

    token = secrets.token_urlsafe(24)  # on this machine, too: other accounts may not read
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"
    say({"address": address}, as_json, f"live page: {address}   (Ctrl-C ends it)")
    sys.stdout.flush()
    app = create_app(folder, token=token)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run(sockets=[listening])
