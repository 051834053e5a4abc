"""Start and end the monitor beside a node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from polyclinic.config.service import MonitorRule, address
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import private
from polyclinic.node.enrolment.processes import MONITOR, Recorded, alive, end, forget, launch, port_open
from polyclinic.node.monitor.metrics import need_client


def begin(kind: Literal["site", "coordinator"], path: Path, home: Path, rule: MonitorRule | None) -> Recorded | None:
    """Start the monitor that the owner asked for; None where none was asked for: then no port is opened.

    It lives on when the node dies, and says so; a new start takes its place.
    """
    finish(home)
    if rule is None or (rule.listen is None and rule.notify is None):
        return None
    if rule.listen is not None:
        need_client()
    argv = ["-m", "polyclinic.node.monitor.serve", kind, str(path.resolve()), rule.listen or "", rule.notify or ""]
    private(home)
    return launch([*argv, str(rule.every)], env=dict(os.environ), log=home / "monitor.log", note=_note(home))


def need_port(home: Path, rule: MonitorRule | None) -> None:
    """Refuse to start beside another program on the monitor's port: it would answer for this node."""
    if (
        rule is not None
        and rule.listen is not None
        and not alive(Recorded.read(_note(home)))
        and port_open(*address(rule.listen))
    ):
        raise ConfigError(
            f"the monitor cannot start: another program answers on {rule.listen}",
            hint="choose another port: [monitor] listen in node.toml, --monitor at the coordinator",
        )


def finish(home: Path) -> bool:
    """End the monitor; whether one ran."""
    running = Recorded.read(_note(home))
    ended = bool(end([running])) if running is not None else False
    forget(_note(home))
    return ended


def _note(home: Path) -> Path:
    return home / MONITOR  # not among the node's own: those are ended when it starts
