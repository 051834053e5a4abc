"""A federation whose papers are in order: founded, joined by every hospital and pinned, without a process or a socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyclinic.engines.flare import coordination, membership
from polyclinic.engines.flare.folders import CoordinatorFolder, SiteFolder


def enrolled(
    coordinator: CoordinatorFolder,
    nodes: Mapping[str, Path],
    *,
    port: int = 9001,
    admin_port: int = 9002,
    enrol_port: int | None = None,
) -> dict[str, SiteFolder]:
    """Found the federation and let everybody join; ``nodes`` are the hospitals' node files by name."""
    invites = coordination.found(
        coordinator, list(nodes), host="localhost", port=port, admin_port=admin_port, enrol_port=enrol_port
    )
    sites = {name: SiteFolder.of(node) for name, node in nodes.items()}
    for site, invite in zip(sites.values(), invites):
        request, marks = membership.request(site, invite)
        approval, _ = coordination.approve(coordinator, request, marks["site"])
        membership.complete(site, approval)
    roster = coordination.roster(coordinator)
    for site in sites.values():
        membership.pin(site, roster)
    return sites
