"""``python -m polyclinic.engines.flare.serve server|client WORKSPACE NAME``: FLARE's own program, under our settings."""

from __future__ import annotations

import os
import runpy
import sys

__all__ = ["main"]


def main(kind: str, workspace: str, name: str) -> None:
    """Run FLARE's server or client in this process."""
    os.umask(0o077)
    _limit_frames()
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


def _limit_frames() -> None:
    """FLARE believes a length of up to 2 GB in front of a frame and allocates it (measured: 2.3 GB after 200 garbage
    connections to a loopback port). Ours are never longer than one message. Must come before FLARE's drivers are imported."""
    from nvflare.fuel.f3.drivers import net_utils

    from polyclinic.engines.flare.startup_files import FRAME

    net_utils.MAX_FRAME_SIZE = FRAME
    net_utils.MAX_PAYLOAD_SIZE = net_utils.MAX_FRAME_SIZE - 16 - net_utils.MAX_HEADER_SIZE


if __name__ == "__main__":
    main(*sys.argv[1:4])
