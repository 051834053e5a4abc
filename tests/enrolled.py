"""A federation whose papers are in order: founded, joined by every hospital and pinned, without a process or a socket."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from polyclinic.node.admission import membership
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder

FOUNDED: dict[tuple[tuple[str, ...], int, int, int | None], tuple[Path, Path]] = {}
"""By the hospitals' names and the ports: the papers of a federation, and the coordinator's folder that they name."""


def enrolled(
    coordinator: CoordinatorFolder,
    nodes: Mapping[str, Path],
    *,
    port: int = 9001,
    admin_port: int = 9002,
    enrol_port: int | None = None,
) -> dict[str, SiteFolder]:
    """Found the federation and let everybody join; ``nodes`` are the hospitals' node files by name.

    Papers are made once for the same names and ports (keys and certificates take a second of processor), then copied.
    """
    sites = {name: SiteFolder.of(node) for name, node in nodes.items()}
    folders = {"coordinator": coordinator.path, **{f"at {name}": s.path for name, s in sites.items()}}
    key = (tuple(nodes), port, admin_port, enrol_port)
    if key in FOUNDED and not any(p.exists() for p in folders.values()):
        kept, told = FOUNDED[key]
        for name, folder in folders.items():
            shutil.copytree(kept / name, folder)
        _moved(folders, told.parent, coordinator.path.parent)
        return sites
    invites = coordination.found(
        coordinator, list(nodes), host="localhost", port=port, admin_port=admin_port, enrol_port=enrol_port
    )
    for site, invite in zip(sites.values(), invites):
        request, marks = membership.request(site, invite)
        approval, _ = coordination.approve(coordinator, request, marks["site"])
        membership.complete(site, approval)
    roster = coordination.roster(coordinator)
    for site in sites.values():
        membership.pin(site, roster)
    if enrol_port is None and all(p.is_relative_to(coordinator.path.parent) for p in folders.values()):
        kept = Path(tempfile.mkdtemp(prefix="enrolled-"))
        atexit.register(shutil.rmtree, kept, ignore_errors=True)
        for name, folder in folders.items():
            shutil.copytree(folder, kept / name)
        FOUNDED[key] = kept, coordinator.path
    return sites


def _moved(folders: Mapping[str, Path], before: Path, now: Path) -> None:
    """Write where a copied federation lies now into the few files that say so."""
    for folder in folders.values():
        for file in folder.rglob("*.json"):
            text = file.read_bytes()
            if str(before).encode() in text:
                file.write_bytes(text.replace(str(before).encode(), str(now).encode()))
