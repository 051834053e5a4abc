"""A site that leaves tells the coordinator."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.enrolled import enrolled

from polyclinic.node.admission import membership
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import CoordinatorFolder, read_events, read_json
from polyclinic.node.enrolment.joining import JoiningPort
from polyclinic.node.enrolment.processes import free_port


def test_the_coordinator_knows_who_left(tmp_path: Path) -> None:
    import hospitals

    hub, port = CoordinatorFolder(tmp_path / "hub"), free_port()
    nodes = {n: hospitals.hospital(tmp_path / n, n) for n in hospitals.NAMES}
    sites = enrolled(hub, nodes, enrol_port=port)
    desk = JoiningPort(hub, "127.0.0.1", port)
    threading.Thread(target=desk.serve_forever, daemon=True).start()
    try:
        aside, untold = membership.leave(sites["south"])
        assert not untold and not list(aside.rglob("*.key"))
        assert read_json(hub.sites)["south"]["left"]
        assert sorted(hub.approved()) == ["east", "north"]
        assert "left" in [e["event"] for e in read_events(hub.events)]
    finally:
        desk.shutdown()
        desk.server_close()
    assert sorted(read_json(coordination.roster(hub))["sites"]) == ["east", "north"]
    _, untold = membership.leave(sites["east"])  # the port is closed: a person has to say it
    assert "does not answer" in untold
