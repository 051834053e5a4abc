"""``python -m polyclinic.node.flare.serve server|client WORKSPACE NAME``: FLARE's own program, under our settings."""

from __future__ import annotations

import os
import runpy
import sys

from polyclinic.node.flare.frames import limit_frames, unspoken


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
        module = "nvflare.private.fed.app.client.client_train"
        options = ["-s", "fed_client.json", "--set", "secure_train=true", f"uid={name}", "org=polyclinic"]
        options += ["config_folder=config", "heart_beat_interval=2.0"]
    sys.argv = [module, *common, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
