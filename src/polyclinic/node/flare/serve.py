"""``python -m polyclinic.node.flare.serve server|client WORKSPACE NAME``: FLARE's own program, under our settings."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from polyclinic.node.flare.frames import limit_frames, unspoken

RETRY: Final = 5.0  # seconds before a client whose login failed tries again


def again(run: Callable[..., Any], pause: float = RETRY) -> Callable[..., Any]:
    """Return the client's main function, started anew whenever it fails.

    FLARE ends a client for good if the coordinator goes away while the client logs in. The same process begins again, so its
    recorded number stays right.
    """

    def until_it_ends(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except Exception as e:
            sys.stderr.write(f"{type(e).__name__}: {e}. The client tries again in {pause:g} s\n")
            sys.stderr.flush()
            time.sleep(pause)
            os.execv(sys.executable, sys.orig_argv)

    return until_it_ends


def main(kind: str, workspace: str, name: str) -> None:
    """Run FLARE's server or client in this process."""
    os.umask(0o077)
    limit_frames()
    unspoken()
    common = ["-m", workspace]
    if kind == "server":
        module = "nvflare.private.fed.app.server.server_train"
        options = ["-s", "fed_server.json", "--set", "secure_train=true", "org=polyclinic", "config_folder=config"]
    else:
        from nvflare.fuel.f3.mpm import MainProcessMonitor

        forever = MainProcessMonitor.run
        MainProcessMonitor.run = lambda main_func, **more: forever(main_func=again(main_func), **more)
        module = "nvflare.private.fed.app.client.client_train"
        options = ["-s", "fed_client.json", "--set", "secure_train=true", f"uid={name}", "org=polyclinic"]
        options += ["config_folder=config", "heart_beat_interval=2.0"]
    sys.argv = [module, *common, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
