"""The command ``polyclinic`` without its second of imports: every call is a fork of one process that has imported everything.

It is the real command: arguments, folder, environment and the three streams are the caller's, the answer is its exit code.
``with command(folder) as path`` puts ``polyclinic`` into a folder for the PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

NEEDED = (
    "cli.study.simulate",
    "cli.study.ingest",
    "cli.node.site",
    "cli.node.coordinator",
    "cli.node.ledger",
    "studies.registry",
    "node.flare.worker",
    "analysis",
    "report",
    "node.dossier",
)
"""With what these import, a call begins at once."""

CALL = """#!{python} -IS
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({address!r})
socket.send_fds(s, [b"x"], [0, 1, 2])
s.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
s.shutdown(socket.SHUT_WR)
sys.exit(int(s.recv(16) or b"70"))
"""


def _answer(call: socket.socket) -> None:
    """In the fork: become the command that was called."""
    from polyclinic.cli import main

    _, streams, _, _ = socket.recv_fds(call, 1, 3)
    arguments, folder, environment = json.loads(call.makefile("rb").read())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    code: object = 1
    try:
        main(arguments)
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        call.sendall(str(int(code) if isinstance(code, int) else 0 if code is None else 1).encode())


def _kernels() -> None:
    """Load what a study of two modes runs: numba's own set-up takes half a second a process."""
    import polyclinic as pc

    pc.TRIP(rank=3, rounds=1).fit(pc.datasets.planted_counts(90, 8, 8, phenotypes=2, codes=(2, 2), sites=3, seed=0))


def serve(address: str) -> None:
    """Import what commands need, then fork for every call."""
    for name in NEEDED:
        import_module(f"polyclinic.{name}")
    _kernels()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        call, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):  # those who have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            try:
                _answer(call)
            finally:
                os._exit(0)
        call.close()


@contextlib.contextmanager
def command(folder: Path) -> Iterator[Path]:
    """A folder with a command ``polyclinic`` in it, for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    address = str(folder / "socket")
    path = folder / "polyclinic"
    path.write_text(CALL.format(python=sys.executable, address=address))
    path.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield folder
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    serve(sys.argv[1])
